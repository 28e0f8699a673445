"""Whether a folder can be one that all hosts see, as far as this host can tell."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from gridtf.errors import SpecError
from gridtf.schedulers.base import Plan

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


HINT = "choose a folder on a file system that all hosts share"


def check(plan: Plan, mounts: str | None = None) -> None:
    """Raises SpecError when the run directory or the working folder lies in this host's memory.

    mounts: what /proc/self/mounts says.
    """
    run_key = "run_dir" if plan.spec.run_dir else "run_root"
    for key, folder in (("chdir", Path(plan.spec.chdir or "/")), (run_key, plan.run_dir)):
        why = unseen(folder, mounts)
        if why:
            raise SpecError(key, f"{folder} cannot be seen by other hosts", why=why, hint=HINT)


def unseen(folder: Path, mounts: str | None = None) -> str:
    """Why other hosts cannot see a folder. Empty for one on a disk: others may mount it, nobody here knows."""
    text = Path("/proc/self/mounts").read_text(errors="replace") if mounts is None else mounts
    mount, kind = file_system(folder, text)
    return f"{mount} is a {kind}: it lies in the memory of this one" if kind in _MEMORY else ""


def file_system(folder: Path, mounts: str) -> tuple[str, str]:
    """(mount point, type) of the file system that a folder lies on. mounts: as in fstab(5)."""
    found = ("/", "")
    for line in mounts.splitlines():
        _, raw, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), raw)  # \040 is a space
        # of two mounts on the same folder the later one is seen
        if PurePosixPath(folder).is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found
