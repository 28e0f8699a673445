"""The figures of a report: how long a job took, what it needed, and what its tasks reported. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from gridtf.observe.codelines import code_lines
from gridtf.report import resources
from gridtf.report.curves import Curve
from gridtf.report.gather import Material
from gridtf.report.resources import GpuHours
from gridtf.report.timeline import TRAINING
from gridtf.report.usage import POWER, RATE
from gridtf.text import counted, duration, some
from gridtf.values import Value


class Figure(Value):
    """A figure of a job.

    Attributes:
        name: What it is.
        number: Its value, in seconds where it is a time; None when not known.
        text: As it is written.
    """

    name: str
    number: float | None
    text: str


def facts(material: Material) -> list[tuple[str, str, str]]:
    """What matters most: (what, value, more about it)."""
    attempts, found = material.attempts, {figure.name: figure for figure in figures(material)}
    rows = []
    if attempts:
        last = attempts[-1]
        more = f"in {counted(len(attempts), 'attempt')}" if len(attempts) > 1 else ""
        rows.append(("Ran for" if material.view.finished else "Runs for", found["Time with hosts"].text, more))
        rows.append(("Waited", found["Time in the queue"].text, ""))
        rows.append(("Tasks", str(len(material.tasks) or len(last.tasks)), f"on {counted(len(last.hosts), 'host')}"))
    if (of_gpus := hours(material)) is not None:
        known = of_gpus.used + of_gpus.idle
        used = f"{resources.percent(of_gpus.used / known)} used while measured" if known else "not measured"
        rows.append(("GPU-hours", f"{of_gpus.allocated:.2f}", used))
    if (step := found["Last step"]).number is not None:
        rate = found["Steps per second"]
        rows.append(("Last step", step.text, f"{rate.text} per second" if rate.number else ""))
    for name, curve in material.usage.by_step.items():
        if curve.last is not None and len(rows) < 7:
            rows.append((f"Last {name}", f"{curve.last:.4g}", f"{curve.low:.4g} to {curve.high:.4g}"))
    return rows


def figures(material: Material) -> list[Figure]:
    """All figures of a job, always the same first ones, so that those of two jobs can be compared."""
    usage, attempts = material.usage, material.attempts
    waited = sum(attempt.allocated - attempt.begin for attempt in attempts)
    ran = sum(attempt.end - attempt.allocated for attempt in attempts)
    began = next((phase.begin for one in attempts for phase in one.phases if phase.name == TRAINING), None)
    first = usage.first_step - began if usage.first_step is not None and began is not None else None
    last = max((step for _, step in usage.steps.values()), default=None)
    of_gpus = hours(material)
    energy = sum(used.energy for used in usage.gpus.values()) / 3.6e6
    return [
        _time("Time in the queue", waited if attempts else None),
        _time("Time with hosts", ran if attempts else None),
        _time("From the start of the tasks to the first step", first),
        Figure("Last step", last, f"{last:,}" if last is not None else ""),
        _number("Steps per second", _rate(usage.curves.get(RATE, {}))),
        _number("GPU-hours", of_gpus.allocated if of_gpus else None),
        _number("GPU-hours used", of_gpus.used if of_gpus and of_gpus.used + of_gpus.idle else None),
        _number("Energy of the GPUs in kWh", energy if POWER in usage.curves else None),
        *_values(material),
    ]


def _values(material: Material) -> Iterator[Figure]:
    for name, curve in material.usage.by_step.items():
        yield _number(f"{name}, last", curve.last)
        yield _number(f"{name}, smallest", curve.low)
        yield _number(f"{name}, largest", curve.high)


def _rate(rates: dict[Any, Curve]) -> float | None:
    """The median of the tasks' mean rates."""
    means = []
    for curve in rates.values():
        rates_of_task = [middle for _, _, middle, _ in curve.places()]
        means.append(sum(rates_of_task) / len(rates_of_task))
    return median(means) if means else None


def _time(name: str, seconds: float | None) -> Figure:
    return Figure(name, seconds, "" if seconds is None else duration(seconds))


def _number(name: str, number: float | None) -> Figure:
    return Figure(name, number, "" if number is None else f"{number:.4g}")


def hours(material: Material) -> GpuHours | None:
    """The GPU-hours of a job; None without GPUs."""
    return resources.gpu_hours(material.told, material.attempts, material.usage)


CODE = "Code"


def versions(material: Material) -> list[tuple[str, str]]:
    """(program, version) of what took part, as far as it is known."""
    rows = [("gridtf that submitted the job", str(material.job["gridtf"]))] if "gridtf" in material.job else []
    rows += [(CODE, line) for line in code_lines(material.code)]
    last = material.told[-1] if material.told else None
    found: dict[str, dict[str, list[str]]] = {}
    for host, record in (last.hosts if last else {}).items():
        for program, version in _table(record.get("versions")):
            found.setdefault(f"{program.replace('python', 'Python')} on the hosts", {}).setdefault(version, []).append(
                host
            )
        for task, version in _table(record.get("tensorflow")):
            found.setdefault("TensorFlow of the tasks", {}).setdefault(version or "none", []).append(task)
        for task, state in record.get("tasks", {}).items():
            if state.get("tensorflow"):
                found.setdefault("TensorFlow of the tasks", {}).setdefault(state["tensorflow"], []).append(task)
    for program, by_version in found.items():
        for version, users in by_version.items():
            whose = f" ({some([*dict.fromkeys(users)], most=4)})" if len(by_version) > 1 else ""
            rows.append((program, f"{version}{whose}"))
    if last and "python" in last.plan:
        rows.append(("Python of the job", last.plan["python"]))
    return rows


def _table(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((str(key), str(item)) for key, item in value.items())
