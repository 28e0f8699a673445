"""Whether tasks train together: a program that ignores the others trains once per task, and succeeds.

TensorFlow joins the cluster by a server on the task's port, which the agent has reserved. Processes of JAX listen on
MASTER_PORT or on ports of their own; that it is loaded shows nothing, since TensorFlow loads it. MPI and Horovod ask
who has started them, and a process that no mpirun has started is a world of its own. Nothing is asked of the program:
the agent sees in /proc which libraries tasks have loaded, which ports are open and who started whom. What that means,
the launcher decides (judge/together.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from gridtf.states import ALONE, ELSEWHERE, JOINED, LOADED

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.supervisor import TaskProcess
    from gridtf.bootstrap.system import System

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
_SHORTEST, _LONGEST = 0.25, 30.0  # seconds between two looks


class Membership:
    """The agent's view of its tasks.

    Args:
        ports: Task -> its port, for each member of the cluster on this host.
        master: The task of rank 0, empty if it is on another host, and MASTER_PORT.
        system: This host.
        gates: Inodes of the sockets on these ports that belong to the fence.
        is_world: Whether the tasks are the ranks of an MPI world: an MPI may be loaded long after TensorFlow.
    """

    def __init__(
        self,
        ports: Mapping[str, int],
        master: tuple[str, int],
        system: System,
        gates: Collection[int] = (),
        *,
        is_world: bool = False,
    ) -> None:
        self._gates, self._is_world = gates, is_world
        self._ports = dict(ports)
        self._leader, self._master_port = master
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
        before = [(task.tensorflow, task.listens) for task in watched]
        ports = {*self._ports.values(), self._master_port}
        opened = self._system.listening(ports, self._gates)
        if ended:  # it may have opened and closed the port since the last look
            opened |= self._system.connected(ports)
        for task in watched:
            task.tensorflow = self._of(task, opened)
        own = {task.name: task.pid or 0 for task in watched if task.tensorflow == LOADED and task.ended is None}
        listens = self._system.ports_of(own.values(), _MOST_PROCESSES)  # by which they may communicate all the same
        for task in watched:
            if task.name in own:
                task.listens = listens[own[task.name]] or task.listens
                if task.listens and _JAX in self._system.mapped_files(own[task.name], _MOST_PROCESSES):
                    task.tensorflow, task.listens = ELSEWHERE, ()
            if task in ended or task.tensorflow == JOINED or (task.tensorflow == ELSEWHERE and not self._is_world):
                del self._ports[task.name]
        return before != [(task.tensorflow, task.listens) for task in watched]

    def is_of_jax(self, task: TaskProcess) -> bool:
        """Whether a task communicates by JAX.

        TensorFlow loads JAX too. A process of JAX is connected to its coordinator, on MASTER_PORT, or has a port of its
        own once it computes.
        """
        pid = task.pid or 0
        files = self._system.mapped_files(pid, 1)
        if _JAX not in files or _TORCH in files:
            return False
        listens = task.tensorflow == ELSEWHERE and self._system.ports_of([pid], 1)[pid]
        return bool(listens) or self._system.connects(pid, self._master_port)

    def _of(self, task: TaskProcess, opened: set[int]) -> str:
        if self._ports[task.name] in opened:
            return JOINED
        if self._leader == task.name and self._master_port in opened:
            return ELSEWHERE
        if (task.tensorflow == LOADED and not self._is_world) or task.ended is not None:
            return task.tensorflow
        files = self._system.mapped_files(task.pid or 0, _MOST_PROCESSES)

        def has(parts: Iterable[str]) -> bool:
            return any(part in files for part in parts)

        if has(_RANKS) or (has(_MPI) and not has(_OTHER_WAYS)):
            variables = self._system.variables(task.pid or 0, _MOST_PROCESSES)
            started = {found[1] for variable in variables if (found := re.match(_STARTED, variable))}
            if not any(variables):
                return task.tensorflow  # it exits
            foreign = (has([_OPEN_MPI]) and "MPI_LOCAL" in started) or (has(_MPICH) and "OMPI_COMM_WORLD" in started)
            if not has([_HOROVOD]):
                started -= {"HOROVOD"}
            elif not has([*_MPI, _MPI4PY]):  # to a Horovod without MPI, mpirun is nothing
                started &= {"HOROVOD"}
            return ELSEWHERE if started and not foreign else ALONE
        if not has([_TENSORFLOW, _JAX]):
            return task.tensorflow  # of a process that exits, nothing is seen any more
        return ELSEWHERE if has([_TORCH]) else LOADED
