"""The timeline of a job: phases of its attempts, and when each task ran, from events and records. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridtf.run.recordtypes import tasks_of
from gridtf.run.rundir import Record
from gridtf.states import TaskState
from gridtf.values import Value, grouped

# Phases of an attempt, in their order.
QUEUE, START, RENDEZVOUS, TRAINING, STOP = "queue", "start", "rendezvous", "training", "stop"
# Events that are marked in the picture.
MARKED = ("notice", "stalled", "going on", "slow", "in step", "stopping")
# Of several tasks, the state that comes first here is shown.
_WORST = (TaskState.FAILED, TaskState.UNKNOWN, TaskState.STOPPED, TaskState.SAVED, TaskState.RUNNING)


class Phase(Value):
    """A phase of an attempt.

    Attributes:
        name: One of the phases above.
        begin: Seconds since the epoch.
        end: Seconds since the epoch.
    """

    name: str
    begin: float
    end: float


class Stretch(Value):
    """A task from a start to its end.

    Attributes:
        attempt: The number of the attempt.
        begin: Seconds since the epoch.
        end: Seconds since the epoch; for a task that runs, the time of the report.
        state: As in TaskView.
        host: Where it ran; empty when not known.
        exit: Its exit code; None when not known.
        signal: The signal that ended it; None without.
        cause: Whether it is the first cause of the attempt's end.
    """

    attempt: int
    begin: float
    end: float
    state: str
    host: str = ""
    exit: int | None = None
    signal: str | None = None
    cause: bool = False


class AttemptData(Value):
    """What the run directory tells of an attempt.

    Attributes:
        number: Counted from 1.
        plan: plan.json; empty where only its owner may read it.
        launcher: state/launcher.json.
        hosts: Host -> what state/hosts.json has of it, with its tasks.
        verdict: verdict.json; empty before the end.
        events: events.jsonl.
    """

    number: int
    plan: Mapping[str, Any] = {}
    launcher: Mapping[str, Any] = {}
    hosts: Mapping[str, Any] = {}
    verdict: Mapping[str, Any] = {}
    events: Sequence[Record] = ()


class Attempt(Value):
    """An attempt in the timeline.

    Attributes:
        number: Counted from 1.
        state: How it ended; RUNNING if it has not.
        reason: Why.
        begin: When it was queued, or when the attempt before it ended.
        end: When it ended; of one that runs, the time of the report.
        phases: Its phases, in their order.
        hosts: The hosts it had.
        tasks: Task -> its stretches; several if it was started again in place.
        marks: Events to mark: (time, event, text).
    """

    number: int
    state: str
    reason: str
    begin: float
    end: float
    phases: tuple[Phase, ...] = ()
    hosts: tuple[str, ...] = ()
    tasks: Mapping[str, Sequence[Stretch]] = {}
    marks: tuple[tuple[float, str, str], ...] = ()

    @property
    def allocated(self) -> float:
        """When its hosts were there: the end of its queue."""
        return self.phases[0].end if self.phases and self.phases[0].name == QUEUE else self.begin


def attempts(told: Sequence[AttemptData], submitted: float | None, now: float) -> list[Attempt]:
    """Make the timeline of a job.

    Args:
        told: Its attempts, oldest first.
        submitted: When it was submitted, in seconds since the epoch; None when not known.
        now: The end of what has not ended, in seconds since the epoch.
    """
    made: list[Attempt] = []
    for number, one in enumerate(told):
        before = made[-1].end if made else submitted
        # one without a verdict that is followed by another has ended when that was queued
        following = told[number + 1] if number + 1 < len(told) else None
        until = now if following is None else _first(following, now)
        kept = number > 0 and told[number - 1].verdict.get("next") == one.number
        made.append(_attempt(one, before, until, over=following is not None, kept=kept))
    return made


def slow(told: Sequence[AttemptData], made: Sequence[Attempt]) -> list[tuple[str, str, str, float, float]]:
    """Who held the others up, over all of a job.

    Args:
        told: Its attempts.
        made: Their timeline.

    Returns:
        (task, host, what it lacked, for how many seconds, the share of the time in which tasks trained), the longest
        first.
    """
    found: dict[tuple[str, str, str], float] = {}
    for one, attempt in zip(told, made, strict=True):
        since, key = 0.0, None
        for event in (*one.events, {"event": "in step", "time": attempt.end}):
            if event["event"] in ("slow", "in step"):
                if key is not None:
                    found[key] = found.get(key, 0.0) + max(0.0, event["time"] - since)
                about = event.get("task", ""), event.get("host", ""), event.get("what", "")
                since, key = event["time"], about if event["event"] == "slow" else None
    trained = sum(phase.end - phase.begin for one in made for phase in one.phases if phase.name == TRAINING)
    longest = sorted(found.items(), key=lambda one: -one[1])
    return [(*key, seconds, min(1.0, seconds / trained) if trained else 1.0) for key, seconds in longest]


def _first(told: AttemptData, default: float) -> float:
    times = [event["time"] for event in told.events] or [told.launcher.get("began", default)]
    return float(min(times))


def _attempt(told: AttemptData, before: float | None, until: float, *, over: bool, kept: bool) -> Attempt:
    """An attempt of the timeline; kept: it has the hosts of the one before, so that it was in no queue."""
    times = _times(told)
    if kept and before is not None:
        times["allocated"] = before
    end = float(told.verdict.get("ended") or times.get("verdict") or until)
    begin = before if before is not None else min([*times.values(), end])
    tasks = _stretches(told, end, over or bool(told.verdict))
    starts = [stretch.begin for stretches in tasks.values() for stretch in stretches]
    if starts:
        times.setdefault("started", min(starts))
    state = str(told.verdict.get("state") or ("UNKNOWN" if over else "RUNNING"))
    hosts = [host for event in told.events for host in event.get("hosts", ()) if event["event"] == "allocated"]
    return Attempt(
        number=told.number,
        state=state,
        reason=str(told.verdict.get("reason", "")),
        begin=begin,
        end=max(begin, end),
        phases=_phases(times, begin, max(begin, end)),
        hosts=tuple(dict.fromkeys(hosts or _planned_hosts(told.plan) or told.hosts)),
        tasks=tasks,
        marks=tuple((event["time"], event["event"], event.get("text", "")) for event in told.events if _marked(event)),
    )


def _marked(event: Record) -> bool:
    return event["event"] in MARKED or (event["event"] == "started" and event.get("restarts", 0) > 0)


def _planned_hosts(plan: Mapping[str, Any]) -> list[str]:
    return [task["host"] for task in plan.get("tasks", ()) if task.get("host")]


def _times(told: AttemptData) -> dict[str, float]:
    """Event -> when it happened first; for a gridtf that wrote no events, what the launcher's record has."""
    times: dict[str, float] = {}
    for event in told.events:
        times.setdefault(event["event"], event["time"])
    if "began" in told.launcher:
        times.setdefault("allocated", told.launcher["began"])
    return times


def _phases(times: Mapping[str, float], begin: float, end: float) -> tuple[Phase, ...]:
    """The phases between the events that are known; each lasts until the next one."""
    ready = times.get("ready")
    borders = [
        (QUEUE, begin),
        (START, times.get("allocated")),
        (RENDEZVOUS, ready if "rendezvous" in times or "started" not in times else None),
        (TRAINING, times.get("started")),
        (STOP, times.get("stopping")),
    ]
    known = [(name, min(max(time, begin), end)) for name, time in borders if time is not None]
    ends = [time for _, time in known[1:]] + [end]
    return tuple(Phase(name, time, until) for (name, time), until in zip(known, ends, strict=True) if until > time)


def _stretches(told: AttemptData, end: float, over: bool) -> dict[str, list[Stretch]]:
    """Task -> when it ran; from the events, and where there are none from the last states of the tasks."""
    made: dict[str, list[Stretch]] = {}
    where = {name: task.get("host") or "" for name, task in tasks_of(told.plan).items()}
    running: dict[str, Stretch] = {}
    open_state = TaskState.STOPPED if over else TaskState.RUNNING
    for event in told.events:
        name = event.get("task", "")
        if event["event"] == "started" and name:
            if name in running:  # its end was not written
                made.setdefault(name, []).append(running.pop(name).replace(end=event["time"], state="UNKNOWN"))
            host = event.get("host") or where.get(name, "")
            running[name] = Stretch(told.number, event["time"], max(end, event["time"]), str(open_state), host)
        elif event["event"] == "ended" and name in running:
            how = {"state": event.get("state", ""), "exit": event.get("exit"), "signal": event.get("signal")}
            made.setdefault(name, []).append(running.pop(name).replace(end=event["time"], **how))
    for name, stretch in running.items():
        made.setdefault(name, []).append(stretch)
    if not made:
        for host, record in told.hosts.items():
            for name, state in record.get("tasks", {}).items():
                if (begin := state.get("started")) is not None:
                    until = state.get("ended") or max(end, begin)
                    how = {"exit": state.get("exit"), "signal": state.get("signal")}
                    shown = str(state.get("state", TaskState.UNKNOWN))
                    if over and shown == TaskState.RUNNING:
                        shown = str(TaskState.STOPPED)
                    made[name] = [Stretch(told.number, begin, until, shown, host, **how)]
    cause = told.verdict.get("cause") or {}
    if found := made.get(cause.get("task") or ""):
        # a program that has failed may be slow to end, and gridtf ends it: the verdict knows, as `gridtf status` does
        failed = {"state": str(TaskState.FAILED)} if found[-1].state == TaskState.STOPPED else {}
        found[-1] = found[-1].replace(cause=True, **failed)
    order = list(where) or sorted(made, key=natural)
    rank = {name: number for number, name in enumerate(order)}
    return dict(sorted(made.items(), key=lambda item: rank.get(item[0], len(rank))))


def natural(name: str) -> list[str | int]:
    """The key that sorts names such as ``worker:10`` by the numbers in them."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"([0-9]+)", name))]


class Row(Value):
    """A row of the timeline: a task, or tasks with subsequent numbers.

    Attributes:
        label: Such as ``worker:3``, or ``worker:0-3``.
        stretches: When one of them ran.
    """

    label: str
    stretches: tuple[Stretch, ...]


def rows(made: Sequence[Attempt], most: int) -> list[Row]:
    """The rows of the timeline, one for each task; if there are too many, tasks with subsequent numbers share one.

    Args:
        made: The attempts.
        most: Number of rows at most, for each type of tasks at least one.
    """
    all_names = dict.fromkeys(name for attempt in made for name in attempt.tasks)
    types = grouped((name.partition(":")[0], name) for name in all_names)
    count = sum(map(len, types.values()))
    size = -(-count // most) if count > most else 1
    shown = []
    for names in types.values():
        for at in range(0, len(names), size):
            group = names[at : at + size]
            last = group[-1].partition(":")[2]
            label = group[0] if len(group) == 1 else f"{group[0]}-{last}"
            shown.append(Row(label, tuple(_together(made, group))))
    return shown


def _together(made: Sequence[Attempt], names: Sequence[str]) -> list[Stretch]:
    if len(names) == 1:
        return [stretch for attempt in made for stretch in attempt.tasks.get(names[0], ())]
    merged = []
    for attempt in made:
        of_names = [stretch for name in names for stretch in attempt.tasks.get(name, ())]
        if of_names:
            worst = min(of_names, key=lambda stretch: (not stretch.cause, _rank(stretch.state)))
            begin, end = min(one.begin for one in of_names), max(one.end for one in of_names)
            merged.append(worst.replace(begin=begin, end=end, host=""))
    return merged


def _rank(state: str) -> int:
    return _WORST.index(TaskState(state)) if state in _WORST else len(_WORST)
