"""Which task, of several that failed, is the first cause: most of TensorFlow's errors tell of another task's end. Pure.

A member of a cluster notices within a moment that another one is gone, and may have ended long before that one has: it
names the other in its message, and is believed. Who is accused may have failed by itself, have been a victim as well,
have exited with 0 too early, not respond, or be on a host that is lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.states import TaskState
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.run.rundir import Record

# Parts of messages by which TensorFlow, gRPC in it and Horovod tell that another task cannot be reached any more.
_CONSEQUENCES = re.compile(
    "Socket closed"
    "|[Cc]onnection (reset|closed) by peer"
    "|Horovod has been shut down"
    "|failed to connect to all addresses"
    "|Collective ops is aborted"
    "|Failed to send RPC to coordination service"
    "|stopped sending heartbeats"
    "|tasks are unhealthy"
)
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
# A program that ends because of a message aborts itself at most; other signals come from outside or from a crash.
_OWN_SIGNALS = frozenset({None, "SIGABRT"})

# How the first cause came about.
FAILED, EXITED, SILENT, LOST = "failed", "exited", "silent", "lost"


class Cause(Value):
    """The first cause.

    Attributes:
        task: The task.
        how: FAILED by itself; EXITED with 0 while others needed it; SILENT: ran on, but did not respond; LOST with its
            host.
        victim: The task whose message names it; None where it is plain.
    """

    task: PlacedTask
    how: str
    victim: PlacedTask | None = None


def is_consequence(text: str) -> bool:
    """Whether a message tells of the end of another task."""
    return bool(_CONSEQUENCES.search(text))


def accused(text: str) -> list[str]:
    """The tasks that a message names, such as ``worker:2``, in its order."""
    return list(dict.fromkeys(f"{kind}:{index}" for kind, index in _TASK.findall(text)))


def raised(record: Record) -> Record | None:
    """The exception that has ended a task: that of another process than the task's own only where its exit code is the
    task's, since a program may have caught that the other one failed.

    Args:
        record: The task's.
    """
    noted: Record | None = record.get("exception")
    if noted and (noted["pid"] == record.get("pid") or record.get("exit") == 1):
        return noted
    return None


def when(record: Record) -> tuple[float, bool]:
    """When a task failed, for comparison with others.

    Its exception, where there is one, comes long before its end. Of two at the same time, a signal came first, since
    the exit of the other task is more likely a consequence.

    Args:
        record: The task's.
    """
    noted = raised(record)
    return noted["time"] if noted else record.get("ended") or 0.0, not record.get("signal")


def find(
    tasks: Sequence[PlacedTask],
    failed: Iterable[PlacedTask],
    records: Mapping[str, Record],
    texts: Mapping[str, str],
    lost: Collection[str] = (),
) -> Cause | None:
    """Find the first cause.

    Args:
        tasks: All tasks.
        failed: Those that count as failed.
        records: Task name -> its record, with all times by one clock.
        texts: Task name -> what a failed task said last.
        lost: The hosts that do not report any more.

    Returns:
        None where nothing has failed.
    """
    known = {task.name: task for task in tasks}
    order = sorted(failed, key=lambda task: when(records[task.name]))
    victims = [task for task in order if _is_victim(records[task.name], texts.get(task.name, ""))]
    own = [task for task in order if task not in victims]
    if own:
        return Cause(own[0], FAILED)
    seen: set[str] = set()
    for first in victims:
        task = first
        while task.name not in seen:
            seen.add(task.name)
            others = [name for name in accused(texts[task.name]) if name in known and name != task.name]
            if not others:
                break
            other = known[others[0]]
            if other not in victims:
                how = _how(other, records, lost)
                early = _first_done(tasks, records) if how == SILENT and other.rank == 0 else None
                return Cause(early, EXITED, task) if early else Cause(other, how, task)
            task = other
    return Cause(victims[0], FAILED) if victims else None


def _how(task: PlacedTask, records: Mapping[str, Record], lost: Collection[str]) -> str:
    if task.host in lost:
        return LOST
    ended_well = records.get(task.name, {}).get("state") in (TaskState.COMPLETED, TaskState.SAVED)
    return EXITED if ended_well else SILENT


def _first_done(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> PlacedTask | None:
    """The member of the cluster that has exited with 0 first. The first worker, which leads the others, is accused of
    whatever has happened, since the others lose it when it has noticed that."""
    done = [task for task in tasks if task.rank is not None and task.in_cluster]
    done = [task for task in done if records.get(task.name, {}).get("state") == TaskState.COMPLETED]
    return min(done, key=lambda task: records[task.name].get("ended") or 0.0, default=None)


def _is_victim(record: Record, text: str) -> bool:
    if record.get("abandoned") and not raised(record):
        return True
    by_itself = raised(record) or record.get("signal") in _OWN_SIGNALS
    return bool(by_itself) and is_consequence(text)
