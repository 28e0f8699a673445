"""The limit on open files, ulimit -n: enough of them, or a clear error before anything else fails for want of one."""

from __future__ import annotations

import os

from gridtf.errors import GridtfError
from gridtf.host import processes

_OWN = 32  # what Python, srun or qrsh have open themselves


def need_open_files(count: int) -> None:
    """Make sure that this process, and those that it starts, can have so many files open beside their own. Raises
    GridtfError."""
    needed = _OWN + count
    allowed = processes.allow_open_files(needed)
    if allowed < needed:
        raise GridtfError(
            f"about {needed} files have to be open at once on host {os.uname().nodename}, where {allowed} may be",
            hint="raise it with `ulimit -n 1024`, in the set-up lines or in what starts the job, or ask your site",
        )
