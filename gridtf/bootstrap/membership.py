"""Whether tasks that run TensorFlow join the cluster: a program that ignores it trains once per task, and succeeds.

TensorFlow joins the cluster by a server on the task's port, which the agent has reserved. Nothing is asked of the
program: the agent sees in /proc which tasks have loaded TensorFlow and which ports are open. The launcher decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.run.rundir import Record
from gridtf.states import JobState
from gridtf.text import counted
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.bootstrap.supervisor import TaskProcess
    from gridtf.bootstrap.system import System
    from gridtf.bootstrap.verdict import Verdict

# What was seen of TensorFlow in a task, in its record; empty: nothing.
LOADED = "loaded"  # its process has loaded TensorFlow
JOINED = "joined"  # its port was opened
ELSEWHERE = "elsewhere"  # it communicates in another way

SOON = 60.0  # seconds after which tasks that have not joined are reported while they run

_TENSORFLOW = "/libtensorflow_framework.so"
# Parts of the paths of libraries by which programs communicate without a server of TensorFlow.
_OTHER_WAYS = ("/horovod/", "/libmpi.so", "/mpi4py/", "/jaxlib/", "/torch/lib/")
_MOST_PROCESSES = 16  # of a task, that are examined: its program may be a child of a shell
_SHORTEST, _LONGEST = 0.25, 30.0  # seconds between two looks


class Membership:
    """The agent's view of its tasks.

    Args:
        ports: Task -> its port, for each task of this host that may join the cluster.
        master: The task of rank 0, if it is on this host, and MASTER_PORT; None otherwise.
        system: This host.
        gates: Inodes of the sockets on these ports that belong to the fence.
    """

    def __init__(
        self,
        ports: Mapping[str, int],
        master: tuple[str, int] | None,
        system: System,
        gates: Collection[int] = (),
    ) -> None:
        self._gates = gates
        self._ports = dict(ports)
        self._master = master
        self._system = system
        self._begin = self._next = system.monotonic()

    def pause(self) -> float:
        """Seconds until the next look: few at first, when TensorFlow starts its server, then ever more."""
        if not self._ports:
            return _LONGEST
        return max(0.0, self._next - self._system.monotonic())

    def look(self, tasks: Iterable[TaskProcess]) -> bool:
        """Look for TensorFlow in tasks, until they have joined.

        Args:
            tasks: Tasks of this host.

        Returns:
            Whether a task is seen to have loaded TensorFlow or joined the cluster.
        """
        watched = [task for task in tasks if task.name in self._ports and task.pid is not None]
        ended = [task for task in watched if task.ended is not None]
        now = self._system.monotonic()
        if not (ended or now >= self._next):
            return False
        self._next = now + min(max(_SHORTEST, (now - self._begin) / 10), _LONGEST)
        if not watched:
            return False
        before = [task.tensorflow for task in watched]
        ports = set(self._ports.values()) | ({self._master[1]} if self._master else set())
        opened = self._system.listening(ports, self._gates)
        if ended:  # it may have opened and closed the port since the last look
            opened |= self._system.connected(ports)
        for task in watched:
            task.tensorflow = self._of(task, opened)
            if task in ended or task.tensorflow in (JOINED, ELSEWHERE):
                del self._ports[task.name]
        return before != [task.tensorflow for task in watched]

    def _of(self, task: TaskProcess, opened: set[int]) -> str:
        if self._ports[task.name] in opened:
            return JOINED
        if self._master and self._master[0] == task.name and self._master[1] in opened:
            return ELSEWHERE
        if task.tensorflow or task.ended is not None:
            return task.tensorflow
        files = self._system.mapped_files(task.pid or 0, _MOST_PROCESSES)
        if _TENSORFLOW not in files:
            return ""
        return ELSEWHERE if any(part in files for part in _OTHER_WAYS) else LOADED


class Separate(Value):
    """Several tasks that train, each by itself.

    Attributes:
        who: ``4 workers``; ``3 tasks`` where their types differ.
    """

    who: str

    @property
    def running(self) -> str:
        """The warning while they run."""
        return f"{self.who} have loaded TensorFlow, and none has joined the cluster so far"

    @property
    def ended(self) -> str:
        """The warning when they have ended."""
        return f"{self.who} trained separately: none joined the cluster"

    @property
    def hint(self) -> str:
        """What to do about it."""
        return (
            "none opened its port for TensorFlow: give the strategy gridtf.training.ClusterResolver(), or average with "
            "gridtf.training.averaging(); if they communicate in a way of their own, say so: --env TF_CONFIG="
        )


def separate(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Separate | None:
    """Decide whether the tasks that train do so separately. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.

    Returns:
        None when a task has joined the cluster or communicates in another way, when there is only one, and when not
        every task was seen to have loaded TensorFlow.
    """
    training = [task for task in tasks if task.trains and task.in_cluster]
    seen = {records.get(task.name, {}).get("tensorflow") for task in training}
    if len(training) < 2 or seen != {LOADED}:
        return None
    types = {task.type for task in training}
    return Separate(counted(len(training), types.pop() if len(types) == 1 else "task"))


def noted(end: Verdict, tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Verdict:
    """Add the warning to the verdict on a job that has completed, or that its walltime has ended. Pure.

    Args:
        end: The verdict.
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    found = separate(tasks, records)
    if found is None or end.state not in (JobState.COMPLETED, JobState.TIMEOUT):
        return end
    warning = found.ended if end.state == JobState.COMPLETED else found.running
    return end.replace(reason=f"{end.reason}; {warning}", hint="; ".join(filter(None, (end.hint, found.hint))))
