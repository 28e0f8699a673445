"""What two jobs have in common, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.report import charts, curves
from gridtf.report.charts import Chart
from gridtf.report.curves import Point
from gridtf.report.drawing import time_axis
from gridtf.report.figures import Figure
from gridtf.report.gather import Material
from gridtf.report.timeline import TRAINING
from gridtf.report.usage import VALUE
from gridtf.values import Value

_RUNS = ("A", "B")


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


def settings(
    first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[list[tuple[str, str | None, str | None]], list[tuple[str, str]]]:
    """Compare two specifications.

    Args:
        first: Key -> value of the one; defaults are left out.
        second: Likewise of the other.

    Returns:
        (key, first value, second value) of those that differ, None for a default; (key, value) of those that do not.
    """
    keys = dict.fromkeys([*first, *second])
    differing = [(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]
    return differing, [(key, first[key]) for key in keys if key in first and first[key] == second.get(key)]


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


def by_step(*both: Material) -> list[Chart]:
    """The values that both jobs, or one of them, reported, over steps."""
    names = dict.fromkeys(name for material in both for name in material.usage.by_step)
    axis = charts.by_step(max((step for one in both for _, step in one.usage.steps.values()), default=1))
    made = []
    for name in names:
        found = [
            (run, one.usage.by_step[name]) for run, one in zip(_RUNS, both, strict=True) if name in one.usage.by_step
        ]
        width = max(curve.width for _, curve in found)
        labelled = [(run, curve.points()) for run, curve in found]
        made.append(charts.draw(name, ((1.0, ""),), labelled, axis, width, zero=False))
    return made


def by_time(*both: Material) -> list[Chart]:
    """All measures of both jobs, of one of them, over the time since their tasks started."""
    spans = [_span(material) for material in both]
    longest = max((end - begin for begin, end in spans), default=1.0)
    axis = charts.by_time(time_axis(0.0, longest, (), charts.LEFT, charts.RIGHT))
    kinds = {measure: (title, units) for one in both for measure, title, units in charts.measures(one.usage)}
    made = []
    for measure, (title, units) in kinds.items():
        labelled, width = [], 0.0
        for run, material, (begin, _) in zip(_RUNS, both, spans, strict=True):
            if of_tasks := [*material.usage.curves.get(measure, {}).values()]:
                points = [Point(at.x - begin, at.low, at.middle, at.high) for at in curves.band(of_tasks)]
                labelled.append((run, points))
                width = max(width, of_tasks[0].width)
        made.append(charts.draw(title, units, labelled, axis, width, zero=not measure.startswith(VALUE)))
    return made


def _span(material: Material) -> tuple[float, float]:
    """From the start of the tasks to the last sample."""
    started = [phase.begin for attempt in material.attempts for phase in attempt.phases if phase.name == TRAINING]
    begin = min([*started[:1], *([material.usage.begin] if material.usage.begin is not None else [])], default=0.0)
    return begin, max(material.usage.end, begin + 1)
