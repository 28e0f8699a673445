"""Heartbeats: a record that is written periodically, a watch over that of another process, patience with file systems.

The clocks of hosts differ, so a watch uses no time stamp: it notes, by its own clock, when the counter last changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gridtf.bootstrap.system import System
from gridtf.errors import RunDirError
from gridtf.run.rundir import Record, may_pass, write_record

_FASTEST = 1.0
_SLOWEST = 10.0


def interval(hosts: int, timeout: float) -> float:
    """The time between two heartbeats: longer with many hosts, to spare the file server, but at most a quarter of the
    timeout.

    Args:
        hosts: The number of hosts of the job.
        timeout: Seconds of silence after which a process counts as lost.

    Returns:
        Seconds.
    """
    return min(max(_FASTEST, min(hosts / 64, _SLOWEST)), timeout / 4)


class Patience:
    """Tolerates a run directory that fails temporarily, such as on a full disk or while a file server restarts.

    Args:
        timeout: Seconds of silence after which the other side counts this process as lost. Patience ends a little
            earlier, so that the reason can still be reported.
        system: This host.

    Attributes:
        trouble: The error that is being tolerated; None if there is none.
    """

    def __init__(self, timeout: float, system: System) -> None:
        self._limit = 0.75 * timeout
        self._system = system
        self._since = 0.0
        self.trouble: RunDirError | None = None

    @contextmanager
    def trying(self) -> Iterator[None]:
        """A context for reads or writes of the run directory: a temporary error ends the block and is kept in trouble.

        Raises:
            RunDirError: The error is permanent, or has lasted too long.
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
    """Writes a record with a counter, at most once per interval.

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
        """Why the last heartbeat could not be written, where the error may be temporary; else None."""
        return self._patience.trouble

    def beat(self, *, now: bool = False) -> bool:
        """Write the record if the interval is over.

        Args:
            now: Write it in any case.

        Returns:
            Whether the record was written.

        Raises:
            RunDirError: The record can permanently not be written.
        """
        if not now and self._system.monotonic() - self._last < self.interval * 0.9:
            return False
        self._last = self._system.monotonic()
        self._count += 1
        with self._patience.trying():
            record = {**self._record(), "beat": self._count, "time": self._system.time()}
            write_record(self._path, record, indent=None)
        return self.trouble is None

    def beat_if_possible(self, *, now: bool = False) -> None:
        """As beat, where a file system that cannot be written must not matter, such as in a tear-down."""
        with suppress(RunDirError):
            self.beat(now=now)


class Watch:
    """Measures for how long another process has written no heartbeat.

    Args:
        limit: Seconds of silence after which that process counts as lost.
        system: This host.
        excuse: Called after such a silence: whether it means nothing, as in a suspended job.
    """

    def __init__(self, limit: float, system: System, excuse: Callable[[], bool] = lambda: False) -> None:
        self.limit = limit
        self._excuse = excuse
        self._clock = system.monotonic
        self._count: object = None
        self._silence, self._looked = 0.0, self._clock()

    def heard(self, count: object) -> None:
        """Note the counter of the record that was read last."""
        if count != self._count:
            self._count, self._silence, self._looked = count, 0.0, self._clock()

    def silence(self) -> float:
        """Seconds since the counter last changed, as observed by this process.

        A gap between two calls adds at most a third of the limit: this process may have been suspended, together with
        the other one.
        """
        now = self._clock()
        self._silence += min(now - self._looked, self.limit / 3)
        self._looked = now
        return self._silence

    def lost(self) -> bool:
        """Whether the silence is longer than the limit, without an excuse."""
        if self.silence() <= self.limit:
            return False
        if self._excuse():
            self._silence = 0.0
            return False
        return True


def backoff(waited: float, waiting: int = 1) -> float:
    """The time until the next check for a file that does not exist yet.

    It is a small part of the time waited so far, so that it adds little to any wait. To spare the file server, all
    processes together check 1000 times a second, but each at least four times.

    Args:
        waited: Seconds waited so far.
        waiting: The number of processes that wait in this way.

    Returns:
        Seconds, from 0.005 to 0.25.
    """
    return min(max(0.005, waited / 20, waiting / 1000), 0.25)
