"""The table of tasks of ``gridtf status``: columns that say something, as many of them as the terminal has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridtf.observe.gpus import mean_use
from gridtf.observe.steps import Count
from gridtf.states import TaskState
from gridtf.text import cut, duration, short_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridtf.observe.state import JobView, TaskView

_EMPTY = "-"
_LAST = "LAST LINE"
_COLUMNS = (
    "TASK", "HOST", "GPU", "STATE", "EXIT", "RESTARTS", "SINCE", "CPU", "MEMORY", "GPU USE", "STEP", "RATE", _LAST,
)  # fmt: skip
# Columns that a narrow terminal does without, the first ones first.
_DISPENSABLE = (_LAST, "RESTARTS", "GPU", "MEMORY", "GPU USE", "SINCE", "CPU", "RATE", "EXIT", "HOST", "STEP")
_SHORTEST = 16  # columns of a terminal for the last line of a log, or it is left out
_GAP = "  "


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns of rows, the first of which is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    padded = ([word.ljust(width) for word, width in zip(row, widths, strict=False)] for row in rows)
    return "\n".join(_GAP.join([*words, row[-1]]).rstrip() for words, row in zip(padded, rows, strict=True))


def tasks(view: JobView, now: float, width: int | None = None) -> str:
    """Show the tasks of a job as a table, without columns in which no task has anything.

    Args:
        view: The job, with control characters escaped.
        now: Seconds since the epoch.
        width: Columns of the terminal; None: no limit.
    """
    rows = [_row(task, view, now) for task in view.tasks]
    names = [name for name in _COLUMNS if any(row[name] != _EMPTY for row in rows)]
    for name in _DISPENSABLE:
        if width is None or _width(names, rows) <= width:
            break
        names = [other for other in names if other != name]
    text = table([names, *([row[name] for name in names] for row in rows)])
    return text if width is None else "\n".join(cut(line, width) for line in text.splitlines())


def _width(names: Sequence[str], rows: Sequence[dict[str, str]]) -> int:
    """The columns of a terminal that a table needs; the last line of a log can be shortened."""
    widths = (max(len(name), *(len(row[name]) for row in rows)) for name in names if name != _LAST)
    return sum(widths) + len(_GAP) * (len(names) - 1) + _SHORTEST * (_LAST in names)


def _row(task: TaskView, view: JobView, now: float) -> dict[str, str]:
    live = task.sample if task.state == TaskState.RUNNING and task.sample else {}
    since = task.ended or task.started
    cells = {
        "TASK": task.name,
        "HOST": task.host,
        "GPU": ",".join(task.gpus),
        "STATE": task.state,
        "EXIT": task.signal or ("" if task.exit is None else str(task.exit)),
        "RESTARTS": str(task.restarts or ""),
        "SINCE": duration(now - since) if since else "",
        "CPU": f"{live['cpu']:.1f}" if live else "",
        "MEMORY": short_size(live["memory"]) if live else "",
        "GPU USE": _gpu_use(task, view) if live else "",
        "STEP": step(task),
        "RATE": f"{live['rate']:.3g}/s" if "rate" in live else "",
        _LAST: task.last_line,
    }
    return {name: text or _EMPTY for name, text in cells.items()}


def step(task: TaskView) -> str:
    """How far a task has come, by its report or else by its log; empty where neither tells."""
    if task.progress:
        return str(task.progress["step"])
    return f"{Count(**task.logged)} (log)" if task.logged else ""


def _gpu_use(task: TaskView, view: JobView) -> str:
    """The use of a task's GPUs, on average."""
    sample = next((host.sample for host in view.hosts if host.name == task.host), None) or {}
    use = mean_use(sample.get("gpus", {}), task.gpus)
    return "" if use is None else f"{use:.0f} %"
