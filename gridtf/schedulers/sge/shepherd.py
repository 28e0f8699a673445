"""The sge_shepherd of a job's script. When it is killed Grid Engine takes the job for ended, and may start it again."""

from __future__ import annotations

import os
import time

from gridtf.errors import GridtfError
from gridtf.host import procfs
from gridtf.schedulers.base import AgentEnd

_NAME = "sge_shepherd"
_EVERY = 0.5  # seconds between two looks


def above() -> int | None:
    """The pid of the shepherd that this process has been started by, directly or not; None without one."""
    return next((pid for pid in procfs.ancestors(os.getpid()) if procfs.name(pid) == _NAME), None)


class Shepherd:
    """An AgentHandle that has no agent: it ends when the job script no longer has its shepherd. host: where we are."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._pid = above()
        self._told = False
        self._looked = float("-inf")

    def poll(self) -> AgentEnd | None:
        if self._told:
            return AgentEnd(0, None)
        if self._pid is None or time.monotonic() - self._looked < _EVERY:
            return None
        self._looked = time.monotonic()
        if self._pid in procfs.ancestors(os.getpid()):
            return None
        what = f"the job script on host {self._host}, or the {_NAME} that had started it, was killed"
        return AgentEnd(1, None, (), GridtfError(what, hint="by hand? Grid Engine may start the job once more"))

    def terminate(self) -> None:
        self._told = True

    def kill(self) -> None:
        self._told = True
