"""An MPI world of the tasks: mpirun or srun starts a process for each rank, which hands its place on to the task.

MPI gives a rank variables, and for PMI a descriptor. The process that mpirun has started (mpishim) sends both to the
agent of its host, which starts the task with them, as its own child like any other task, and has the process end with
the task. So logs, GPUs, states and tear-down are those of every task, and mpirun judges nothing: a rank that fails
is kept from it.

mpirun starts a daemon on each other host by a remote shell. That is mpishim as well: the command goes by the launcher
to the agent of that host. A second qrsh or srun could take a slot, or GPUs, that the agent has.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pwd
import re
import shlex
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import local_dir, mpishim
from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.supervisor import explain
from gridtf.bootstrap.judge import verdict
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.host.interpreter import isolated
from gridtf.host.network import interfaces, own_addresses
from gridtf.host.processes import at_end, signal_at_end_of, signal_name
from gridtf.run.rundir import make_folder, open_log, write_text
from gridtf.schedulers.mpi import GLOO, MPIRUN, named
from gridtf.states import TaskState

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous
    from gridtf.schedulers.api import Scheduler

_STORE = Path(__file__).with_name("gloostore.py")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")  # whichever is there first
# What a rank gets of its starter even where the agent has a variable of that name.
_OF_MPI = re.compile(r"OMPI_|PMIX?_|PRTE_|OPAL_|MPI_|MPICH_|HYDI?_|I_MPI_|MV2_|PALS_|ALPS_|SLURM_")
# By these, mpirun would recognize a scheduler's job and start its daemons by srun or qrsh.
# They also tell a rank who it is: nobody else may.
_OF_SCHEDULERS = re.compile(r"SLURM|PMIX?_(?!MCA_)|OMPI_COMM|PE_HOSTFILE$|JOB_ID$|SGE_|PBS_|LSB_|LOADL_|COBALT_|OAR_")
# How each mpirun is told to start its daemons by the program SHELL, each from the first host, to leave them in its
# session, to place the ranks as the file of hosts says, and to bind none to cores. Open MPI asks whether root may.
_OPEN_MPI_4 = (
    "OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=SHELL OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_rmaps=seq "
    "OMPI_MCA_orte_leave_session_attached=1 OMPI_MCA_hwloc_base_binding_policy=none "
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
)
_OPEN_MPI_5 = (
    "PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent=SHELL PRTE_MCA_plm_ssh_no_tree_spawn=1 "
    "PRTE_MCA_prte_leave_session_attached=1 PRTE_MCA_rmaps_default_mapping_policy=seq "
    "PRTE_MCA_hwloc_default_binding_policy=none"
)
_MPICH = "HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=SHELL"
_INTEL_MPI = "I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC=SHELL I_MPI_HYDRA_BRANCH_COUNT=-1 I_MPI_PIN=0"
_SETTINGS = [pair.split("=") for pair in f"{_OPEN_MPI_4} {_OPEN_MPI_5} {_MPICH} {_INTEL_MPI}".split()]
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
        ranks.bind(mpishim.address(_key(plan)))  # abstract: in no folder
    except OSError as error:
        ranks.close()
        raise GridtfError(f"host {host}: no socket for the ranks of MPI can be opened: {error.strerror}") from None
    ranks.listen(_MOST_LINKS)
    return ranks


def _key(plan: AttemptPlan) -> str:
    """The key of the sockets of an attempt: only its owner can read the plan, and the environment of a process."""
    return hmac.digest(plan.secret, b"ranks", "sha256").hex()


class World:
    """This host's part of the world. Every method returns at once but form.

    Args:
        plan: The part of the plan for this host.
        scheduler: The scheduler of the job.
        environ: The environment of this host's tasks, before anything of their own.
        cluster: What all tasks agree on.
        ranks: As opened returns it.
        state: The state of this host.
        conversation: The conversation with the launcher.
        system: This host.
    """

    def __init__(
        self,
        plan: AttemptPlan,
        scheduler: Scheduler,
        environ: Mapping[str, str],
        cluster: Rendezvous,
        ranks: socket.socket,
        state: HostState,
        conversation: Conversation,
        system: System,
    ) -> None:
        self._plan, self._scheduler, self._environ, self._cluster = plan, scheduler, environ, cluster
        self._state, self._conversation, self._system = state, conversation, system
        self._mine, self._kind, self._named = plan.on(state.host), plan.request.mpi, named(plan.request.mpi)
        make_folder(plan.attempt.mpi)
        self._log = plan.attempt.mpi / f"{state.host}.log"
        # what the job sets, mpirun has to see as well; it cannot know whose placeholders are meant
        self._own = _outside({name: text for name, text in plan.spec.env.items() if "{" not in text})
        # two descriptors for each rank; a daemon on each other host
        processes.need_open_files(3 * len(self._mine) + plan.host_count)
        self._socket = ranks
        signal_at_end_of(self._socket.fileno())
        self._places: dict[str, Mapping[str, str]] = {}  # task -> the variables that MPI gives it
        self._links: dict[str, socket.socket] = {}  # task -> what mpirun has started for it
        self._started: dict[int, str] = {}  # pid of a command of mpirun for this host -> its number
        self._asking: dict[str, socket.socket] = {}  # number of a command for another host -> who waits for its end
        self._commands: dict[str, list[str]] = {}  # the number of such a command -> host, command
        self._codes: dict[str, int] = {}  # the number of a command that has ended here -> its exit code
        self._starter: int | None = None  # the pid of mpirun or srun
        self._is_broken = False  # whether something has ended that the ranks of this host need
        self._cut: dict[str, float] = {}  # task -> since when mpirun has ended the process that it had started for it
        self._failed: tuple[float, str] | None = None  # since when mpirun is gone, and how it has ended

    def form(self) -> Mapping[str, Mapping[str, str]]:
        """Wait until all ranks of this host are there.

        Returns:
            Task -> the variables that MPI gives it. PMI_FD is a descriptor of this process, to be inherited.

        Raises:
            GridtfError: They are not started, or not as gridtf has placed them.
            Stopped: The agent is stopped meanwhile.
        """
        limit, port = self._plan.spec.start_timeout, self._cluster.master_port
        for _ in self._conversation.waiting(limit):
            self._conversation.report()
            self._conversation.listen()
            if not self._places and messages.WORLD in self._conversation.latest:
                hosts: list[str] = self._conversation.latest[messages.WORLD]["hosts"]
                is_first = hosts[0] == self._state.host
                if self._kind != MPIRUN:  # which alone runs on the other hosts as well
                    self._log = self._plan.attempt.mpi / f"{hosts[0]}.log"
                if self._starter is None and is_first:
                    self._start(hosts)
                if self._kind == GLOO and (not is_first or port in self._system.listening([port])):
                    self._places = {task.name: self._told_by_horovodrun(task, hosts) for task in self._mine}
            self._state.supervisor.collect()
            self.look()
            if len(self._places) == len(self._mine):
                return self._places
        late = next(task.name for task in self._mine if task.name not in self._places)
        what = f"{self._named} has not started {late} on host {self._state.host} within {limit:g} s"
        raise self._broken(what)

    def look(self) -> bool:
        """Hear the processes of mpirun, and tell them what has ended.

        Returns:
            Whether more is known of a task.

        Raises:
            GridtfError: mpirun or one of its daemons has ended while tasks run.
        """
        commands = len(self._commands)
        for _ in range(_MOST_LINKS):
            try:
                self._hear(self._socket.accept()[0])
            except (BlockingIOError, InterruptedError):
                break
        if len(self._commands) > commands:
            self._tell()
        self._run_commands()
        error = self._look_for_ends()
        self._look_for_cut()
        for name, task in self._state.supervisor.tasks.items():
            # a rank that fails is no matter of mpirun's, which would end the others at once
            if task.state in _ENDED_WELL and name in self._links:
                _answer(self._links.pop(name), 0)
        changed = self._look_for_abandoned()
        if error is not None:
            raise error
        self._state.supervisor.end_failed(_LAST_WORDS)  # MPI_Finalize waits for the others
        return changed

    def _look_for_cut(self) -> None:
        """Look for ranks whose processes mpirun has ended, as it does for all when it ends, or one has aborted or has
        left without MPI_Finalize. That of a rank that has ended may go before this process hears so: its descriptors
        are closed first."""
        for name in [name for name, link in self._links.items() if at_end(link.fileno())]:
            self._links.pop(name).close()
            task = self._state.supervisor.tasks[name]
            is_over = task.state in (*_ENDED_WELL, TaskState.FAILED)
            if not (is_over or (task.pid and self._system.is_exiting(task.pid))):
                self._cut[name] = self._system.monotonic()

    def _look_for_abandoned(self) -> bool:
        """Look at what became of such ranks, which may have failed, have ended well, or run on. Returns whether more is
        known of one."""
        changed, on = False, f"on host {self._state.host}"
        if self._cut and self._starter and (said := verdict.of_mpirun(self._log)).startswith(_ABORTED):
            raise GridtfError("a rank has called MPI_Abort", why=said, hint=f"see {self._log}")
        for task in self._state.supervisor.tasks.values():
            since, log = self._cut.get(task.name), task.program.log if task.program else Path()
            lost = self._is_broken or bool(self._cut) or task.exit == _LOST_PMIX
            said = next((line for line in verdict.final_lines(log) if _ABORT.search(line)), "") if lost else ""
            if said and task.state == TaskState.RUNNING:
                raise GridtfError(f"{task.name} {on} has called MPI_Abort", why=said.strip(), hint=f"see {log}")
            if since is not None and task.state == TaskState.RUNNING:
                if self._system.monotonic() - since > _LAST_WORDS:
                    raise self._broken(f"{self._named} has ended the process of {task.name} {on}")
            elif since is not None or task.exit == _LOST_PMIX:
                changed |= task.abandoned == bool(said)
                task.abandoned = not said
        return changed

    def _tell(self) -> None:
        """Tell the launcher which commands mpirun has for other hosts, and which commands have ended here."""
        self._conversation.send(messages.REMOTE, {"commands": self._commands, "codes": self._codes})

    # --- mpirun, on the host of rank 0

    def _start(self, hosts: Sequence[str]) -> None:
        """Start what starts the ranks. hosts: of each rank."""
        shim = isolated(sys.executable, mpishim.__file__)
        if self._kind == GLOO:
            argv, environ = isolated(sys.executable, str(_STORE), str(self._cluster.master_port)), self._environ
        else:
            file, shell = (self._folder() / name for name in ("hosts", "shell"))
            write_text(file, "".join(f"{host}\n" for host in hosts))
            if self._kind == MPIRUN:
                write_text(shell, f'#!/bin/sh\nexec {shlex.join([*shim, "remote"])} "$@"\n', mode=0o700)
                settings = {name: str(shell) if text == "SHELL" else text for name, text in _SETTINGS}
                environ = {**_outside(self._environ), **settings}
                argv = [MPIRUN, "-machinefile", str(file), "-n", str(len(hosts))]
            else:
                argv, environ = self._scheduler.injob.rank_starter(self._kind, hosts, file, self._environ)
            argv = [*argv, *shim, "rank"]
        self._starter = self._run(argv, environ, "load the program's MPI before: --setup 'module load openmpi'")

    def _folder(self) -> Path:
        """Where mpirun reads files. There is a program among them: nobody may put another folder in its place, Open MPI
        splits a path at blanks and colons, and a site may let nothing run in /tmp."""
        folder = self._plan.attempt.mpi
        fits = local_dir.is_safe(folder) and not re.search(r"[\s:]", str(folder))
        return folder if fits or not self._state.local_dir else self._state.local_dir

    def _run(self, argv: Sequence[str], environ: Mapping[str, str], hint: str = "") -> int:
        """Start a program of MPI's as a child. Returns the id of its process."""
        # MPIs leave files there; what srun is given, slurmstepd makes on each host
        cwd, local = self._plan.cwd, self._state.local_dir if self._kind == MPIRUN else None
        environ = {**environ, **({"TMPDIR": str(local)} if local else {}), **self._own, mpishim.KEY: _key(self._plan)}
        with open_log(self._log) as output:
            try:
                pid = self._system.start(argv, environ, cwd=cwd, output=output, ignored=_SENT_TO_ALL)
            except OSError as error:
                what = f"host {self._state.host}: {explain(error, argv[0], cwd, environ)}"
                raise GridtfError(what, hint=hint) from None
        self._state.supervisor.others[pid] = None
        return pid

    def _look_for_ends(self) -> GridtfError | None:
        others, tasks, now = self._state.supervisor.others, self._state.supervisor.tasks, self._system.monotonic()
        for pid, number in [*self._started.items()]:
            if (code := others[pid]) is not None:
                del self._started[pid]
                self._codes[number] = code if code >= 0 else 128 - code
                self._tell()
                killed = -code if code < 0 else code - 128  # as a shell tells it
                if 0 < killed < signal.NSIG and self._places:
                    return self._broken(f"a daemon of {MPIRUN} on host {self._state.host} {_how(-killed)}")
        for number, code in self._conversation.latest[messages.REMOTE]["codes"].items():
            if number in self._asking:
                _answer(self._asking.pop(number), code)
        if self._starter is None or (code := others[self._starter]) is None:
            return None
        if self._failed is None:
            self._failed = now, f"{self._named}, which the ranks need, {_how(code)}"
        # after MPI_Abort, the rank that has called it is the cause; its end may be seen a little later
        since, what = self._failed
        ended_well = all(task.state in _ENDED_WELL for task in tasks.values())
        # mpirun may know of the last rank's end before the launcher does; by 9, MPICH has killed the others, as one has
        # left without MPI_Finalize; another code is that of MPI_Abort in a script that has gone on
        if self._places and ended_well and (code in (0, signal.SIGKILL) or not self._cut):
            return None
        is_over = code < 0 or not self._places or not self._state.supervisor.running() or now - since > _PATIENCE
        return self._broken(what) if is_over else None

    def _broken(self, what: str) -> GridtfError:
        self._is_broken = self._state.supervisor.abandoned = True
        why, hint = verdict.of_mpirun(self._log), f"see {self._log}"
        if not (why or self._places or self._kind == GLOO):
            hint = f"it has printed nothing; does {self._named} hostname work in a job script of yours?"
        return GridtfError(what, why=why, hint=hint)

    def _told_by_horovodrun(self, task: PlacedTask, hosts: Sequence[str]) -> Mapping[str, str]:
        """What horovodrun would tell a rank. hosts: of each rank."""
        here, count = self._state.host, Counter(hosts)
        number = task.local_rank or 0
        across = [host for host in count if count[host] > number]  # a rank each
        found = {*own_addresses(self._plan.hosts[here], here)}
        interface = next((one.name for one in interfaces() if {one.ipv4, one.ipv6} & found), "")
        told = (
            f"RANK={task.rank} SIZE={len(hosts)} LOCAL_RANK={number} LOCAL_SIZE={count[here]} "
            f"CROSS_RANK={across.index(here)} CROSS_SIZE={len(across)} HOSTNAME={here} CONTROLLER=gloo "
            f"CPU_OPERATIONS=gloo GLOO_RENDEZVOUS_ADDR={self._cluster.master_addr} "
            f"GLOO_RENDEZVOUS_PORT={self._cluster.master_port} GLOO_IFACE={interface}"
        )
        return {f"HOROVOD_{name}": value for name, _, value in (pair.partition("=") for pair in told.split())}

    # --- this host

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
            command = str(len(self._commands))
            self._commands[command], self._asking[command] = items, link
        else:
            self._take(dict(item.split("=", 1) for item in items), descriptors, link)

    def _take(self, variables: Mapping[str, str], descriptors: Sequence[int], link: socket.socket) -> None:
        """Take a rank."""
        rank = next((variables[name] for name in _RANKS if name in variables), "")
        host, starter = self._state.host, self._named
        task = next((one for one in self._mine if str(one.rank) == rank), None)
        if task is None or task.name in self._places:
            link.close()
            what = f"{starter} has started rank {rank or 'without a number'} on host {host}, where it does not belong"
            raise GridtfError(what, hint=f"is {starter} one of Open MPI, MPICH or Intel MPI? see {self._log}")
        own = {*self._plan.spec.env, *self._plan.spec.task(task.type).env}
        own = {name for name in own if not _OF_SCHEDULERS.match(name)}
        new = {name for name in variables if name not in self._environ or _OF_MPI.match(name)} - own
        given = {name: variables[name] for name in new - {"TMPDIR", "PMI_FD", mpishim.KEY}}
        given.update({"PMI_FD": str(descriptors[0])} if descriptors else {})
        signal_at_end_of(link.fileno())
        self._places[task.name], self._links[task.name] = given, link

    def _run_commands(self) -> None:
        """Run the commands that mpirun has for this host."""
        known = {*self._started.values(), *self._codes}
        for number, (_, command) in self._conversation.latest[messages.REMOTE]["commands"].items():
            if number in known:
                continue
            pid = self._run([*_shell(), "-c", command], _outside(self._environ))
            self._started[pid] = number


def _outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is in no job."""
    return {name: text for name, text in environ.items() if not _OF_SCHEDULERS.match(name)}


def _how(code: int) -> str:
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def _shell() -> list[str]:
    """The shell whose syntax mpirun uses: as a remote shell, that of the user's entry in the database of users."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    return [shell, "-f"] if Path(shell).name in ("csh", "tcsh") else ["/bin/sh"]


def _answer(link: socket.socket, code: int) -> None:
    """Have a process of mpirun end with a code. It may be gone."""
    with contextlib.suppress(OSError):
        link.sendall(str(code).encode())
    link.close()
