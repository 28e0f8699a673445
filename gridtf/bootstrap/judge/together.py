"""Tasks that do not train together: what the agents have seen of them, and what it means. Pure.

A program that ignores the others trains once per task, and succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gridtf.bootstrap.judge.evidence import NOTE, Evidence
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.run.rundir import Record
from gridtf.states import ALONE, ELSEWHERE, JOINED, LOADED, JobState, TaskState
from gridtf.text import counted, some
from gridtf.values import Value

SOON = 60.0  # seconds after which tasks that have not joined are reported while they run


class Separate(Value):
    """Several tasks that train, each by itself.

    Attributes:
        who: ``4 workers``; ``3 tasks`` where their types differ.
        ranks: Whether they have loaded MPI or Horovod.
        listens: On which ports they listened, such as ``worker:0 on 4321``; empty: on none that was seen.
    """

    who: str
    ranks: bool = False
    listens: str = ""

    @property
    def running(self) -> str:
        """The warning while they run."""
        if self.ranks:
            return f"{self.who} have loaded MPI or Horovod, to which each of them is rank 0 of 1"
        also = f"; of their own, they have opened ports: {self.listens}" if self.listens else ""
        return f"{self.who} have loaded TensorFlow or JAX, and none has joined the cluster so far{also}"

    @property
    def ended(self) -> str:
        """The warning when they have ended."""
        if self.listens:
            return f"{self.who} did not join the cluster, and opened ports of their own: {self.listens}"
        why = "to MPI or Horovod, each was rank 0 of 1" if self.ranks else "none joined the cluster"
        return f"{self.who} trained separately: {why}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.ranks:
            return (
                "add --mpi: then mpirun starts the tasks as the ranks of one world; or communicate by RANK and "
                "WORLD_SIZE; if they need not, say so: --env TF_CONFIG="
            )
        if self.listens:
            return (
                "if they trained together by these, say so: --env TF_CONFIG=; else each trained by itself: give the "
                "strategy gridtf.training.ClusterResolver(), or average with gridtf.training.averaging()"
            )
        return (
            "on one host, start one task with MirroredStrategy: --workers 1; on several, take keras.distribution on "
            "JAX or tf_keras for fit, MultiWorkerMirroredStrategy for a loop, or gridtf.training.averaging(); if they "
            "communicate in a way of their own, say so: --env TF_CONFIG="
        )


def separate(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Separate | None:
    """Decide whether the tasks that train do so separately. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.

    Returns:
        None when a task has joined the cluster or communicates in another way, when there is only one, and when not
        every task was seen to have loaded TensorFlow, JAX, MPI or Horovod.
    """
    training = [task for task in tasks if task.trains and task.in_cluster]
    seen = {records.get(task.name, {}).get("tensorflow") for task in training}
    if len(training) < 2 or not seen <= {LOADED, ALONE}:
        return None
    types = {task.type for task in training}
    who, ranks = counted(len(training), types.pop() if len(types) == 1 else "task"), ALONE in seen
    opened = {task.name: records[task.name].get("listens") or () for task in training}
    where = [f"{name} on {', '.join(map(str, ports))}" for name, ports in opened.items() if ports and not ranks]
    return Separate(who, ranks, some(where, most=2))


class Absent(Value):
    """Members of the cluster that the others miss.

    Attributes:
        names: Their names, in rank order.
    """

    names: tuple[str, ...]

    @property
    def running(self) -> str:
        """The warning while they run, and of a job that its walltime has ended."""
        one = len(self.names) == 1
        port = f"{'a member' if one else 'members'} of the cluster, {'has' if one else 'have'} not opened"
        return f"{some(self.names)}, {port} {'its port' if one else 'their ports'} for TensorFlow"

    @property
    def hint(self) -> str:
        """What to do about it."""
        tables = some([f"[tasks.{kind}]" for kind in dict.fromkeys(name.partition(":")[0] for name in self.names)])
        return (
            "the other members may wait for that: a program without a server of TensorFlow is no member, write "
            f'in_cluster = false in {tables}; or make a type of your own: kind = "client" if it trains, else "service"'
        )


def absent(members: Sequence[PlacedTask], records: Mapping[str, Record]) -> Absent | None:
    """Find members that have never opened their port, although others have. Pure.

    Args:
        members: As environment.members returns them.
        records: Task name -> its record.

    Returns:
        None where there are none that have not ended by themselves, and where no other member has joined either.
    """
    known = {task.name: records.get(task.name, {}) for task in members}
    missing = tuple(
        name
        for name, record in known.items()
        if record.get("state") in (TaskState.RUNNING, TaskState.STOPPED)
        and record.get("tensorflow") not in (JOINED, ELSEWHERE)
    )
    joined = any(record.get("tensorflow") == JOINED for record in known.values())
    return Absent(missing) if joined and missing else None


def notes(
    tasks: Sequence[PlacedTask], members: Sequence[PlacedTask], records: Mapping[str, Record]
) -> Iterator[Evidence]:
    """The warnings, for the verdict on a job that has completed, or that its walltime has ended. Pure.

    Args:
        tasks: All tasks of the job.
        members: As environment.members returns them.
        records: Task name -> its record.
    """
    if found := separate(tasks, records):
        yield Evidence(NOTE, found.ended, hint=found.hint, on=(JobState.COMPLETED,))
        yield Evidence(NOTE, found.running, hint=found.hint, on=(JobState.TIMEOUT,))
    elif missed := absent(members, records):  # more time would be no help
        yield Evidence(NOTE, missed.running, hint=missed.hint, on=(JobState.TIMEOUT,), instead=True)


def left(*_: object) -> str:
    """That ranks have ended before others, to launchers of 0.1.0 that an upgrade in place has overtaken before their
    tasks ran: none has."""
    return ""


def noted(end: object, *_: object) -> object:
    """A verdict with the warnings, to the same: there are none."""
    return end
