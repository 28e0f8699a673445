"""What the tasks of a run have reported by gridtf.progress: last values and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from gridtf.errors import NotFoundError, nearest
from gridtf.run import reduced
from gridtf.run.rundir import Record, RunDir
from gridtf.values import Value

T = TypeVar("T")


class Reported(Value):
    """What a task has reported of a value.

    Attributes:
        last: The last value; nan where it was no finite number.
        least: The smallest one.
        most: The largest one.
        step: The step of the last one; None where that is not known.
    """

    last: float
    least: float
    most: float
    step: int | None


def reported(run: RunDir) -> dict[str, Reported]:
    """What the tasks of the newest attempt have reported, also of an element of a sweep whose attempts were packed.

    Args:
        run: The run directory.

    Returns:
        Name -> what the first task that reports it has told; empty without an attempt.

    Raises:
        RunDirError: When a record is damaged.
    """
    latest = run.latest()
    ended = None if latest else reduced.result(run)
    return of_record(reduced.values(latest) if latest else ended["values"] if ended else {})


def of_record(values: Mapping[str, Record]) -> dict[str, Reported]:
    """The values in the result.json of an element. Pure."""
    nan = {"last": float("nan")}
    return {name: Reported(**{**told, **(nan if told["last"] is None else {})}) for name, told in values.items()}


def ordered(runs: Sequence[tuple[T, Mapping[str, Reported]]], by: str) -> tuple[list[T], str, str]:
    """Sort runs by what a value was at its best. Pure.

    Args:
        runs: Each with what it has reported.
        by: The name of a value, with the smallest as the best; with ``:max`` behind it the largest.

    Returns:
        (the runs, those without the value last; the name; ``least`` or ``most``).

    Raises:
        NotFoundError: When none has reported it.
    """
    name, _, which = by.partition(":")
    known = list(dict.fromkeys(value for _, values in runs for value in values))
    if name not in known:
        hint = nearest(name, known) or (f"known: {', '.join(known)}" if known else "programs call gridtf.progress")
        raise NotFoundError(f"--by: no run has reported {name!r}", hint=hint)
    if which not in ("", "min", "max"):
        raise NotFoundError(f"--by: {which!r} is neither min nor max", hint=f"write --by {name}:max")
    best = "most" if which == "max" else "least"

    def key(run: tuple[T, Mapping[str, Reported]]) -> tuple[bool, float]:
        value = getattr(run[1][name], best) if name in run[1] else 0.0
        return name not in run[1], -value if which == "max" else value

    return [run for run, _ in sorted(runs, key=key)], name, best
