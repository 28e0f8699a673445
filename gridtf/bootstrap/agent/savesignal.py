"""The signal that some programs take for a request to save: sent only to processes that catch it."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from gridtf.bootstrap.system import System


class SaveSignal:
    """Sends the signal of a request for a checkpoint, once to each process that catches it: others would be ended.

    Args:
        name: The signal, ``USR1`` or ``USR2``; None: none is sent.
        system: This host.
    """

    def __init__(self, name: str | None, system: System) -> None:
        self._number = signal.Signals[f"SIG{name}"] if name else None
        self._system = system
        self._told: set[int] = set()

    def send(self, tasks: Iterable[int]) -> None:
        """Send it to processes that have not had it, also those that have begun to catch it since the last call.

        Args:
            tasks: The first process of each task.
        """
        if self._number is None:
            return
        catching = [pid for task in tasks for pid in self._system.catching(task, self._number)]
        new = [pid for pid in catching if pid not in self._told]
        self._told.update(new)
        self._system.signal(new, self._number)
