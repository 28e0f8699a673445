"""Heartbeats: how often they are given, a watch over those of another process, and the pauses of one that waits.

The clocks of hosts differ, so a watch uses no time stamp: it notes, by its own clock, when it last heard something.
"""

from __future__ import annotations

from collections.abc import Callable

from gridtf.bootstrap.system import System

_FASTEST = 2.0
_SLOWEST = 10.0


def interval(hosts: int, timeout: float) -> float:
    """The time between two signs of life: longer with many hosts, but at most a quarter of the timeout.

    Args:
        hosts: The number of hosts of the job.
        timeout: Seconds of silence after which a process counts as lost.

    Returns:
        Seconds.
    """
    return min(max(_FASTEST, min(hosts / 64, _SLOWEST)), timeout / 4)


class Watch:
    """Measures for how long another process has given no sign of life.

    Args:
        limit: Seconds of silence after which that process counts as lost.
        system: This host.
        excuse: Called after such a silence: whether it means nothing, as in a suspended job.
    """

    def __init__(self, limit: float, system: System, excuse: Callable[[], bool] = lambda: False) -> None:
        self.limit = limit
        self._excuse = excuse
        self._clock = system.monotonic
        self._silence, self._looked = 0.0, self._clock()

    def heard(self) -> None:
        """Note a sign of life."""
        self._silence, self._looked = 0.0, self._clock()

    def silence(self) -> float:
        """Seconds since the last sign of life, as observed by this process.

        A gap between two calls adds at most a third of the limit: this process may have been suspended, together with
        the other one. After a gap above the limit, it has, and the other one may go on later: it gets the whole limit
        again, unless it has been silent for most of it before, lest a job that is suspended again and again never ends.
        """
        now = self._clock()
        gap, self._looked = now - self._looked, now
        suspended = gap > self.limit and self._silence < self.limit / 2
        self._silence = 0.0 if suspended else self._silence + min(gap, self.limit / 3)
        return self._silence

    def lost(self) -> bool:
        """Whether the silence is longer than the limit, without an excuse."""
        if self.silence() <= self.limit:
            return False
        if self._excuse():
            self._silence = 0.0
            return False
        return True


def backoff(waited: float) -> float:
    """The time until the next look for a file or a message that is not there yet.

    It is a small part of the time waited so far, so that it adds little to any wait.

    Args:
        waited: Seconds waited so far.

    Returns:
        Seconds, from 0.005 to 0.25.
    """
    return min(max(0.005, waited / 20), 0.25)
