"""Whether tasks train together: a program that ignores the others trains once per task, and succeeds.

TensorFlow joins the cluster by a server on the task's port, which the agent has reserved. MPI and Horovod ask who has
started them, and a process that no mpirun has started is a world of its own. Nothing is asked of the program: the agent
sees in /proc which libraries tasks have loaded, which ports are open and who started whom. The launcher decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.run.rundir import Record
from gridtf.states import JobState, TaskState
from gridtf.text import counted, some
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.bootstrap.supervisor import TaskProcess
    from gridtf.bootstrap.system import System
    from gridtf.bootstrap.verdict import Verdict

# What was seen of TensorFlow, MPI and Horovod in a task, in its record; empty: nothing.
LOADED = "loaded"  # its process has loaded TensorFlow
ALONE = "alone"  # its process has loaded MPI or Horovod, and nobody has told it of other ranks
JOINED = "joined"  # its port was opened
ELSEWHERE = "elsewhere"  # it communicates in another way

SOON = 60.0  # seconds after which tasks that have not joined are reported while they run

_TENSORFLOW = "/libtensorflow_framework.so"
# Parts of the paths of libraries by which programs communicate without a server of TensorFlow.
_OTHER_WAYS = ("/jaxlib/", "/torch/lib/")
# Those of libraries whose processes are started together, which the variables of their starter show. A PyTorch may be
# linked to MPI and never use it.
_RANKS = ("/mpi4py/", "/horovod/")
_MPI = ("/libmpi.so", "/libmpich.so", "/libmpi_")  # Open MPI, Intel; Debian's MPICH; Cray
# A variable by which mpirun, srun or horovodrun tells a process its rank; a site sets others that begin like these.
_STARTED = r"(OMPI_COMM_WORLD|PMIX?|MV2_COMM_WORLD|HOROVOD)_RANK="
_MOST_PROCESSES = 16  # of a task, that are examined: its program may be a child of a shell
_SHORTEST, _LONGEST = 0.25, 30.0  # seconds between two looks


class Membership:
    """The agent's view of its tasks.

    Args:
        ports: Task -> its port, for each member of the cluster on this host.
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
        if task.tensorflow == LOADED or task.ended is not None:
            return task.tensorflow
        files = self._system.mapped_files(task.pid or 0, _MOST_PROCESSES)

        def has(parts: Iterable[str]) -> bool:
            return any(part in files for part in parts)

        if has(_RANKS) or (has(_MPI) and not has(_OTHER_WAYS)):
            variables = self._system.variables(task.pid or 0, _MOST_PROCESSES)
            return ELSEWHERE if any(re.match(_STARTED, variable) for variable in variables) else ALONE
        if _TENSORFLOW not in files:
            return task.tensorflow  # of a process that exits, nothing is seen any more
        return ELSEWHERE if has(_OTHER_WAYS) else LOADED


class Separate(Value):
    """Several tasks that train, each by itself.

    Attributes:
        who: ``4 workers``; ``3 tasks`` where their types differ.
        ranks: Whether they have loaded MPI or Horovod.
    """

    who: str
    ranks: bool = False

    @property
    def running(self) -> str:
        """The warning while they run."""
        if self.ranks:
            return f"{self.who} have loaded MPI or Horovod, to which each of them is rank 0 of 1"
        return f"{self.who} have loaded TensorFlow, and none has joined the cluster so far"

    @property
    def ended(self) -> str:
        """The warning when they have ended."""
        why = "to MPI or Horovod, each was rank 0 of 1" if self.ranks else "none joined the cluster"
        return f"{self.who} trained separately: {why}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.ranks:
            return (
                "MPI and Horovod have to be started by mpirun or srun: do it in a job script of your own, where each "
                "process calls gridtf_join; or communicate by RANK and WORLD_SIZE; if they need not, say so: "
                "--env TF_CONFIG="
            )
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
        every task was seen to have loaded TensorFlow, MPI or Horovod.
    """
    training = [task for task in tasks if task.trains and task.in_cluster]
    seen = {records.get(task.name, {}).get("tensorflow") for task in training}
    if len(training) < 2 or not seen <= {LOADED, ALONE}:
        return None
    types = {task.type for task in training}
    return Separate(counted(len(training), types.pop() if len(types) == 1 else "task"), ranks=ALONE in seen)


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


def noted(
    end: Verdict, tasks: Sequence[PlacedTask], members: Sequence[PlacedTask], records: Mapping[str, Record]
) -> Verdict:
    """Add the warning to the verdict on a job that has completed, or that its walltime has ended. Pure.

    Args:
        end: The verdict.
        tasks: All tasks of the job.
        members: As environment.members returns them.
        records: Task name -> its record.
    """
    late = end.state == JobState.TIMEOUT
    if found := separate(tasks, records) if late or end.state == JobState.COMPLETED else None:
        warning = found.running if late else found.ended
        return end.replace(reason=f"{end.reason}; {warning}", hint="; ".join(filter(None, (end.hint, found.hint))))
    if missed := absent(members, records) if late else None:  # more time would be no help
        return end.replace(reason=f"{end.reason}; {missed.running}", hint=missed.hint)
    return end
