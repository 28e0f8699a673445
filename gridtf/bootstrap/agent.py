"""The agent of a host: reserve ports, publish, wait for the rendezvous, start and watch the tasks, tear them down."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import __version__, schedulers
from gridtf.bootstrap import addresses, environment, local_dir, rendezvous, versions
from gridtf.bootstrap.heartbeat import Heartbeat, Patience, Watch, backoff
from gridtf.bootstrap.membership import Membership
from gridtf.bootstrap.placement import PlacedTask, share_gpus
from gridtf.bootstrap.rendezvous import AttemptPlan, PortHolder, read_plan
from gridtf.bootstrap.supervisor import Supervisor
from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError, RendezvousError, RunDirError
from gridtf.host import processes
from gridtf.host.gpus import GpuGrant
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, read_record, write_record
from gridtf.schedulers.agents import ENVIRONMENT_FILE, STOP_SIGNAL
from gridtf.schedulers.api import GpuNeed, Scheduler
from gridtf.states import JobState
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.containers import Entrance

# The signal that the agent supervisor sends to the agent when srun's or qrsh's process on this host has died.
ORPHANED = signal.SIGHUP

_AT_ONCE = 0.1  # seconds within which a signal to all processes of a job has reached all of them on one host
_UNSHARED = 15.0  # seconds within which a host lists the run directory, which was made before the job started
_RENDEZVOUS_MARGIN = 60  # seconds that agents wait longer than the launcher, which can report the missing hosts
_WAKE_LIMIT = 10.0  # seconds within which a launcher that was continued (SIGCONT) has to write a heartbeat
_LISTENING = 1.0  # seconds between two reads of the launcher's records; with many hosts, heartbeats are rarer

# Exit codes for errors that an agent could not write to the run directory.
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
    """

    host: str
    attempt: Attempt
    nonce: str
    start_timeout: float
    system: System
    scheduler_of: Callable[[str], Scheduler] = schedulers.get

    def __post_init__(self) -> None:
        self.supervisor = Supervisor([], self.system)
        self._parent = self.system.parent()
        self._ignored: frozenset[int] = frozenset()  # signals by which the scheduler warns
        self._waits = ""  # why the agent waits, before it has published anything
        self._over = False  # no process of the job is left on this host
        self._released = False  # the launcher has stopped this agent
        self._reported = 0.0  # when the end of a task was last reported to the launcher
        self._gone: Record | None = None  # why this agent ends although the launcher has not stopped it
        self._launcher: Record | None = None  # the last record of the launcher
        self._local_dir: Path | None = None
        self._checkpoint = False  # a checkpoint was requested on this host
        self._listened = float("-inf")

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
            if isinstance(error, RunDirError):
                return NO_WRITE
            self._gone = {"what": error.what, "why": error.why, "hint": error.hint}
            with contextlib.suppress(RunDirError):
                write_record(self.attempt.host_state(self.host), self._record())
            return BROKEN

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
            plan = self._wait_for_plan()
            if self.system.environ.pop(ENVIRONMENT_FILE, None):
                self._read_environment(self.scheduler_of(plan.request.scheduler).variables_of_host(plan.request))
        except _Stopped:  # before there was anything to do
            return 0
        scheduler, limit = self.scheduler_of(plan.request.scheduler), plan.spec.heartbeat_timeout
        self.supervisor = Supervisor([task.name for task in plan.on(self.host)], self.system)
        state = self.attempt.host_state(self.host)
        self._heartbeat = Heartbeat(state, self._record, len(plan.hosts), limit, self.system)
        self._watch = Watch(limit, self.system, lambda: bool(scheduler.suspended(self.system.environ)))
        self._patience = Patience(limit, self.system)
        folders = local_dir.places(self.system.environ, self.nonce, self.host)
        self._local_dir = local_dir.make(folders)
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
                finally:
                    # whatever happened, no process of the job stays
                    survivors = self.supervisor.tear_down(plan.spec.kill_grace, self._heartbeat.beat_if_possible)
                    self._over = not survivors
        finally:
            self._read_progress()
            local_dir.remove(folders)
            self._heartbeat.beat_if_possible(now=True)
            self._recover_launcher(scheduler)
        if survivors:
            self.system.log(f"agent on {self.host}: processes survived SIGKILL: {survivors}")
            return LEFTOVERS
        return 0

    def _take_part(self, plan: AttemptPlan, scheduler: Scheduler, holder: PortHolder, gpus: GpuGrant | None) -> None:
        mine = plan.on(self.host)
        entrance = None
        if plan.spec.contained:
            from gridtf.bootstrap import containers

            entrance = containers.find(plan.spec, self.host, self.system.environ)
        owner, patience = f"{plan.spec.title}, job {plan.job_id}", rendezvous.GPU_SHARE * plan.spec.start_timeout
        need = GpuNeed(sum(task.gpus for task in mine), owner, patience)
        grant = gpus or scheduler.gpu_grant(self.system.environ, plan.request, need, self._wait_for_gpus)
        self._waits, self._ignored = "", scheduler.warnings
        processes.need_open_files(len(mine) + 1)  # a port each, and MASTER_PORT
        shares = share_gpus(self.host, mine, grant.gpus)
        installed = self._installed(plan, grant)
        ports, master_port = self._publish(plan, holder, shares, installed)
        meeting = self._wait_for_rendezvous(len(plan.hosts))
        holder.release(master_port)  # programs that are not TensorFlow do not share ports
        for task in mine:
            if versions.releases_port(plan.spec.ports, installed.get(task.name)):
                holder.release(ports[task.name])
        self._start(plan, meeting, shares, grant, entrance)
        self._supervise(self._membership(plan, ports, master_port))

    # --- before the start

    def _wait_for_plan(self) -> AttemptPlan:
        run = self.attempt.run
        for waited in self._waiting(self.start_timeout):
            plan = read_plan(run, self.attempt.number, self.nonce)
            if plan is not None:
                return plan
            if waited > _UNSHARED and run.path.name not in listdir(run.path.parent):
                break
        raise NoRunDirError(f"{self.attempt.plan} did not appear on host {self.system.host}")

    def _read_environment(self, host_variables: re.Pattern[str] | None) -> None:
        """Take over the environment of the job script, for an agent that has not inherited it."""
        for _ in self._waiting(self.start_timeout):
            if environment.read_environment(self.attempt, self.nonce, self.system.environ, host_variables):
                return
        raise NoRunDirError(f"{self.attempt.environment} did not appear on host {self.system.host}")

    def _wait_for_gpus(self, why: str, seconds: float) -> None:
        if why != self._waits:
            self._waits = why
            self.system.log(f"agent on {self.host}: {why}")
            self._heartbeat.beat(now=True)
        for _ in self._waiting(seconds):
            self._heartbeat.beat()
            self._listen()

    def _publish(
        self, plan: AttemptPlan, holder: PortHolder, shares: dict[str, tuple[str, ...]], installed: dict[str, str]
    ) -> tuple[dict[str, int], int]:
        """Write the record of this host. Returns the port of each task, and MASTER_PORT; 0 where the task of rank 0 is
        on another host."""
        mine = plan.on(self.host)
        ports = {task.name: holder.reserve() for task in mine}
        master_port = holder.reserve() if any(task.rank == 0 for task in mine) else 0
        record = {
            "nonce": self.nonce,
            "host": self.host,
            "hostname": socket.gethostname(),
            **addresses.published(plan.spec, self.host, plan.hosts[self.host]),
            "pid": self.system.pid,
            "ports": ports,
            "master_port": master_port,
            "gpus": shares,
            "versions": {"gridtf": __version__, "python": sys.version.split()[0]},
            "tensorflow": installed,
        }
        write_record(self.attempt.host_record(self.host), record)
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

    def _wait_for_rendezvous(self, hosts: int) -> rendezvous.Rendezvous:
        limit = self.start_timeout + _RENDEZVOUS_MARGIN
        for _ in self._waiting(limit, hosts):
            meeting = None
            with self._patience.trying():
                meeting = rendezvous.read(self.attempt, self.nonce)
            if meeting is not None:
                return meeting
            self._heartbeat.beat()
            self._listen()
        raise NoLauncherError(f"no rendezvous file after {limit:.0f} s")

    def _waiting(self, limit: float, agents: int = 1) -> Iterator[float]:
        """Wait in steps that grow. Raises _Stopped when a signal ends the agent.

        Args:
            limit: Seconds to wait in all.
            agents: How many agents wait in this way.

        Yields:
            The seconds waited so far.
        """
        begin = self.system.monotonic()
        while (waited := self.system.monotonic() - begin) < limit:
            yield waited
            number = self.system.wait(backoff(waited, agents))
            if processes.is_end(number):
                raise _Stopped(number)
            if number == signal.SIGUSR1 and self._local_dir and number not in self._ignored:
                self._request_checkpoint()

    # --- the tasks

    def _start(
        self,
        plan: AttemptPlan,
        meeting: rendezvous.Rendezvous,
        shares: dict[str, tuple[str, ...]],
        grant: GpuGrant,
        entrance: Entrance | None,
    ) -> None:
        mine = plan.on(self.host)
        runs_gridtf = any(environment.runs_gridtf(plan, task) for task in mine)
        package = environment.package_folder(self.attempt, self.host) if runs_gridtf else Path()
        scheduler = self.scheduler_of(plan.request.scheduler)
        base = schedulers.without_place(grant.environment(self.system.environ), scheduler)
        for task in mine:
            env = environment.task_environment(base, plan, task, meeting, shares[task.name], self._local_dir)
            argv = environment.command(plan, task, meeting, environment.HOME, package)
            if entrance:
                argv, env = self._contained(entrance, plan, task, meeting, argv, env)
            log = self.attempt.task_log(task.type, task.index)
            restarts = task.row.restarts if task.served else 0  # its port stays reserved
            # the task inherits the locks on its GPUs, and holds them even when the agent is killed
            locks = grant.descriptors
            self.supervisor.start(task.name, argv, env, plan.cwd, log, locks, self._ignored, restarts)
        self._heartbeat.beat(now=True)

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
        from gridtf.bootstrap import containers

        names = {name for name in environment.own_variables(plan, task, meeting) if name in env}
        local = [self._local_dir] if self._local_dir else []
        folders = [self.attempt.run.path, *local, *([environment.HOME] if environment.runs_gridtf(plan, task) else [])]
        whole = containers.command(entrance, plan.spec, argv, plan.cwd, folders, names, gpus=task.gpus > 0)
        return whole, containers.environment(entrance, env, names)

    def _membership(self, plan: AttemptPlan, ports: dict[str, int], master_port: int) -> Membership:
        mine = plan.on(self.host)
        joining = [task for task in mine if task.trains and task.in_cluster and environment.has_config(plan, task.type)]
        master = next(((task.name, master_port) for task in mine if task.rank == 0), None)
        return Membership({task.name: ports[task.name] for task in joining}, master, self.system)

    def _supervise(self, membership: Membership) -> None:
        """Watch the tasks until the launcher, its silence or a signal stops the agent: each of them raises."""
        while True:
            number = self.system.wait(min(self._heartbeat.interval, _LISTENING, membership.pause()))
            if processes.is_end(number):
                raise _Stopped(number)
            if number in processes.PASSED_ON and number not in self._ignored:
                self.supervisor.forward(signal.Signals(number))
                if number == signal.SIGUSR1:
                    self._request_checkpoint()
            changed = self.supervisor.collect()
            if changed and self.supervisor.possibly_terminated():
                for _ in self._waiting(_AT_ONCE):  # raises when the signal reaches this agent as well
                    pass
            changed |= membership.look(self.supervisor.tasks.values())
            changed |= self.supervisor.restart()
            if self._heartbeat.beat(now=changed):
                self._reported = self.system.time()
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
        self._heartbeat.beat(now=True)

    # --- reporting and listening

    def _record(self) -> Record:
        self._read_progress()
        tasks = {name: task.record() for name, task in self.supervisor.tasks.items()}
        exceptions = {"gone": self._gone, "waits": self._waits, "checkpoint": self._checkpoint}
        more = {name: value for name, value in exceptions.items() if value}
        who = {"nonce": self.nonce, "host": self.host, "pid": self.system.pid}
        return {**who, "tasks": tasks, "over": self._over, **more}

    def _read_progress(self) -> None:
        for name, task in self.supervisor.tasks.items():
            if self._local_dir and task.pid is not None:
                task.progress = local_dir.progress(self._local_dir, name) or task.progress

    def _listen(self) -> None:
        """Read the launcher's records, at most once a second.

        Raises:
            _Stopped: The launcher has stopped all agents.
            NoLauncherError: The launcher has been silent for too long.
            RunDirError: Records can be neither read nor written, so silence means nothing.
        """
        if self.system.monotonic() - self._listened < _LISTENING:
            return
        self._listened = self.system.monotonic()
        with self._patience.trying():
            if self._stop_is_written():
                raise _Stopped
            self._read_launcher()
        if self._watch.lost():
            # where nothing can be written, the launcher may not be able to either
            silent = NoLauncherError(f"no heartbeat from the launcher for {self._watch.limit:.0f} s")
            raise self._patience.trouble or self._heartbeat.trouble or silent

    def _read_launcher(self) -> None:
        launcher = read_record(self.attempt.launcher, recordtypes.Launcher, nonce=self.nonce, own=True)
        if launcher is not None:
            self._launcher = launcher
            self._watch.heard(launcher.get("beat"))
            if launcher.get("checkpoint"):
                self._request_checkpoint()

    def _stop_is_written(self) -> bool:
        return read_record(self.attempt.stop, recordtypes.Stop, nonce=self.nonce, own=True) is not None

    def _report_signal(self, number: int | None) -> None:
        """Record why a signal ends the agent. Usually the launcher has written the reason; otherwise the scheduler or a
        user ends the whole job, or its part on this host."""
        self._released = number in (None, STOP_SIGNAL)
        if number is None or (number == STOP_SIGNAL and self._stop_is_written()):
            self.supervisor.mark_stopped(self._reported)
            return
        if number in (STOP_SIGNAL, ORPHANED) or self.system.parent() != self._parent:
            what = f"the process that started the agent on host {self.host} was killed"
            hint = "by hand, or by the kernel because memory ran out: see dmesg on that host"
            self._gone = {"what": what, "why": "", "hint": hint, "orphaned": True}
        else:
            what = f"the agent on host {self.host} received {processes.signal_name(number)}"
            self._gone = {"what": what, "why": "", "hint": "schedulers send it when they end a job", "signal": number}
            if number == signal.SIGTERM:  # the tasks have received it as well
                self.supervisor.mark_stopped()
        self._heartbeat.beat_if_possible(now=True)

    # --- a silent launcher on this host: only the agent can continue or kill it; otherwise the job would keep all hosts
    # until its walltime, with no task running

    def _recover_launcher(self, scheduler: Scheduler) -> None:
        """After the tear-down: continue a stalled launcher on this host (SIGCONT), and kill it if it stays silent.

        A launcher that has stopped the agents is healthy; a slow one has a little more than its heartbeat timeout.
        """
        soon, woken, stopped = 3 * self._heartbeat.interval, 0.0, False
        while (launcher := self._launcher) is not None and self.system.is_alive(launcher) and not self._released:
            with contextlib.suppress(GridtfError):
                self._read_launcher()
                self._released = self._stop_is_written()
            silence, now = self._watch.silence(), self.system.monotonic()
            if not woken and silence < soon:
                return
            if woken and min(silence, now - woken) > _WAKE_LIMIT:
                self._end_launcher(launcher, silence, stopped=stopped)
                return
            if not woken and self._watch.lost() and scheduler.suspended(self.system.environ) is False:
                woken, stopped = now, self.system.is_stopped(launcher["pid"])
                self.system.signal([launcher["pid"]], signal.SIGCONT)  # no effect on a process that was not stopped
            self._released = self.system.wait(_LISTENING) == STOP_SIGNAL or self._released

    def _end_launcher(self, launcher: Record, silence: float, *, stopped: bool) -> None:
        """Kill the launcher, and write the verdict in its place.

        Args:
            launcher: Its last record.
            silence: Seconds since its last heartbeat.
            stopped: Whether it was stopped, as by SIGSTOP or gdb, before it was continued.
        """
        from gridtf.bootstrap.verdict import Verdict

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
            self.attempt.write_verdict(verdict.record(launcher["nonce"], launcher.get("began", now), now))
