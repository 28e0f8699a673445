"""The launcher, on the first host: allocation, agents, placement, rendezvous, watch, tear-down, verdict.

Modules that it needs only after it has started the agents are imported then: starting agents takes longest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from time import localtime, strftime
from typing import TYPE_CHECKING

from gridtf.bootstrap import verdict
from gridtf.bootstrap.heartbeat import Heartbeat, Patience, Watch, backoff, interval
from gridtf.bootstrap.system import System
from gridtf.bootstrap.verdict import Verdict
from gridtf.errors import GridtfError, HostLostError, RendezvousError, RunDirError, TerminatedError
from gridtf.host import processes
from gridtf.host.processes import signal_name
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import DATA_WORKER
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, make_folder, read_record, write_record
from gridtf.run.tail import last_lines
from gridtf.schedulers.api import LOOPBACK, AgentCall, AgentEnd, AgentHandle, Allocation, JobIdentity, Parent, Scheduler
from gridtf.states import ENDED, JobState
from gridtf.text import counted, some
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.bootstrap.rendezvous import AttemptPlan
    from gridtf.host.gpus import GpuGrant

_SOON = 2.0  # seconds within which most hosts report; a host that is later may wait for something
_AGENT_MARGIN = 12.0  # seconds, in addition to kill_grace, for agents that tear their tasks down
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
        spec: The specification of the job.
        request: What the job requests of its scheduler, resolved from the specification.
        scheduler: The scheduler whose job this process is part of.
        job_id: The scheduler's id of the job.
        environ: The environment of this process, which the agents inherit.

    Returns:
        The exit code of the job script.
    """
    processes.block_signals(spared=(signal.SIGHUP, signal.SIGINT))  # nohup and background jobs ignore these on purpose
    processes.become_subreaper()
    return Launcher(run, spec, request, scheduler, job_id, System(environ)).launch()


class _Terminated(Exception):
    """A signal that ends the job has been received."""

    def __init__(self, number: int) -> None:
        self.number = number


class Launcher(Fields):
    """One attempt, from the allocation to the verdict.

    Attributes:
        run: The run directory.
        spec: The specification of the job.
        request: What the job requests of its scheduler, resolved from the specification.
        scheduler: The scheduler whose job this is.
        job_id: The scheduler's id of the job.
        system: This host; the agents inherit its environ.
    """

    run: RunDir
    spec: JobSpec
    request: Request
    scheduler: Scheduler
    job_id: str
    system: System

    def __post_init__(self) -> None:
        self.attempt = self.run.new_attempt()
        self.nonce = os.urandom(8).hex()
        self.started = self.system.time()
        self.tasks: Sequence[PlacedTask] = ()
        self.hosts = self._monitor((), ())
        self._gathered = False  # every host has reported
        self._versions = ""  # how the hosts' versions of TensorFlow differ
        self._warned = False  # that the tasks train separately
        self._phase, self._detail = "allocating", "learning the allocation"
        self._checkpoint = False  # a checkpoint was requested
        self._identity = self.system.identity()
        self._parent = Parent(self.system.parent(), self.system.name(self.system.parent()))
        self._last_pause = self.system.monotonic()
        self._longest_stall = 0.0  # the longest time, in seconds, for which this process was not scheduled
        self._heartbeat = self._new_heartbeat(1)

    def launch(self) -> int:
        """Run the attempt to its end, then write the verdict.

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
        except Exception as error:  # after any other error, too, the tasks are ended and a verdict is written
            import traceback

            self.system.log(traceback.format_exc())
            end = Verdict(JobState.FAILED, f"the launcher could not continue: {error}", hint=f"see {self.run.log}")
        end = self._tear_down(end)
        # who would report the end of this job to the scheduler
        lost = "" if self.system.parent() == self._parent.pid else self.scheduler.parent_lost(self._parent)
        if lost:
            freed = f"{lost}, so gridtf cancels the job; otherwise it would keep its hosts"
            end = end.replace(why="; ".join(filter(None, (end.why, freed))))
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

    # --- from the allocation to the end of the tasks

    def _monitor(self, hosts: Sequence[str], agents: Sequence[AgentHandle]) -> HostMonitor:
        limit = self.spec.heartbeat_timeout
        return HostMonitor(self.attempt, self.nonce, hosts, limit, agents, self._pause, self.system)

    def _new_heartbeat(self, hosts: int) -> Heartbeat:
        return Heartbeat(self.attempt.launcher, self._record, hosts, self.spec.heartbeat_timeout, self.system)

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
        self.hosts = self._monitor(hosts, agents)
        self._heartbeat = self._new_heartbeat(len(hosts))
        plan = self._place(allocation)
        self.tasks = plan.tasks
        self.system.collect_garbage()  # all modules are loaded; an agent that was forked turns it on itself
        plan.write()
        make_folder(self.run.output)
        count = counted(len(hosts), "host")
        self._report("waiting", f"waiting for {count}")
        self._gather(plan)
        started = f"{counted(len(plan.tasks), 'task')} on {count}"
        self._report("running", started)
        return self._watch(started)

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
            python=spec.python or ("python3" if spec.contained else "python" if spec.setup else sys.executable),
            cwd=Path.cwd(),
        )

    def _gather(self, plan: AttemptPlan) -> None:
        """Wait for every host's record, then write the rendezvous file."""
        from gridtf.bootstrap import addresses, environment, rendezvous, versions

        collector = rendezvous.Collector(self.attempt, self.nonce, plan.hosts)
        patience = Patience(self.spec.heartbeat_timeout, self.system)
        begin = self.system.monotonic()
        while True:
            with patience.trying():
                collector.poll()
            if not collector.missing:
                break
            self.hosts.check()
            missing = list(collector.missing.values())
            waited = self.system.monotonic() - begin
            if waited > self.spec.start_timeout:
                raise self._missing(missing)
            if waited > _SOON:
                self.hosts.read()
                waits = self.hosts.waits
                missing = [f"{host} ({waits[host]})" if host in waits else host for host in missing]
            self._report("waiting", f"waiting for {counted(len(missing), 'host')}: {some(missing)}")
            self._pause(backoff(waited))
        addresses.check(sorted(collector.records.items()))
        self._gathered = True
        self._versions = versions.differing(plan.tasks, collector.records)
        if self._versions:
            self.system.log(f"{self._versions}\n{versions.ONE_VERSION}")
        meeting = rendezvous.merge(plan.tasks, collector.records)
        environment.need_room(plan, meeting)
        rendezvous.publish(self.attempt, plan.job_id, self.nonce, meeting)
        self._remove_environment()  # all hosts have it

    def _remove_environment(self) -> None:
        """It may hold passwords."""
        with contextlib.suppress(OSError):
            self.attempt.environment.unlink(missing_ok=True)

    def _missing(self, hosts: list[str]) -> RendezvousError:
        tasks = [task.name for task in self.tasks if task.host in hosts]
        return RendezvousError(
            f"no report from {counted(len(hosts), 'host')} after {self.spec.start_timeout:g} s: {some(hosts)}",
            why=f"their tasks: {some(tasks, most=32)}",
            hint="can those hosts start processes and see the run directory? --start-timeout allows more time",
        )

    def _watch(self, started: str) -> Verdict:
        """Watch until the job has succeeded, or a critical task, an agent or a host has failed.

        Args:
            started: What runs, for the status.
        """
        policy = self.spec.success_policy
        leaders = _TimeLimit(self.spec.leader_wait, self.system)
        saving = _TimeLimit(self.spec.leader_wait, self.system)
        evaluators = _TimeLimit(self.spec.evaluator_wait, self.system)
        begin = self.system.monotonic()
        self.hosts.listen()
        while True:
            self.hosts.read()
            if self.hosts.checkpoint:
                self._request_checkpoint()
            now = verdict.decide(self.tasks, self.hosts.tasks, policy, leader=self.spec.leader)
            if now.cause is not None:
                return Verdict(JobState.FAILED, "")  # the task and the reason are determined once all states are final
            if now.saved and (now.ended or saving.over()):
                return verdict.of_saved(self.tasks, self.hosts.tasks, policy, self.spec)
            if now.leader and leaders.over():
                policy = "chief"  # from now on its success is the job's
                continue
            if now.ended:
                if not now.lingering or evaluators.over():
                    given = self._distributed()
                    return verdict.of_success(self.tasks, self.hosts.tasks, policy, self.spec, distributed=given)
                self._report("running", f"training has ended; waiting for {some(now.lingering)} {evaluators}")
            else:
                self.hosts.check()
                limit = f" {saving}" if now.saved else f" {leaders}" if now.leader else ""
                how = f"{some(now.saved)} saved a checkpoint" if now.saved else f"{some(now.early)} ended"
                waiting = f"{how}, waiting for {some(now.awaited)}{limit}" if now.awaited else ""
                parts = (started, waiting, self._separate(begin), self._versions)
                self._report("running", "; ".join(filter(None, parts)))
            self._pause(poll_interval(len(self.hosts.hosts), self.system.monotonic() - begin))

    def _distributed(self) -> bool:
        """Whether a dataset was given to the data workers; True without data workers."""
        mark = self.attempt.distributed
        return not self.spec.count(DATA_WORKER) or mark.name in listdir(mark.parent)

    def _separate(self, begin: float) -> str:
        """The warning that the tasks train separately, once they have had the time to join the cluster."""
        from gridtf.bootstrap import membership

        if self.system.monotonic() - begin < membership.SOON:
            return ""
        found = membership.separate(self.tasks, self.hosts.tasks)
        if found and not self._warned:
            self._warned = True
            self.system.log(f"{found.running}\n{found.hint}")
        return found.running if found else ""

    # --- waiting

    def _wait_for_allocation(self, why: str, seconds: float) -> None:
        if why != self._detail:
            self.system.log(why)
        self._report("allocating", why)
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        """Wait, and keep the heartbeat going: agents end their tasks when the launcher is silent.

        Raises:
            _Terminated: A signal that ends the job was received.
        """
        self._heartbeat.beat()
        number = self.system.wait(seconds)
        now = self.system.monotonic()
        self._longest_stall = max(self._longest_stall, now - self._last_pause - seconds)
        self._last_pause = now
        if number is not None and (processes.is_end(number) or number in self.scheduler.last_warnings):
            raise _Terminated(number)
        if number == signal.SIGUSR1:
            self._request_checkpoint()

    def _request_checkpoint(self) -> None:
        """Request a checkpoint on all hosts: the agents read it in the launcher's record."""
        if not self._checkpoint:
            self._checkpoint = True
            self.system.log("a checkpoint was requested")
            self._heartbeat.beat(now=True)

    # --- the end

    def _tear_down(self, end: Verdict) -> Verdict:
        """End all agents and the processes that they leave behind, then determine which task failed first.

        Args:
            end: The verdict so far.

        Returns:
            The final verdict.
        """
        grace = self.spec.kill_grace
        known = end if end.reason else self._of_tasks(end)  # for `gridtf status` until the final verdict
        with contextlib.suppress(GridtfError):
            self._report("stopping", "ending the remaining processes")
            task = known.cause["task"] if known.cause else None
            stop = {"nonce": self.nonce, "state": known.state, "reason": known.reason, "task": task}
            write_record(self.attempt.stop, stop)
        beat = self._heartbeat.beat_if_possible
        self.hosts.end(grace + _AGENT_MARGIN if self._gathered else _AGENT_ALONE, beat)
        self._remove_environment()
        from gridtf.bootstrap.supervisor import Supervisor

        # Processes that a killed agent has left behind on this host are children of this process now.
        survivors = Supervisor([], self.system).tear_down(grace, beat)
        if survivors:
            self.system.log(f"processes survived SIGKILL: {survivors}")
        if end.state != JobState.FAILED:
            from gridtf.bootstrap import membership

            return membership.noted(end, self.tasks, self.hosts.tasks)
        self._read_if_possible()
        # A crashed host reports nothing; the first symptom is that other tasks cannot reach its tasks.
        lost = verdict.lost_hosts(self.tasks, self.hosts.tasks)
        also = f"lost contact with {counted(len(lost), 'host')}: {some(lost)}" if lost else ""
        also = also or verdict.saved_before(self.tasks, self.hosts.tasks)
        final = self._of_tasks(end, also)
        return final if final.reason else self._of_hosts()

    def _cancel(self) -> None:
        """Cancel this job at its scheduler."""
        try:
            self.scheduler.cancel(JobIdentity(self.job_id))
        except GridtfError as error:
            self.system.log(str(error))

    def _read_if_possible(self) -> None:
        """Read the records of the hosts; where that fails, those that were read before must do."""
        with contextlib.suppress(GridtfError):
            self.hosts.read()

    # --- verdicts

    def _of_tasks(self, end: Verdict, also: str = "") -> Verdict:
        """The verdict on the task that failed first, or end where no task has. also: what else was noticed."""
        cause = verdict.first_failure(self.tasks, self.hosts.tasks)
        if cause is None:
            return end
        also = "; ".join(filter(None, (end.reason or also, self._versions)))
        return verdict.of_task(cause, self.hosts.tasks[cause.name], self.attempt, also)

    def _of_hosts(self) -> Verdict:
        """Why the tasks have ended, when no task has failed by itself."""
        try:
            self.hosts.check()
        except _Terminated as terminated:
            return self._of_signal(terminated.number)
        except GridtfError as error:
            return self._of_error(error)
        return Verdict(JobState.FAILED, "the tasks were ended, and no agent has reported why")

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
        """The final state that the scheduler reports for this job; None where it reports none, or does not respond."""
        status = self.scheduler.termination_reason(self.system.environ, self._parent)
        if status is None or status.state not in ENDED:
            return None
        reason = status.reason or f"the scheduler reports {status.state}"
        end = self._of_timeout(reason) if status.state == JobState.TIMEOUT else Verdict(status.state, reason)
        return end.replace(again=status.requeued)

    def _of_error(self, error: GridtfError) -> Verdict:
        if isinstance(error, TerminatedError):
            # only the scheduler knows what it has decided, such as to requeue the job
            why = error.why or "the scheduler gives no reason"
            return self._of_scheduler() or Verdict(JobState.FAILED, error.what, why=why, hint=error.hint, again=None)
        if isinstance(error, LauncherSilentError) and self._longest_stall > self.spec.heartbeat_timeout / 2:
            what = f"the launcher on host {self.system.host} was stalled for {self._longest_stall:.0f} s"
            hint = "was it stopped by a signal, or did a file system hang? the agents ended their tasks meanwhile"
            return Verdict(JobState.FAILED, what, why=error.what, hint=hint)
        if isinstance(error, LauncherSilentError | HostLostError) and self._heartbeat.trouble is not None:
            error = self._heartbeat.trouble  # a launcher that cannot write is silent, and perhaps no host can write
        state = JobState.NODE_FAIL if isinstance(error, HostLostError) else JobState.FAILED
        cause = error.cause if isinstance(error, AgentEndedError) else None
        return Verdict(state, error.what, why=error.why, hint=error.hint, cause=cause)

    def _of_timeout(self, reason: str) -> Verdict:
        self._read_if_possible()
        return verdict.of_timeout(reason, self.tasks, self.hosts.tasks)

    # --- reporting

    def _record(self) -> Record:
        phase = {"phase": self._phase, "detail": self._detail, "began": self.started}
        more = {"checkpoint": True} if self._checkpoint else {}
        return {"nonce": self.nonce, **self._identity, **phase, **more}

    def _report(self, phase: str, detail: str) -> None:
        if (phase, detail) == (self._phase, self._detail):
            return
        new_phase = phase != self._phase
        self._phase, self._detail = phase, detail
        self._heartbeat.beat(now=new_phase)


class _TimeLimit:
    """A time limit that begins with the first call of over(); as text, it says until when."""

    def __init__(self, seconds: float, system: System) -> None:
        self._seconds = seconds
        self._system = system
        self._end: float | None = None
        self._clock = ""

    def over(self) -> bool:
        """Whether the limit has been reached."""
        if self._end is None:
            self._end = self._system.monotonic() + self._seconds
            self._clock = strftime("%H:%M:%S", localtime(self._system.time() + self._seconds))
        return self._system.monotonic() >= self._end

    def __str__(self) -> str:
        return f"for at most {self._seconds:g} s, until {self._clock}"


# --- the launcher's view of its hosts

_A_MOMENT = 2.0  # seconds within which a scheduler that ends a job has signalled all of its processes
_KILL_LIMIT = 5.0  # seconds within which a killed agent has ended


class LauncherSilentError(GridtfError):
    """Agents have lost contact with the launcher."""


class AgentEndedError(GridtfError):
    """An agent could not start or continue.

    Attributes:
        cause: As in a Verdict; its log is the log of the agents.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", cause: Record | None = None) -> None:
        super().__init__(what, why=why, hint=hint)
        self.cause = cause


class HostMonitor(Fields):
    """The hosts of one attempt: what their records say, how their agents end, and which host is silent.

    Attributes:
        attempt: The attempt.
        nonce: Its nonce.
        hosts: The names of its hosts.
        limit: Seconds of silence after which a host counts as lost.
        agents: Handles on the agents of these hosts.
        pause: Waits for a number of seconds; raises when a signal ends the job meanwhile.
        system: This host.
        tasks: Task name -> its record, as its host has last reported it.
        waits: Host -> what its agent waits for.
        checkpoint: Whether a host reports that a checkpoint was requested there.
    """

    attempt: Attempt
    nonce: str
    hosts: Sequence[str]
    limit: float
    agents: Sequence[AgentHandle]
    pause: Callable[[float], None]
    system: System

    def __post_init__(self) -> None:
        self.tasks: dict[str, Record] = {}
        self.waits: dict[str, str] = {}
        self.checkpoint = False
        self._patience = Patience(self.limit, self.system)
        self._watches: dict[str, Watch] = {}
        self._gone: dict[str, Record] = {}  # host -> why its agent has ended by itself
        self._over: set[str] = set()  # hosts where no process of the job is left

    def listen(self) -> None:
        """Measure the silence of the hosts from now on."""
        self._watches = {host: Watch(self.limit, self.system) for host in self.hosts}

    def read(self) -> None:
        """Read the records of the hosts.

        Raises:
            RunDirError: The records can permanently not be read.
        """
        with self._patience.trying():
            self._read()

    def _read(self) -> None:
        listed = set(listdir(self.attempt.state))
        for host in self.hosts:
            path = self.attempt.host_state(host)
            if path.name not in listed:
                continue
            record = read_record(path, recordtypes.HostState, nonce=self.nonce, listed=True, own=True)
            if record is None:
                continue
            if host in self._watches:
                self._watches[host].heard(record.get("beat"))
            self.tasks.update(record["tasks"])
            if record.get("waits"):
                self.waits[host] = record["waits"]
            if record.get("checkpoint"):
                self.checkpoint = True
            if record.get("over"):
                self._over.add(host)
            if record.get("gone"):
                self._gone[host] = record["gone"]

    def check(self) -> None:
        """Check that all agents run and that no host is silent. Call read() first.

        Raises:
            GridtfError: An agent has ended although the launcher has not stopped it, or a host is silent.
        """
        for end in self._ends():
            if end.code < 0 and end.error is not None:  # a process of this host was killed: this came first
                # If SIGKILL does not end the launcher as well, it was that process alone. A signal that comes now is a
                # consequence: Grid Engine deletes a job whose qrsh is gone.
                self.system.wait(_A_MOMENT)
                raise end.error
            self.read()
            self._check_gone()
            raise self._ended(end)
        self._check_gone()
        if self._over:
            host = min(self._over)
            raise GridtfError(f"the agent on host {host} has ended all processes there", hint="did a user signal it?")
        for host, watch in self._watches.items():
            if watch.silence() > watch.limit:
                if self._patience.trouble is not None:  # it is the launcher that cannot read their records
                    raise self._patience.trouble
                raise HostLostError(
                    f"no heartbeat from host {host} for {watch.limit:g} s",
                    hint="has the host crashed, or lost its network or the shared file system?",
                )

    def _ends(self) -> Iterator[AgentEnd]:
        """How the agents that have ended did so; each agent is polled when its turn comes."""
        return filter(None, (agent.poll() for agent in self.agents))

    def end(self, seconds: float, beat: Callable[[], None]) -> None:
        """Terminate all agents, which then tear their tasks down; kill agents that take too long.

        Args:
            seconds: How long the agents may take.
            beat: Called about 20 times a second meanwhile.
        """
        for agent in self.agents:
            agent.terminate()
        if not self._ended_within(seconds, beat):
            for agent in self.agents:
                agent.kill()
            self._ended_within(_KILL_LIMIT, beat)

    def _ended_within(self, seconds: float, beat: Callable[[], None]) -> bool:
        begin = self.system.monotonic()
        deadline, look, ended = begin + seconds, begin + 1.0, False
        while (running := any(agent.poll() is None for agent in self.agents)) or self._cut_off():
            now = self.system.monotonic()
            if now > deadline:
                return False
            if now > look or not (running or ended):
                ended = not running
                # srun waits for lost hosts, and for hosts where no process is left that could report to it
                look = now + poll_interval(len(self.hosts), now - begin)
                with contextlib.suppress(GridtfError):
                    self.read()
                if self._all_over():
                    deadline = min(deadline, now + 1.0)
            self.system.wait(0.05)
            beat()
        return True

    def _cut_off(self) -> bool:
        """Whether a host still reports although the connection to its agent is lost: it will read stop.json."""
        recent = 3 * interval(len(self.hosts), self.limit)
        lost = {end.host for end in self._ends() if isinstance(end.error, HostLostError)} - self._over
        return any(host in lost and watch.silence() < recent for host, watch in self._watches.items())

    def _all_over(self) -> bool:
        """Whether every host has reported that no process is left, or is silent."""
        silent = {host for host, watch in self._watches.items() if watch.silence() > watch.limit}
        return self._over | silent >= set(self.hosts)

    def _check_gone(self) -> None:
        if not self._gone:
            return
        if any(gone.get("orphaned") for gone in self._gone.values()):
            self.pause(_A_MOMENT)  # if all processes of the job are being killed, the launcher is next
            for end in self._ends():
                if end.error is not None and end.host is None:  # it was not an agent
                    raise end.error
        if all("signal" in gone for gone in self._gone.values()):
            # Usually the scheduler is ending the whole job and signals the launcher too, so wait briefly. Otherwise one
            # agent crashed and srun or qrsh stopped the rest; which one is known once all have ended.
            self.pause(_A_MOMENT)
            self.read()
            for end in self._ends():
                if isinstance(end.error, TerminatedError) or (end.host and end.code):
                    raise self._ended(end)
            raise self._terminated()
        gone = min(self._gone.values(), key=lambda gone: "signal" in gone)
        kind = LauncherSilentError if gone.get("unheard") else GridtfError
        raise kind(gone["what"], why=gone["why"], hint=gone["hint"])

    def _terminated(self) -> TerminatedError:
        hosts = sorted(self._gone)
        agents = "the agent on host" if len(hosts) == 1 else "the agents on hosts"
        how = "/".join(sorted({signal_name(gone["signal"]) for gone in self._gone.values()}))
        what = f"{agents} {some(hosts)} received {how}"
        return TerminatedError(what, hint="from the scheduler, which signals agents when it ends a job, or from a user")

    def _ended(self, end: AgentEnd) -> GridtfError:
        if end.error is not None:
            return end.error
        from gridtf.bootstrap.agent import EXITS, NO_LAUNCHER

        who = f"the agent on host {end.host}" if end.host else "an agent"
        killed = signal_name(-end.code) if end.code < 0 else None
        how = f"was killed by {killed}" if killed else EXITS.get(end.code, f"ended with exit code {end.code}")
        attempt = self.attempt
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
    """The time until the hosts' states are read again.

    It is short while the job is young, when most failures occur, then longer to spare the file server, which serves one
    read per host each time: at most 200 per second.

    Args:
        hosts: The number of hosts.
        age: The age of the job in seconds.

    Returns:
        Seconds.
    """
    return max(0.05 if age < 10 else 0.25, hosts / 200)


# --- how an agent is called

# sys.path is copied from the launcher, which is faster than site's search; no garbage collection while modules load.
_AGENT_SUPERVISOR = """\
import gc, sys
gc.disable()
sys.path[:] = {path!r}
from gridtf.bootstrap.node import supervise_agent
sys.exit(supervise_agent(sys.argv[1:]))"""


def agent_call(attempt: Attempt, nonce: str, start_timeout: float) -> AgentCall:
    """Describe how a scheduler starts the agents of an attempt: forked from this process, or as new processes.

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
