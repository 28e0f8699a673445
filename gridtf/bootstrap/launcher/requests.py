"""Requests of a user to a running job: a child process of the launcher finds them in the run directory.

It looks in the launcher's place, since a file system that hangs must not stop the launcher.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, listdir, read_record

_FOLDER_PAUSE = 2.0  # seconds between two looks; each is one listing of a folder that does not grow
_RESTART_PAUSE = 30.0  # seconds from one start of the process to the next, should it end


class Requests:
    """Sees requests for the stacks of an attempt. Each one ends a pause of the launcher.

    Args:
        nonce: Its nonce.
        system: This host.
    """

    def __init__(self, attempt: Attempt, nonce: str, system: System) -> None:
        self._attempt, self._nonce, self._parent = attempt, nonce, system.pid
        self._helper = Helper(_RESTART_PAUSE, system)

    def look(self) -> str:
        """Returns the id of the last request that has come since the last call; empty without one."""
        if self._helper.due:
            self._helper.start(self._watch)
        ids = self._helper.hear().decode().split()  # several, if the launcher was stopped meanwhile
        return ids[-1] if ids else ""

    def end(self) -> None:
        """End the process."""
        self._helper.end(signal.SIGKILL)

    def _watch(self, launcher: socket.socket) -> None:
        processes.die_with_parent(self._parent, signal.SIGKILL)
        processes.unblock_signals()
        processes.keep_only([launcher.fileno()])  # the launcher's connections must end with it, not with this process
        path = self._attempt.stacks_request
        while True:
            with contextlib.suppress(GridtfError, OSError):
                if path.name in listdir(self._attempt.path):
                    record = read_record(path, recordtypes.StacksRequest, nonce=self._nonce, listed=True, own=True)
                    path.unlink()
                    if record is not None:
                        launcher.sendall(f"{record['id']}\n".encode())
            time.sleep(_FOLDER_PAUSE)
