"""The file systems that folders lie on, and whether other hosts see these."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from gridtf.files import OF_A_HOST

MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})  # file systems in the memory of a host
SHARED_HINT = "choose a folder on a file system that all hosts share"


def not_shared(folder: Path, mounts: str | None = None) -> str:
    """Explain why other hosts cannot see a folder.

    Args:
        folder: Absolute path.
        mounts: Content of /proc/self/mounts; None: read that file.

    Returns:
        One line; empty for a folder on a disk or network file system, which other hosts may mount.
    """
    mount, kind = file_system(folder, own_mounts() if mounts is None else mounts)
    return f"{mount} is a {kind}, which lies in the memory of this host" if kind in MEMORY else ""


def of_one_host(folder: Path, mounts: str | None = None) -> str:
    """Explain why each host has a folder of that name for itself: by not_shared, and by where hosts have theirs.

    Args:
        folder: As not_shared.
        mounts: As not_shared.

    Returns:
        As not_shared.
    """
    place = next((place for place in OF_A_HOST if folder.is_relative_to(place)), "")
    return not_shared(folder, mounts) or (f"each host has its own {place}" if place else "")


def own_mounts() -> str:
    """Content of /proc/self/mounts."""
    return Path("/proc/self/mounts").read_text(errors="replace")


def file_system(folder: Path, mounts: str) -> tuple[str, str]:
    """Find the file system that a folder lies on.

    Args:
        folder: Absolute path.
        mounts: Content of /proc/self/mounts, in the format of fstab(5).

    Returns:
        (mount point, type), such as ("/home", "nfs4").
    """
    nearest = ("/", "")
    for line in mounts.splitlines():
        _, raw, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), raw)  # \040 is a space
        # of two mounts on the same folder, the later one hides the other
        if PurePosixPath(folder).is_relative_to(point) and len(point) >= len(nearest[0]):
            nearest = (point, kind)
    return nearest
