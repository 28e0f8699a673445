"""The charts of a report: what each shows, and the shapes of its picture. Pure."""

from __future__ import annotations

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
    """A line of a chart.

    Attributes:
        label: Whose it is.
        lines: The ``d`` of the line's path.
        areas: The ``d`` of the area between the extremes.
        values: The values for the places of the chart, as text; empty where there is none.
    """

    label: str
    lines: str
    areas: str
    values: tuple[str, ...]


class Chart(Value):
    """A chart.

    Attributes:
        title: What it shows.
        unit: The unit of its values; empty without.
        says: What it shows, in one sentence.
        series: Its lines.
        places: Where values are known, in units of the picture, from left to right.
        labels: What these places are called, such as ``1 h 30 min``.
        x: The marks of the lower axis.
        y: The marks of the left axis.
        waits: (left, right) of waits that are drawn short.
        banded: Whether there is one line for all tasks.
    """

    title: str
    unit: str
    says: str
    series: tuple[Series, ...]
    places: tuple[float, ...]
    labels: tuple[str, ...]
    x: tuple[Tick, ...]
    y: tuple[Tick, ...]
    waits: tuple[tuple[float, float], ...] = ()
    banded: bool = False


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
        chart = draw(title, units, labelled, axis, width, zero=not measure.startswith(used.VALUE))
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


def draw(
    title: str,
    units: Sequence[tuple[float, str]],
    labelled: Sequence[tuple[str, Sequence[Point]]],
    axis: Axis,
    width: float,
    *,
    zero: bool,
) -> Chart:
    """Draw a chart.

    Args:
        title: What it shows.
        units: (size of a unit, its name), the largest first.
        labelled: (label, points) of each line.
        axis: The lower axis.
        width: The width of a place of the curves.
        zero: Whether the left axis begins at 0.
    """
    everything = [point for _, points in labelled for point in points]
    low, high = min(point.low for point in everything), max(point.high for point in everything)
    size, unit = next((unit for unit in units if high >= unit[0]), units[-1])
    if zero or 0 <= low < 0.4 * high:
        low = min(low, 0.0)
    marks = drawing.scale(low / size, high / size)
    bottom, top = marks[0], marks[-1]

    def y(value: float) -> float:
        return BOTTOM - (value / size - bottom) / (top - bottom) * (BOTTOM - TOP)

    places = sorted({point.x for point in everything})
    series = []
    for label, points in labelled:
        parts = [*curves.unbroken(points, max(axis.gap, 3 * width))]
        known = {point.x: point for point in points}
        series.append(
            Series(
                label,
                "".join(drawing.line(part, axis.at, y) for part in parts),
                "".join(drawing.area(part, axis.at, y) for part in parts if _wide(part)),
                tuple(f"{known[x].middle / size:.4g}" if x in known else "" for x in places),
            )
        )
    return Chart(
        title,
        unit,
        _says(title, unit, size, labelled),
        tuple(series),
        tuple(round(axis.at(x), 1) for x in places),
        tuple(axis.label(x) for x in places),
        axis.ticks,
        tuple(Tick(y(mark * size), f"{mark:g}") for mark in marks),
        axis.waits,
    )


def _wide(points: Sequence[Point]) -> bool:
    return len(points) > 1 and any(point.high > point.low for point in points)


def _says(title: str, unit: str, size: float, labelled: Sequence[tuple[str, Sequence[Point]]]) -> str:
    parts = []
    for label, points in labelled:
        low, high = min(point.low for point in points) / size, max(point.high for point in points) / size
        last = points[-1].middle / size
        parts.append(f"{label}: {low:.4g} to {high:.4g}, at the end {last:.4g}")
    return f"{title}{f' in {unit}' if unit else ''}. {'; '.join(parts)}."
