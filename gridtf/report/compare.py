"""What jobs have in common, and what differs: two of them, or up to MOST. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.report import charts, curves
from gridtf.report.charts import Axis, Chart, Shown
from gridtf.report.curves import Point
from gridtf.report.drawing import time_axis
from gridtf.report.figures import Figure
from gridtf.report.gather import Material
from gridtf.report.timeline import TRAINING
from gridtf.report.usage import VALUE
from gridtf.values import Value

MOST = 50  # runs of one comparison
_RUNS = ("A", "B")
MOST_AREAS = 6  # lines of a chart with areas between their extremes: beyond, nothing of it could be seen


class Difference(Value):
    """A figure of two jobs.

    Attributes:
        name: What it is.
        first: That of the first job; empty when not known.
        second: That of the second one.
        change: From the first to the second one, such as ``+12 %``; empty when there is none to tell.
    """

    name: str
    first: str
    second: str
    change: str


def figures(first: Sequence[Figure], second: Sequence[Figure]) -> list[Difference]:
    """Compare the figures of two jobs; those that neither has are left out."""
    others = {figure.name: figure for figure in second}
    known = {figure.name: figure for figure in first}
    made = []
    for name in dict.fromkeys([*known, *others]):
        one, other = known.get(name), others.get(name)
        numbers = [figure.number if figure else None for figure in (one, other)]
        if numbers != [None, None]:
            first_text, second_text = (figure.text if figure else "" for figure in (one, other))
            change = "the same" if first_text == second_text else _change(*numbers)
            made.append(Difference(name, first_text, second_text, change))
    return made


def _change(one: float | None, other: float | None) -> str:
    if one is None or other is None or not one:
        return ""
    part = (other - one) / abs(one)
    return f"{part * 100:+.1f} %" if abs(part) < 10 else f"{other / one:.1f} times"


def differing(runs: Sequence[Mapping[str, str]]) -> dict[str, dict[str | None, list[int]]]:
    """What differs between the specifications of several jobs.

    Args:
        runs: Key -> value of each; defaults are left out.

    Returns:
        Key -> value, None for a default -> which runs have it, by their place in ``runs``.
    """
    made: dict[str, dict[str | None, list[int]]] = {}
    for key in dict.fromkeys(key for values in runs for key in values):
        for number, values in enumerate(runs):
            made.setdefault(key, {}).setdefault(values.get(key), []).append(number)
    return {key: values for key, values in made.items() if len(values) > 1}


def by_step(*several: Material, labels: Sequence[str] = _RUNS) -> list[Chart]:
    """The values that jobs, or one of them, reported, over steps.

    Args:
        several: The jobs.
        labels: What the line of each is called.
    """
    names = dict.fromkeys(name for material in several for name in material.usage.by_step)
    axis = charts.by_step(max((step for one in several for _, step in one.usage.steps.values()), default=1))
    made = []
    for name in names:
        found = {n: one.usage.by_step[name] for n, one in enumerate(several) if name in one.usage.by_step}
        if len(several) > len(_RUNS):
            curves.align(found.values())
        lines = {number: curve.points() for number, curve in found.items()}
        width = max(curve.width for curve in found.values())
        made.append(_draw(Shown(name, ((1.0, ""),), zero=False), lines, labels, axis, width))
    return made


def by_time(*several: Material, labels: Sequence[str] = _RUNS) -> list[Chart]:
    """All measures of jobs, or of one of them, over the time since their tasks started; arguments as of by_step."""
    spans = [_span(material) for material in several]
    longest = max((end - begin for begin, end in spans), default=1.0)
    axis = charts.by_time(time_axis(0.0, longest, (), charts.LEFT, charts.RIGHT))
    kinds = {measure: (title, units) for one in several for measure, title, units in charts.measures(one.usage)}
    made = []
    for measure, (title, units) in kinds.items():
        found = {
            n: [*one.usage.curves[measure].values()] for n, one in enumerate(several) if measure in one.usage.curves
        }
        if len(several) > len(_RUNS):
            curves.align(curve for of_tasks in found.values() for curve in of_tasks)
        bands = {number: curves.band(of_tasks) for number, of_tasks in found.items()}
        width = max(curve.width for of_tasks in found.values() for curve in of_tasks)
        grid = width if len(several) > len(_RUNS) else 0.0
        lines = {number: [_since(spans[number][0], at, grid) for at in points] for number, points in bands.items()}
        made.append(_draw(Shown(title, units, zero=not measure.startswith(VALUE)), lines, labels, axis, width))
    return made


def _since(begin: float, point: Point, grid: float) -> Point:
    """A point of a curve, with the time since the begin; on a grid that all runs share, unless that is 0."""
    x = point.x - begin
    return point.replace(x=(x // grid + 0.5) * grid if grid else x)


def _draw(shown: Shown, lines: Mapping[int, Sequence[Point]], labels: Sequence[str], axis: Axis, width: float) -> Chart:
    """Draw a chart with a line for each of some jobs, by their numbers."""
    if len(labels) > MOST_AREAS:
        lines = {number: [Point(at.x, *[at.middle] * 3) for at in points] for number, points in lines.items()}
    labelled = [(labels[number], points) for number, points in lines.items()]
    return charts.draw(shown, labelled, axis, width).replace(numbers=tuple(lines))


def _span(material: Material) -> tuple[float, float]:
    """From the start of the tasks to the last sample."""
    started = [phase.begin for attempt in material.attempts for phase in attempt.phases if phase.name == TRAINING]
    begin = min([*started[:1], *([material.usage.begin] if material.usage.begin is not None else [])], default=0.0)
    return begin, max(material.usage.end, begin + 1)
