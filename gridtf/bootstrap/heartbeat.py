"""Signs of life: a record that is written again and again, a watch over that of another process, patience with disks.

Clocks of hosts differ, so a watch trusts no time stamp: it notes, by its own clock, when the counter last changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gridtf.bootstrap.system import System
from gridtf.errors import RunDirError
from gridtf.run.rundir import Record, may_pass, write_record

_FASTEST = 1.0
_SLOWEST = 10.0


def interval(hosts: int, timeout: float) -> float:
    """Seconds between two beats: slower with many hosts, to spare the file server, yet several within the timeout."""
    return min(max(_FASTEST, min(hosts / 64, _SLOWEST)), timeout / 4)


class Patience:
    """Bears with a run directory that refuses for a while, as on a full disk or while a file server restarts.

    Args:
        timeout: Seconds of silence after which the other side counts this process as lost. Patience ends a little
            earlier, so that the reason can still be told.
        system: This host.

    Attributes:
        trouble: The refusal that is borne at present.
    """

    def __init__(self, timeout: float, system: System) -> None:
        self._limit = 0.75 * timeout
        self._system = system
        self._since = 0.0
        self.trouble: RunDirError | None = None

    @contextmanager
    def trying(self) -> Iterator[None]:
        """For a block that reads or writes: a refusal ends the block.

        Raises:
            RunDirError: The refusal is permanent, or has lasted too long.
        """
        now = self._system.monotonic()
        try:
            yield
        except RunDirError as error:
            if not may_pass(error):
                raise
            if self.trouble is None:
                self._since = now
                self._system.log(f"{error.what}; trying again for {self._limit:g} s")
            self.trouble = error
            if now - self._since > self._limit:
                raise
        else:
            self.trouble = None


class Heartbeat:
    """Writes a record with a counter, at most once an interval unless it is asked to write now.

    Args:
        path: The file.
        record: Returns the record to write.
        hosts: How many hosts the job has.
        timeout: Seconds of silence after which the reader counts this process as lost.
        system: This host.
    """

    def __init__(self, path: Path, record: Callable[[], Record], hosts: int, timeout: float, system: System) -> None:
        self.interval = interval(hosts, timeout)
        self._path = path
        self._record = record
        self._system = system
        self._patience = Patience(timeout, system)
        self._count = 0
        self._last = float("-inf")

    @property
    def trouble(self) -> RunDirError | None:
        """Why the last beat could not be written, where that may pass."""
        return self._patience.trouble

    def beat(self, *, now: bool = False) -> bool:
        """Write if it is time, or now.

        Returns:
            Whether it has written.

        Raises:
            RunDirError: Writing is refused permanently.
        """
        if not now and self._system.monotonic() - self._last < self.interval * 0.9:
            return False
        self._last = self._system.monotonic()
        self._count += 1
        with self._patience.trying():
            record = {**self._record(), "beat": self._count, "time": self._system.time()}
            write_record(self._path, record, indent=None)
        return self.trouble is None


class Watch:
    """How long the heartbeat of another process has not been seen.

    Args:
        limit: Seconds of silence after which that process counts as lost.
        system: This host.
        excuse: Asked when the silence has lasted that long: whether it means nothing.
    """

    def __init__(self, limit: float, system: System, excuse: Callable[[], bool] = lambda: False) -> None:
        self.limit = limit
        self._excuse = excuse
        self._clock = system.monotonic
        self._count: object = None
        self._silence, self._looked = 0.0, self._clock()

    def heard(self, count: object) -> None:
        """Note the counter that the record now shows."""
        if count != self._count:
            self._count, self._silence, self._looked = count, 0.0, self._clock()

    def silence(self) -> float:
        """Seconds since the counter last changed, as observed here.

        A gap between two looks adds at most a third of the limit: this process may have been suspended, and the watched
        one with it.
        """
        now = self._clock()
        self._silence += min(now - self._looked, self.limit / 3)
        self._looked = now
        return self._silence

    def lost(self) -> bool:
        """Whether the silence has lasted too long, without an excuse."""
        if self.silence() <= self.limit:
            return False
        if self._excuse():
            self._silence = 0.0
            return False
        return True


def backoff(waited: float, waiting: int = 1) -> float:
    """Seconds until the next look for a file that has not come yet.

    A small part of the time waited, so that looking adds little to any wait. Many processes look 1000 times a second in
    all, and each at least four times, to spare the file server.

    Args:
        waited: Seconds waited so far.
        waiting: How many processes wait in this way.
    """
    return min(max(0.005, waited / 20, waiting / 1000), 0.25)
