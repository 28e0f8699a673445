"""Jobs as text and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.states import ENDED, JobState
from gridtf.text import plain
from gridtf.values import Value, as_dict, fields

if TYPE_CHECKING:
    from gridtf.observe.state import JobView, TaskView

_STILL_QUEUED = "the scheduler still has the job: it is cleaning up, or will start it again"


def as_json(value: object) -> str:
    """Write a value as JSON, values as objects and paths as strings.

    The text is ASCII, with undecodable bytes of paths as surrogate escapes: os.fsencode restores them.
    """
    return json.dumps(value, indent=2, default=_fields)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns of rows, the first of which is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    padded = ([word.ljust(width) for word, width in zip(row, widths, strict=False)] for row in rows)
    return "\n".join("  ".join([*words, row[-1]]).rstrip() for words, row in zip(padded, rows, strict=True))


def job_table(views: Sequence[JobView], *, why: bool = False) -> str:
    """Show jobs as a table.

    Args:
        views: At least one job.
        why: Whether to add a line with the reason for each job that failed.
    """
    views = _shown(views)
    rows = [("NAME", "JOB", "SCHEDULER", "STATE", "TASKS", "STARTED", "RUN DIRECTORY")]
    for view in views:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.started)) if view.started else "-"
        count = str(len(view.tasks) or "-")
        rows.append((view.name, view.job_id, view.scheduler, view.state, count, started, str(view.run_dir)))
    failed = [f"{view.job_id}: {view.reason}" for view in views if why and view.state in ENDED - {JobState.COMPLETED}]
    return "\n".join([table(rows), *([""] if failed else []), *failed])


def job(view: JobView, now: float) -> str:
    """Show everything about one job, as gridtf status does.

    Args:
        view: The job.
        now: Seconds since the epoch.
    """
    view = _shown(view)
    lines = [
        f"name           {view.name}",
        f"job            {view.job_id} ({view.scheduler})",
        f"state          {view.state}{_when(view, now)}",
    ]
    label = "why" if view.finished else "detail"
    lines += [f"{'' if index else label:<15}{line}" for index, line in enumerate(_why(view))]
    lines.append(f"run directory  {view.run_dir}")
    if view.attempt and view.attempt > 1:
        lines.append(f"attempt        {view.attempt}")
    if view.tasks:
        rows = [["TASK", "HOST", "STATE", "EXIT", "LOG"], *(_task_row(task, view.run_dir) for task in view.tasks)]
        if any(task.progress for task in view.tasks):
            steps = (str(task.progress["step"]) if task.progress else "-" for task in view.tasks)
            for row, step in zip(rows, ("STEP", *steps), strict=True):
                row.insert(3, step)
        lines += ["", table(rows)]
    return "\n".join([*lines, *_last_lines(view)])


def verdict(view: JobView, now: float) -> str:
    """Show how a job ended, with the last lines of the task that failed first.

    Args:
        view: The job.
        now: Seconds since the epoch.
    """
    view = _shown(view)
    first, *more = [f"{view.name} ({view.job_id}): {view.state}{_when(view, now)}", *_why(view)]
    return "\n".join([first, *(f"  {line}" for line in more), *_last_lines(view)])


def progress(view: JobView) -> str:
    """Show in one line the state of a job that has not ended."""
    view = _shown(view)
    states: dict[str, int] = {}
    for task in view.tasks:
        states[task.state] = states.get(task.state, 0) + 1
    if view.state in ENDED:
        return f"attempt {view.attempt} ended {view.state}; {_STILL_QUEUED}"
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items())
    current = counts and view.state != JobState.PENDING  # a pending job has tasks of an earlier attempt only
    words = [view.state.lower(), view.reason, f"tasks: {counts}" if current else ""]
    return "; ".join(word for word in words if word)


def duration(seconds: float) -> str:
    """Write seconds as ``45 s``, ``3 min 20 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    whole = int(max(0.0, seconds))
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole} s"


def _shown(value: Any) -> Any:
    """A value with control characters escaped in all of its text: records and messages of schedulers may have some."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Path):
        return Path(plain(str(value)))
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, Value):
        return value.replace(**{name: _shown(getattr(value, name)) for name in fields(type(value))})
    return value


def _fields(value: Any) -> object:
    return as_dict(value) if isinstance(value, Value) else str(value)


def _when(view: JobView, now: float) -> str:
    if view.started is None:
        return ""
    if view.ended is not None:
        return f" after {duration(view.ended - view.started)}"
    return "" if view.finished else f" for {duration(now - view.started)}"


def _why(view: JobView) -> list[str]:
    queued = view.in_queue and not view.finished and view.state in ENDED
    return [line for line in (view.reason, view.hint, _STILL_QUEUED if queued else "") if line]


def _task_row(task: TaskView, run_dir: Path) -> list[str]:
    ended = task.signal or ("-" if task.exit is None else str(task.exit))
    log = str(task.log.relative_to(run_dir)) if task.log else "-"
    state = f"{task.state} (restarts: {task.restarts})" if task.restarts else task.state
    return [task.name, task.host or "-", state, ended, log]


def _last_lines(view: JobView) -> list[str]:
    cause = view.cause
    if not cause:
        return []
    if not cause.get("tail"):
        return ["", f"{cause['task'] or 'its script'} printed nothing: {cause['log']}"]
    return ["", f"last lines of {cause['log']}:", *(f"  {line}" for line in cause["tail"])]
