"""The charts of a report: what each shows, and the shapes of its picture. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gridtf.report import curves, drawing
from gridtf.report import usage as used
from gridtf.report.curves import Point
from gridtf.report.drawing import Tick, TimeAxis, elapsed
from gridtf.report.timeline import natural
from gridtf.report.usage import Usage
from gridtf.values import Value

WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 50, WIDTH - 12, 10, HEIGHT - 24
_MOST_LINES = 6  # tasks that have a line each; of more of them the median is drawn, between the smallest and largest
_APART = 90.0  # units of the picture between two ticks
_GAP = 120.0  # seconds without a sample over which a line is broken, at least
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_PLAIN = ((1.0, ""),)
LINEAR, LOG = "linear", "log"
# The largest value divided by the smallest from which on a logarithmic axis is offered, and is the first choice.
_LOG_OFFERED, _LOG_CHOSEN, _TINY = 10.0, 1000.0, 1e-99

# Measure -> title, and its units: (size of the unit, its name).
_MEASURES: Mapping[str, tuple[str, Sequence[tuple[float, str]]]] = {
    used.RATE: ("Steps per second", _PLAIN),
    used.GPU: ("GPU utilisation", ((1.0, "%"),)),
    used.GPU_MEMORY: ("GPU memory", _BINARY),
    used.POWER: ("GPU power", ((1.0, "W"),)),
    used.CPU: ("CPU cores in use", _PLAIN),
    used.MEMORY: ("Memory", _BINARY),
    used.READ: ("Read from files", tuple((unit, f"{name}/s") for unit, name in _BINARY)),
    used.WRITTEN: ("Written to files", tuple((unit, f"{name}/s") for unit, name in _BINARY)),
}


_OFTEN_NOTHING = (used.READ, used.WRITTEN)  # without a chart where they are 0; that a GPU is idle is worth one


class Series(Value):
    """What a line of a chart shows.

    Attributes:
        label: Whose it is.
        values: The values for the places of the chart, as text; empty where there is none.
    """

    label: str
    values: tuple[str, ...]


class Picture(Value):
    """The lines of a chart.

    Attributes:
        kind: LINEAR or LOG: what its left axis is.
        ticks: The marks of that.
        lines: The ``d`` of each line's path.
        areas: The ``d`` of the areas between the extremes of each.
    """

    kind: str
    ticks: tuple[Tick, ...]
    lines: tuple[str, ...]
    areas: tuple[str, ...]


class Chart(Value):
    """A chart.

    Attributes:
        title: What it shows.
        unit: The unit of its values; empty without.
        says: What it shows, in one sentence.
        series: What its lines show.
        pictures: Its lines as drawn, and where a logarithmic axis makes sense with one as well.
        log: Whether the second picture is the one to begin with.
        places: Where values are known, in units of the picture, from left to right.
        labels: What these places are called, such as ``1 h 30 min``.
        x: The marks of the lower axis.
        waits: (left, right) of waits that are drawn short.
        banded: Whether there is one line for all tasks.
        numbers: The number of each line, which gives it its colour; empty: they are numbered from 0 on.
    """

    title: str
    unit: str
    says: str
    series: tuple[Series, ...]
    pictures: tuple[Picture, ...]
    log: bool
    places: tuple[float, ...]
    labels: tuple[str, ...]
    x: tuple[Tick, ...]
    waits: tuple[tuple[float, float], ...] = ()
    banded: bool = False
    numbers: tuple[int, ...] = ()


class Shown(Value):
    """What a chart shows.

    Attributes:
        title: Its title.
        units: (size of a unit, its name), the largest first.
        zero: Whether the left axis begins at 0.
    """

    title: str
    units: Sequence[tuple[float, str]]
    zero: bool


class Axis(Value):
    """The lower axis of a chart.

    Attributes:
        at: Place -> units of the picture.
        label: Place -> what it is called.
        ticks: Its marks.
        gap: The least distance between two places between which a line is broken.
        waits: As in Chart.
    """

    at: Callable[[float], float]
    label: Callable[[float], str]
    ticks: tuple[Tick, ...]
    gap: float
    waits: tuple[tuple[float, float], ...] = ()


def colour(number: int, count: int) -> str:
    """The colour of a line by its rank among many: from blue, the first, over green to red, the last."""
    return f"hsl({225 - 225 * number / max(1, count - 1):.0f} 65% 45%)"


def by_time(axis: TimeAxis) -> Axis:
    """The lower axis of charts over time, from a time axis between LEFT and RIGHT."""
    waits = tuple((piece.left, piece.right) for piece in axis.pieces if piece.short)
    return Axis(axis.at, lambda time: elapsed(time - axis.zero), tuple(axis.ticks(_APART)), _GAP, waits)


def by_step(last: float) -> Axis:
    """The lower axis of charts over steps, from 0 to the last one."""
    marks = drawing.scale(0.0, max(last, 1.0), 5)
    full = max(last, 1.0)

    def at(step: float) -> float:
        return LEFT + min(step / full, 1.0) * (RIGHT - LEFT)

    ticks = tuple(Tick(at(mark), f"{mark:,.0f}") for mark in marks if mark <= full)
    return Axis(at, lambda step: f"step {step:,.0f}", ticks, float("inf"))


def of_run(usage: Usage, axis: Axis, names: Mapping[Any, str], tasks: Sequence[str]) -> list[Chart]:
    """The charts of a run: values that its tasks reported, then rates and resources.

    Args:
        usage: What it has used.
        axis: The lower axis.
        names: Series -> its label, where that is not its name.
        tasks: All tasks, in rank order: that of the lines, so that a task has the same colour everywhere.
    """
    made = []
    for measure, title, units in measures(usage):
        unsorted = {names.get(key, str(key)): curve for key, curve in usage.curves[measure].items()}
        of_series = dict(sorted(unsorted.items(), key=lambda item: (_rank(item[0], tasks), natural(item[0]))))
        if len(of_series) > _MOST_LINES:
            labelled = [(f"median of {len(of_series)}", curves.band([*of_series.values()]))]
        else:
            curves.align(of_series.values())
            labelled = [(label, curve.points()) for label, curve in of_series.items()]
        width = max(curve.width for curve in of_series.values())
        chart = draw(Shown(title, units, zero=not measure.startswith(used.VALUE)), labelled, axis, width)
        made.append(chart.replace(banded=len(of_series) > _MOST_LINES))
    return made


def _rank(label: str, tasks: Sequence[str]) -> int:
    task = label.partition(",")[0]
    return tasks.index(task) if task in tasks else len(tasks)


def measures(usage: Usage) -> Iterator[tuple[str, str, Sequence[tuple[float, str]]]]:
    """The measures of a run that have values: (measure, title, units)."""
    for measure in usage.curves:
        if measure.startswith(used.VALUE):
            yield measure, measure.removeprefix(used.VALUE), _PLAIN
    for measure, (title, units) in _MEASURES.items():
        of_series = usage.curves.get(measure, {}).values()
        if any(curve.high for curve in of_series) or (of_series and measure not in _OFTEN_NOTHING):
            yield measure, title, units


def draw(shown: Shown, labelled: Sequence[tuple[str, Sequence[Point]]], axis: Axis, width: float) -> Chart:
    """Draw a chart.

    Args:
        shown: What it shows.
        labelled: (label, points) of each line.
        axis: The lower axis.
        width: The width of a place of the curves.
    """
    everything = [point for _, points in labelled for point in points]
    least, high = min(point.low for point in everything), max(point.high for point in everything)
    low = min(least, 0.0) if shown.zero or 0 <= least < 0.4 * high else least
    size, unit = next((unit for unit in shown.units if high >= unit[0]), shown.units[-1])
    parts = [[*curves.unbroken(points, max(axis.gap, 3 * width))] for _, points in labelled]
    pictures = [_picture(LINEAR, parts, axis, size, drawing.scale(low / size, high / size))]
    ratio = high / least if not shown.zero and _TINY < least < high < 1 / _TINY else 1.0
    if ratio >= _LOG_OFFERED:
        pictures.append(_picture(LOG, parts, axis, size, drawing.log_scale(least / size, high / size)))
    places = sorted({point.x for point in everything})
    series = []
    for label, points in labelled:
        known = {point.x: _text(point, size, spread=len(labelled) == 1) for point in points}
        series.append(Series(label, tuple(known.get(x, "") for x in places)))
    return Chart(
        shown.title,
        unit,
        _says(shown.title, unit, size, labelled),
        tuple(series),
        tuple(pictures),
        ratio >= _LOG_CHOSEN,
        tuple(round(axis.at(x), 1) for x in places),
        tuple(axis.label(x) for x in places),
        axis.ticks,
        axis.waits,
    )


def _picture(
    kind: str, parts: Sequence[Sequence[Sequence[Point]]], axis: Axis, size: float, marks: Sequence[float]
) -> Picture:
    """Draw lines, each in parts, between the first and the last mark of the left axis."""
    number = math.log10 if kind == LOG else float
    bottom, top = number(marks[0]), number(marks[-1])

    def y(value: float) -> float:
        return BOTTOM - (number(value / size) - bottom) / (top - bottom) * (BOTTOM - TOP)

    return Picture(
        kind,
        tuple(Tick(y(mark * size), f"{mark:g}") for mark in marks),
        tuple("".join(drawing.line(part, axis.at, y) for part in of_line) for of_line in parts),
        tuple("".join(drawing.area(part, axis.at, y) for part in of_line if _wide(part)) for of_line in parts),
    )


def _text(point: Point, size: float, *, spread: bool) -> str:
    more = f" ({point.low / size:.4g} to {point.high / size:.4g})" if spread and point.low < point.high else ""
    return f"{point.middle / size:.4g}{more}"


def _wide(points: Sequence[Point]) -> bool:
    return len(points) > 1 and any(point.high > point.low for point in points)


def _says(title: str, unit: str, size: float, labelled: Sequence[tuple[str, Sequence[Point]]]) -> str:
    parts = []
    for label, points in labelled:
        low, high = min(point.low for point in points) / size, max(point.high for point in points) / size
        last = points[-1].middle / size
        parts.append(f"{label}: {low:.4g} to {high:.4g}, at the end {last:.4g}")
    return f"{title}{f' in {unit}' if unit else ''}. {'; '.join(parts)}."
