"""A host's view of the file system.

It has its own /tmp, /var/tmp, /run, /mnt and /dev/shm; the test bed's /etc; the shared folder as /mnt/shared; and
folders shared at their real paths, such as this checkout, even below a folder that is hidden or that ordinary users
cannot enter. The real file system is not changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import kernel
from .groups import ROOT

OWN = {"/tmp": "1777", "/var/tmp": "1777", "/run": "755", "/mnt": "755", "/dev/shm": "1777"}  # noqa: S108
SHARED = "/mnt/shared"
REAL = "/run/testbed/real"  # the shared folder below its laggy view, for root only
DISK = "/run/testbed/disk"
LOG = "/run/testbed/log"


@dataclass(frozen=True)
class View:
    """The folders that a host sees.

    Attributes:
        binds: (real path, path on the host) pairs.
        shares: Folders seen at their real paths.
        groups: (real path, path on the host) pairs of control groups.
    """

    binds: tuple[tuple[Path, str], ...]
    shares: tuple[str, ...] = ()
    groups: tuple[tuple[Path, str], ...] = ()


def enterable(folder: Path) -> bool:
    """Whether all users may enter this folder."""
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def hidden(shares: Iterable[str], enterable: Callable[[Path], bool] = enterable) -> list[str]:
    """The folders that are empty on a host: those of OWN, and the topmost ones that ordinary users cannot enter."""
    found = list(OWN)
    for share in shares:
        for folder in reversed(Path(share).parents):
            if below(str(folder), found):
                break
            if not enterable(folder):
                found.append(str(folder))
                break
    return found


def below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def build(view: View) -> None:
    """Build the view in the mount namespace of the caller, the first process of a pid namespace."""
    kernel.keep_mounts_inside()
    kernel.mount("proc", "/proc", "proc")
    masks = hidden(view.shares)
    shares = sorted(share for share in view.shares if below(share, masks))
    places = [*((Path(share), share) for share in shares), *view.binds]
    opened = [(_open(real), real.is_dir(), target) for real, target in places]
    groups = view.groups or (((ROOT, str(ROOT)),) if ROOT.exists() else ())
    opened += [(_open(real), True, target) for real, target in groups]
    kernel.mount("sysfs", "/sys", "sysfs")  # that of the old network namespace shows the wrong interfaces
    if view.groups:
        kernel.mount("tmpfs", ROOT, "tmpfs", "mode=755")
    for mask in masks:
        kernel.mount("tmpfs", mask, "tmpfs", f"mode={OWN.get(mask, '755')}")
    for descriptor, is_folder, target in opened:
        _make(Path(target), is_folder)
        kernel.bind(descriptor, target)
        os.close(descriptor)
    Path("/run/lock").mkdir(mode=0o1777)
    Path("/run/lock").chmod(0o1777)


def laggy_command(options: Sequence[str]) -> list[str]:
    return ["bindfs", "-f", "-o", ",".join(options), REAL + "/shared", SHARED]


def _open(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _make(target: Path, is_folder: bool) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir() if is_folder else target.touch()
