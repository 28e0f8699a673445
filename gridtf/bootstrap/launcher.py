"""The launcher, on the first host: allocation, agents, placement, rendezvous, watch, tear-down, verdict.

What it needs only once the agents are on their way it imports then: starting them takes longer than anything here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.bootstrap import verdict
from gridtf.bootstrap.heartbeat import Heartbeat, Patience, Watch, backoff, interval
from gridtf.bootstrap.verdict import Verdict
from gridtf.errors import (
    GridtfError,
    HostLostError,
    RendezvousError,
    RunDirError,
    ToldToEndError,
)
from gridtf.host import processes, procfs
from gridtf.host.processes import signal_name
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, make_folder, read_record, write_record
from gridtf.run.tail import last_lines
from gridtf.schedulers import shared
from gridtf.schedulers.base import (
    CANCELLED,
    ENDED,
    FAILED,
    LOOPBACK,
    NODE_FAIL,
    TIMEOUT,
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    Scheduler,
)
from gridtf.text import counted, some, were

if TYPE_CHECKING:
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.bootstrap.rendezvous import AttemptPlan

_SOON = 2.0  # seconds after which most hosts are there, and those that are not may have a reason


class _ToldToEnd(Exception):
    """A signal says that the job is to end."""

    def __init__(self, number: int) -> None:
        self.number = number


class Launcher:
    """One attempt. environ: this process's own environment, which the agents inherit."""

    def __init__(
        self, run: RunDir, spec: JobSpec, scheduler: Scheduler, job_id: str, environ: MutableMapping[str, str]
    ) -> None:
        self.run = run
        self.spec = spec
        self.job_id = job_id
        self.scheduler = scheduler
        self.environ = environ
        self.attempt = run.new_attempt()
        self.nonce = os.urandom(8).hex()
        self.started = time.time()
        self.plan: AttemptPlan | None = None
        self._met = False
        self._phase, self._detail = "allocating", "learning the allocation"
        self._self = procfs.identity(os.getpid())
        self._seen_alive = time.monotonic()
        self._stood_still = 0.0  # seconds: the longest time that went by without us
        self._heartbeat = Heartbeat(self.attempt.launcher, self._record, 1, spec.heartbeat_timeout)
        self.hosts: HostMonitor | None = None

    def launch(self) -> int:
        """Run the attempt to its end; gives the exit code of the job script. The verdict is written last of all."""
        try:
            self.attempt.reserve_verdict()
            end = self._attempt()
        except _ToldToEnd as told:
            end = self._ended_by(told.number)
        except GridtfError as error:
            end = self._ended_for(error)
        except Exception as error:  # whatever else goes wrong, the tasks end and status can tell
            import traceback

            processes.tell(traceback.format_exc())
            end = Verdict(FAILED, f"the launcher could not go on: {error}", hint=f"see {self.run.log}")
        end = self._stop(end)
        if deserted := self.scheduler.deserted():
            freed = f"{deserted}, so gridtf cancels the job, which would hold its hosts"
            end = replace(end, why="; ".join(filter(None, (end.why, freed))))
        record = end.record(self.nonce, self.started, time.time())
        processes.tell(end.text())
        try:
            self.attempt.write_verdict(record)
        except GridtfError as error:
            processes.tell(str(error))
            return end.exit_code or 1
        with contextlib.suppress(GridtfError):
            self._say("ended", end.reason)
        if deserted:
            self._cancel()
        return end.exit_code

    # --- the way to the end

    def _attempt(self) -> Verdict:
        processes.need_open_files(0)
        self._heartbeat.beat(now=True)
        allocation = self.scheduler.allocation(self.environ, self.spec, self._wait_for_allocation)
        others = any(host.address != LOOPBACK for host in allocation.hosts[1:])
        if others and (why := shared.unseen(self.run.path)):
            raise RunDirError(f"{self.run.path} cannot be seen by other hosts", why=why, hint=shared.HINT)
        processes.need_open_files(2 * len(allocation.hosts))  # a process and a pipe, or srun's connection, each
        call = agent_call(self.attempt, self.nonce, self.spec.start_timeout)
        agents = self.scheduler.start_agents(allocation, call, self.environ)
        hosts = [host.name for host in allocation.hosts]
        limit = self.spec.heartbeat_timeout
        self.hosts = HostMonitor(self.attempt, self.nonce, hosts, limit, agents, self._pause)
        self._heartbeat = Heartbeat(self.attempt.launcher, self._record, len(hosts), limit)
        from gridtf.bootstrap import placement

        self.plan = self._make_plan(allocation, placement.place(allocation, self.spec))
        self.plan.write()
        make_folder(self.run.output)
        count = counted(len(hosts), "host")
        self._say("waiting", f"waiting for {count}")
        self._gather(self.plan, self.hosts)
        started = f"{counted(len(self.plan.tasks), 'task')} on {count}"
        self._say("running", started)
        return self._watch_over(self.plan, self.hosts, started)

    def _make_plan(self, allocation: Allocation, tasks: tuple[PlacedTask, ...]) -> AttemptPlan:
        from gridtf.bootstrap.rendezvous import AttemptPlan

        spec = self.spec
        return AttemptPlan(
            attempt=self.attempt,
            nonce=self.nonce,
            job_id=self.job_id,
            scheduler=self.scheduler.name,
            spec=spec,
            hosts={host.name: host.address or host.name for host in allocation.hosts},
            tasks=tasks,
            python=spec.python or ("python" if spec.setup else sys.executable),
            cwd=Path.cwd(),
        )

    def _gather(self, plan: AttemptPlan, hosts: HostMonitor) -> None:
        """Wait for every host's record, then write the rendezvous file."""
        from gridtf.bootstrap import rendezvous

        collector = rendezvous.Collector(self.attempt, self.nonce, plan.hosts)
        patience = Patience(self.spec.heartbeat_timeout)
        begin = time.monotonic()
        while True:
            with patience.trying():
                collector.poll()
            if not collector.missing:
                break
            hosts.check()
            missing = list(collector.missing.values())
            waited = time.monotonic() - begin
            if waited > self.spec.start_timeout:
                raise self._missing(plan, missing)
            if waited > _SOON:
                hosts.read()
                missing = [f"{host} ({hosts.waits[host]})" if host in hosts.waits else host for host in missing]
            self._say("waiting", f"waiting for {counted(len(missing), 'host')}: {some(missing)}")
            self._pause(backoff(waited))
        self._met = True
        rendezvous.publish(self.attempt, plan.job_id, self.nonce, rendezvous.merge(plan.tasks, collector.records))
        self._forget_environment()  # all hosts have it

    def _forget_environment(self) -> None:
        """People keep passwords there."""
        with contextlib.suppress(OSError):
            self.attempt.environment.unlink(missing_ok=True)

    def _missing(self, plan: AttemptPlan, hosts: list[str]) -> RendezvousError:
        tasks = [task.name for task in plan.tasks if task.host in hosts]
        return RendezvousError(
            f"after {self.spec.start_timeout:g} s still missing: {counted(len(hosts), 'host')}: {some(hosts)}",
            why=f"their tasks: {some(tasks, most=32)}",
            hint="can those hosts start processes and see the run directory? --start-timeout allows more time",
        )

    def _watch_over(self, plan: AttemptPlan, hosts: HostMonitor, started: str) -> Verdict:
        """Until the job has succeeded or a critical task, an agent or a host has failed. started: what to say of it."""
        policy = self.spec.success_policy
        leaders, evaluators = _Wait(self.spec.leader_wait), _Wait(self.spec.evaluator_wait)
        begin = time.monotonic()
        hosts.listen()
        while True:
            hosts.read()
            now = verdict.decide(plan.tasks, hosts.tasks, policy)
            if now.cause is not None:
                return Verdict(FAILED, "")  # who and why is told once all states are final
            if now.leader and leaders.over():
                policy = "chief"  # from now on its success is the job's
                continue
            if now.ended:
                if not now.lingering or evaluators.over():
                    return verdict.of_success(plan.tasks, hosts.tasks, policy, self.spec)
                self._say("running", f"training has ended; waiting for {some(now.lingering)} {evaluators}")
            else:
                hosts.check()
                left = f"{some(now.early)} ended, waiting for {some(now.awaited)}"
                left += f" {leaders}" if now.leader else ""
                self._say("running", f"{started}; {left}" if now.early else started)
            self._pause(poll_interval(len(plan.hosts), time.monotonic() - begin))

    # --- waiting

    def _wait_for_allocation(self, why: str, seconds: float) -> None:
        if why != self._detail:
            processes.tell(why)
        self._say("allocating", why)
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        """Wait, and tell that we live: agents that hear nothing of us end their tasks. A signal that ends the job
        raises."""
        self._heartbeat.beat()
        number = processes.wait_for_signal(seconds)
        self._stood_still = max(self._stood_still, time.monotonic() - self._seen_alive - seconds)
        self._seen_alive = time.monotonic()
        if number is not None and (processes.is_end(number) or number in self.scheduler.last_warnings):
            raise _ToldToEnd(number)

    # --- the end

    def _stop(self, end: Verdict) -> Verdict:
        """Tear everything down, then say who failed first. Gives the final verdict."""
        grace = self.spec.kill_grace
        begun = end if end.reason else self._of_tasks(end)  # what is known by now, should we not live to tell more
        with contextlib.suppress(GridtfError):
            self._say("stopping", "ending what still runs")
            task = begun.cause["task"] if begun.cause else None
            told = {"state": begun.state, "reason": begun.reason, "task": task}
            write_record(self.attempt.stop, {"nonce": self.nonce, **told})
        if self.hosts is not None:
            # agents that never met have no tasks to tear down
            self.hosts.end(grace + 12.0 if self._met else 2.0, self._beat_if_possible)
        self._forget_environment()
        from gridtf.bootstrap.supervisor import Supervisor

        # What an agent that was killed has left behind on this host has become ours.
        left = Supervisor([]).tear_down(grace, self._beat_if_possible)
        if left:
            processes.tell(f"processes that KILL did not end: {left}")
        if self.plan is None or self.hosts is None or end.state != FAILED:
            return end
        with contextlib.suppress(GridtfError):  # what was read before has to do
            self.hosts.read()
        # A host that crashes takes no leave: the first that others notice is that its tasks do not answer them.
        lost = verdict.lost_hosts(self.plan.tasks, self.hosts.tasks)
        also = f"no more is heard of {counted(len(lost), 'host')}: {some(lost)}" if lost else ""
        final = self._of_tasks(end, also)
        return final if final.reason else self._of_hosts(self.hosts)

    def _of_tasks(self, end: Verdict, also: str = "") -> Verdict:
        """The verdict on the task that failed first, or end where none has. also: what was noticed beside it."""
        if self.plan is None or self.hosts is None:
            return end
        cause = verdict.first_failure(self.plan.tasks, self.hosts.tasks)
        if cause is None:
            return end
        return verdict.of_task(cause, self.hosts.tasks[cause.name], self.attempt, end.reason or also)

    def _cancel(self) -> None:
        """End our own job at its scheduler."""
        try:
            self.scheduler.cancel({"job_id": self.job_id})
        except GridtfError as error:
            processes.tell(str(error))

    def _beat_if_possible(self) -> None:
        """A file system that refuses to be written must not stop us."""
        with contextlib.suppress(GridtfError):
            self._heartbeat.beat()

    def _of_hosts(self, hosts: HostMonitor) -> Verdict:
        """Why all has ended, when no task has failed by itself."""
        try:
            hosts.check()
        except _ToldToEnd as told:
            return self._ended_by(told.number)
        except GridtfError as error:
            return self._ended_for(error)
        return Verdict(FAILED, "tasks were told to end, and nobody has said why")

    def _ended_by(self, number: int) -> Verdict:
        cancelled = None
        with contextlib.suppress(GridtfError):
            cancelled = read_record(self.run.cancelled, recordtypes.Cancelled, own=True)
        if cancelled:
            return Verdict(CANCELLED, f"cancelled by {cancelled.get('user')} on {cancelled.get('host')}")
        if number == signal.SIGALRM:
            return self._of_timeout("the walltime is over")
        received = f"the launcher received {signal_name(number)}"
        return self._ended_by_scheduler() or Verdict(CANCELLED, received)

    def _ended_by_scheduler(self) -> Verdict | None:
        """What the scheduler says of this job's end; None: nothing, or it does not answer."""
        told = self.scheduler.ending(self.environ)
        if told is None or told.state not in ENDED:
            return None
        reason = told.reason or f"the scheduler says {told.state}"
        end = self._of_timeout(reason) if told.state == TIMEOUT else Verdict(told.state, reason)
        return replace(end, again=told.again)

    def _ended_for(self, error: GridtfError) -> Verdict:
        if isinstance(error, ToldToEndError):
            # the scheduler has decided something that we do not know, such as to start the job once more
            known = self._ended_by_scheduler()
            why = error.why or "the scheduler does not say why"
            return known or Verdict(FAILED, error.what, why=why, hint=error.hint, again=None)
        if isinstance(error, UnheardError) and self._stood_still > self.spec.heartbeat_timeout / 2:
            what = f"the launcher on host {os.uname().nodename} stood still for {self._stood_still:.0f} s"
            hint = "was it stopped by a signal, or did a file system hang? its hosts ended their tasks meanwhile"
            return Verdict(FAILED, what, why=error.what, hint=hint)
        if isinstance(error, UnheardError | HostLostError) and self._heartbeat.trouble is not None:
            error = self._heartbeat.trouble  # who cannot write is not heard of, and hears nobody who cannot either
        state = NODE_FAIL if isinstance(error, HostLostError) else FAILED
        cause = error.cause if isinstance(error, AgentEndedError) else None
        return Verdict(state, error.what, why=error.why, hint=error.hint, cause=cause)

    def _of_timeout(self, reason: str) -> Verdict:
        if self.plan is None or self.hosts is None:
            return verdict.of_timeout(reason, (), {})
        with contextlib.suppress(GridtfError):  # what was read before has to do
            self.hosts.read()
        return verdict.of_timeout(reason, self.plan.tasks, self.hosts.tasks)

    # --- telling

    def _record(self) -> Record:
        told = {"phase": self._phase, "detail": self._detail, "began": self.started}
        return {"nonce": self.nonce, **self._self, **told}

    def _say(self, phase: str, detail: str) -> None:
        if (phase, detail) == (self._phase, self._detail):
            return
        new_phase = phase != self._phase
        self._phase, self._detail = phase, detail
        self._heartbeat.beat(now=new_phase)


class _Wait:
    """For tasks that may go on for so many seconds: begins when it is first asked about, and says until when."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None
        self._clock = ""  # by this host's

    def over(self) -> bool:
        if self._end is None:
            self._end = time.monotonic() + self._seconds
            self._clock = time.strftime("%H:%M:%S", time.localtime(time.time() + self._seconds))
        return time.monotonic() >= self._end

    def __str__(self) -> str:
        return f"for at most {self._seconds:g} s, until {self._clock}"


def launch(run: RunDir, spec: JobSpec, scheduler: Scheduler, job_id: str, environ: MutableMapping[str, str]) -> int:
    """Run one attempt of a job in this process; gives the exit code of the job script."""
    gc.enable()  # gridtf-bootstrap.sh turns it off: modules load faster without
    processes.block_signals(spared=(signal.SIGHUP, signal.SIGINT))  # nohup, or in the background, means it
    processes.become_subreaper()
    return Launcher(run, spec, scheduler, job_id, environ).launch()


# --- what the launcher knows of its hosts

# What one scheduler tells several processes it tells them within this, in seconds.
_A_MOMENT = 2.0


class UnheardError(GridtfError):
    """Agents have heard no more from us."""


class AgentEndedError(GridtfError):
    """An agent that could not start or go on. cause: as in a verdict, where the log is that of the agents."""

    def __init__(self, what: str, *, why: str = "", hint: str = "", cause: Record | None = None) -> None:
        super().__init__(what, why=why, hint=hint)
        self.cause = cause


class HostMonitor:
    """The hosts of one attempt. limit: seconds of silence after which one is lost. pause: waits so many seconds, and
    raises when a signal ends the job meanwhile.

    tasks: what they last said of each task, by its name. waits: what hosts wait for, by their name.
    """

    def __init__(
        self,
        attempt: Attempt,
        nonce: str,
        names: Sequence[str],
        limit: float,
        handles: Sequence[AgentHandle],
        pause: Callable[[float], None],
    ) -> None:
        self.names = tuple(names)
        self._attempt = attempt
        self._nonce = nonce
        self._limit = limit
        self.tasks: dict[str, Record] = {}
        self.waits: dict[str, str] = {}
        self._handles = handles
        self._pause = pause
        self._patience = Patience(limit)
        self._watches: dict[str, Watch] = {}
        self._gone: dict[str, Record] = {}  # host -> why its agent has left
        self._over: set[str] = set()  # hosts where nobody of the job is left

    def listen(self) -> None:
        """From now on silence counts."""
        self._watches = {host: Watch(self._limit) for host in self.names}

    def read(self) -> None:
        """Read what the hosts say. Raises RunDirError when that is refused for good."""
        with self._patience.trying():
            self._read()

    def _read(self) -> None:
        attempt = self._attempt
        there = set(listdir(attempt.state))
        for host in self.names:
            path = attempt.host_state(host)
            if path.name not in there:
                continue
            record = read_record(path, recordtypes.HostState, nonce=self._nonce, listed=True, own=True)
            if record is None:
                continue
            if host in self._watches:
                self._watches[host].heard(record.get("beat"))
            self.tasks.update(record["tasks"])
            if record.get("waits"):
                self.waits[host] = record["waits"]
            if record.get("over"):
                self._over.add(host)
            if record.get("gone"):
                self._gone[host] = record["gone"]

    def check(self) -> None:
        """Raise when an agent has ended or left although nobody told it to, or a host is silent. Read them before."""
        for handle in self._handles:
            end = handle.poll()
            if end is not None:
                if end.code < 0 and end.error is not None:  # on this host, so we know for sure who began
                    # Unless KILL ends us next, it was this alone. A signal that comes now is its consequence: Grid
                    # Engine deletes a job whose qrsh is gone.
                    processes.wait_for_signal(_A_MOMENT)
                    raise end.error
                self.read()
                self._check_gone()
                raise self._ended(end)
        self._check_gone()
        if self._over:
            host = min(self._over)
            raise GridtfError(f"the agent on host {host} has ended all that ran there", hint="was it told to by hand?")
        for host, watch in self._watches.items():
            if watch.silence() > watch.limit:
                if self._patience.trouble is not None:  # it is we who cannot read what they say
                    raise self._patience.trouble
                raise HostLostError(
                    f"host {host} has not been heard of for {watch.limit:g} s",
                    hint="has the host crashed, or lost its network or the shared file system?",
                )

    def end(self, seconds: float, beat: Callable[[], None]) -> None:
        """Tell all agents to tear down and to end; those that have not after so many seconds are ended by force.

        beat: is called meanwhile.
        """
        for handle in self._handles:
            handle.terminate()
        if not self._ended_within(seconds, beat):
            for handle in self._handles:
                handle.kill()
            self._ended_within(5.0, beat)

    def _ended_within(self, seconds: float, beat: Callable[[], None]) -> bool:
        begin = time.monotonic()
        deadline, look, ended = begin + seconds, begin + 1.0, False
        while (running := any(handle.poll() is None for handle in self._handles)) or self._cut_off():
            now = time.monotonic()
            if now > deadline:
                return False
            if now > look or not (running or ended):
                ended = not running
                # srun waits for hosts that are lost, or where nobody is left who could tell it
                look = now + poll_interval(len(self.names), now - begin)
                with contextlib.suppress(GridtfError):
                    self.read()
                if self._all_over():
                    deadline = min(deadline, now + 1.0)
            processes.wait_for_signal(0.05)
            beat()
        return True

    def _cut_off(self) -> bool:
        """Whether somebody is still heard of on a host that the connection is lost to: stop.json will reach it."""
        heard = 3 * interval(len(self.names), self._limit)
        ends = [handle.poll() for handle in self._handles]
        lost = {end.host for end in ends if end is not None and isinstance(end.error, HostLostError)} - self._over
        return any(host in lost and watch.silence() < heard for host, watch in self._watches.items())

    def _all_over(self) -> bool:
        """Whether nothing more is to come: every host has said that nobody is left there, or is silent."""
        silent = {host for host, watch in self._watches.items() if watch.silence() > watch.limit}
        return self._over | silent >= set(self.names)

    def _check_gone(self) -> None:
        if not self._gone:
            return
        if any(gone.get("orphaned") for gone in self._gone.values()):
            self._pause(_A_MOMENT)  # whoever ends a whole job by KILL may have begun there, and end us next
            for end in filter(None, (handle.poll() for handle in self._handles)):
                if end.error is not None and end.host is None:  # it was not an agent
                    raise end.error
        if all("signal" in gone for gone in self._gone.values()):
            # Mostly the whole job is to end, and whoever ended it tells us as well, in a moment. Else one agent has
            # ended badly, and that was how the others were told: who it was is known when all have ended.
            self._pause(_A_MOMENT)
            self.read()
            for end in filter(None, (handle.poll() for handle in self._handles)):
                if end.host and end.code:
                    raise self._ended(end)
            raise self._told()
        gone = min(self._gone.values(), key=lambda gone: "signal" in gone)
        kind = UnheardError if gone.get("unheard") else GridtfError
        raise kind(gone["what"], why=gone["why"], hint=gone["hint"])

    def _told(self) -> ToldToEndError:
        hosts = sorted(self._gone)
        agents = "the agent on host" if len(hosts) == 1 else "the agents on hosts"
        how = "/".join(sorted({signal_name(gone["signal"]) for gone in self._gone.values()}))
        what = f"{agents} {some(hosts)} {were(hosts)} told to end by {how}"
        return ToldToEndError(what, hint="by the scheduler, which does so when it ends a job, or by hand")

    def _ended(self, end: AgentEnd) -> GridtfError:
        if end.error is not None:
            return end.error
        from gridtf.bootstrap.agent import EXITS, NO_LAUNCHER

        who = f"the agent on host {end.host}" if end.host else "an agent"
        killed = signal_name(-end.code) if end.code < 0 else None
        how = f"was killed by {killed}" if killed else EXITS.get(end.code, f"ended with exit code {end.code}")
        attempt = self._attempt
        log = attempt.agents_log if attempt.agents_log.name in listdir(attempt.path) else attempt.run.log
        lines = [] if killed else verdict.telling(last_lines(log), end.host)
        why = "; ".join(end.words) or verdict.cause(lines)
        hint = verdict.advice(why) or f"see {log}"
        if end.code == NO_LAUNCHER:
            return UnheardError(f"{who} {how}", why=why, hint=hint)
        exit_code = None if killed else end.code
        cause = {"task": None, "host": end.host, "exit": exit_code, "signal": killed, "log": str(log), "tail": lines}
        return AgentEndedError(f"{who} {how}", why=why, hint=hint, cause=cause)


def poll_interval(hosts: int, age: float) -> float:
    """Seconds until the next look at the hosts' states. age: of the job, in seconds.

    Quick while it is young, when most jobs that fail do so, then sparing of the file server, which sees one read a host
    and look: 200 a second at the most.
    """
    return max(0.05 if age < 10 else 0.25, hosts / 200)


# --- how an agent is called

# Our own sys.path instead of site's search for it, and no garbage collection while modules are loaded.
_AGENT_SUPERVISOR = """\
import gc, sys
gc.disable()
sys.path[:] = {path!r}
from gridtf.bootstrap.node import supervise_agent
sys.exit(supervise_agent(sys.argv[1:]))"""


def agent_call(attempt: Attempt, nonce: str, start_timeout: float) -> AgentCall:
    """The call for the agents of an attempt; start_timeout in seconds."""

    def leave(environ: Mapping[str, str]) -> None:
        from gridtf.bootstrap.environment import write_environment

        write_environment(attempt, nonce, environ)

    return AgentCall(
        arguments=(str(attempt.run.path), str(attempt.number), nonce, str(start_timeout)),
        main=_agent,
        command=(sys.executable, "-S", "-c", _AGENT_SUPERVISOR.format(path=sys.path)),
        log=attempt.agents_log,
        leave=leave,
    )


def _agent(words: Sequence[str]) -> int:
    from gridtf.bootstrap import agent

    return agent.main(words)
