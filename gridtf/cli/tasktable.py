"""Tables: columns that say something, as many of them as the terminal has room for; that of the tasks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridtf.cli import style
from gridtf.observe.gpus import mean_use
from gridtf.observe.steps import Count
from gridtf.states import TaskState
from gridtf.text import columns, cut, duration, short_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridtf.observe.views import JobView, TaskView

_EMPTY = "-"
_LAST = "LAST LINE"
_COLUMNS = (
    "TASK", "HOST", "GPU", "STATE", "EXIT", "RESTARTS", "SINCE", "CPU", "MEMORY", "GPU USE", "STEP", "RATE", _LAST,
)  # fmt: skip
# Columns that a narrow terminal does without, the first ones first.
_DISPENSABLE = (_LAST, "RESTARTS", "GPU", "MEMORY", "GPU USE", "SINCE", "CPU", "RATE", "EXIT", "HOST", "STEP")
_SHORTEST = 16  # columns of a terminal for a cell that can be shortened, such as the last line of a log
_GAP = "  "
_STATE = "STATE"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns of rows, the first of which is the heading."""
    widths = [max(columns(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        padded = [word + " " * (width - columns(word)) for word, width in zip(row, widths, strict=False)] + [row[-1]]
        if row is rows[0]:
            lines.append(style.heading(_GAP.join(padded).rstrip()))
            continue
        if _STATE in rows[0]:
            at = rows[0].index(_STATE)
            padded[at] = padded[at].replace(row[at], style.state(row[at]), 1)
        lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines)


def fitting(
    rows: Sequence[Mapping[str, str]], dispensable: Sequence[str], elastic: str, width: int | None = None
) -> str:
    """Show rows as a table that is not wider than the terminal.

    Args:
        rows: Title of a column -> its text, with the same columns in each.
        dispensable: Columns that a narrow terminal does without, the first ones first.
        elastic: The column that is shortened.
        width: Columns of the terminal; None: no limit.
    """
    names = list(rows[0])
    widest = {name: max(columns(name), *(columns(row[name]) for row in rows)) for name in names}

    if width is None:
        return table([names, *([row[name] for name in names] for row in rows)])
    least = min(_SHORTEST, widest.get(elastic, 0))
    for name in (*dispensable, None):
        others = sum(widest[other] for other in names if other != elastic) + len(_GAP) * (len(names) - 1)
        if others + least * (elastic in names) <= width or name is None:
            break
        names = [other for other in names if other != name]
    most = max(width - others, least)
    cells = [[cut(row[name], most) if name == elastic else row[name] for name in names] for row in rows]
    return "\n".join(cut(line, width) for line in table([names, *cells]).splitlines())


def tasks(view: JobView, now: float, width: int | None = None) -> str:
    """Show the tasks of a job as a table, without columns in which no task has anything.

    Args:
        view: The job, with control characters escaped.
        now: Seconds since the epoch.
        width: Columns of the terminal; None: no limit.
    """
    rows = [_row(task, view, now) for task in view.tasks]
    names = [name for name in _COLUMNS if any(row[name] != _EMPTY for row in rows)]
    return fitting([{name: row[name] for name in names} for row in rows], _DISPENSABLE, _LAST, width)


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
