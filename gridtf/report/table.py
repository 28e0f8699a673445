"""Runs as a table: a row of plain values for each, which JSON, CSV and pandas take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gridtf.errors import RunDirError
from gridtf.observe import detail, jobs
from gridtf.observe.outcome import Reported, reported
from gridtf.observe.views import JobView
from gridtf.run import recordtypes, reduced, registry
from gridtf.run.reading import known
from gridtf.run.rundir import RunDir

Row = dict[str, Any]
PARAMS, LAST, LEAST, MOST = "params.", "last.", "least.", "most."  # beginnings of columns


def rows(runs: Sequence[RunDir], now: float) -> list[Row]:
    """The rows of runs, in their order; their schedulers are asked once for all of them.

    Args:
        runs: Their run directories.
        now: Seconds since the epoch.
    """
    return [row(run, view, now) for run, view in zip(runs, jobs.views(runs), strict=True)]


def row(run: RunDir, view: JobView, now: float, values: Mapping[str, Reported] | None = None) -> Row:
    """The row of a run, as gridtf.login.api.Jobs.table describes it.

    Args:
        run: Its run directory.
        view: Its state.
        now: Seconds since the epoch.
        values: What its tasks have reported, where that is known already.

    Returns:
        Its row; where records are damaged or cannot be read, the reason says so, and what they tell is missing.
    """
    try:
        return _of_view(view) | _of_records(run, view, now, values)
    except RunDirError as error:
        return _of_view(view) | {"reason": error.what}


def _of_records(run: RunDir, view: JobView, now: float, values: Mapping[str, Reported] | None) -> Row:
    whole = registry.whole(run)
    spec = known(run.job, recordtypes.Job).get("spec")
    seconds, ended = ran(view, now), reduced.result(run)
    cpus = None if spec is None else reduced.requested_cpus(spec, [task.name for task in view.tasks])
    gpus, more = sum(len(task.gpus) for task in view.tasks), {}
    if ended:  # an element of a sweep, of whose tasks there is nothing but this
        cpus, gpus = ended["had"]["cpus"], ended["had"]["gpus"]
        more = {"hosts": " ".join(ended["hosts"]), "tasks": ended["tasks"]}
    return {
        **more,
        "seconds": seconds,
        "cpu_seconds": None if cpus is None or seconds is None else seconds * cpus,
        "gpu_seconds": None if seconds is None else seconds * gpus,
        **{f"{PARAMS}{name}": value for name, value in (spec or {}).get("params", {}).items()},
        **_values(reported(run) if values is None else values),
        "commit": known(whole.code, recordtypes.Code).get("commit"),
    }


def _of_view(view: JobView) -> Row:
    names = ("name", "job_id", "scheduler", "state", "reason", "submitted", "started", "ended")
    return {
        **{name: getattr(view, name) for name in names},
        "state": str(view.state),
        "cause": (view.cause or {}).get("task"),
        "hosts": " ".join(host.name for host in view.hosts),
        "tasks": len(view.tasks),
        "run_dir": str(view.run_dir),
    }


def columns(table: Sequence[Row]) -> list[str]:
    """The columns that any of the rows has: those of the first one and, before its commit, what only others have."""
    names = dict.fromkeys(name for one in table for name in one)
    own, ends = [name for name in names if "." not in name], ("commit", "run_dir")
    dotted = [name for word in (PARAMS, LAST, LEAST, MOST) for name in names if name.startswith(word)]
    return [*(name for name in own if name not in ends), *dotted, *ends]


def ran(view: JobView, now: float) -> float | None:
    """For how many seconds the tasks of a job have run, in all of its attempts; None before they have started.

    Raises:
        RunDirError: When the run directory cannot be listed.
    """
    return view.replace(attempts=detail.attempts(view)).ran(now)


def _values(found: Mapping[str, Reported]) -> Row:
    both = ((LAST, "last"), (LEAST, "least"), (MOST, "most"))
    made: Row = {f"{word}{name}": _finite(getattr(one, field)) for word, field in both for name, one in found.items()}
    return {"step": max((one.step for one in found.values() if one.step is not None), default=None), **made}


def _finite(number: float) -> float | None:
    """A number as JSON has it; None for one that it does not have."""
    return number if math.isfinite(number) else None
