"""Requests of a user to a running job: a child process of the launcher finds them in the run directory.

It looks in the launcher's place, since a file system that hangs must not stop the launcher.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.rundir import EXEC, REQUEST, Attempt, Record, listdir, read_record, write_record

_FOLDER_PAUSE = 2.0  # seconds between two looks; each is one listing of a folder that does not grow
_RESTART_PAUSE = 30.0  # seconds from one start of the process to the next, should it end


class Requests:
    """Sees requests to an attempt: for its stacks, and to run a command. Each one ends a pause of the launcher.

    Args:
        nonce: Its nonce.
        system: This host.
    """

    def __init__(self, attempt: Attempt, nonce: str, system: System) -> None:
        self._attempt, self._nonce, self._system = attempt, nonce, system
        self._heard = b""
        self._helper = Helper(_RESTART_PAUSE, system)

    def look(self) -> list[Record]:
        """Returns the requests that have come since the last call: recordtypes.StacksRequest or ExecRequest."""
        if self._helper.due:
            self._helper.start(self._watch)
            self._heard = b""
        *lines, self._heard = (self._heard + self._helper.hear()).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """End the process."""
        self._helper.end(signal.SIGKILL)

    def _watch(self, launcher: socket.socket) -> None:
        processes.die_with_parent(self._system.pid, signal.SIGKILL)
        processes.unblock_signals()
        processes.keep_only([launcher.fileno()])  # the launcher's connections must end with it, not with this process
        while True:
            with contextlib.suppress(GridtfError, OSError):
                for name in listdir(self._attempt.path):
                    if name.endswith(REQUEST):
                        self._pass_on(name, launcher)
            time.sleep(_FOLDER_PAUSE)

    def _pass_on(self, name: str, launcher: socket.socket) -> None:
        path, is_command = self._attempt.path / name, name.startswith(EXEC)
        with contextlib.suppress(GridtfError, OSError):  # another user's, which is no reason to leave others waiting
            kind: recordtypes.Kind = recordtypes.ExecRequest if is_command else recordtypes.StacksRequest
            record = read_record(path, kind, nonce=self._nonce, listed=True, own=True)
            path.unlink()
            if record is not None and not (is_command and self._forbidden(record)):
                launcher.sendall(json.dumps(record).encode() + b"\n")

    def _forbidden(self, request: Record) -> bool:
        """Whether the site forbids it; then it is answered."""
        from gridtf.jobspec.config import forbidden_by_site

        why = forbidden_by_site("exec", self._system.environ)
        if why:
            _, answer = self._attempt.exec_files(request["id"])
            write_record(answer, {"nonce": self._nonce, "error": f"the site forbids it: {why}"}, mode=0o600)
        return bool(why)
