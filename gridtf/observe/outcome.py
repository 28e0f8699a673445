"""What the tasks of a run have reported by gridtf.progress: its last values, and the extremes of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gridtf.observe import history
from gridtf.run import recordtypes
from gridtf.run.rundir import RunDir, read_private
from gridtf.values import Value


class Reported(Value):
    """A value that the tasks of a run have reported.

    Attributes:
        last: The last one.
        least: The smallest one.
        most: The largest one.
        step: The step that the last one was reported with; None where that is not known.
    """

    last: float
    least: float
    most: float
    step: int | None = None


def reported(run: RunDir) -> dict[str, Reported]:
    """What the tasks of the newest attempt of a run have reported: name -> values.

    Raises:
        RunDirError: When its records cannot be read.
    """
    latest = run.latest()
    if latest is None:
        return {}
    found: dict[str, Reported] = {}
    for sample in history.samples(run).more():
        if sample["attempt"] == latest.number:
            for task in sample["tasks"].values():
                _add(found, task.get("step"), task.get("values", {}), task.get("ranges", {}))
    summary = read_private(latest.summary, recordtypes.Summary) or {"hosts": {}}
    for host in summary["hosts"].values():
        for task in host["tasks"].values():
            if last := task.get("progress"):
                _add(found, last["step"], last["values"], task.get("ranges", {}))
    return found


def _add(
    found: dict[str, Reported], step: int | None, values: Mapping[str, Any], ranges: Mapping[str, list[float]]
) -> None:
    for name, value in _finite(values):
        before = found.get(name)
        known = [value, *ranges.get(name, ()), *((before.least, before.most) if before else ())]
        later = before is None or (step or 0) >= (before.step or 0)
        last, at = (value, step) if before is None or later else (before.last, before.step)
        found[name] = Reported(last, min(known), max(known), at)


def _finite(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)
