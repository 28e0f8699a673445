"""Requests of a user to a running job: a child process of the launcher finds them in the run directory.

It looks in the launcher's place, since a file system that hangs must not stop the launcher.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Sequence

from gridtf.bootstrap.launcher.api import Feature
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.run.rundir import REQUEST, Attempt, Record, listdir, read_record

_FOLDER_PAUSE = 2.0  # seconds between two looks; each is one listing of a folder that does not grow
_RESTART_PAUSE = 30.0  # seconds from one start of the process to the next, should it end


class Requests:
    """Sees requests to an attempt, which features take. Each one ends a pause of the launcher.

    Args:
        nonce: Its nonce.
        system: This host.
        features: Those of the job.
    """

    def __init__(self, attempt: Attempt, nonce: str, system: System, features: Sequence[Feature]) -> None:
        self._attempt, self._nonce, self._system, self._features = attempt, nonce, system, features
        self._heard = b""
        self._helper = Helper(_RESTART_PAUSE, system)

    def look(self) -> list[tuple[str, Record]]:
        """Returns the requests that have come since the last call: what the name of its file begins with, and it."""
        if self._helper.due:
            self._helper.start(self._watch)
            self._heard = b""
        *lines, self._heard = (self._heard + self._helper.hear()).split(b"\n")
        return [(asks, request) for asks, request in map(json.loads, lines)]

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
        takers = {asks: (kind, one) for one in self._features for asks, kind in one.asks.items()}
        asks = next((asks for asks in takers if name.startswith(asks)), "")
        if not asks:
            return
        (kind, one), path = takers[asks], self._attempt.path / name
        with contextlib.suppress(GridtfError, OSError):  # another user's, which is no reason to leave others waiting
            record = read_record(path, kind, nonce=self._nonce, listed=True, own=True)
            path.unlink()
            if record is not None and (admitted := one.admitted(record)) is not None:
                launcher.sendall(json.dumps([asks, admitted]).encode() + b"\n")
