"""What ``gridtf status`` shows beyond the state of a job: attempts, ends of logs, whether anything moves, its code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import RunDirError
from gridtf.observe import history, jobs, steps
from gridtf.observe.codelines import code_of
from gridtf.observe.views import AttemptView, JobView, LinkView, TaskView
from gridtf.run import following, recordtypes
from gridtf.run.following import CONDITIONS
from gridtf.run.logparts import begins_file
from gridtf.run.reading import Reading
from gridtf.run.rundir import Attempt, RunDir, listdir, read_record
from gridtf.run.tail import last_lines
from gridtf.states import JobState, TaskState
from gridtf.text import some
from gridtf.values import as_dict

if TYPE_CHECKING:
    from typing import Any

MOST_LOGS = 64  # tasks whose logs are read
_TAIL = 8192  # bytes of each
_STILL = 600.0  # seconds without a sign of work after which a job is said not to move
_SLOW_UNTIL = ("in step", "stopping", "verdict")  # events that end the time in which a task was slow
_BUSY = 0.05  # cores; an idle TensorFlow server uses less


def detailed(view: JobView, now: float) -> JobView:
    """Add to a view the job's attempts, the ends of the logs of up to 64 tasks, and for how long nothing has moved.

    Args:
        view: The job.
        now: Seconds since the epoch.
    """
    run = RunDir(view.run_dir)
    reading = Reading(run)
    read = [task for task in view.tasks if task.log][:MOST_LOGS]
    done = any(task.state == TaskState.COMPLETED for task in view.tasks)
    left = done and view.state in (JobState.RUNNING, JobState.COMPLETED)
    ends = {task.name: last_lines(task.log, _TAIL, left=left) for task in read if task.log}
    tasks = tuple(_with_end(task, ends[task.name]) if task.name in ends else task for task in view.tasks)
    logs = [task.log for task in read if task.log]
    names = listdir(logs[0].parent) if logs else []
    for log in logs:
        reading.record(begins_file(log), recordtypes.LogParts, names=names)
    silent = _silence(run, view, logs)
    more = {"unmoved": unmoved(view, silent, now), "code": code_of(run, reading), "chain": _chain(run, view, reading)}
    more |= _told(run, view, reading)
    damaged = tuple(dict.fromkeys((*view.damaged, *reading.damaged)))
    return view.replace(tasks=tasks, attempts=attempts(view), damaged=damaged, **more)


def attempts(view: JobView) -> tuple[AttemptView, ...]:
    """The attempts of a job, oldest first, as far as its run directory still has them.

    Raises:
        RunDirError: When the run directory cannot be listed.
    """
    return tuple(_attempt(attempt, view) for attempt in RunDir(view.run_dir).attempts())


def unmoved(view: JobView, silent: float | None, now: float) -> float | None:
    """For how many seconds nothing has moved in a job. Pure.

    Args:
        view: The job.
        silent: Seconds since a log has grown; None where that is not known.
        now: Seconds since the epoch.

    Returns:
        Seconds since a log has grown, a task has reported a step and a task was started; None if that is below 10 min,
        if the job is not running its tasks, and if one of them has just used a CPU.
    """
    if view.state != JobState.RUNNING or view.phase != "running" or silent is None:
        return None
    running = [task for task in view.tasks if task.state == TaskState.RUNNING]
    moved = [*_times(task.progress for task in running), *(task.started for task in running if task.started)]
    since = min([silent, *(now - time for time in moved)])
    busy = any(task.sample and task.sample["cpu"] >= _BUSY for task in running)
    return since if running and since >= _STILL and not busy else None


def _chain(run: RunDir, view: JobView, reading: Reading) -> tuple[LinkView, ...]:
    """The jobs that a job starts after, and the steps that it belongs to, with their states."""
    job = reading.private(run.job, recordtypes.Job) or {}
    conditions = [(key, "", path) for key in CONDITIONS for path in job.get("spec", {}).get(key, ())]
    steps = [("step", name, path) for name, path in following.steps(run, job, reading).items()]
    known = {str(run.path): view}
    others = list(dict.fromkeys(path for _, _, path in (*conditions, *steps) if path not in known))
    known |= zip(others, jobs.views([RunDir(path) for path in others]), strict=True)
    return tuple(
        LinkView(kind, name or known[path].name, known[path].job_id, known[path].state, known[path].run_dir)
        for kind, name, path in (*conditions, *steps)
    )


def _told(run: RunDir, view: JobView, reading: Reading) -> dict[str, Any]:
    """What events tell of the check of the hosts and, when the job has ended, of the last task that was slow."""
    events = list(history.events(run, reading).more())
    check = next((event for event in events if event["event"] == "check"), {})
    gone = [host for host in check.get("hosts", ()) if all(one.name != host for one in view.hosts)]
    told: dict[str, Any] = {"check": check.get("text", "") + (f"; without {some(gone)} since" if gone else "")}
    last = max((number for number, event in enumerate(events) if event["event"] == "slow"), default=None)
    if last is not None and view.finished:
        slow, later = events[last], [event for event in events[last:] if event["attempt"] == events[last]["attempt"]]
        until = next((event["time"] for event in later if event["event"] in _SLOW_UNTIL), later[-1]["time"])
        known = {key: slow.get(key, "") for key in ("task", "host", "what", "attempt")}
        told["was_slow"] = {**known, "seconds": max(0.0, until - slow["time"]) or None}
    return told


def _times(records: Iterable[Mapping[str, Any] | None]) -> list[float]:
    return [record["time"] for record in records if record]


def _silence(run: RunDir, view: JobView, logs: Iterable[Path]) -> float | None:
    """Seconds since one of the logs has grown, by the clock of the file server, which also dates the heartbeat."""
    if view.attempt is None:
        return None
    try:
        beat = run.attempt(view.attempt).launcher.stat().st_mtime
        return beat - max((log.stat().st_mtime for log in logs), default=float("-inf"))
    except OSError:
        return None


def _with_end(task: TaskView, lines: list[str]) -> TaskView:
    count = None if task.progress else steps.read(lines)
    return task.replace(last_line=lines[-1] if lines else "", logged=as_dict(count) if count else None)


def _attempt(attempt: Attempt, view: JobView) -> AttemptView:
    """How an attempt has ended; of the latest, how the job is if it has no verdict."""
    try:
        verdict = read_record(attempt.verdict, recordtypes.Verdict)
    except RunDirError as error:
        return AttemptView(attempt.number, JobState.UNKNOWN, error.what)
    if verdict is None and attempt.number == view.attempt:
        return AttemptView(attempt.number, view.state, view.reason, view.started, view.ended)
    if verdict is None:
        why = "it left no verdict: its launcher was killed, or its host was lost"
        return AttemptView(attempt.number, JobState.UNKNOWN, why)
    words = (str(verdict["state"]), str(verdict.get("reason", "")))
    return AttemptView(attempt.number, *words, verdict.get("started"), verdict.get("ended"))
