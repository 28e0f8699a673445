"""How fast a job comes on, by the steps and epochs that its tasks print. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridtf.observe.steps import Count, read
from gridtf.text import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ = 50  # lines, the last ones of those that come at once


class Pace:
    """Reads the lines of a job's tasks, and tells how far the one is that has come furthest."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}
        self._first: dict[str, tuple[float, float, float | None]] = {}  # task -> when, how far of how much
        self._furthest: tuple[float, float, str] = (0.0, 0.0, "")  # how far, when, the task

    def see(self, task: str, lines: Sequence[str], now: float) -> None:
        """Read lines.

        Args:
            task: Whose log they are of.
            lines: The lines, in their order.
            now: When they were printed, in seconds since the epoch.
        """
        found, before = read(lines[-_READ:]), self._counts.get(task, Count())
        if found is None:
            return
        if found.epoch is None:
            found = found.replace(epoch=before.epoch, epochs=before.epochs)
        self._counts[task] = found = found.replace(steps=found.steps or (before.steps if found.step is None else None))
        at, total = _place(found)
        _, begun, of_it = self._first.get(task, (0.0, float("inf"), None))
        if at < begun or total != of_it:  # the first one, another attempt, or another way to count
            self._first[task] = now, at, total
        if at >= self._furthest[0] or task == self._furthest[2]:
            self._furthest = at, now, task

    def words(self, now: float) -> str:
        """Such as ``step 120/500 (3.2/s, 2 min 0 s left)``; empty where no task has printed a step.

        Args:
            now: Seconds since the epoch.
        """
        at, then, task = self._furthest
        if not task:
            return ""
        count, (since, begun, total) = self._counts[task], self._first[task]
        rate = (at - begun) / (then - since) if then > since else 0.0
        more = [f"{rate:.3g}/s"] if rate and (count.steps or count.epoch is None) else []
        more += [f"{duration((total - at) / rate - (now - then))} left"] if rate and total else []
        shown = f"{'step ' if count.epoch is None else ''}{count}"
        return f"{shown} ({', '.join(more)})" if more else shown


def _place(count: Count) -> tuple[float, float | None]:
    """How far of how much, in steps, or else in epochs."""
    if count.epoch is None:
        return count.step or 0, count.steps
    each = count.steps or 1
    within = count.step or 0 if count.steps else 0
    return (count.epoch - 1) * each + within, count.epochs and count.epochs * each
