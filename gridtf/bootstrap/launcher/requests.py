"""Requests of a user to a running job: a child process of the launcher finds them in the run directory.

It looks in the launcher's place, since a file system that hangs must not stop the launcher.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, listdir, read_record

_LOOKING = 2.0  # seconds between two looks; each is one listing of a folder that does not grow
_AGAIN = 30.0  # seconds after which a process that has ended without a request is replaced


class Requests:
    """Sees requests for the stacks of an attempt. Each one's end is a SIGCHLD, which ends a pause of the launcher.

    Args:
        attempt: The attempt.
        nonce: Its nonce.
        system: This host.
    """

    def __init__(self, attempt: Attempt, nonce: str, system: System) -> None:
        self._attempt, self._nonce, self._system = attempt, nonce, system
        self._pid: int | None = None
        self._pipe = -1
        self._due = float("-inf")  # when the next process may be started

    def look(self) -> str:
        """Returns the id of a request that has come since the last call; empty without one."""
        if self._pid is None:
            if self._system.monotonic() >= self._due:
                self._begin()
            return ""
        try:
            ended, _ = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # something else has reaped it
            ended = self._pid
        if not ended:
            return ""
        request = os.read(self._pipe, 64).decode()
        self._forget()
        self._due = float("-inf") if request else self._system.monotonic() + _AGAIN
        return request

    def end(self) -> None:
        """End the process."""
        if self._pid is not None:
            self._system.signal([self._pid], signal.SIGKILL)
            self._forget()

    def _forget(self) -> None:
        os.close(self._pipe)
        self._pid = None

    def _begin(self) -> None:
        self._due = self._system.monotonic() + _AGAIN
        try:
            self._pipe, write = os.pipe()
        except OSError:
            return

        def watch() -> None:
            processes.die_with_parent(self._system.pid, signal.SIGKILL)
            processes.unblock_signals()
            processes.keep_only([write])  # the launcher's connections must end with it, not with this process
            _watch(self._attempt, self._nonce, write)

        try:
            self._pid = self._system.fork(watch)
        except OSError:  # no more processes
            os.close(self._pipe)
        os.close(write)


def _watch(attempt: Attempt, nonce: str, write: int) -> None:
    """Wait for a request, remove it and write its id to a pipe."""
    path = attempt.stacks_request
    while True:
        with contextlib.suppress(GridtfError, OSError):
            if path.name in listdir(attempt.path):
                record = read_record(path, recordtypes.StacksRequest, nonce=nonce, listed=True, own=True)
                path.unlink()
                if record is not None:
                    os.write(write, record["id"].encode())
                    return
        time.sleep(_LOOKING)
