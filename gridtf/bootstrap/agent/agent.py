"""The agent of a host: reserve ports, publish, wait for the rendezvous, start and watch the tasks, tear them down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import __version__, schedulers
from gridtf.bootstrap.agent import fence, local_dir
from gridtf.bootstrap.agent.membership import Membership
from gridtf.bootstrap.agent.ownfolders import OwnFolders
from gridtf.bootstrap.agent.quiet import Quiet
from gridtf.bootstrap.agent.sampler import Sampler, sample_interval
from gridtf.bootstrap.agent.savesignal import SaveSignal
from gridtf.bootstrap.agent.supervisor import InPlace, Supervisor
from gridtf.bootstrap.plan import addresses, environment, rendezvous, versions
from gridtf.bootstrap.plan.placement import PlacedTask, share_gpus
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, PortHolder
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.heartbeat import Watch, backoff, interval
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.bootstrap.wire.stream import Link, link_of
from gridtf.errors import GridtfError, RendezvousError, RunDirError
from gridtf.host import processes
from gridtf.host.gpus import GpuGrant
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, is_listed, listdir, read_record
from gridtf.schedulers.agents import NEEDS_ENVIRONMENT, STOP_SIGNAL
from gridtf.schedulers.api import GpuNeed, Scheduler
from gridtf.states import JobState
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.containers import Entrance

# The signal that the agent supervisor sends to the agent when srun's or qrsh's process on this host has died.
ORPHANED = signal.SIGHUP

_AT_ONCE = 0.1  # seconds within which a signal to all processes of a job has reached all of them on one host
_SOON = 1.0  # the same on a busy host, for a task that SIGTERM has ended, which is seldom its own doing
_UNSHARED = 15.0  # seconds within which a host lists the run directory, which was made before the job started
_GPU_MEMORY = 60.0  # seconds for the driver to free the memory of GPUs that an earlier attempt has used
_RENDEZVOUS_MARGIN = 60  # seconds that agents wait longer than the launcher, which can report the missing hosts
_WAKE_LIMIT = 10.0  # seconds within which a launcher that was continued (SIGCONT) has to write a heartbeat
_LOOKING = 2.0  # seconds between two looks at what no signal announces, such as the parent's death
_WRITING = 2.0  # seconds for a record at the end
_TELLING = 5.0  # seconds for the last messages to leave this host
_ASKING, _LONGEST_ASKING = 20.0, 300.0  # seconds between two questions of an agent to the scheduler
_NOTICED = 1800.0  # seconds within which a scheduler notices that a host is lost
_MOST_FILES = 8  # in shared memory that are named
_STOPPING = 0.5  # seconds in which the launcher's order comes that STOP_SIGNAL or the end of the input announces

# Exit codes for errors that an agent could not tell the launcher.
NO_RUN_DIR, NO_WRITE, NO_LAUNCHER, LEFTOVERS, BROKEN, KILLED = 70, 71, 72, 73, 74, 75
EXITS = {
    NO_RUN_DIR: "cannot see the run directory: it must be on a file system that all hosts share",
    NO_WRITE: "could not write into the run directory (disk full, quota or permissions)",
    NO_LAUNCHER: "lost contact with the launcher",
    LEFTOVERS: "could not end all of its processes",
    BROKEN: "could not continue",
    KILLED: "was killed",
}


class NoRunDirError(RendezvousError):
    """The plan or the environment of the attempt did not appear on this host."""

    code = NO_RUN_DIR


class NoLauncherError(RendezvousError):
    """The launcher has been silent for too long."""

    code = NO_LAUNCHER


def main(arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
    """Run the agent of this host in this process.

    Args:
        arguments: ``HOST RUN_DIR ATTEMPT NONCE START_TIMEOUT``.
        gpus: The GPUs that the launcher has claimed for this host; None: the scheduler's gpu_grant determines them.

    Returns:
        0 or one of EXITS.
    """
    host, run, number, nonce, start_timeout = arguments
    processes.block_signals()
    processes.become_subreaper()
    system = System()
    system.collect_garbage()
    agent = Agent(host, RunDir(run).attempt(int(number)), nonce, float(start_timeout), system)
    return agent.main(gpus)


class _Stopped(Exception):
    """The launcher has stopped the agent, or the signal of this number has."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number


class Agent(Fields):
    """The life of one agent. Every wait in it has a limit, and ends at once when the job is ended.

    Attributes:
        host: This host, as the allocation calls it.
        attempt: The attempt.
        nonce: Its nonce.
        start_timeout: Seconds to wait for the plan, and for the other hosts.
        system: This host.
        scheduler_of: Returns the scheduler of a name.
        link_of: Makes this agent's end of its stream, from what listener.json holds.
        recorder_of: Makes what writes a record when no launcher is left to hear it.
    """

    host: str
    attempt: Attempt
    nonce: str
    start_timeout: float
    system: System
    scheduler_of: Callable[[str], Scheduler] = schedulers.get
    link_of: Callable[..., Link] = link_of
    recorder_of: Callable[[System], Recorder] = Recorder

    def __post_init__(self) -> None:
        self.supervisor = Supervisor([], self.system)
        self._parent = self.system.parent()
        self._ignored: frozenset[int] = frozenset()  # signals by which the scheduler warns
        self._waits = ""  # why the agent waits, before it has published anything
        self._left: list[str] = []  # what else the job has left on this host, one line each
        self._before: set[str] = set()  # files in shared memory before the tasks started
        self._grant: GpuGrant | None = None
        self._ports: dict[str, int] = {}  # of the tasks
        self._over = False  # no process of the job is left on this host
        self._released = False  # the launcher has stopped this agent
        self._reported = 0.0  # when the end of a task was last reported to the launcher
        self._stated = 0.0  # when the last state was sent, or would have been with a connection
        self._told = float("-inf")  # when the launcher was last given a sign of life, by the monotonic clock
        self._last: Record = {}  # what was last reported
        self._gone: Record | None = None  # why this agent ends although the launcher has not stopped it
        self._launcher: Record | None = None  # which process the launcher is
        self._environment: dict[str, str] | None = None  # of the job script, where this agent has not inherited it
        self._plan: Record | None = None
        self._meeting: Record | None = None
        self._stop = False  # the launcher has told this agent to stop
        self._watch: Watch | None = None
        self._link: Link | None = None
        self._fence: fence.Fence | None = None
        self._interval = 1.0  # seconds between two signs of life
        self._local_dir: Path | None = None
        self._checkpoint = False  # a checkpoint was requested on this host
        self._quiet = Quiet(None, self.system)
        self._save_signal = SaveSignal(None, self.system)
        self._sampler = Sampler(0, (), self.host, self.system)

    def main(self, gpus: GpuGrant | None = None) -> int:
        """Run the tasks of this host to their end; write errors to the log and, where possible, to the host's record.

        Args:
            gpus: As in run.

        Returns:
            0 or one of EXITS.
        """
        try:
            return self.run(gpus)
        except GridtfError as error:
            self.system.log(f"agent on {self.host}: {error}")
            if isinstance(error, NoRunDirError | NoLauncherError):
                return error.code
            self._gone = self._reason(error)
            self._report(now=True)
            return NO_WRITE if isinstance(error, RunDirError) else BROKEN
        finally:
            if self._link is not None:
                heard = self._link.connected and self._link.drain(_TELLING)
                self._link.close()
                if self._last and not heard:  # the launcher was killed: this is needed to tell what happened
                    recorder = self.recorder_of(self.system)  # on a host that is cut off, the file system hangs
                    recorder.write(self.attempt.host_state(self.host), json.dumps({"nonce": self.nonce, **self._last}))
                    recorder.settle(_WRITING)

    def _reason(self, error: GridtfError) -> Record:
        """Why this agent ends, for the launcher."""
        if isinstance(error, RunDirError):
            what = f"the agent on host {self.host} {EXITS[NO_WRITE]}"
            return {"what": what, "why": error.what, "hint": error.hint}
        return {"what": error.what, "why": error.why, "hint": error.hint}

    def run(self, gpus: GpuGrant | None = None) -> int:
        """Run the tasks of this host to their end.

        Args:
            gpus: The GPUs of this host; None: the scheduler's gpu_grant determines them.

        Returns:
            0, or LEFTOVERS when some processes could not be ended.

        Raises:
            GridtfError: The agent cannot start or go on; its tasks have been torn down.
        """
        try:
            plan = self._wait_for_plan(self._wait_for_link())
        except _Stopped:  # before there was anything to do
            return 0
        scheduler, limit = self.scheduler_of(plan.request.scheduler), plan.spec.heartbeat_timeout
        self.supervisor = Supervisor([task.name for task in plan.on(self.host)], self.system)
        self._quiet = Quiet(plan.spec.seconds_to_stall, self.system)
        self._save_signal = SaveSignal(plan.spec.checkpoint_signal, self.system)
        self._interval = interval(plan.host_count, limit)
        self._watch = Watch(limit, self.system, lambda: bool(scheduler.injob.suspended(self.system.environ)))
        if self._link is not None:
            self._link.patience = max(limit / 4, 2.5 * self._interval)
        folders = local_dir.places(self.system.environ, self.nonce, self.host)
        self._local_dir = self.supervisor.folder = local_dir.make(folders)
        if (self._launcher or {}).get("checkpoint"):  # it was requested before this agent had the plan
            self._request_checkpoint()
        try:
            with PortHolder() as holder:
                try:
                    self._take_part(plan, scheduler, holder, gpus)
                except _Stopped as stopped:
                    self._report_signal(stopped.number)
                except NoLauncherError:  # it may only have been suspended, and come back
                    what = f"the agent on host {self.host} {EXITS[NoLauncherError.code]}"
                    self._gone = {"what": what, "why": "", "hint": "", "unheard": True}
                    raise
                except GridtfError as error:  # noted before the end is told, so that the launcher learns both at once
                    self._gone = self._reason(error)
                    raise
                finally:
                    self.supervisor.spared = self._sampler.pids
                    # whatever happened, no process of the job stays
                    survivors = self.supervisor.tear_down(plan.spec.kill_grace, self._keep_telling)
                    self._tell_samples(self._sampler.last(self.supervisor.tasks.values()))
                    self._over = not survivors
                    self._left = self._leftovers(survivors)
        finally:
            if self._fence is not None:
                self._fence.leave()
            self._read_notes()
            local_dir.remove(folders)
            self._report(now=True)
            self._recover_launcher(scheduler)
            elsewhere = self._launcher is not None and not self.system.is_alive(self._launcher)
            if plan.spec.restarts and elsewhere and (self._gone or {}).get("unheard"):
                self._give_back(scheduler, plan.host_count)
        if survivors:
            self.system.log(f"agent on {self.host}: processes survived SIGKILL: {survivors}")
            return LEFTOVERS
        return 0

    def _take_part(self, plan: AttemptPlan, scheduler: Scheduler, holder: PortHolder, gpus: GpuGrant | None) -> None:
        mine = plan.on(self.host)
        entrance = None
        if plan.spec.contained:
            from gridtf.bootstrap.agent import containers

            entrance = containers.find(plan.spec, self.host, self.system.environ)
        owner, patience = f"{plan.spec.title}, job {plan.job_id}", rendezvous.GPU_SHARE * plan.spec.start_timeout
        need = GpuNeed(sum(task.gpus for task in mine), owner, patience)
        grant = gpus or scheduler.injob.gpu_grant(self.system.environ, plan.request, need, self._wait_for_gpus)
        self._ignored, self._grant = scheduler.injob.warnings, grant
        if self.attempt.number > 1:
            self._wait_for_gpu_memory(grant)
        self._waits = ""
        processes.need_open_files(len(mine) + 1 + fence.FILES)  # a port each, and MASTER_PORT
        shares = share_gpus(self.host, mine, grant.gpus)
        installed = self._installed(plan, grant)
        exclusive = scheduler.injob.is_exclusive(plan.request)
        self._fence = gates = fence.Fence(fence.wanted(plan.spec.fence, exclusive=exclusive), plan.secret, self.system)
        ports, master_port = self._publish(plan, holder, shares, installed, gates)
        meeting = self._wait_for_rendezvous()
        holder.release(master_port)  # programs that are not TensorFlow do not share ports
        for task in mine:
            if self._releases(plan, task, installed):
                holder.release(ports[task.name])
        gates.open(meeting.doors, self.host)
        self.supervisor.gates, self._ports = gates.inodes, ports
        self._before = set(self.system.shared_memory())
        self._start(plan, meeting, ports, shares, grant, entrance)
        pause = sample_interval(plan.spec.sample_interval, plan.host_count)
        self._sampler = Sampler(pause, grant.gpus, self.host, self.system)
        # a job on one host finds its folders there again, but for a scheduler that may choose another one
        elsewhere = plan.host_count > 1 or (plan.spec.continuations > 0 and scheduler.name != "local")
        own_folders = OwnFolders(self.attempt.run.path, self._local_dir, self.system, wanted=elsewhere)
        self._supervise(self._membership(plan, ports, master_port), own_folders)

    def _leftovers(self, survivors: Sequence[int]) -> list[str]:
        """What the tasks have left behind on this host, one line each."""
        found = [f"processes that survived SIGKILL: {', '.join(map(str, survivors))}"] if survivors else []
        if self._ports:
            gates = self._fence.inodes if self._fence else frozenset()
            held = self.system.listening(self._ports.values(), gates)
            found += [f"the port of {name}, {port}" for name, port in self._ports.items() if port in held]
            files = self.system.shared_memory()
            unused = self.system.unused(files.keys() - self._before)
            # no file says which process has made it, and another job of this user may have been here meanwhile
            whose = "of memory, made by this or another job of yours"
            found += [f"{path} ({files[path] >> 20} MiB {whose})" for path in sorted(unused)][:_MOST_FILES]
        if self._grant and self._grant.gpus:
            found += self.system.gpu_memory(self._grant.gpus)
            if survivors and self._grant.descriptors:
                found.append(f"claims of GPUs {', '.join(self._grant.gpus)}")
        return found

    # --- before the start

    def _wait_for_link(self) -> Link:
        """Read where the launcher listens, from the run directory: a host that does not see that cannot take part."""
        run, listener = self.attempt.run, self.attempt.listener
        for waited in self._waiting(self.start_timeout):
            record = None
            if is_listed(listener, run.path):
                record = read_record(listener, recordtypes.Listener, nonce=self.nonce, listed=True, own=True)
            if record is not None:
                needs = bool(self.system.environ.pop(NEEDS_ENVIRONMENT, None))
                self._link = self.link_of(record, self.host, self.system, environment=needs)
                return self._link
            if waited > _UNSHARED and run.path.name not in listdir(run.path.parent):
                break
        raise NoRunDirError(f"{listener} did not appear on host {self.system.host}")

    def _wait_for_plan(self, link: Link) -> AttemptPlan:
        for _ in self._waiting(self.start_timeout):
            self._hear()
            if self._plan is not None:
                plan = rendezvous.plan_of(self._plan, self.attempt)
                if self._environment is not None:
                    own = self.scheduler_of(plan.request.scheduler).injob.variables_of_host(plan.request)
                    environ = environment.merge_environment(self.system.environ, self._environment, own)
                    self.system.environ.clear()
                    self.system.environ.update(environ)
                return plan
        raise NoLauncherError(f"no plan from the launcher after {self.start_timeout:.0f} s: {link.refused}")

    def _wait_for_gpus(self, why: str, seconds: float) -> None:
        if why != self._waits:
            self._waits = why
            self.system.log(f"agent on {self.host}: {why}")
            self._report(now=True)
        for _ in self._waiting(seconds):
            self._report()
            self._listen()

    def _wait_for_gpu_memory(self, grant: GpuGrant) -> None:
        """The driver may take a while to free the memory of processes that have just ended."""
        deadline = self.system.monotonic() + _GPU_MEMORY
        while used := self.system.gpu_memory(grant.gpus):
            if self.system.monotonic() >= deadline:
                self.system.log(f"agent on {self.host}: tasks start although {'; '.join(used)}")
                return
            self._wait_for_gpus("; ".join(used), 1.0)

    def _publish(
        self,
        plan: AttemptPlan,
        holder: PortHolder,
        shares: dict[str, tuple[str, ...]],
        installed: dict[str, str],
        gates: fence.Fence,
    ) -> tuple[dict[str, int], int]:
        """Tell the launcher the ports of this host.

        Returns:
            The port of each task, and MASTER_PORT: 0 where the task of rank 0 is on another host.
        """
        mine = plan.on(self.host)
        ports = {task.name: holder.reserve() for task in mine}
        master_port = holder.reserve() if any(task.rank == 0 for task in mine) else 0
        assert self._link is not None
        kept = [ports[task.name] for task in mine if not self._releases(plan, task, installed)]
        gates.close(holder.held(kept), released=len(kept) < len(mine))
        record = {
            "host": self.host,
            "hostname": socket.gethostname(),
            **addresses.published(plan.spec, self.host, plan.hosts.get(self.host, self.host)),
            "pid": self.system.pid,
            "ports": ports,
            "master_port": master_port,
            "gpus": shares,
            "versions": {"gridtf": __version__, "python": sys.version.split()[0]},
            "tensorflow": installed,
            **gates.record(),
        }
        self._link.send(messages.HOST, record)
        return ports, master_port

    def _installed(self, plan: AttemptPlan, grant: GpuGrant) -> dict[str, str]:
        """Task -> the version of TensorFlow that its Python has, where that is known; empty: none."""
        base = grant.environment(self.system.environ)
        mine = plan.on(self.host)
        found: dict[str, str | None] = {}  # type -> version: its tasks have the same command
        for task in mine:
            if task.type not in found:
                env = {**base, **plan.spec.env, **plan.spec.task(task.type).env}
                program = environment.program(plan, task)
                found[task.type] = self.system.tensorflow_version(program, env, plan.cwd)
        return {task.name: version for task in mine if (version := found[task.type]) is not None}

    def _releases(self, plan: AttemptPlan, task: PlacedTask, installed: dict[str, str]) -> bool:
        return versions.releases_port(plan.spec.ports, installed.get(task.name))

    def _wait_for_rendezvous(self) -> rendezvous.Rendezvous:
        limit = self.start_timeout + _RENDEZVOUS_MARGIN
        for _ in self._waiting(limit):
            self._listen()
            if self._meeting is not None:
                return rendezvous.meeting_of(self._meeting)
            self._report()
        raise NoLauncherError(f"no rendezvous after {limit:.0f} s")

    def _waiting(self, limit: float) -> Iterator[float]:
        """Wait in steps that grow, or end when a message comes. Raises _Stopped when a signal ends the agent.

        Args:
            limit: Seconds to wait in all.

        Yields:
            The seconds waited so far.
        """
        begin = self.system.monotonic()
        while (waited := self.system.monotonic() - begin) < limit:
            yield waited
            number = self.system.wait(backoff(waited))
            if processes.is_end(number):
                raise _Stopped(number)
            if number == signal.SIGUSR1 and self._local_dir and number not in self._ignored:
                self._request_checkpoint()

    # --- the tasks

    def _start(
        self,
        plan: AttemptPlan,
        meeting: rendezvous.Rendezvous,
        ports: dict[str, int],
        shares: dict[str, tuple[str, ...]],
        grant: GpuGrant,
        entrance: Entrance | None,
    ) -> None:
        # Grid Engine may bind a job to fewer cores than it has slots, without a word of it in PE_HOSTFILE
        usable = len(os.sched_getaffinity(0))
        mine = [task.replace(cpus=task.cpus and min(task.cpus, usable)) for task in plan.on(self.host)]
        runs_gridtf = any(environment.runs_gridtf(plan, task) for task in mine)
        place = self._local_dir or self.attempt.path / "python" / self.host
        if runs_gridtf and self._local_dir is None and not local_dir.is_safe(self.attempt.path):
            raise RunDirError(
                f"no folder for Python modules can be made in /tmp on host {self.host}",
                why="other users may rename folders above the run directory, which would do as well",
                hint="is that disk full? otherwise choose a run root of yours alone with --run-root",
            )
        package = environment.package_folder(place) if runs_gridtf else Path()
        scheduler = self.scheduler_of(plan.request.scheduler)
        hook = local_dir.add_hook(self._local_dir) if self._local_dir and plan.spec.hook else None
        base = schedulers.without_place(grant.environment(self.system.environ), scheduler)
        if limit := plan.spec.log_bytes:
            from gridtf.bootstrap.agent.logpump import FILES, LogPump

            processes.need_open_files((1 + FILES) * len(mine) + 1 + fence.FILES)
            logs = {task.name: self.attempt.task_log(task.type, task.index) for task in mine}
            self.supervisor.pump = LogPump(logs, limit, self.system)
        for task in mine:
            env = environment.task_environment(base, plan, task, meeting, shares[task.name], self._local_dir, hook)
            argv = environment.command(plan, task, meeting, environment.HOME, package)
            if entrance:
                argv, env = self._contained(entrance, plan, task, meeting, argv, env)
            log = self.attempt.task_log(task.type, task.index)
            restarts = plan.spec.in_place(task.type)
            # the task inherits the locks on its GPUs, and holds them even when the agent is killed
            locks = grant.descriptors
            chosen = plan.spec.task(task.type).on_failure is not None
            again = InPlace(restarts, ports[task.name], by_signal_only=not chosen)
            self.supervisor.start(task.name, argv, env, plan.cwd, log, locks, self._ignored, again)
        self._report(now=True)

    def _contained(
        self,
        entrance: Entrance,
        plan: AttemptPlan,
        task: PlacedTask,
        meeting: rendezvous.Rendezvous,
        argv: list[str],
        env: dict[str, str],
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment of a task inside its container."""
        from gridtf.bootstrap.agent import containers

        names = {name for name in environment.own_variables(plan, task, meeting) if name in env}
        local = [self._local_dir] if self._local_dir else []
        folders = [self.attempt.run.path, *local, *([environment.HOME] if environment.runs_gridtf(plan, task) else [])]
        whole = containers.command(entrance, plan.spec, argv, plan.cwd, folders, names, gpus=task.gpus > 0)
        return whole, containers.environment(entrance, env, names)

    def _membership(self, plan: AttemptPlan, ports: dict[str, int], master_port: int) -> Membership:
        mine = plan.on(self.host)
        master = next(((task.name, master_port) for task in mine if task.rank == 0), None)
        joinable = {task.name: ports[task.name] for task in environment.members(plan.spec, mine)}
        return Membership(joinable, master, self.system, self._fence.inodes if self._fence else frozenset())

    def _supervise(self, membership: Membership, own_folders: OwnFolders) -> None:
        """Watch the tasks until the launcher, its silence or a signal stops the agent: each of them raises."""
        while True:
            number = self.system.wait(min(self._interval, _LOOKING, membership.pause()))
            if processes.is_end(number):
                raise _Stopped(number)
            if number in processes.PASSED_ON and number not in self._ignored:
                self.supervisor.forward(signal.Signals(number))
                if number == signal.SIGUSR1:
                    self._request_checkpoint()
            changed = self.supervisor.collect()
            if self._checkpoint:
                self._save_signal.send([task.pid for task in self.supervisor.running() if task.pid])
            if changed and (ended := self.supervisor.possibly_terminated()):
                # raises when the signal reaches this agent as well
                for _ in self._waiting(_SOON if any(task.signal for task in ended) else _AT_ONCE):
                    pass
            changed |= membership.look(self.supervisor.tasks.values())
            changed |= self.supervisor.restart()
            changed |= self._quiet.look(self.supervisor.running())
            changed |= own_folders.look(self.supervisor.running())
            self._tell_samples(self._sampler.look(self.supervisor.running()))
            if self._fence is not None:
                self._fence.keep()
            self._report(now=changed)
            self._listen()

    def _request_checkpoint(self) -> None:
        """Request a checkpoint of the tasks of this host, and of the launcher one on the other hosts."""
        if self._checkpoint:
            return
        self._checkpoint = True
        if not (self._local_dir and local_dir.notify(self._local_dir)):
            self.system.log(
                f"agent on {self.host}: cannot pass the request for a checkpoint on: is /tmp or TMPDIR full?"
            )
        self._report(now=True)

    # --- reporting and listening

    def _record(self) -> Record:
        self._read_notes()
        tasks = {name: task.record() for name, task in self.supervisor.tasks.items()}
        exceptions = {"gone": self._gone, "left": self._left, "waits": self._waits, "checkpoint": self._checkpoint}
        more = {name: value for name, value in exceptions.items() if value}
        return {"host": self.host, "pid": self.system.pid, "tasks": tasks, "over": self._over, **more}

    def _read_notes(self) -> None:
        """Read what tasks, and the hook in them, have written for the agent."""
        for name, task in self.supervisor.tasks.items():
            if self._local_dir and task.pid is not None:
                task.progress = local_dir.progress(self._local_dir, name) or task.progress
                noted = local_dir.exception(self._local_dir, name)
                task.exception = noted or task.exception

    def _report(self, *, now: bool = False) -> None:
        """Tell the launcher the state of this host: at once, or as a sign of life when the last one is old."""
        clock = self.system.monotonic()
        if self._link is None or (not now and clock - self._told < self._interval * 0.9):
            return
        self._told = clock
        state = self._record()
        if state == self._last:
            self._link.alive()
            return
        self._last = state
        self._stated = self.system.time()
        self._link.send(messages.STATE, {**state, "time": self._stated})
        if self._link.connected:
            self._reported = self._stated

    def _tell_samples(self, samples: Sequence[Record]) -> None:
        for sample in samples:
            if self._link is not None:
                self._link.send(messages.SAMPLE, sample)

    def _keep_telling(self) -> None:
        """Report in a tear-down, in which no order of the launcher matters any more."""
        self._report()
        self._hear()

    def _hear(self) -> None:
        """Take note of what the launcher has said since the last call."""
        assert self._link is not None
        connected = self._link.connected
        news = self._link.receive()
        if self._link.connected and not connected:  # a new connection begins with the last state
            self._reported = self._stated
        for kind, content in news:
            if self._watch is not None:
                self._watch.heard()
            if kind == messages.ENVIRONMENT:
                self._environment = content["environ"]
            elif kind == messages.PLAN:
                self._plan = content
            elif kind == messages.MEETING:
                self._meeting = content
            elif kind == messages.LAUNCHER:
                self._launcher = content
                if content.get("checkpoint") and not self._checkpoint and self._local_dir:
                    self._request_checkpoint()
            elif kind == messages.STOP:
                self._stop = True
            elif kind == messages.DUMP and not self._stop:
                self._send_stacks(content["id"])

    def _send_stacks(self, request: str) -> None:
        """Tell the launcher where all processes of the tasks of this host are."""
        from gridtf.bootstrap.agent import agentstacks

        assert self._link is not None
        tasks = {task.name: task.pid for task in self.supervisor.running() if task.pid}
        taken = agentstacks.take(tasks, self._local_dir, self.system)
        self._link.send(messages.STACKS, {"id": request, "tasks": taken})

    def _listen(self) -> None:
        """Hear the launcher.

        Raises:
            _Stopped: The launcher has stopped all agents.
            NoLauncherError: The launcher has been silent for too long.
        """
        self._hear()
        if self._stop:
            raise _Stopped
        if self._watch is not None and self._watch.lost():
            raise NoLauncherError(f"no heartbeat from the launcher for {self._watch.limit:.0f} s")

    def _stop_comes(self) -> bool:
        """Whether the launcher has told this agent to stop; its message may take a little longer than a signal."""
        deadline = self.system.monotonic() + _STOPPING
        while True:
            self._hear()
            if self._stop or self.system.monotonic() >= deadline:
                return self._stop
            self.system.wait(_AT_ONCE)

    def _report_signal(self, number: int | None) -> None:
        """Record why a signal ends the agent. Usually the launcher has written the reason; otherwise the scheduler or a
        user ends the whole job, or its part on this host."""
        self._released = number in (None, STOP_SIGNAL)
        self.supervisor.mark_stopped(self.system.time())  # tasks that end from now on, perhaps by the same hand
        if number is None or (number == STOP_SIGNAL and self._stop_comes()):
            self.supervisor.mark_stopped(self._reported)
            return
        if number in (STOP_SIGNAL, ORPHANED) or self.system.parent() != self._parent:
            what = f"the process that started the agent on host {self.host} was killed"
            hint = "by hand, or by the kernel because memory ran out: see dmesg on that host"
            self._gone = {"what": what, "why": "", "hint": hint, "orphaned": True}
        else:
            what = f"the agent on host {self.host} received {processes.signal_name(number)}"
            self._gone = {"what": what, "why": "", "hint": "schedulers send it when they end a job", "signal": number}
        if number == signal.SIGTERM:  # the tasks may have received it as well
            self.supervisor.mark_stopped()
        self._report(now=True)

    # --- a silent launcher on this host: only the agent can continue or kill it; otherwise the job would keep all hosts
    # until its walltime, with no task running

    def _recover_launcher(self, scheduler: Scheduler) -> None:
        """After the tear-down: continue a stalled launcher on this host (SIGCONT), and kill it if it stays silent.

        A launcher that has stopped the agents is healthy; a slow one has a little more than its heartbeat timeout.
        """
        assert self._watch is not None
        soon, woken, stopped = 3 * self._interval, 0.0, False
        while (launcher := self._launcher) is not None and self.system.is_alive(launcher) and not self._released:
            self._hear()
            self._released = self._stop
            silence, now = self._watch.silence(), self.system.monotonic()
            if not woken and silence < soon:
                return
            if woken and min(silence, now - woken) > _WAKE_LIMIT:
                self._end_launcher(launcher, silence, stopped=stopped)
                return
            if not woken and self._watch.lost() and scheduler.injob.suspended(self.system.environ) is False:
                woken, stopped = now, self.system.is_stopped(launcher["pid"])
                self.system.signal([launcher["pid"]], signal.SIGCONT)  # no effect on a process that was not stopped
            self._released = self.system.wait(_LOOKING) == STOP_SIGNAL or self._released

    def _give_back(self, scheduler: Scheduler, hosts: int) -> None:
        """After the tear-down: see to it that a job whose launcher's host is lost does not keep its other hosts.

        The scheduler may need minutes to notice that loss; and if it never does, only the way to this host was lost.

        Args:
            scheduler: The scheduler.
            hosts: The number of hosts of the job, all of which may ask it.
        """
        from random import uniform

        pause = min(max(_ASKING, _ASKING * hosts / 8), _LONGEST_ASKING)
        now = self.system.monotonic()
        end, due = now + _NOTICED, now
        while now < end:
            due += pause * uniform(0.5, 1)
            over = False
            while not over and (now := self.system.monotonic()) < due:
                over = processes.is_end(self.system.wait(due - now))
            with contextlib.suppress(GridtfError):
                if scheduler.injob.give_back(self.system.environ) or over:
                    return

    def _end_launcher(self, launcher: Record, silence: float, *, stopped: bool) -> None:
        """Kill the launcher, and write the verdict in its place.

        Args:
            launcher: Its last record.
            silence: Seconds since its last heartbeat.
            stopped: Whether it was stopped, as by SIGSTOP or gdb, before it was continued.
        """
        from gridtf.bootstrap.judge.verdict import Verdict

        self.system.signal([launcher["pid"]], signal.SIGKILL)
        hung = "it hung, for example in a file system that does not respond"
        how = "it was stopped by a signal or a debugger" if stopped else hung
        what = f"the launcher on host {launcher['host']} was stalled for {silence:.0f} s, and an agent has killed it"
        verdict = Verdict(JobState.FAILED, what, why=how, hint="the agents had already ended their tasks")
        self.system.log(verdict.text())
        with contextlib.suppress(GridtfError):
            if self.attempt.verdict.name in listdir(self.attempt.path):  # the launcher had written it before it stalled
                return
            now = self.system.time()
            self.attempt.write_verdict(verdict.record(self.nonce, launcher.get("began", now), now))
