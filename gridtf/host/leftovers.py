"""What processes may leave behind on a host when they are killed, beside other processes: files in shared memory."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only looked at


def shared_memory(folder: Path = _SHARED_MEMORY) -> dict[str, int]:
    """This user's files in shared memory (shm_overview(7)).

    Args:
        folder: Where they are.

    Returns:
        Path -> bytes.
    """
    found = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and entry.is_file(follow_symlinks=False):
                    found[entry.path] = status.st_size
    return found


def unused(paths: Collection[str]) -> set[str]:
    """Those of these files that no process of this user has open or mapped: its other jobs may use some of them.

    Args:
        paths: The files.
    """
    left = set(paths)
    for process in Path("/proc").glob("[0-9]*") if left else ():
        with suppress(OSError):
            if process.stat().st_uid != os.geteuid():
                continue
            maps = (process / "maps").read_text(errors="replace")
            left = {path for path in left if f" {path}\n" not in maps}
            left -= {str(descriptor.readlink()) for descriptor in (process / "fd").iterdir()}
    return left
