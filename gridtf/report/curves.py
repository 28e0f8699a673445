"""Curves of any length in little memory: thinned while they are read, with the extremes kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from gridtf.values import Value, grouped

_MOST = 240  # points of a curve: more than a chart has room for


class Point(Value):
    """What a curve was around one place.

    Attributes:
        x: The middle of the place.
        low: The smallest value there.
        middle: The mean, or of several curves the median of their means.
        high: The largest value there.
    """

    x: float
    low: float
    middle: float
    high: float


class Curve:
    """A curve that is thinned as it gets longer: places of equal width, each with its smallest and largest value.

    The width is a power of two times the first one, so that curves with the same first width have places in common.

    Args:
        width: The width of a place to begin with.

    Attributes:
        width: The width of a place now.
        last: The value that was added last; None before.
    """

    def __init__(self, width: float) -> None:
        self.width = width
        self.last: float | None = None
        self._places: dict[int, list[float]] = {}  # number -> smallest, largest, sum, count

    def add(self, x: float, y: float, span: Sequence[float] = ()) -> None:
        """Add a value.

        Args:
            x: Its place.
            y: The value.
            span: The smallest and the largest since the value before; empty: the value is all that is known.
        """
        self.last = y
        self._put(int(x // self.width), min((y, *span)), max((y, *span)), y, 1)
        while len(self._places) > _MOST:
            self.widen(self.width * 2)

    def widen(self, width: float) -> None:
        """Make the places wider.

        Args:
            width: The new width: that of now times a power of two.
        """
        factor = round(width / self.width)
        if factor > 1:
            old, self._places, self.width = self._places, {}, width
            for number, place in old.items():
                self._put(number // factor, *place)

    @property
    def low(self) -> float | None:
        """The smallest of all values; None without any."""
        return min((place[0] for place in self._places.values()), default=None)

    @property
    def high(self) -> float | None:
        """The largest of all values; None without any."""
        return max((place[1] for place in self._places.values()), default=None)

    def points(self) -> list[Point]:
        """The curve, from left to right."""
        return [Point(*place) for place in sorted(self.places())]

    def places(self) -> Iterator[tuple[float, float, float, float]]:
        """The same as tuples (x, low, middle, high), in any order."""
        for number, (low, high, total, count) in self._places.items():
            yield (number + 0.5) * self.width, low, total / count, high

    def _put(self, number: int, low: float, high: float, total: float, count: float) -> None:
        place = self._places.get(number)
        if place is None:
            self._places[number] = [low, high, total, count]
            return
        if low < place[0]:
            place[0] = low
        if high > place[1]:
            place[1] = high
        place[2] += total
        place[3] += count


def align(curves: Iterable[Curve]) -> None:
    """Give curves places of the same width."""
    known = list(curves)
    widest = max((curve.width for curve in known), default=0.0)
    for curve in known:
        curve.widen(widest)


def band(curves: Sequence[Curve]) -> list[Point]:
    """The median of several curves, between the smallest and the largest value of any of them."""
    align(curves)
    there = grouped((x, place) for curve in curves for x, *place in curve.places())
    made = []
    for x, found in sorted(there.items()):
        low, middle, high = zip(*found, strict=True)
        made.append(Point(x, min(low), median(middle), max(high)))
    return made


def unbroken(points: Sequence[Point], gap: float) -> Iterator[list[Point]]:
    """The parts of a curve between which nothing was recorded.

    Args:
        points: The curve.
        gap: The longest way from one point to the next of the same part.
    """
    part: list[Point] = []
    for point in points:
        if part and point.x - part[-1].x > gap:
            yield part
            part = []
        part.append(point)
    if part:
        yield part
