"""Charts of characters: sparklines of blocks, curves of braille dots. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from gridtf.monitor.lines import Line, fit

Point = tuple[float, float, float]  # x, the lowest and the highest value there
Span = tuple[int, int]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ACROSS, _DOWN = 2, 4  # dots of a braille pattern
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # their bits (Unicode, Braille Patterns)
_BRAILLE = 0x2800
_POINTS = 512  # of a curve: more than a terminal has columns of dots; an even number
_MARGIN = 10  # columns for the numbers at the left of a curve


def sparkline(values: Sequence[float | None], width: int, top: float) -> str:
    """The newest values as blocks, the last one at the right; a blank where there is none.

    Args:
        values: Not negative.
        width: Columns.
        top: The value of a full block.
    """
    newest = values[len(values) - width :] if len(values) > width else values
    blocks = (" " if value is None else _BLOCKS[_level(value, top)] for value in newest)
    return "".join(blocks).rjust(width)


def _level(value: float, top: float) -> int:
    return max(0, min(len(_BLOCKS) - 1, math.ceil(value / top * len(_BLOCKS)) - 1)) if top > 0 else 0


class Curve:
    """A curve of any length in little memory: where it has too many points, neighbours become one with their extremes.

    Attributes:
        points: In the order in which values came; each stands for as many values, but the last for fewer perhaps.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._each = 1  # values of a point
        self._in_last = 0

    def add(self, x: float, value: float) -> None:
        """Add the next value."""
        if self._in_last < self._each and self.points:
            self.points[-1] = _merged(self.points[-1], (x, value, value))
            self._in_last += 1
            return
        if len(self.points) == _POINTS:
            self.points = [_merged(one, two) for one, two in zip(self.points[::2], self.points[1::2], strict=True)]
            self._each *= 2
        self.points.append((x, value, value))
        self._in_last = 1


def _merged(one: Point, two: Point) -> Point:
    return two[0], min(one[1], two[1]), max(one[2], two[2])


def plot(points: Sequence[Point], width: int, height: int) -> list[Line]:
    """A curve with its scales.

    Args:
        points: In the order of time; their x need not ascend, as after a restart.
        width: Columns, with those of the scale.
        height: Lines, with that of the scale below.
    """
    rows = height - 1
    if not points or rows < 1 or width < _MARGIN + 4:
        return []
    low, high = _limits(value for _, *both in points for value in both)
    left, right = _limits(x for x, _, _ in points)
    body = curve(points, width - _MARGIN, rows)
    labels = {rows - 1: number(low), 0: number(high)} if low < high else {rows // 2: number(low)}
    lines: list[Line] = [
        ((fit(labels.get(row, ""), _MARGIN - 2, right=True) + " │", "dim"), (text, "curve"))
        for row, text in enumerate(body)
    ]
    first, last = number(left), number(right)
    below = first + last.rjust(width - _MARGIN - len(first)) if left < right else first
    return [*lines, ((" " * _MARGIN + below, "dim"),)]


def curve(points: Sequence[Point], width: int, height: int) -> list[str]:
    """A curve as braille patterns, without scales.

    Args:
        points: At least one.
        width: Columns.
        height: Lines.
    """
    columns, rows = width * _ACROSS, height * _DOWN
    cells = [[0] * width for _ in range(height)]
    for column, (first, last) in _joined(_spans(points, columns, rows)).items():
        for row in range(first, last + 1):
            cells[height - 1 - row // _DOWN][column // _ACROSS] |= _DOTS[_DOWN - 1 - row % _DOWN][column % _ACROSS]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in line) for line in cells]


def number(value: float) -> str:
    """A number in at most eight characters."""
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    texts = (f"{value:{form}}" for form in (".4g", ".1e", ".0e"))
    return next(text for text in texts if len(text) <= 8)


def _spans(points: Sequence[Point], columns: int, rows: int) -> Mapping[int, Span]:
    """Column of dots -> its lowest and highest row."""
    low, high = _limits(value for _, *both in points for value in both)
    left, right = _limits(x for x, _, _ in points)
    spans: dict[int, Span] = {}
    for x, *both in points:
        column = round(_share(x, left, right) * (columns - 1))
        least, most = (round(_share(value, low, high) * (rows - 1)) for value in both)
        before = spans.get(column, (least, most))
        spans[column] = min(least, before[0]), max(most, before[1])
    return dict(sorted(spans.items()))


def _joined(spans: Mapping[int, Span]) -> Mapping[int, Span]:
    """Spans of all columns between the first and the last, each of which touches the one before."""
    joined = dict([*spans.items()][:1])
    for (last, before), (column, span) in pairwise(spans.items()):
        begin, end = sum(before) / 2, sum(span) / 2
        for between in range(last + 1, column):
            row = round(begin + (end - begin) * (between - last) / (column - last))
            joined[between] = _touching((row, row), joined[between - 1])
        joined[column] = _touching(span, joined[column - 1])
    return joined


def _touching(span: Span, before: Span) -> Span:
    return min(span[0], before[1] + 1), max(span[1], before[0] - 1)


def _limits(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
