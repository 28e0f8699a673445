"""Lines that several tasks print alike within a moment, as one. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridtf.observe.logs import Source

_MOMENT = 1.0  # seconds
_MOST = 1000  # lines that wait; more of them come within a moment only where nobody could read them


class Folded:
    """A line, and the tasks that have printed it.

    Attributes:
        line: The line.
        time: When the first of them printed it, in seconds since the epoch.
        sources: The tasks.
    """

    def __init__(self, number: int, line: str, time: float) -> None:
        self.number = number  # in the order of the lines
        self.line = line
        self.time = time
        self.sources: list[Source] = []


class Folding:
    """Takes the lines of all logs, and gives them back in the same order, of each log as well, after a moment."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Folded, None] = OrderedDict()
        self._alike: dict[str, list[Folded]] = {}  # line -> those that wait, in their order
        self._latest: dict[str, int] = {}  # task -> the number of its latest line
        self._count = 0

    def add(self, source: Source, line: str, time: float) -> None:
        """Take a line.

        Args:
            source: The task that has printed it.
            line: The line.
            time: When, in seconds since the epoch.
        """
        self._count += 1
        alike, latest = self._alike.setdefault(line, []), self._latest.get(source.name, -1)
        at = bisect_right(alike, latest, key=lambda one: one.number)
        if at < len(alike):
            one = alike[at]
        elif alike and alike[-1].number < latest and self._ends(alike[-1]):
            one = alike[-1]  # it can as well come now, behind other lines of this task
            self._waiting.move_to_end(one)
            one.number = self._count
            self._latest.update((other.name, one.number) for other in one.sources)
        else:
            one = Folded(self._count, line, time)
            alike.append(one)
            self._waiting[one] = None
        one.sources.append(source)
        self._latest[source.name] = one.number

    def _ends(self, one: Folded) -> bool:
        """Whether no task has printed anything after this line."""
        return all(self._latest[source.name] == one.number for source in one.sources)

    def ready(self, now: float) -> Iterator[Folded]:
        """The lines that were printed more than a moment before ``now`` (seconds since the epoch)."""
        while self._waiting and (next(iter(self._waiting)).time < now - _MOMENT or len(self._waiting) > _MOST):
            one, _ = self._waiting.popitem(last=False)
            alike = self._alike[one.line]
            del alike[0]
            if not alike:
                del self._alike[one.line]
            yield one
