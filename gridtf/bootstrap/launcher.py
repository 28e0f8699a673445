"""The launcher, on the first host: allocation, agents, placement, rendezvous, watch, tear-down, verdict.

What it needs only once the agents are on their way it imports then: starting them takes longer than anything here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import localtime, strftime
from typing import TYPE_CHECKING

from gridtf.bootstrap import verdict
from gridtf.bootstrap.heartbeat import Heartbeat, Patience, Watch, backoff, interval
from gridtf.bootstrap.system import System
from gridtf.bootstrap.verdict import Verdict
from gridtf.errors import GridtfError, HostLostError, RendezvousError, RunDirError, ToldToEndError
from gridtf.host import processes
from gridtf.host.processes import signal_name
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, make_folder, read_record, write_record
from gridtf.run.tail import last_lines
from gridtf.schedulers.api import (
    LOOPBACK,
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    JobIdentity,
    Parent,
    Scheduler,
)
from gridtf.states import ENDED, JobState
from gridtf.text import counted, some, were

if TYPE_CHECKING:
    from gridtf.bootstrap.rendezvous import AttemptPlan
    from gridtf.host.gpus import GpuGrant

_SOON = 2.0  # seconds after which most hosts have come, and those that have not may have a reason
_AGENT_MARGIN = 12.0  # seconds beside kill_grace for agents that tear their tasks down
_AGENT_ALONE = 2.0  # seconds for agents without tasks


def launch(
    run: RunDir,
    spec: JobSpec,
    request: Request,
    scheduler: Scheduler,
    job_id: str,
    environ: MutableMapping[str, str],
) -> int:
    """Run one attempt of a job in this process.

    Args:
        run: The run directory.
        spec: What the user asked for.
        request: What that comes to.
        scheduler: The scheduler whose job this process is part of.
        job_id: The job's id there.
        environ: The environment of this process, which the agents inherit.

    Returns:
        The exit code of the job script.
    """
    processes.block_signals(spared=(signal.SIGHUP, signal.SIGINT))  # nohup, or in the background, means it
    processes.become_subreaper()
    return Launcher(run, spec, request, scheduler, job_id, System(environ)).launch()


class _Terminated(Exception):
    """A signal says that the job is to end."""

    def __init__(self, number: int) -> None:
        self.number = number


class Launcher:
    """One attempt, from the allocation to the verdict.

    Args:
        run: The run directory.
        spec: What the user asked for.
        request: What that comes to.
        scheduler: The scheduler whose job this is.
        job_id: The job's id there.
        system: This host; the agents inherit its environ.
    """

    def __init__(
        self,
        run: RunDir,
        spec: JobSpec,
        request: Request,
        scheduler: Scheduler,
        job_id: str,
        system: System,
    ) -> None:
        self.run = run
        self.spec = spec
        self.request = request
        self.job_id = job_id
        self.scheduler = scheduler
        self.system = system
        self.attempt = run.new_attempt()
        self.nonce = os.urandom(8).hex()
        self.started = system.time()
        self.plan: AttemptPlan | None = None
        self.hosts: HostMonitor | None = None
        self._gathered = False  # every host has come
        self._phase, self._detail = "allocating", "learning the allocation"
        self._identity = system.identity()
        self._parent = Parent(system.parent(), system.name(system.parent()))
        self._last_pause = system.monotonic()
        self._longest_stall = 0.0  # seconds that this process has not run for
        self._heartbeat = Heartbeat(self.attempt.launcher, self._record, 1, spec.heartbeat_timeout, system)

    def launch(self) -> int:
        """Run the attempt to its end. The verdict is written last of all.

        Returns:
            The exit code of the job script.
        """
        try:
            self.attempt.reserve_verdict()
            end = self._run()
        except _Terminated as terminated:
            end = self._of_signal(terminated.number)
        except GridtfError as error:
            end = self._of_error(error)
        except Exception as error:  # whatever else goes wrong, the tasks end and there is a verdict
            import traceback

            self.system.log(traceback.format_exc())
            end = Verdict(JobState.FAILED, f"the launcher could not go on: {error}", hint=f"see {self.run.log}")
        end = self._tear_down(end)
        if lost := self._parent_lost():
            freed = f"{lost}, so gridtf cancels the job, which would hold its hosts"
            end = replace(end, why="; ".join(filter(None, (end.why, freed))))
        self.system.log(end.text())
        try:
            self.attempt.write_verdict(end.record(self.nonce, self.started, self.system.time()))
        except GridtfError as error:
            self.system.log(str(error))
            return end.exit_code or 1
        with contextlib.suppress(GridtfError):
            self._report("ended", end.reason)
        if lost:
            self._cancel()
        return end.exit_code

    # --- the way to the end

    def _parent_lost(self) -> str:
        """In words, when the process that would tell the scheduler of the end of this job is gone."""
        return "" if self.system.parent() == self._parent.pid else self.scheduler.parent_lost(self._parent)

    def _run(self) -> Verdict:
        from gridtf.schedulers.batch import SHARED_HINT, not_shared

        processes.need_open_files(0)
        self._heartbeat.beat(now=True)
        allocation = self.scheduler.allocation(self.system.environ, self.request, self._wait_for_allocation)
        others = any(host.address != LOOPBACK for host in allocation.hosts[1:])
        if others and (why := not_shared(self.run.path)):
            raise RunDirError(f"{self.run.path} cannot be seen by other hosts", why=why, hint=SHARED_HINT)
        processes.need_open_files(2 * len(allocation.hosts))  # a process and a pipe, or srun's connection, each
        call = agent_call(self.attempt, self.nonce, self.spec.start_timeout)
        agents = self.scheduler.start_agents(allocation, call, self.system.environ)
        hosts = [host.name for host in allocation.hosts]
        limit = self.spec.heartbeat_timeout
        self.hosts = HostMonitor(self.attempt, self.nonce, hosts, limit, agents, self._pause, self.system)
        self._heartbeat = Heartbeat(self.attempt.launcher, self._record, len(hosts), limit, self.system)
        self.plan = self._place(allocation)
        self.system.collect_garbage()  # all modules are loaded, and an agent that was forked does so itself
        self.plan.write()
        make_folder(self.run.output)
        count = counted(len(hosts), "host")
        self._report("waiting", f"waiting for {count}")
        self._gather(self.plan, self.hosts)
        started = f"{counted(len(self.plan.tasks), 'task')} on {count}"
        self._report("running", started)
        return self._watch(self.plan, self.hosts, started)

    def _place(self, allocation: Allocation) -> AttemptPlan:
        from gridtf.bootstrap.placement import place
        from gridtf.bootstrap.rendezvous import AttemptPlan

        spec = self.spec
        return AttemptPlan(
            attempt=self.attempt,
            nonce=self.nonce,
            job_id=self.job_id,
            spec=spec,
            request=self.request,
            hosts={host.name: host.address or host.name for host in allocation.hosts},
            tasks=place(allocation, self.request),
            python=spec.python or ("python" if spec.setup else sys.executable),
            cwd=Path.cwd(),
        )

    def _gather(self, plan: AttemptPlan, hosts: HostMonitor) -> None:
        """Wait for every host's record, then write the rendezvous file."""
        from gridtf.bootstrap import rendezvous

        collector = rendezvous.Collector(self.attempt, self.nonce, plan.hosts)
        patience = Patience(self.spec.heartbeat_timeout, self.system)
        begin = self.system.monotonic()
        while True:
            with patience.trying():
                collector.poll()
            if not collector.missing:
                break
            hosts.check()
            missing = list(collector.missing.values())
            waited = self.system.monotonic() - begin
            if waited > self.spec.start_timeout:
                raise self._missing(plan, missing)
            if waited > _SOON:
                hosts.read()
                missing = [f"{host} ({hosts.waits[host]})" if host in hosts.waits else host for host in missing]
            self._report("waiting", f"waiting for {counted(len(missing), 'host')}: {some(missing)}")
            self._pause(backoff(waited))
        self._gathered = True
        rendezvous.publish(self.attempt, plan.job_id, self.nonce, rendezvous.merge(plan.tasks, collector.records))
        self._remove_environment()  # all hosts have it

    def _remove_environment(self) -> None:
        """People keep passwords in it."""
        with contextlib.suppress(OSError):
            self.attempt.environment.unlink(missing_ok=True)

    def _missing(self, plan: AttemptPlan, hosts: list[str]) -> RendezvousError:
        tasks = [task.name for task in plan.tasks if task.host in hosts]
        return RendezvousError(
            f"after {self.spec.start_timeout:g} s still missing: {counted(len(hosts), 'host')}: {some(hosts)}",
            why=f"their tasks: {some(tasks, most=32)}",
            hint="can those hosts start processes and see the run directory? --start-timeout allows more time",
        )

    def _watch(self, plan: AttemptPlan, hosts: HostMonitor, started: str) -> Verdict:
        """Until the job has succeeded or a critical task, an agent or a host has failed. started: for the status."""
        policy = self.spec.success_policy
        leaders = _TimeLimit(self.spec.leader_wait, self.system)
        evaluators = _TimeLimit(self.spec.evaluator_wait, self.system)
        begin = self.system.monotonic()
        hosts.listen()
        while True:
            hosts.read()
            now = verdict.decide(plan.tasks, hosts.tasks, policy)
            if now.cause is not None:
                return Verdict(JobState.FAILED, "")  # which task and why is decided once all states are final
            if now.leader and leaders.over():
                policy = "chief"  # from now on its success is the job's
                continue
            if now.ended:
                if not now.lingering or evaluators.over():
                    return verdict.of_success(plan.tasks, hosts.tasks, policy, self.spec)
                self._report("running", f"training has ended; waiting for {some(now.lingering)} {evaluators}")
            else:
                hosts.check()
                left = f"{some(now.early)} ended, waiting for {some(now.awaited)}"
                left += f" {leaders}" if now.leader else ""
                self._report("running", f"{started}; {left}" if now.early else started)
            self._pause(poll_interval(len(plan.hosts), self.system.monotonic() - begin))

    # --- waiting

    def _wait_for_allocation(self, why: str, seconds: float) -> None:
        if why != self._detail:
            self.system.log(why)
        self._report("allocating", why)
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        """Wait, and show that the launcher lives: agents end their tasks when it is silent.

        Raises:
            _Terminated: A signal ends the job.
        """
        self._heartbeat.beat()
        number = self.system.wait(seconds)
        now = self.system.monotonic()
        self._longest_stall = max(self._longest_stall, now - self._last_pause - seconds)
        self._last_pause = now
        if number is not None and (processes.is_end(number) or number in self.scheduler.last_warnings):
            raise _Terminated(number)

    # --- the end

    def _tear_down(self, end: Verdict) -> Verdict:
        """End all agents and what they left behind, then see which task failed first. Returns the final verdict."""
        grace = self.spec.kill_grace
        known = end if end.reason else self._of_tasks(end)  # for those who look before the launcher knows more
        with contextlib.suppress(GridtfError):
            self._report("stopping", "ending what still runs")
            task = known.cause["task"] if known.cause else None
            stop = {"nonce": self.nonce, "state": known.state, "reason": known.reason, "task": task}
            write_record(self.attempt.stop, stop)
        if self.hosts is not None:
            self.hosts.end(grace + _AGENT_MARGIN if self._gathered else _AGENT_ALONE, self._beat_if_possible)
        self._remove_environment()
        from gridtf.bootstrap.supervisor import Supervisor

        # What an agent that was killed has left behind on this host has become this process's.
        left = Supervisor([], self.system).tear_down(grace, self._beat_if_possible)
        if left:
            self.system.log(f"processes that KILL did not end: {left}")
        if self.plan is None or self.hosts is None or end.state != JobState.FAILED:
            return end
        with contextlib.suppress(GridtfError):  # what was read before has to do
            self.hosts.read()
        # A crashed host reports nothing; the first symptom is that other tasks cannot reach its tasks.
        lost = verdict.lost_hosts(self.plan.tasks, self.hosts.tasks)
        also = f"lost contact with {counted(len(lost), 'host')}: {some(lost)}" if lost else ""
        final = self._of_tasks(end, also)
        return final if final.reason else self._of_hosts(self.hosts)

    def _cancel(self) -> None:
        """Cancel this very job at its scheduler."""
        try:
            self.scheduler.cancel(JobIdentity(self.job_id))
        except GridtfError as error:
            self.system.log(str(error))

    def _beat_if_possible(self) -> None:
        """A file system that refuses to be written must not stop the tear-down."""
        with contextlib.suppress(GridtfError):
            self._heartbeat.beat()

    # --- verdicts

    def _of_tasks(self, end: Verdict, also: str = "") -> Verdict:
        """The verdict on the task that failed first, or end where none has. also: what else was noticed."""
        if self.plan is None or self.hosts is None:
            return end
        cause = verdict.first_failure(self.plan.tasks, self.hosts.tasks)
        if cause is None:
            return end
        return verdict.of_task(cause, self.hosts.tasks[cause.name], self.attempt, end.reason or also)

    def _of_hosts(self, hosts: HostMonitor) -> Verdict:
        """Why all has ended, when no task has failed by itself."""
        try:
            hosts.check()
        except _Terminated as terminated:
            return self._of_signal(terminated.number)
        except GridtfError as error:
            return self._of_error(error)
        return Verdict(JobState.FAILED, "tasks were told to end, and no agent has reported why")

    def _of_signal(self, number: int) -> Verdict:
        cancelled = None
        with contextlib.suppress(GridtfError):
            cancelled = read_record(self.run.cancelled, recordtypes.Cancelled, own=True)
        if cancelled:
            return Verdict(JobState.CANCELLED, f"cancelled by {cancelled.get('user')} on {cancelled.get('host')}")
        if number == signal.SIGALRM:
            return self._of_timeout("the walltime is over")
        received = f"the launcher received {signal_name(number)}"
        return self._of_scheduler() or Verdict(JobState.CANCELLED, received)

    def _of_scheduler(self) -> Verdict | None:
        """How the scheduler says that this job ends; None where it says nothing, or does not answer."""
        status = self.scheduler.termination_reason(self.system.environ, self._parent)
        if status is None or status.state not in ENDED:
            return None
        reason = status.reason or f"the scheduler says {status.state}"
        end = self._of_timeout(reason) if status.state == JobState.TIMEOUT else Verdict(status.state, reason)
        return replace(end, again=status.requeued)

    def _of_error(self, error: GridtfError) -> Verdict:
        if isinstance(error, ToldToEndError):
            # the scheduler has decided something that only it knows, such as to start the job once more
            why = error.why or "the scheduler does not say why"
            return self._of_scheduler() or Verdict(JobState.FAILED, error.what, why=why, hint=error.hint, again=None)
        if isinstance(error, LauncherSilentError) and self._longest_stall > self.spec.heartbeat_timeout / 2:
            what = f"the launcher on host {self.system.host} stood still for {self._longest_stall:.0f} s"
            hint = "was it stopped by a signal, or did a file system hang? its hosts ended their tasks meanwhile"
            return Verdict(JobState.FAILED, what, why=error.what, hint=hint)
        if isinstance(error, LauncherSilentError | HostLostError) and self._heartbeat.trouble is not None:
            error = self._heartbeat.trouble  # a launcher that cannot write is silent; nor may the hosts be able to
        state = JobState.NODE_FAIL if isinstance(error, HostLostError) else JobState.FAILED
        cause = error.cause if isinstance(error, AgentEndedError) else None
        return Verdict(state, error.what, why=error.why, hint=error.hint, cause=cause)

    def _of_timeout(self, reason: str) -> Verdict:
        if self.plan is None or self.hosts is None:
            return verdict.of_timeout(reason, (), {})
        with contextlib.suppress(GridtfError):  # what was read before has to do
            self.hosts.read()
        return verdict.of_timeout(reason, self.plan.tasks, self.hosts.tasks)

    # --- reporting

    def _record(self) -> Record:
        phase = {"phase": self._phase, "detail": self._detail, "began": self.started}
        return {"nonce": self.nonce, **self._identity, **phase}

    def _report(self, phase: str, detail: str) -> None:
        if (phase, detail) == (self._phase, self._detail):
            return
        new_phase = phase != self._phase
        self._phase, self._detail = phase, detail
        self._heartbeat.beat(now=new_phase)


class _TimeLimit:
    """A limit that begins when it is first asked about; as text, it says until when."""

    def __init__(self, seconds: float, system: System) -> None:
        self._seconds = seconds
        self._system = system
        self._end: float | None = None
        self._clock = ""

    def over(self) -> bool:
        if self._end is None:
            self._end = self._system.monotonic() + self._seconds
            self._clock = strftime("%H:%M:%S", localtime(self._system.time() + self._seconds))
        return self._system.monotonic() >= self._end

    def __str__(self) -> str:
        return f"for at most {self._seconds:g} s, until {self._clock}"


# --- the launcher's view of its hosts

_A_MOMENT = 2.0  # seconds within which a scheduler has told all processes what it tells several of them
_KILL_LIMIT = 5.0  # seconds for agents that were killed to end


class LauncherSilentError(GridtfError):
    """Agents have lost contact with the launcher."""


class AgentEndedError(GridtfError):
    """An agent that could not start or go on. cause: as in a verdict, with the log of the agents as its log."""

    def __init__(self, what: str, *, why: str = "", hint: str = "", cause: Record | None = None) -> None:
        super().__init__(what, why=why, hint=hint)
        self.cause = cause


class HostMonitor:
    """The hosts of one attempt: what their records say, how their agents end, and which host is silent.

    Args:
        attempt: The attempt.
        nonce: Its nonce.
        hosts: The names of its hosts.
        limit: Seconds of silence after which a host counts as lost.
        agents: Handles on their agents.
        pause: Waits that many seconds; raises when a signal ends the job meanwhile.
        system: This host.

    Attributes:
        tasks: Task name -> its record, as its host has last reported it.
        waits: Host -> what its agent waits for.
    """

    def __init__(
        self,
        attempt: Attempt,
        nonce: str,
        hosts: Sequence[str],
        limit: float,
        agents: Sequence[AgentHandle],
        pause: Callable[[float], None],
        system: System,
    ) -> None:
        self.hosts = tuple(hosts)
        self.tasks: dict[str, Record] = {}
        self.waits: dict[str, str] = {}
        self._attempt = attempt
        self._nonce = nonce
        self._limit = limit
        self._agents = agents
        self._pause = pause
        self._system = system
        self._patience = Patience(limit, system)
        self._watches: dict[str, Watch] = {}
        self._gone: dict[str, Record] = {}  # host -> why its agent has ended by itself
        self._over: set[str] = set()  # hosts where no process of the job is left

    def listen(self) -> None:
        """From now on silence counts."""
        self._watches = {host: Watch(self._limit, self._system) for host in self.hosts}

    def read(self) -> None:
        """Read the records of the hosts.

        Raises:
            RunDirError: Reading is refused permanently.
        """
        with self._patience.trying():
            self._read()

    def _read(self) -> None:
        listed = set(listdir(self._attempt.state))
        for host in self.hosts:
            path = self._attempt.host_state(host)
            if path.name not in listed:
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
        """Call after read.

        Raises:
            GridtfError: An agent has ended although the launcher has not told it to, or a host is silent.
        """
        for agent in self._agents:
            end = agent.poll()
            if end is not None:
                if end.code < 0 and end.error is not None:  # on this host, so it is certain that this came first
                    # Unless KILL ends the launcher next, it was this alone. A signal that comes now is its consequence:
                    # Grid Engine deletes a job whose qrsh is gone.
                    self._system.wait(_A_MOMENT)
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
                if self._patience.trouble is not None:  # it is the launcher that cannot read their records
                    raise self._patience.trouble
                raise HostLostError(
                    f"no heartbeat from host {host} for {watch.limit:g} s",
                    hint="has the host crashed, or lost its network or the shared file system?",
                )

    def end(self, seconds: float, beat: Callable[[], None]) -> None:
        """Tell all agents to tear down and to end; kill those that do not.

        Args:
            seconds: How long they may take.
            beat: Called meanwhile.
        """
        for agent in self._agents:
            agent.terminate()
        if not self._ended_within(seconds, beat):
            for agent in self._agents:
                agent.kill()
            self._ended_within(_KILL_LIMIT, beat)

    def _ended_within(self, seconds: float, beat: Callable[[], None]) -> bool:
        begin = self._system.monotonic()
        deadline, look, ended = begin + seconds, begin + 1.0, False
        while (running := any(agent.poll() is None for agent in self._agents)) or self._cut_off():
            now = self._system.monotonic()
            if now > deadline:
                return False
            if now > look or not (running or ended):
                ended = not running
                # srun waits for hosts that are lost, or where no process is left that could tell it
                look = now + poll_interval(len(self.hosts), now - begin)
                with contextlib.suppress(GridtfError):
                    self.read()
                if self._all_over():
                    deadline = min(deadline, now + 1.0)
            self._system.wait(0.05)
            beat()
        return True

    def _cut_off(self) -> bool:
        """Whether a host still reports although the connection to its agent is lost: it will read stop.json."""
        recent = 3 * interval(len(self.hosts), self._limit)
        ends = [agent.poll() for agent in self._agents]
        lost = {end.host for end in ends if end is not None and isinstance(end.error, HostLostError)} - self._over
        return any(host in lost and watch.silence() < recent for host, watch in self._watches.items())

    def _all_over(self) -> bool:
        """Whether nothing more is to come: every host has reported that no process is left, or is silent."""
        silent = {host for host, watch in self._watches.items() if watch.silence() > watch.limit}
        return self._over | silent >= set(self.hosts)

    def _check_gone(self) -> None:
        if not self._gone:
            return
        if any(gone.get("orphaned") for gone in self._gone.values()):
            self._pause(_A_MOMENT)  # if all processes of the job are being killed, the launcher is next
            for end in filter(None, (agent.poll() for agent in self._agents)):
                if end.error is not None and end.host is None:  # it was not an agent
                    raise end.error
        if all("signal" in gone for gone in self._gone.values()):
            # Usually the scheduler is ending the whole job and signals the launcher too, so wait briefly. Otherwise one
            # agent crashed and srun or qrsh stopped the rest; which one is known once all have ended.
            self._pause(_A_MOMENT)
            self.read()
            for end in filter(None, (agent.poll() for agent in self._agents)):
                if end.host and end.code:
                    raise self._ended(end)
            raise self._terminated()
        gone = min(self._gone.values(), key=lambda gone: "signal" in gone)
        kind = LauncherSilentError if gone.get("unheard") else GridtfError
        raise kind(gone["what"], why=gone["why"], hint=gone["hint"])

    def _terminated(self) -> ToldToEndError:
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
        lines = [] if killed else verdict.relevant(last_lines(log), end.host)
        why = "; ".join(end.messages) or verdict.agent_cause(lines)
        hint = verdict.agent_hint(why) or f"see {log}"
        if end.code == NO_LAUNCHER:
            return LauncherSilentError(f"{who} {how}", why=why, hint=hint)
        exit_code = None if killed else end.code
        cause = {"task": None, "host": end.host, "exit": exit_code, "signal": killed, "log": str(log), "tail": lines}
        return AgentEndedError(f"{who} {how}", why=why, hint=hint, cause=cause)


def poll_interval(hosts: int, age: float) -> float:
    """Seconds until the next look at the hosts' states.

    Quick while the job is young, when most jobs that fail do so, then sparing of the file server, which sees one read a
    host and look: 200 a second at the most.

    Args:
        hosts: How many there are.
        age: Of the job, in seconds.
    """
    return max(0.05 if age < 10 else 0.25, hosts / 200)


# --- how an agent is called

# The launcher's sys.path instead of site's search for it, and no garbage collection while modules are loaded.
_AGENT_SUPERVISOR = """\
import gc, sys
gc.disable()
sys.path[:] = {path!r}
from gridtf.bootstrap.node import supervise_agent
sys.exit(supervise_agent(sys.argv[1:]))"""


def agent_call(attempt: Attempt, nonce: str, start_timeout: float) -> AgentCall:
    """How the agents of an attempt are started: forked from here, or by another Python with little start-up.

    Args:
        attempt: The attempt.
        nonce: Its nonce.
        start_timeout: Seconds that agents may wait for the plan.
    """

    def write_environment(environ: Mapping[str, str]) -> None:
        from gridtf.bootstrap import environment

        environment.write_environment(attempt, nonce, environ)

    return AgentCall(
        arguments=(str(attempt.run.path), str(attempt.number), nonce, str(start_timeout)),
        main=_agent,
        command=(sys.executable, "-S", "-c", _AGENT_SUPERVISOR.format(path=sys.path)),
        log=attempt.agents_log,
        write_environment=write_environment,
    )


def _agent(arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
    from gridtf.bootstrap import agent

    return agent.main(arguments, gpus)
