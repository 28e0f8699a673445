"""Jobs as text and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.cli import style, tasktable
from gridtf.observe.codelines import code_lines
from gridtf.states import ENDED, JobState
from gridtf.text import duration, hanging, plain
from gridtf.values import Value, as_dict, fields

if TYPE_CHECKING:
    from gridtf.observe.overview import Row
    from gridtf.observe.views import JobView

_STILL_QUEUED = "the scheduler still has the job: it is cleaning up, or will start it again"
_DISPENSABLE = ("RUN DIRECTORY", "SCHEDULER", "TASKS", "STARTED", "JOB")  # columns, as tasktable.fitting takes them
_LABEL = 15  # columns
_MOST_ATTEMPTS = 10  # that are shown


def as_json(value: object) -> str:
    """Write a value as JSON, values as objects and paths as strings.

    The text is ASCII, with undecodable bytes of paths as surrogate escapes: os.fsencode restores them.
    """
    return json.dumps(value, indent=2, default=_fields)


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, with a line of names."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def job_table(jobs: Sequence[Row], width: int | None = None, *, why: bool = False) -> str:
    """Show jobs as a table.

    Args:
        jobs: At least one job.
        width: Columns of the terminal; None: no limit.
        why: Whether to add a line with the reason for each job that failed.
    """
    jobs = _shown(jobs)
    rows = [
        {
            "NAME": one.name,
            "JOB": one.job_id,
            "SCHEDULER": one.scheduler,
            "STATE": f"{one.state} {one.after}".rstrip(),
            "TASKS": str(one.tasks or "-"),
            "STARTED": _moment(one.started) if one.started else "-",
            "RUN DIRECTORY": one.run_dir,
        }
        for one in jobs
    ]
    failed = [f"{one.job_id}: {one.reason}" for one in jobs if why and one.state in ENDED - {JobState.COMPLETED}]
    text = tasktable.fitting(rows, _DISPENSABLE, "NAME", width)
    return "\n".join([text, *([""] if failed else []), *(hanging(line, width, 2) for line in failed)])


def job(view: JobView, now: float, width: int | None = None) -> str:
    """Show everything about one job, as gridtf status does.

    Args:
        view: The job.
        now: Seconds since the epoch.
        width: Columns of the terminal; None: no limit.
    """
    view = _shown(view)
    rows = {
        "name": [view.name],
        "job": [f"{view.job_id or 'not submitted'}{f' ({view.scheduler})' if view.scheduler else ''}"],
        "state": [f"{view.state}{view.lasting(now)}"],
        "why" if view.finished else "detail": _why(view),
        "warning": [*([_unmoved(view)] if view.unmoved else []), *map(_damaged, view.damaged)],
        "check": [view.check] if view.check else [],
        "slow": [_was_slow(view.was_slow, view.attempt)] if view.was_slow else [],
        "times": _times(view),
        "params": [", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in view.params.items())]
        if view.params
        else [],
        "run directory": [f"{view.run_dir}"],
        "code": code_lines(view.code or {}),
        "attempts": _chain(view),
        **_links(view),
    }
    lines = []
    for label, texts in rows.items():
        for number, text in enumerate(texts):
            lines.append(hanging(f"{'' if number else label:<{_LABEL}}{text}", width, _LABEL))
    lines[2] = lines[2].replace(view.state, style.state(view.state))
    if view.tasks:
        lines += ["", tasktable.tasks(view, now, width)]
    return "\n".join([*lines, *_last_lines(view)])


def verdict(view: JobView, now: float, width: int | None = None) -> str:
    """Show how a job ended, with the last lines of the task that failed first.

    Args:
        view: The job.
        now: Seconds since the epoch.
        width: Columns of the terminal; None: no limit.
    """
    view = _shown(view)
    first = f"{view.name} ({view.job_id}): {style.state(view.state)}{view.lasting(now)}"
    return "\n".join([first, *(hanging(f"  {line}", width, 4) for line in _why(view)), *_last_lines(view)])


def progress(view: JobView, now: float | None = None, steps: str = "") -> str:
    """Show in one line the state of a job that has not ended.

    Args:
        view: The job.
        now: Seconds since the epoch, to show how long it has run and its steps; None: without these.
        steps: How far it has come, if that is known better than from its reports.
    """
    view = _shown(view)
    states: dict[str, int] = {}
    for task in view.tasks:
        states[task.state] = states.get(task.state, 0) + 1
    if view.state in ENDED:
        return f"attempt {view.attempt} ended {view.state}; {_STILL_QUEUED}"
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items())
    current = counts and view.state != JobState.PENDING  # a pending job has tasks of an earlier attempt only
    state = view.state.lower() + ("" if now is None else view.lasting(now))
    steps = "" if now is None else steps or _furthest(view)
    words = [state, steps, *_detail(view), f"tasks: {counts}" if current else ""]
    return "; ".join(word for word in words if word)


def _furthest(view: JobView) -> str:
    """The step of the task that has come furthest, and its rate; empty where no task reports one."""
    steps = [(task.progress["step"], (task.sample or {}).get("rate")) for task in view.tasks if task.progress]
    step, rate = max(steps, key=lambda known: known[0], default=(None, None))
    return "" if step is None else f"step {step}" + (f" ({rate:.3g}/s)" if rate else "")


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


def _why(view: JobView) -> list[str]:
    queued = view.in_queue and not view.finished and view.state in ENDED
    return [line for line in ("; ".join(_detail(view)), view.hint, _STILL_QUEUED if queued else "") if line]


def _detail(view: JobView) -> list[str]:
    """Why the job is in its state, and when it is expected to start."""
    start = "" if view.expected is None else f"expected to start {_moment(view.expected)}"
    return [words for words in (view.reason, start) if words]


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _times(view: JobView) -> list[str]:
    """When the job was submitted, its first task started, and it ended, as far as that is known."""
    times = {"submitted": view.submitted, "started": view.started, "ended": view.ended}
    text = ", ".join(f"{what} {_moment(at)}" for what, at in times.items() if at is not None)
    return [text] if text else []


def _unmoved(view: JobView) -> str:
    cpu = ", and none uses a CPU" if any(task.sample for task in view.tasks) else ""
    still = f"no log has grown and no task has reported a step for {duration(view.unmoved or 0.0)}{cpu}"
    return f"{still}: see gridtf stacks {view.job_id or view.run_dir}"


def _was_slow(told: Mapping[str, Any], latest: int | None) -> str:
    how_long = "" if told["seconds"] is None else f" for {duration(told['seconds'])}"
    which = "" if told["attempt"] == latest else f" in attempt {told['attempt']}"
    return f"{told['task']} on {told['host']} held the others up{how_long}{which}: {told['what']}"


def _damaged(record: str) -> str:
    return f"{record} is damaged: what it says is missing here"


def _chain(view: JobView) -> list[str]:
    """The attempts of a job that has had several, a line each."""
    if len(view.attempts) < 2:
        return []
    lines = []
    for attempt in view.attempts[-_MOST_ATTEMPTS:]:
        over = attempt.ended is not None or attempt.number != view.attempt
        why = f": {attempt.reason}" if attempt.reason and over else ""
        after = ""
        if attempt.started is not None and attempt.ended is not None:
            after = f" after {duration(attempt.ended - attempt.started)}"
        lines.append(f"attempt {attempt.number} {attempt.state}{after}{why}")
    return lines


def _links(view: JobView) -> dict[str, list[str]]:
    """The jobs that it starts after and the steps that it belongs to, a line each, by their label."""
    labels = {"after": "after", "after_any": "after any", "after_failed": "after failed", "step": "steps"}
    lines: dict[str, list[str]] = {}
    for link in view.chain:
        lines.setdefault(labels[link.kind], []).append(f"{link.name} ({link.job_id}) {link.state}")
    return lines


def _last_lines(view: JobView) -> list[str]:
    cause = view.cause
    if not cause:
        return []
    if not cause.get("tail"):
        return ["", f"{cause['task'] or 'its script'} printed nothing: {cause['log']}"]
    return ["", f"last lines of {cause['log']}:", *(f"  {line}" for line in cause["tail"])]
