"""A clock that advances only while code sleeps."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Stands in for time.monotonic and time.sleep; see the fixture ``clock``.

    Attributes:
        now: The time in seconds.
        slept: How long each sleep was.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._events: list[tuple[float, Callable[[], object]]] = []

    def at(self, when: float, event: Callable[[], object]) -> None:
        """Call ``event`` when the clock reaches this time."""
        self._events.append((when, event))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert len(self.slept) < 100_000, "it never ends"
        self.now += seconds
        happened = [one for one in self._events if one[0] <= self.now]
        self._events = [one for one in self._events if one[0] > self.now]
        for _, event in happened:
            event()
