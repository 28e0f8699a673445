"""Signs of life: a record that is written again and again, a watch over somebody else's, and patience with the disk.

Clocks of hosts differ, so a watch trusts no time stamp: it notes, by its own clock, when the counter last changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gridtf.errors import RunDirError
from gridtf.host import processes
from gridtf.run.rundir import Record, may_pass, write_record

_FASTEST = 1.0
_SLOWEST = 10.0


def interval(hosts: int, timeout: float) -> float:
    """Seconds between two beats: slower with many hosts, to spare the file server, yet several within the timeout."""
    return min(max(_FASTEST, min(hosts / 64, _SLOWEST)), timeout / 4)


class Patience:
    """Bears with a run directory that refuses for a while, as a full disk does or a file server that is restarted.

    timeout: seconds of silence after which the other side takes us for lost: we give up a little earlier, and say why.
    trouble: the refusal that is borne just now.
    """

    def __init__(self, timeout: float) -> None:
        self._limit = 0.75 * timeout
        self._since = 0.0
        self.trouble: RunDirError | None = None

    @contextmanager
    def trying(self) -> Iterator[None]:
        """To read or to write: ends what is in the block where that is refused, raises RunDirError when it is for
        good."""
        now = time.monotonic()
        try:
            yield
        except RunDirError as error:
            if not may_pass(error):
                raise
            if self.trouble is None:
                self._since = now
                processes.tell(f"{error.what}; trying again for {self._limit:g} s")
            self.trouble = error
            if now - self._since > self._limit:
                raise
        else:
            self.trouble = None


class Heartbeat:
    """Writes record() to path with a counter, at most once an interval unless it is asked to write now."""

    def __init__(self, path: Path, record: Callable[[], Record], hosts: int, timeout: float) -> None:
        self.interval = interval(hosts, timeout)
        self._path = path
        self._record = record
        self._patience = Patience(timeout)
        self._count = 0
        self._last = float("-inf")

    @property
    def trouble(self) -> RunDirError | None:
        """Why the last one could not be written, where that may pass."""
        return self._patience.trouble

    def beat(self, *, now: bool = False) -> bool:
        """Write if it is time, or now. True when it has written. Raises RunDirError when that is refused for good."""
        if not now and time.monotonic() - self._last < self.interval * 0.9:
            return False
        self._last = time.monotonic()
        self._count += 1
        with self._patience.trying():
            write_record(self._path, {**self._record(), "beat": self._count, "time": time.time()}, indent=None)
        return self.trouble is None


class Watch:
    """How long somebody has not been heard of. limit: seconds of silence after which it counts as lost.

    excuse: is asked when the silence has lasted so long whether it means nothing.
    """

    def __init__(self, limit: float, excuse: Callable[[], bool] = lambda: False) -> None:
        self.limit = limit
        self._excuse = excuse
        self._count: object = None
        self._silence, self._looked = 0.0, time.monotonic()

    def heard(self, count: object) -> None:
        """Note the counter that the record now shows."""
        if count != self._count:
            self._count, self._silence, self._looked = count, 0.0, time.monotonic()

    def silence(self) -> float:
        """Seconds since the counter last changed, as far as somebody has looked: we may have been stopped meanwhile,
        and those that we watch with us. Then less than half of the limit is counted."""
        now = time.monotonic()
        self._silence += min(now - self._looked, self.limit / 3)
        self._looked = now
        return self._silence

    def lost(self) -> bool:
        """Whether the silence has lasted too long, and there is no excuse for it."""
        if self.silence() <= self.limit:
            return False
        if self._excuse():
            self._silence = 0.0
            return False
        return True


def backoff(waited: float, lookers: int = 1) -> float:
    """Seconds until the next look for a file that has not come after so many seconds.

    A small part of what has been waited already, so that looking adds little to any wait; many lookers look 1000 times
    a second in all, and each at least four times, to spare the file server.
    """
    return min(max(0.005, waited / 20, lookers / 1000), 0.25)
