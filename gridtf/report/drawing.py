"""Geometry of the pictures of a report: axes, ticks, and paths of SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from gridtf.report.curves import Point
from gridtf.values import Value

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_TINY = 1e-305  # below it, floats lose digits
_WAIT = 0.12  # the largest part of an axis that one wait takes


class Tick(Value):
    """A mark at an axis.

    Attributes:
        at: Where, in units of the picture.
        label: What is written there.
    """

    at: float
    label: str


class Piece(Value):
    """A part of a time axis.

    Attributes:
        begin: Seconds since the epoch.
        end: Seconds since the epoch.
        left: Where it begins, in units of the picture.
        right: Where it ends.
        short: Whether it is a wait that is drawn shorter than its time.
    """

    begin: float
    end: float
    left: float
    right: float
    short: bool = False


class TimeAxis(Value):
    """A time axis on which long waits are drawn short.

    Attributes:
        pieces: Its parts, from left to right.
        zero: The time that its labels count from, in seconds since the epoch.
    """

    pieces: tuple[Piece, ...]
    zero: float

    def at(self, time: float) -> float:
        """Where a time is, in units of the picture; one beyond an end is at that end."""
        for piece in self.pieces:
            if time <= piece.end:
                part = (time - piece.begin) / (piece.end - piece.begin)
                return piece.left + max(part, 0.0) * (piece.right - piece.left)
        return self.pieces[-1].right

    def ticks(self, apart: float) -> list[Tick]:
        """Marks at round times.

        Args:
            apart: The least distance between two of them, in units of the picture.
        """
        full = [piece for piece in self.pieces if not piece.short]
        seconds = sum(piece.end - piece.begin for piece in full)
        width = sum(piece.right - piece.left for piece in full)
        most = max(1.0, width / apart)
        step = next((step for step in _STEPS if seconds / step <= most), 0) or _STEPS[-1] * math.ceil(
            seconds / most / _STEPS[-1]
        )
        made: list[Tick] = []
        for piece in full:
            first = math.ceil((piece.begin - self.zero) / step)
            for number in range(first, math.floor((piece.end - self.zero) / step) + 1):
                at = self.at(self.zero + number * step)
                if not made or at - made[-1].at >= apart * 0.6:
                    made.append(Tick(at, elapsed(number * step)))
        return made


def time_axis(
    begin: float, end: float, waits: Iterable[tuple[float, float]], left: float, right: float, zero: float | None = None
) -> TimeAxis:
    """Make a time axis.

    Args:
        begin: Its first time, in seconds since the epoch.
        end: Its last time.
        waits: From when to when nothing happened, in their order.
        left: Where it begins, in units of the picture.
        right: Where it ends.
        zero: As in TimeAxis; None: its first time.
    """
    end = max(end, begin + 1)
    inside = [(max(low, begin), min(high, end)) for low, high in waits if min(high, end) > max(low, begin)]
    busy = (end - begin) - sum(high - low for low, high in inside)
    most = busy * _WAIT if busy > 0 else end - begin
    parts: list[tuple[float, float, float]] = []  # from, to, length as drawn
    at = begin
    for low, high in inside:
        if low > at:
            parts.append((at, low, low - at))
        parts.append((low, high, min(high - low, most)))
        at = high
    if end > at:
        parts.append((at, end, end - at))
    scale = (right - left) / sum(length for _, _, length in parts)
    pieces, x = [], left
    for low, high, length in parts:
        pieces.append(Piece(low, high, x, x + length * scale, length < high - low))
        x += length * scale
    return TimeAxis(tuple(pieces), begin if zero is None else zero)


def elapsed(seconds: float) -> str:
    """Write a time as labels have it: ``0``, ``45 s``, ``1 h 30 min``."""
    rest, parts = round(seconds), []
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2]) or "0"


def scale(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers of a value axis: the first is at most ``low``, the last at least ``high``.

    Args:
        low: The smallest value.
        high: The largest value.
        count: About how many there shall be.
    """
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _TINY):  # as good as constant
        high = low + (abs(low) if abs(low) > _TINY else 1.0)
    rough = high / count - low / count  # the difference itself may be too large for a float
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 2 - math.floor(math.log10(step))  # that a multiple of the step has behind its point
    return [round(number * step, digits) for number in range(first, last + 1)]


def log_scale(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers of a logarithmic value axis, as ``scale`` has those of another one.

    Args:
        low: The smallest value, above 0.
        high: The largest value, at least twice that.
        count: About how many steps there shall be at most, of more than two powers of ten.
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if last - first > 2:
        step = math.ceil((last - first) / count)
        return [10.0**power for power in range(first, last + step, step)]
    marks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    top = next(mark for mark in marks if mark >= high * 0.999)
    return [mark for mark in marks if low * 0.4 < mark <= top]


def line(points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """The middle of a curve as the ``d`` of an SVG path.

    Args:
        points: The curve.
        x: Place -> units of the picture.
        y: Value -> units of the picture.
    """
    places = [f"{x(point.x):.1f} {y(point.middle):.1f}" for point in points]
    return f"M{'L'.join(places)}" + ("h.01" if len(places) == 1 else "")  # a point is a line with round ends


def area(points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """The area between the smallest and the largest values of a curve, as ``line`` has the middle."""
    upper = [f"{x(point.x):.1f} {y(point.high):.1f}" for point in points]
    lower = [f"{x(point.x):.1f} {y(point.low):.1f}" for point in reversed(points)]
    return f"M{'L'.join([*upper, *lower])}Z"
