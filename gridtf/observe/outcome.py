"""What the tasks of a run have reported by gridtf.progress: last values and extremes."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf.run import reduced
from gridtf.run.rundir import Record, RunDir
from gridtf.values import Value


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
