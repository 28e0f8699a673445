"""An MPI world of the tasks: mpirun or srun starts a process for each rank, which hands its place on to the task.

MPI gives a rank variables, and for PMI a descriptor. The process that mpirun has started (shim) sends both to the agent
of its host, which starts the task with them, as its own child like any other task, and has the process end with the
task. So logs, GPUs, states and tear-down are those of every task, and mpirun judges nothing: a rank that fails is kept
from it. This is what mpirun, srun and gloo have in common.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import signal
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gridtf.bootstrap.agent import api, local_dir
from gridtf.bootstrap.agent.supervisor import explain
from gridtf.bootstrap.judge import verdict
from gridtf.errors import GridtfError
from gridtf.host import leftovers, processes
from gridtf.host.interpreter import isolated
from gridtf.host.processes import at_end, signal_at_end_of, signal_name
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import make_folder, open_log, write_text
from gridtf.starters import named
from gridtf.starters.mpi import HOSTS, WORLD, said_by_mpirun, shim
from gridtf.states import TaskState

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.supervisor import Program
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous

SHIM = isolated(sys.executable, shim.__file__)  # the process of a rank; and the remote shell of mpirun
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")  # whichever is there first
# What a rank gets of its starter even where the agent has a variable of that name.
_OF_MPI = re.compile(r"OMPI_|PMIX?_|PRTE_|OPAL_|MPI_|MPICH_|HYDI?_|I_MPI_|MV2_|PALS_|ALPS_|SLURM_")
# By these, mpirun would recognize a scheduler's job and start its daemons by srun or qrsh.
# They also tell a rank who it is: nobody else may.
_OF_SCHEDULERS = re.compile(r"SLURM|PMIX?_(?!MCA_)|OMPI_COMM|PE_HOSTFILE$|JOB_ID$|SGE_|PBS_|LSB_|LOADL_|COBALT_|OAR_")
_ENDED_WELL = (TaskState.COMPLETED, TaskState.SAVED)
_ABORT = re.compile(rf"MPI_Abort\(|{verdict.FATAL}")  # in what a rank prints that has called it
_ABORTED = "MPI_ABORT was invoked"  # what Open MPI's mpirun says of that
_LOST_PMIX = 195  # the exit code of a rank of Open MPI that has lost the daemon of its host
_LAST_WORDS = 5.0  # seconds for a Python program to end after an exception
_SENT_TO_ALL = (signal.SIGUSR1, signal.SIGUSR2)  # by a scheduler, for a checkpoint
_MOST_LINKS = 1024  # that are taken at once: other users may open them without end
_PATIENCE = 0.5  # seconds for a process of this host to say what it has begun to say, and for a rank to fail first


def opened(plan: AttemptPlan, host: str) -> socket.socket:
    """The socket by which the processes of MPI find the agent of this host: open before one of them may start.

    Raises:
        GridtfError: It cannot be opened.
    """
    ranks = socket.socket(socket.AF_UNIX)
    try:
        ranks.bind(shim.address(_key(plan)))  # abstract: in no folder
    except OSError as error:
        ranks.close()
        raise GridtfError(f"host {host}: no socket for the ranks of MPI can be opened: {error.strerror}") from None
    ranks.listen(_MOST_LINKS)
    signal_at_end_of(ranks.fileno())
    return ranks


def _key(plan: AttemptPlan) -> str:
    """The key of the sockets of an attempt: only its owner can read the plan, and the environment of a process."""
    return hmac.digest(plan.secret, b"ranks", "sha256").hex()


class World(api.Starter, ABC):
    """This host's part of the world.

    Attributes:
        log: What has started the ranks of this host, or all of them, prints into it.
        places: Task -> the variables that MPI gives it. PMI_FD is a descriptor of this process, to be inherited.
        prints: Whether what cannot start ranks says why.
        on_each_host: Whether what starts the ranks runs on each host, and not on that of rank 0 alone.
    """

    hears: ClassVar[Mapping[str, Kind]] = {WORLD: HOSTS}
    prints: ClassVar[bool] = True
    on_each_host: ClassVar[bool] = False

    def __init__(self, view: api.AgentView) -> None:
        super().__init__(view)
        plan = self.plan = view.plan
        self.host, self.system, self.supervisor = view.state.host, view.system, view.state.supervisor
        self.mine, self.named = view.mine, named(plan.request.mpi)
        self.log = plan.attempt.mpi / f"{self.host}.log"
        # what the job sets, mpirun has to see as well; it cannot know whose placeholders are meant
        self._own = outside({name: text for name, text in plan.spec.env.items() if "{" not in text})
        self.places: dict[str, Mapping[str, str]] = {}
        self._links: dict[str, socket.socket] = {}  # task -> what mpirun has started for it
        self._starter: int | None = None  # the pid of mpirun or srun
        self._is_broken = False  # whether something has ended that the ranks of this host need
        self._cut: dict[str, float] = {}  # task -> since when mpirun has ended the process that it had started for it
        self._failed: tuple[float, str] | None = None  # since when mpirun is gone, and how it has ended

    def open(self) -> None:
        self.socket = opened(self.plan, self.host)

    def form(self, environ: Mapping[str, str], cluster: Rendezvous) -> None:
        """Wait until all ranks of this host are there.

        Raises:
            GridtfError: They are not started, or not as gridtf has placed them.
        """
        self.environ, self.cluster = environ, cluster
        make_folder(self.plan.attempt.mpi)
        # two descriptors for each rank; a daemon on each other host
        processes.need_open_files(3 * len(self.mine) + self.plan.host_count)
        limit, conversation = self.plan.spec.start_timeout, self.view.conversation
        for _ in conversation.waiting(limit):
            conversation.report()
            conversation.listen()
            if not self.places and WORLD in conversation.latest:
                self.begin(conversation.latest[WORLD]["hosts"])
            self.supervisor.collect()
            self.look()
            if len(self.places) == len(self.mine):
                return
        late = next(task.name for task in self.mine if task.name not in self.places)
        raise self.broken(f"{self.named} has not started {late} on host {self.host} within {limit:g} s")

    def begin(self, hosts: Sequence[str]) -> None:
        """Start what starts the ranks, or see that it has: called until ranks of this host are there.

        Args:
            hosts: Of each rank.
        """
        if not self.on_each_host:
            self.log = self.plan.attempt.mpi / f"{hosts[0]}.log"
        if self._starter is None and hosts[0] == self.host:
            argv, environ = self.command(hosts)
            self._starter = self.run(argv, environ, "load the program's MPI before: --setup 'module load openmpi'")

    @abstractmethod
    def command(self, hosts: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command that starts the ranks, and its environment.

        Args:
            hosts: Of each rank.
        """

    def folder(self) -> Path:
        """Where mpirun reads files. There is a program among them: nobody may put another folder in its place, Open MPI
        splits a path at blanks and colons, and a site may let nothing run in /tmp."""
        folder, local = self.plan.attempt.mpi, self.view.state.local_dir
        fits = local_dir.is_safe(folder) and not re.search(r"[\s:]", str(folder))
        return folder if fits or not local else local

    def file_of(self, hosts: Sequence[str]) -> Path:
        """A file with the hosts of all ranks, a line each."""
        file = self.folder() / "hosts"
        write_text(file, "".join(f"{host}\n" for host in hosts))
        return file

    def placed(self, task: PlacedTask, program: Program) -> Program:
        given = self.places[task.name]
        inherited = [int(given["PMI_FD"])] if "PMI_FD" in given else []
        return program.replace(env={**program.env, **given}, keep=(*program.keep, *inherited))

    def started(self, task: PlacedTask) -> None:
        if descriptor := self.places[task.name].get("PMI_FD"):
            os.close(int(descriptor))

    def remove_own(self, paths: set[str]) -> set[str]:
        return leftovers.remove_of_mpi(paths)

    def look(self) -> bool:
        """Hear the processes of mpirun, and tell them what has ended."""
        for _ in range(_MOST_LINKS):
            try:
                self._hear(self.socket.accept()[0])
            except (BlockingIOError, InterruptedError):
                break
        error = self.ended_early() or self._look_for_ends()
        self._look_for_cut()
        for name, task in self.supervisor.tasks.items():
            # a rank that fails is no matter of mpirun's, which would end the others at once
            if task.state in _ENDED_WELL and name in self._links:
                answer(self._links.pop(name), 0)
        changed = self._look_for_abandoned()
        if error is not None:
            raise error
        self.supervisor.end_failed(_LAST_WORDS)  # MPI_Finalize waits for the others
        return changed

    def _look_for_cut(self) -> None:
        """Look for ranks whose processes mpirun has ended, as it does for all when it ends, or one has aborted or has
        left without MPI_Finalize. That of a rank that has ended may go before this process hears so: its descriptors
        are closed first."""
        for name in [name for name, link in self._links.items() if at_end(link.fileno())]:
            self._links.pop(name).close()
            task = self.supervisor.tasks[name]
            is_over = task.state in (*_ENDED_WELL, TaskState.FAILED)
            if not (is_over or (task.pid and self.system.is_exiting(task.pid))):
                self._cut[name] = self.system.monotonic()

    def _look_for_abandoned(self) -> bool:
        """Look at what became of such ranks, which may have failed, have ended well, or run on. Returns whether more is
        known of one."""
        changed, on = False, f"on host {self.host}"
        if self._cut and self._starter and (said := said_by_mpirun(self.log)).startswith(_ABORTED):
            raise GridtfError("a rank has called MPI_Abort", why=said, hint=f"see {self.log}")
        for task in self.supervisor.tasks.values():
            since, log = self._cut.get(task.name), task.program.log if task.program else Path()
            lost = self._is_broken or bool(self._cut) or task.exit == _LOST_PMIX
            said = next((line for line in verdict.final_lines(log) if _ABORT.search(line)), "") if lost else ""
            if said and task.state == TaskState.RUNNING:
                raise GridtfError(f"{task.name} {on} has called MPI_Abort", why=said.strip(), hint=f"see {log}")
            if since is not None and task.state == TaskState.RUNNING:
                if self.system.monotonic() - since > _LAST_WORDS:
                    raise self.broken(f"{self.named} has ended the process of {task.name} {on}")
            elif since is not None or task.exit == _LOST_PMIX:
                changed |= task.abandoned == bool(said)
                task.abandoned = not said
        return changed

    def run(self, argv: Sequence[str], environ: Mapping[str, str], hint: str = "") -> int:
        """Start a program of MPI's as a child. Returns the id of its process."""
        environ = {**environ, **self._own, shim.KEY: _key(self.plan)}
        with open_log(self.log) as output:
            try:
                pid = self.system.start(argv, environ, cwd=self.plan.cwd, output=output, ignored=_SENT_TO_ALL)
            except OSError as error:
                what = f"host {self.host}: {explain(error, argv[0], self.plan.cwd, environ)}"
                raise GridtfError(what, hint=hint) from None
        self.supervisor.others[pid] = None
        return pid

    def ended_early(self) -> GridtfError | None:
        """Look after what the ranks of this host need beside what has started them all. Returns the end of it."""
        return None

    def take_command(self, words: Sequence[str], link: socket.socket) -> None:
        """Take a command for another host, which ends when answer says how it has ended there."""
        answer(link, 1)

    def _look_for_ends(self) -> GridtfError | None:
        others, tasks, now = self.supervisor.others, self.supervisor.tasks, self.system.monotonic()
        if self._starter is None or (code := others[self._starter]) is None:
            return None
        if self._failed is None:
            self._failed = now, f"{self.named}, which the ranks need, {ended_how(code)}"
        # after MPI_Abort, the rank that has called it is the cause; its end may be seen a little later
        since, what = self._failed
        ended_well = all(task.state in _ENDED_WELL for task in tasks.values())
        # mpirun may know of the last rank's end before the launcher does; by 9, MPICH has killed the others, as one has
        # left without MPI_Finalize; another code is that of MPI_Abort in a script that has gone on
        if self.places and ended_well and (code in (0, signal.SIGKILL) or not self._cut):
            return None
        is_over = code < 0 or not self.places or not self.supervisor.running() or now - since > _PATIENCE
        return self.broken(what) if is_over else None

    def broken(self, what: str) -> GridtfError:
        """The error that something which the ranks need has ended."""
        self._is_broken = self.supervisor.abandoned = True
        why, hint = said_by_mpirun(self.log), f"see {self.log}"
        if self.prints and not (why or self.places):
            hint = f"it has printed nothing; does {self.named} hostname work in a job script of yours?"
        return GridtfError(what, why=why, hint=hint)

    def _hear(self, link: socket.socket) -> None:
        """Take what a process of mpirun says. One of another user is not heard."""
        link.settimeout(_PATIENCE)
        descriptors: list[int] = []
        size, told = 1, b""
        if struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] == os.getuid():
            with contextlib.suppress(OSError), link.makefile("rb") as stream:
                head, descriptors, *_ = socket.recv_fds(link, 4, 1, socket.MSG_CMSG_CLOEXEC)
                size = int.from_bytes(head, "big")
                told = stream.read(size)
        what, *items = (os.fsdecode(item) for item in told.split(b"\0"))
        if len(told) < size:  # it was killed meanwhile, or stopped
            for number in (*descriptors, link.detach()):
                os.close(number)
        elif what == "remote":
            self.take_command(items, link)
        else:
            self._take(dict(item.split("=", 1) for item in items), descriptors, link)

    def _take(self, variables: Mapping[str, str], descriptors: Sequence[int], link: socket.socket) -> None:
        """Take a rank."""
        rank = next((variables[name] for name in _RANKS if name in variables), "")
        host, starter = self.host, self.named
        task = next((one for one in self.mine if str(one.rank) == rank), None)
        if task is None or task.name in self.places:
            link.close()
            what = f"{starter} has started rank {rank or 'without a number'} on host {host}, where it does not belong"
            raise GridtfError(what, hint=f"is {starter} one of Open MPI, MPICH or Intel MPI? see {self.log}")
        own = {*self.plan.spec.env, *self.plan.spec.task(task.type).env}
        own = {name for name in own if not _OF_SCHEDULERS.match(name)}
        new = {name for name in variables if name not in self.environ or _OF_MPI.match(name)} - own
        given = {name: variables[name] for name in new - {"TMPDIR", "PMI_FD", shim.KEY}}
        given.update({"PMI_FD": str(descriptors[0])} if descriptors else {})
        signal_at_end_of(link.fileno())
        self.places[task.name], self._links[task.name] = given, link


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is in no job."""
    return {name: text for name, text in environ.items() if not _OF_SCHEDULERS.match(name)}


def ended_how(code: int) -> str:
    """How a process has ended: its exit code, or minus the number of the signal."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def answer(link: socket.socket, code: int) -> None:
    """Have a process of mpirun end with a code. It may be gone."""
    with contextlib.suppress(OSError):
        link.sendall(str(code).encode())
    link.close()
