"""Whether tasks train together: a program that ignores the others trains once per task, and succeeds.

TensorFlow joins the cluster by a server on the task's port, which the agent has reserved. Processes of JAX listen on
MASTER_PORT or on ports of their own; that it is loaded shows nothing, since TensorFlow loads it. MPI and Horovod ask
who has started them, and a process that no mpirun has started is a world of its own. Nothing is asked of the program:
the agent sees in /proc which libraries tasks have loaded, which ports are open and who started whom. What that means,
the launcher decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import api as agent_api
from gridtf.bootstrap.judge.evidence import NOTE, WELL, Evidence
from gridtf.bootstrap.launcher import api as launcher_api
from gridtf.bootstrap.plan import environment
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.run.rundir import Record
from gridtf.states import ALONE, ELSEWHERE, JOINED, LOADED, JobState, TaskState
from gridtf.text import counted, some
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.supervisor import TaskProcess

# --- what the launcher makes of it

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


class InLauncher(launcher_api.Feature):
    """Warns of tasks that train separately, or of one that keeps the others waiting."""

    vital = False

    def __init__(self, view: launcher_api.LauncherView, before: launcher_api.Feature | None) -> None:
        super().__init__(view, before)
        self._soon = view.job.system.monotonic() + SOON
        self._judged = 0  # states that were reported then
        self._found: Separate | Absent | None = None
        self._warned = False

    def look(self) -> None:
        view, reports = self.view, self.view.hosts.reports
        if view.now is None or view.now.ended or reports.states == self._judged:
            return
        if view.job.system.monotonic() >= self._soon:  # tasks have had the time to join the cluster
            self._judged = reports.states
            members = environment.members(view.job.spec, view.tasks)
            self._found = separate(view.tasks, reports.tasks) or absent(members, reports.tasks)
            if self._found and not self._warned:
                self._warned = True
                view.reporter.notice(self._found.running, self._found.hint)

    def status(self) -> str:
        return self._found.running if self._found else ""

    def known(self, end: Evidence) -> Iterator[Evidence]:
        if end.state in WELL:
            tasks = self.view.tasks
            yield from notes(tasks, environment.members(self.view.job.spec, tasks), self.view.hosts.reports.tasks)


# --- what the agent sees

_TENSORFLOW = "/libtensorflow_framework.so"
# Parts of the paths of libraries by which programs communicate without a server of TensorFlow.
_OTHER_WAYS = _JAX, _TORCH = ("/jaxlib/", "/torch/lib/")
# Those of libraries whose processes are started together, which the variables of their starter show. A PyTorch may be
# linked to MPI and never use it.
_MPI4PY, _HOROVOD = _RANKS = ("/mpi4py/", "/horovod/")
_MPI = ("/libmpi.so", "/libmpich.so", "/libmpi_")  # Open MPI, Intel; Debian's MPICH; Cray
# A variable by which mpirun, srun or horovodrun tells a process its rank; a site sets others that begin like these.
_STARTED = r"(OMPI_COMM_WORLD|PMIX?|MV2_COMM_WORLD|HOROVOD|MPI_LOCAL)_?RANK(ID)?="
# Libraries of MPIs whose ranks another MPI's mpirun cannot start. MPI_LOCALRANKID is of MPICH's and Intel's.
_OPEN_MPI, _MPICH = "/libmpi.so.40", ("/libmpi.so.12", "/libmpich.so")
_MOST_PROCESSES = 16  # of a task, that are examined: its program may be a child of a shell
_LAST_WORDS = 15.0  # seconds after an exception, for what a program does at its end, before JAX waits for the others
_SHORTEST, _LONGEST = 0.25, 30.0  # seconds between two looks


class InAgent(agent_api.Feature):
    """Looks for TensorFlow in the members of the cluster on this host, until they have joined.

    Tasks of JAX that an exception has ended, and that run on since JAX waits for the others, are ended here too.
    """

    vital = False

    def __init__(self, view: agent_api.AgentView) -> None:
        super().__init__(view)
        self._system = view.system
        self._ports = {task.name: view.ports[task.name] for task in environment.members(view.plan.spec, view.mine)}
        self._leader = next((task.name for task in view.mine if task.rank == 0), "")  # empty: on another host
        nothing: tuple[str, Sequence[int]] = ("", ())
        self._seen = dict.fromkeys(self._ports, nothing)  # task -> what was seen of it, ports on which it listens
        self._begin = 0.0  # when it first looked
        self.due = 0.0 if self._ports else float("inf")

    @property
    def _master_port(self) -> int:
        return int((self.view.conversation.rendezvous or {})["master_port"])

    def look(self) -> Mapping[str, Record]:
        supervisor = self.view.state.supervisor
        supervisor.end_failed(_LAST_WORDS, self._is_of_jax)
        watched = [task for task in supervisor.tasks.values() if task.name in self._ports and task.pid is not None]
        ended = [task for task in watched if task.ended is not None]
        now = self._system.monotonic()
        if not self._ports or not (ended or now >= self.due):
            return {}
        self._begin = self._begin or now
        self.due = now + min(max(_SHORTEST, (now - self._begin) / 10), _LONGEST)
        if not watched:
            return {}
        before = dict(self._seen)
        ports = {*self._ports.values(), self._master_port}
        opened = self._system.listening(ports, supervisor.gates)
        if ended:  # it may have opened and closed the port since the last look
            opened |= self._system.connected(ports)
        seen = {task.name: self._of(task, opened) for task in watched}
        own = {task.name: task.pid or 0 for task in watched if seen[task.name] == LOADED and task.ended is None}
        found = self._system.ports_of(own.values(), _MOST_PROCESSES)  # by which they may communicate all the same
        for task in watched:
            name, (_, listens) = task.name, self._seen[task.name]
            if name in own:
                listens = found[own[name]] or listens
                if listens and _JAX in self._system.mapped_files(own[name], _MOST_PROCESSES):
                    seen[name], listens = ELSEWHERE, ()
            self._seen[name] = seen[name], listens
            if task in ended or seen[name] == JOINED or (seen[name] == ELSEWHERE and not self.view.is_world):
                del self._ports[name]
        self.due = self.due if self._ports else float("inf")
        changed = {name: one for name, one in self._seen.items() if one != before[name]}
        return {name: {"tensorflow": what, "listens": listens} for name, (what, listens) in changed.items()}

    def _is_of_jax(self, task: TaskProcess) -> bool:
        """Whether a task communicates by JAX.

        TensorFlow loads JAX too. A process of JAX is connected to its coordinator, on MASTER_PORT, or has a port of its
        own once it computes.
        """
        pid = task.pid or 0
        files = self._system.mapped_files(pid, 1)
        if _JAX not in files or _TORCH in files:
            return False
        listens = self._of_task(task) == ELSEWHERE and self._system.ports_of([pid], 1)[pid]
        return bool(listens) or self._system.connects(pid, self._master_port)

    def _of_task(self, task: TaskProcess) -> str:
        """What was seen of a task before."""
        return self._seen.get(task.name, ("", ()))[0]

    def _of(self, task: TaskProcess, opened: set[int]) -> str:
        if self._ports[task.name] in opened:
            return JOINED
        if self._leader == task.name and self._master_port in opened:
            return ELSEWHERE
        if (self._of_task(task) == LOADED and not self.view.is_world) or task.ended is not None:
            return self._of_task(task)
        files = self._system.mapped_files(task.pid or 0, _MOST_PROCESSES)

        def has(parts: Iterable[str]) -> bool:
            return any(part in files for part in parts)

        if has(_RANKS) or (has(_MPI) and not has(_OTHER_WAYS)):
            variables = self._system.variables(task.pid or 0, _MOST_PROCESSES)
            started = {found[1] for variable in variables if (found := re.match(_STARTED, variable))}
            if not any(variables):
                return self._of_task(task)  # it exits
            foreign = (has([_OPEN_MPI]) and "MPI_LOCAL" in started) or (has(_MPICH) and "OMPI_COMM_WORLD" in started)
            if not has([_HOROVOD]):
                started -= {"HOROVOD"}
            elif not has([*_MPI, _MPI4PY]):  # to a Horovod without MPI, mpirun is nothing
                started &= {"HOROVOD"}
            return ELSEWHERE if started and not foreign else ALONE
        if not has([_TENSORFLOW, _JAX]):
            return self._of_task(task)  # of a process that exits, nothing is seen any more
        return ELSEWHERE if has([_TORCH]) else LOADED
