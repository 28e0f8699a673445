"""The agent, one a host: reserve ports, publish, wait for the rendezvous, start the tasks, watch, tell, tear down."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gridtf import __version__, schedulers
from gridtf.bootstrap import environment, rendezvous
from gridtf.bootstrap.heartbeat import Heartbeat, Patience, Watch, backoff
from gridtf.bootstrap.placement import PlacedTask, share_gpus
from gridtf.bootstrap.rendezvous import AttemptPlan, PortHolder, read_plan
from gridtf.bootstrap.supervisor import Supervisor
from gridtf.errors import GridtfError, RendezvousError, RunDirError
from gridtf.host import processes, procfs
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, read_record, write_record
from gridtf.schedulers.agents import SENT, TOLD
from gridtf.schedulers.base import FAILED, Scheduler

# Sent by the agent supervisor when the process that had started it is gone.
ORPHANED = signal.SIGHUP

# How many times a served worker that was killed is started again.
_RESTARTS = 3

# Who ends all of a job's processes on a host reaches all of them within this, in seconds.
_AT_ONCE = 0.1

# How long a host may take to list the run directory in the folder above it: it was made before the job was started.
_UNSHARED = 15.0

# How long a launcher that was woken may take to say something, in seconds.
_TO_WAKE = 10.0

# How often to look for the launcher's word, in seconds; with many hosts, heartbeats are rarer.
_LISTENING = 1.0

# Exit codes that tell the launcher what an agent could not write down.
NO_RUN_DIR, NO_WRITE, NO_LAUNCHER, LEFTOVERS, BROKEN, KILLED = 70, 71, 72, 73, 74, 75
EXITS = {
    NO_RUN_DIR: "does not see the run directory: it must lie on a file system that all hosts share",
    NO_WRITE: "could not write into the run directory (disk full, quota or permissions)",
    NO_LAUNCHER: "heard no more from the launcher",
    LEFTOVERS: "could not end all of its processes",
    BROKEN: "could not go on",
    KILLED: "was killed",
}


class NoRunDirError(RendezvousError):
    code = NO_RUN_DIR


class NoLauncherError(RendezvousError):
    code = NO_LAUNCHER


def main(arguments: Sequence[str]) -> int:
    """``agent HOST RUN_DIR ATTEMPT NONCE START_TIMEOUT [LOCK_DESCRIPTORS]``; gives one of EXITS or 0."""
    host, run, number, nonce, start_timeout, *keep = arguments
    processes.block_signals()
    processes.become_subreaper()
    agent = Agent(host, RunDir(run), int(number), nonce, float(start_timeout))
    try:
        return agent.run([int(descriptor) for descriptor in keep])
    except (NoRunDirError, NoLauncherError) as error:
        return _say(host, error, error.code)
    except RunDirError as error:
        return _say(host, error, NO_WRITE)
    except GridtfError as error:
        _say(host, error, BROKEN)
        return agent.report(error)


class _ToldToStop(Exception):
    """By the launcher, or by a signal, whose number this is."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number


def _say(host: str, error: GridtfError, code: int) -> int:
    processes.tell(f"agent on {host}: {error}")
    return code


class Agent:
    """The life of one agent; every wait in it has a limit and ends at once when the job is to end."""

    def __init__(self, host: str, run: RunDir, number: int, nonce: str, start_timeout: float) -> None:
        self.host = host
        self.attempt: Attempt = run.attempt(number)
        self.nonce = nonce
        self.start_timeout = start_timeout
        self.supervisor = Supervisor([])
        self.heartbeat: Heartbeat | None = None
        self._watch: Watch | None = None
        self._patience: Patience | None = None
        self._launcher: Record | None = None  # what it said last
        self._listened = float("-inf")
        self._parent = os.getppid()
        self._ignored: frozenset[int] = frozenset()  # signals by which the scheduler warns
        self._waits = ""  # what for, before there is anything to publish
        self._over = False  # whether nobody of ours is left
        self._told = False  # by the launcher, that it is over
        self._reported = 0.0  # when the launcher was last told of a task's end
        self._gone: Record | None = None  # why this agent ends although the launcher has not told it to

    def run(self, keep: Sequence[int]) -> int:
        try:
            plan = self._plan()
            if os.environ.pop(SENT, None):
                self._take_environment()
        except _ToldToStop:  # before there was anything to do
            return 0
        mine = plan.on(self.host)
        self.supervisor = Supervisor([task.name for task in mine])
        self.heartbeat = Heartbeat(
            self.attempt.host_state(self.host), self._record, len(plan.hosts), plan.spec.heartbeat_timeout
        )
        scheduler = schedulers.get(plan.scheduler)
        self._watch = Watch(plan.spec.heartbeat_timeout, lambda: bool(scheduler.suspended(os.environ)))
        self._patience = Patience(plan.spec.heartbeat_timeout)
        try:
            with PortHolder() as holder:
                try:
                    self._take_part(plan, mine, scheduler, holder, keep)
                except _ToldToStop as told:
                    self._report_signal(told.number)
                except NoLauncherError:  # which may only have been stopped, and come back
                    what = f"the agent on host {self.host} {EXITS[NoLauncherError.code]}"
                    self._gone = {"what": what, "why": "", "hint": "", "unheard": True}
                    raise
                finally:
                    # whatever happened, nobody of ours stays
                    left = self.supervisor.tear_down(plan.spec.kill_grace, self._beat_if_possible)
                    self._over = not left
        finally:
            self._beat_if_possible(now=True)
            self._see_to_launcher(scheduler)
        if left:
            processes.tell(f"agent on {self.host}: processes that KILL did not end: {left}")
            return LEFTOVERS
        return 0

    def _take_part(
        self, plan: AttemptPlan, mine: list[PlacedTask], scheduler: Scheduler, holder: PortHolder, keep: Sequence[int]
    ) -> None:
        needed, owner = sum(task.gpus for task in mine), f"{plan.spec.title}, job {plan.job_id}"
        claim = scheduler.grant(os.environ, plan.spec, needed, owner, self._wait_for_gpus)
        self._waits, self._ignored = "", scheduler.warnings
        keep = [*keep, *claim.descriptors]  # its tasks hold the locks on after an agent that is killed
        processes.need_open_files(len(mine) + 1)  # a port each, and MASTER_PORT
        shares = share_gpus(self.host, mine, claim.gpus)
        master_port = self._publish(plan, mine, holder, shares)
        meeting = self._rendezvous(len(plan.hosts))
        holder.release(master_port)  # programs that are not TensorFlow do not share ports
        self._start(plan, mine, meeting, shares, keep)
        self._watch_over()

    # --- before the start

    def _plan(self) -> AttemptPlan:
        """The plan of our attempt, as soon as this host sees it."""
        run = self.attempt.run
        for waited in self._waiting(self.start_timeout):
            plan = read_plan(run, self.attempt.number, self.nonce)
            if plan is not None:
                return plan
            if waited > _UNSHARED and run.path.name not in listdir(run.path.parent):
                break
        raise NoRunDirError(f"{self.attempt.plan} is not to be seen on host {socket.gethostname()}")

    def _take_environment(self) -> None:
        """That of the job script, where what has started us took none along."""
        for _ in self._waiting(self.start_timeout):
            if environment.read_environment(self.attempt, self.nonce, os.environ):
                return
        raise NoRunDirError(f"{self.attempt.environment} is not to be seen on host {socket.gethostname()}")

    def _wait_for_gpus(self, why: str, seconds: float) -> None:
        if why != self._waits:
            self._waits = why
            processes.tell(f"agent on {self.host}: {why}")
            self._beat(now=True)
        for _ in self._waiting(seconds):
            self._beat()
            self._listen()

    def _publish(
        self, plan: AttemptPlan, mine: list[PlacedTask], holder: PortHolder, shares: dict[str, tuple[str, ...]]
    ) -> int:
        ports = {task.name: holder.reserve() for task in mine}
        master_port = holder.reserve() if any(task.rank == 0 for task in mine) else 0
        record = {
            "nonce": self.nonce,
            "host": self.host,
            "hostname": socket.gethostname(),
            "address": plan.hosts[self.host],
            "pid": os.getpid(),
            "ports": ports,
            "master_port": master_port,
            "gpus": shares,
            "versions": {"gridtf": __version__, "python": sys.version.split()[0]},
        }
        write_record(self.attempt.host_record(self.host), record)
        return master_port

    def _rendezvous(self, hosts: int) -> rendezvous.Rendezvous:
        # The launcher names who is missing and ends the wait; this limit is for a launcher that is gone.
        assert self._patience is not None
        for _ in self._waiting(self.start_timeout + 60, hosts):
            meeting = None
            with self._patience.trying():
                meeting = rendezvous.read(self.attempt, self.nonce)
            if meeting is not None:
                return meeting
            self._beat()
            self._listen()
        raise NoLauncherError(f"no rendezvous file after {self.start_timeout + 60:.0f} s")

    def _waiting(self, limit: float, lookers: int = 1) -> Iterator[float]:
        """Pauses that grow, up to the limit; yields the seconds waited so far. lookers: how many agents wait so."""
        begin = time.monotonic()
        while (waited := time.monotonic() - begin) < limit:
            yield waited
            number = processes.wait_for_signal(backoff(waited, lookers))
            if processes.is_end(number):
                raise _ToldToStop(number)

    # --- the tasks

    def _start(
        self,
        plan: AttemptPlan,
        mine: list[PlacedTask],
        meeting: rendezvous.Rendezvous,
        shares: dict[str, tuple[str, ...]],
        keep: Sequence[int],
    ) -> None:
        runs_gridtf = any(environment.runs_gridtf(plan, task) for task in mine)
        package = environment.package_folder(self.attempt, self.host) if runs_gridtf else Path()
        base = schedulers.without_place(os.environ)
        for task in mine:
            env = environment.task_environment(base, plan, task, meeting, shares[task.name])
            argv = environment.command(plan, task, meeting, environment.HOME, package)
            log = self.attempt.task_log(task.type, task.index)
            # the port stays held, and the chief's ParameterServerStrategy goes on with the others until it is back
            restarts = _RESTARTS if task.served and task.type == "worker" else 0
            self.supervisor.start(task.name, argv, env, plan.cwd, log, keep, self._ignored, restarts)
        self._beat(now=True)

    def _watch_over(self) -> None:
        """Until the launcher says stop, a signal does, or the launcher is heard of no more: all of them raise."""
        assert self.heartbeat is not None
        while True:
            number = processes.wait_for_signal(min(self.heartbeat.interval, _LISTENING))
            if processes.is_end(number):
                raise _ToldToStop(number)
            if number in processes.PASSED_ON and number not in self._ignored:
                self.supervisor.pass_on(signal.Signals(number))
            changed = self.supervisor.collect()
            if changed and self.supervisor.maybe_told():
                for _ in self._waiting(_AT_ONCE):  # raises when we get it as well
                    pass
            changed |= self.supervisor.restart()
            told = self._beat(now=changed)
            self._reported = time.time() if told else self._reported
            self._listen()

    # --- telling and listening

    def _record(self) -> dict[str, object]:
        tasks = {name: task.record() for name, task in self.supervisor.tasks.items()}
        who = {"nonce": self.nonce, "host": self.host, "pid": os.getpid()}
        more = {name: what for name, what in (("gone", self._gone), ("waits", self._waits)) if what}
        return {**who, "tasks": tasks, "over": self._over, **more}

    def _beat(self, *, now: bool = False) -> bool:
        """Tell the launcher how we are, at most once an interval unless now; gives whether we have."""
        assert self.heartbeat is not None
        return self.heartbeat.beat(now=now)

    def _listen(self) -> None:
        """Whether the launcher says stop, or is heard of no more; both raise. Looks at most once a second."""
        assert self._watch is not None and self._patience is not None and self.heartbeat is not None
        if time.monotonic() - self._listened < _LISTENING:
            return
        self._listened = time.monotonic()
        with self._patience.trying():
            if self._stopped():
                raise _ToldToStop
            self._hear()
        if self._watch.lost():
            # where nothing can be written, the launcher may not be able to either
            silent = NoLauncherError(f"the launcher has not been heard of for {self._watch.limit:.0f} s")
            raise self._patience.trouble or self.heartbeat.trouble or silent

    def _hear(self) -> None:
        """Note what the launcher says."""
        assert self._watch is not None
        launcher = read_record(self.attempt.launcher, recordtypes.Launcher, nonce=self.nonce, own=True)
        if launcher is not None:
            self._launcher = launcher
            self._watch.heard(launcher.get("beat"))

    def _see_to_launcher(self, scheduler: Scheduler) -> None:
        """All is over here: see to it that a launcher on this host which stands still does not go on holding hosts.

        One that has told us to end is well; one that is only slow has time until it is lost, and then some more.
        """
        assert self._watch is not None and self.heartbeat is not None
        soon, woken, stopped = 3 * self.heartbeat.interval, 0.0, False
        while (launcher := self._launcher) is not None and procfs.lives(launcher) and not self._told:
            with contextlib.suppress(GridtfError):
                self._hear()
                self._told = self._stopped()
            silence = self._watch.silence()
            if not woken and silence < soon:
                return
            if woken and min(silence, time.monotonic() - woken) > _TO_WAKE:
                end_launcher(self.attempt, launcher, silence, stopped=stopped)
                return
            if not woken and self._watch.lost() and scheduler.suspended(os.environ) is False:
                woken, stopped = time.monotonic(), wake_launcher(launcher)
            self._told = processes.wait_for_signal(_LISTENING) == TOLD or self._told

    def _stopped(self) -> bool:
        return read_record(self.attempt.stop, recordtypes.Stop, nonce=self.nonce, own=True) is not None

    def _beat_if_possible(self, *, now: bool = False) -> None:
        """While tearing down, a file system that refuses to be written must not stop us."""
        if self.heartbeat is not None:
            with contextlib.suppress(GridtfError):
                self.heartbeat.beat(now=now)

    def _report_signal(self, number: int | None) -> None:
        """A signal ends us. Mostly the launcher has said why; else the whole job is to end, or just this host's."""
        self._told = number in (None, TOLD)
        if number is None or (number == TOLD and self._stopped()):
            self.supervisor.excuse(self._reported)
            return
        if number in (TOLD, ORPHANED) or os.getppid() != self._parent:
            what = f"the process that had started the agent on host {self.host} was killed"
            hint = "by hand, or by the kernel because memory ran out: see dmesg on that host"
            self._gone = {"what": what, "why": "", "hint": hint, "orphaned": True}
        else:
            what = f"the agent on host {self.host} was told to end by {processes.signal_name(number)}"
            self._gone = {"what": what, "why": "", "hint": "the scheduler does so when it ends a job", "signal": number}
            if number == signal.SIGTERM:  # so were our tasks, by whoever has told us
                self.supervisor.excuse()
        self._beat_if_possible(now=True)

    def report(self, error: GridtfError) -> int:
        """Write down why this agent gives up, so that the verdict can say it."""
        self._gone = {"what": error.what, "why": error.why, "hint": error.hint}
        with contextlib.suppress(RunDirError):
            write_record(self.attempt.host_state(self.host), self._record())
        return BROKEN


# --- a launcher on this host that is not heard of: nobody else would wake or end it, and its job would hold all hosts
# until the walltime, with nothing running on them


def wake_launcher(launcher: Record) -> bool:
    """Let it go on if it was stopped, which is nothing to one that was not; gives whether it was.

    launcher: what it wrote last.
    """
    stopped = procfs.stopped(launcher["pid"])
    processes.signal_all([launcher["pid"]], signal.SIGCONT)
    return stopped


def end_launcher(attempt: Attempt, launcher: Record, silence: float, *, stopped: bool) -> None:
    """End it, and write the verdict in its place. silence: seconds. stopped: whether it was when it was woken."""
    from gridtf.bootstrap.verdict import Verdict

    processes.signal_all([launcher["pid"]], signal.SIGKILL)
    how = "it was stopped by a signal" if stopped else "it hung, as in a file system that does not answer"
    what = f"the launcher on host {launcher['host']} stood still for {silence:.0f} s, and an agent has ended it"
    verdict = Verdict(FAILED, what, why=how, hint="its hosts had ended their tasks before")
    processes.tell(verdict.text())
    with contextlib.suppress(GridtfError):
        if attempt.verdict.name in listdir(attempt.path):  # that was its last act
            return
        attempt.write_verdict(verdict.record(launcher["nonce"], launcher.get("began", time.time()), time.time()))
