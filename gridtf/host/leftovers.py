"""What processes may leave behind on a host when they are killed, beside other processes: files in shared memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gridtf import files

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only looked at
_MOMENT = 0.2  # seconds
# What MPICH, Open MPI 5 and 4, Intel MPI, UCX and PSM call their files.
_OF_MPI = re.compile(r"(mpich_shm_|sm_segment\.|vader_segment\.|Intel_MPI_|ucx_shm_posix_|psm[23]?_shm)[^/]*")


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

    They are looked at twice: a job that has just made one may not have it open yet, or remove it at once.

    Args:
        paths: The files.
    """
    left = _unused(paths)
    if left:
        time.sleep(_MOMENT)
    return {path for path in _unused(left) if files.exists(path)}


def _unused(paths: Collection[str]) -> set[str]:
    left = set(paths)
    for process in Path("/proc").glob("[0-9]*") if left else ():
        with suppress(OSError):
            if process.stat().st_uid != os.geteuid():
                continue
            for descriptor in (process / "fd").iterdir():  # first: a file may be mapped, and closed then
                with suppress(OSError):  # it is closed
                    left.discard(str(descriptor.readlink()))
            maps = (process / "maps").read_text(errors="replace")
            left = {path for path in left if f" {path}\n" not in maps}
    return left


def remove_of_mpi(paths: Collection[str]) -> set[str]:
    """Remove those of these files that an MPI has made: its processes that are killed leave their segments.

    Args:
        paths: Files that nobody uses.

    Returns:
        The others.
    """
    of_mpi = {path for path in paths if _OF_MPI.fullmatch(Path(path).name)}
    for path in of_mpi:
        Path(path).unlink(missing_ok=True)
    return {*paths} - of_mpi
