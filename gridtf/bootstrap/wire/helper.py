"""A process of gridtf's own beside an agent or a launcher, which does what must not keep those waiting."""

from __future__ import annotations

import socket
from collections.abc import Callable

from gridtf.bootstrap.system import System
from gridtf.host import processes

_MOST = 1 << 20  # bytes that are taken at once


class Helper:
    """Forks the process, notices its end, and says when it may be started again.

    Args:
        again: Seconds between two starts.
        system: This host.
        wakes: Whether this process gets a signal (SIGIO) when the other one has said something, or has ended.

    Attributes:
        pid: The id of the process; None while there is none.
        again: Seconds between two starts, which may be changed.
        begun: When the process was last started, by the monotonic clock.
    """

    def __init__(self, again: float, system: System, *, wakes: bool = True) -> None:
        self._system, self._wakes = system, wakes
        self._line: socket.socket | None = None  # its other end is the helper's
        self.pid: int | None = None
        self.again = again
        self.begun = float("-inf")

    @property
    def due(self) -> bool:
        """Whether there is no process, and one may be started."""
        return self.pid is None and self._system.monotonic() - self.begun >= self.again

    def start(self, work: Callable[[socket.socket], None]) -> bool:
        """Start the process.

        Args:
            work: What it does, with its end of a connection to this process. It keeps no other descriptor open that it
                does not need, and ends by itself when this process ends, or leaves its work in order.

        Returns:
            False where that is impossible, as with too many processes.
        """
        self.begun = self._system.monotonic()
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return False
        try:
            self.pid = self._system.fork(lambda: work(theirs))
        except OSError:
            ours.close()
            return False
        finally:
            theirs.close()
        ours.setblocking(False)
        if self._wakes:
            processes.signal_at_end_of(ours.fileno())
        self._line = ours
        return True

    def hear(self) -> bytes:
        """What the process has said since the last call; when it has ended, pid is None."""
        if self._line is None:
            return b""
        try:
            data = self._line.recv(_MOST)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.forget()
        return data

    def end(self, number: int) -> None:
        """End the process with a signal, and have nothing to do with it any more.

        Args:
            number: The signal.
        """
        if self.pid is not None:
            self._system.signal([self.pid], number)
        self.forget()

    def forget(self) -> None:
        """Close the connection; the process may still live."""
        if self._line is not None:
            self._line.close()
        self._line = self.pid = None
