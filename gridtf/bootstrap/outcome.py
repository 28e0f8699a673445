"""Whether an attempt goes on, has succeeded or has failed, and by whom. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gridtf.bootstrap.placement import PlacedTask
from gridtf.jobspec.tasktypes import LEADERS, TASK_TYPES
from gridtf.run.recordtypes import COMPLETED, FAILED, RUNNING
from gridtf.run.rundir import Record

TaskRecords = Mapping[str, Record]


@dataclass(frozen=True)
class Outcome:
    """ended: whether it is over. cause: the task that failed first, None after success. lingering: tasks that may
    still finish by themselves although the training has ended. early: those that have finished although others, the
    awaited ones, need them or are mostly led by them: they may wait for ever. leader: the one of
    them that leads the others, which need not be waited for without a limit."""

    ended: bool
    cause: PlacedTask | None = None
    lingering: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    leader: str = ""


def decide(tasks: Sequence[PlacedTask], records: TaskRecords, policy: str = "all") -> Outcome:
    """The outcome from what the hosts say of their tasks. policy: as JobSpec.success_policy."""
    completed = {task.name for task in tasks if _state(records, task) == COMPLETED}
    waited = tuple(task.name for task in awaited(tasks, policy) if task.name not in completed)
    if not waited:
        lingering = (task.name for task in tasks if TASK_TYPES[task.type].lingers and _state(records, task) == RUNNING)
        return Outcome(True, lingering=tuple(lingering))
    cause = first_failure(tasks, records)
    if cause:
        return Outcome(True, cause)
    leader = _leader(tasks)
    needed = (task for task in tasks if task.in_cluster and (task == leader or not task.trains))
    early = tuple(task.name for task in needed if task.name in completed)
    led = leader.name if leader and leader.name in early else ""
    return Outcome(False, early=early, awaited=waited if early else (), leader=led)


def _leader(tasks: Sequence[PlacedTask]) -> PlacedTask | None:
    """The task that leads the others, as TensorFlow's programs for parameter servers have it: the chief, else worker 0.
    Where there is no ps, workers may have nothing to do with each other, and none of them leads."""
    training = [task for task in tasks if task.trains]
    leaders = [task for task in training if task.type in LEADERS]
    with_ps = any(task.type == "ps" and task.in_cluster for task in tasks)
    return next(iter(leaders or (training if with_ps else ())), None)


def first_failure(tasks: Sequence[PlacedTask], records: TaskRecords) -> PlacedTask | None:
    """The critical task that failed first. Of two at the same moment the one that a signal killed: the other one's
    exit is more likely a consequence."""
    failed = [task for task in tasks if TASK_TYPES[task.type].critical and _state(records, task) == FAILED]
    if not failed:
        return None
    return min(failed, key=lambda task: (records[task.name].get("ended") or 0.0, not records[task.name].get("signal")))


def lost_hosts(tasks: Sequence[PlacedTask], records: TaskRecords) -> list[str]:
    """After the tear-down: the hosts that still say that a task runs. They have not seen it, or cannot say so."""
    return list(dict.fromkeys(task.host for task in tasks if _state(records, task) == RUNNING))


def awaited(tasks: Sequence[PlacedTask], policy: str) -> list[PlacedTask]:
    """The tasks whose success is the job's."""
    training = [task for task in tasks if task.trains]
    if policy == "chief":
        leaders = [task for task in training if task.type in LEADERS]
        return leaders or training[:1]
    return training


def _state(records: TaskRecords, task: PlacedTask) -> str:
    return str(records.get(task.name, {}).get("state", ""))
