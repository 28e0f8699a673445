"""The launcher, on the first host: allocation, agents, placement, rendezvous, watch, tear-down, verdict.

Modules that it needs only after it has started the agents are imported then: starting agents takes longest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from time import localtime, strftime
from typing import TYPE_CHECKING, Any, TypeVar

from gridtf.bootstrap import local_dir, messages, verdict
from gridtf.bootstrap.blame import FAILED, LOST
from gridtf.bootstrap.heartbeat import interval
from gridtf.bootstrap.hosts import AgentEndedError, HostMonitor, LauncherSilentError
from gridtf.bootstrap.journal import Journal
from gridtf.bootstrap.recorder import Recorder
from gridtf.bootstrap.stream import Listener
from gridtf.bootstrap.system import System
from gridtf.bootstrap.verdict import Verdict
from gridtf.errors import (
    CleanedUpError,
    GridtfError,
    HostLostError,
    PlacementError,
    RendezvousError,
    RunDirError,
    TerminatedError,
)
from gridtf.host import processes
from gridtf.host.processes import signal_name
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import DATA_WORKER
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, listdir, make_folder, may_pass, read_record, write_record
from gridtf.schedulers.api import LOOPBACK, AgentCall, AgentHandle, Allocation, JobIdentity, Parent, Scheduler
from gridtf.states import ENDED, JobState
from gridtf.text import counted, some
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.attempts import Following
    from gridtf.bootstrap.placement import PlacedTask
    from gridtf.bootstrap.progress import Progress
    from gridtf.bootstrap.rendezvous import AttemptPlan, Rendezvous
    from gridtf.bootstrap.stalls import Stalls
    from gridtf.host.gpus import GpuGrant

_SOON = 2.0  # seconds within which most hosts report; a host that is later may wait for something
_START_CHECKED = 10.0  # seconds between two checks whether an agent that is missing has failed
_AGENT_MARGIN = 12.0  # seconds, in addition to kill_grace, for agents that tear their tasks down
_AGENT_ALONE = 2.0  # seconds for agents without tasks
_RECORDED = 30.0  # seconds after which the launcher's record is written again although nothing has changed
_PROGRESS = 10.0  # seconds after which samples and the progress of tasks are recorded
_STEP = 0.005  # seconds between two looks at a record that has to be written before the job goes on
_LONGEST_PAUSE = 2.0  # seconds; news from hosts, ends of processes and signals end a pause at once
_PATIENCE = 60.0  # seconds in which the run directory may become writable again, lest the cause is lost
_CLEANING_UP = 10.0  # seconds in which a scheduler that cleans up too late may also kill what is started after that
_SETTLING = 2.0  # seconds for the last records of a tear-down; a file system that hangs gets no more


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
    return supervise(Launcher(run, spec, request, scheduler, job_id, System(environ)))


def supervise(attempt: Launcher) -> int:
    """Run attempts until one succeeds, or no other one may follow it.

    Args:
        attempt: The first one.

    Returns:
        The exit code of the job script.
    """
    while True:
        end, following = attempt.execute(), None
        if attempt.restarts:
            end, following = attempt.follow(end)
        code = attempt.conclude(end)
        if following is None:
            return code
        attempt = following


_Made = TypeVar("_Made")


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
        listener_of: Makes the launcher's end of the streams to its agents.
        recorder_of: Makes what writes its records.
        following: How this attempt follows another one; None: it is the first one.
        allocation: The allocation of the job; None before it is known.
    """

    run: RunDir
    spec: JobSpec
    request: Request
    scheduler: Scheduler
    job_id: str
    system: System
    listener_of: Callable[[bytes, System], Listener] = Listener
    recorder_of: Callable[[System], Recorder] = Recorder
    following: Following | None = None
    allocation: Allocation | None = None

    def __post_init__(self) -> None:
        self.attempt = self.run.new_attempt()
        self.nonce = os.urandom(8).hex()
        self.started = self.system.time()
        self.tasks: Sequence[PlacedTask] = ()
        self.recorder = self.recorder_of(self.system)
        self.system.log_with(self.recorder.log)
        self.journal = Journal(self.attempt, self.nonce, self.recorder, self.system)
        self._secret = os.urandom(32)
        self.listener = self.listener_of(self._secret, self.system)
        self.hosts = self._monitor((), ())
        self._gathered = False  # every host has reported
        self._versions = ""  # how the hosts' versions of TensorFlow differ
        self._unfenced = ""  # whom the tasks' ports are open to, where that is less than the job wants
        self._warned = False  # that the tasks train separately
        self._phase, self._detail = "allocating", self.following.why if self.following else "learning the allocation"
        self._told = False  # the verdict, to the log and the events
        self._own_folder = ""  # whose checkpoints a host alone sees
        self._checkpoint = False  # a checkpoint was requested
        self._identity = self.system.identity()
        walltime = self.request.walltime
        self._limits = {"ends": self.started - self.system.age() + walltime} if walltime else {}
        self._parent = Parent(self.system.parent(), self.system.name(self.system.parent()))
        # short enough to tell a launcher that was stopped from one that waits
        self._longest_pause = min(_LONGEST_PAUSE, self.spec.heartbeat_timeout / 8)
        self._last_pause = self.system.monotonic()
        self._orphaned = ""  # why the scheduler cannot learn of the job's end any more
        self._error: Exception | None = None  # what has ended the attempt, if that was no task
        self._history = self.following.history if self.following else None  # None before the allocation is known
        self._stall = 0.0  # the last long time, in seconds, for which this process was not scheduled
        self._woken = float("-inf")  # when that ended, by the monotonic clock
        self._stalls: Stalls | None = None
        self._silent = False  # that the job is stalled was noted
        self._stalled = False  # that the job is stalled has ended the attempt
        self._unrecorded = ""  # when records could not be written
        self._stopped = float("inf")  # when the tear-down began, in seconds since the epoch
        self._beat = self._recorded = self._summarized = float("-inf")  # when these were last sent or written
        self._written: Record = {}  # the record that was last written, without its time

    def execute(self) -> Verdict:
        """Run the attempt to its end, with no process left.

        Returns:
            The verdict, which conclude writes.
        """
        try:
            self.attempt.reserve_verdict()
            end = self._run()
        except _Terminated as terminated:
            end = self._of_signal(terminated.number)
        except GridtfError as error:
            self._error = error
            end = self._of_error(error)
        except Exception as error:  # after any other error, too, the tasks are ended and a verdict is written
            import traceback

            self._error = error
            self.system.log(traceback.format_exc())
            end = Verdict(JobState.FAILED, f"the launcher could not continue: {error}", hint=f"see {self.run.log}")
        end = self._tear_down(end).noting(self.hosts.leftovers())
        if end.state == JobState.SAVED:
            from gridtf.bootstrap import walltime

            about = self.attempt, self.job_id, self.spec, self.scheduler, self.system.environ
            try:
                end = walltime.goes_on(end, *about, self.hosts.tasks)
            except Exception as error:  # a verdict is written in any case
                end = walltime.not_again(end, error, self.job_id, self.scheduler)
        # who would report the end of this job to the scheduler
        if self.system.parent() != self._parent.pid:
            self._orphaned = self.scheduler.parent_lost(self._parent)
        return end

    @property
    def restarts(self) -> int:
        """How often attempts may follow others in this allocation: as in JobSpec; once in any case after the scheduler
        has cleaned up too late, which is no failure of the job's."""
        return max(self.spec.restarts, int(isinstance(self._error, CleanedUpError)))

    def follow(self, end: Verdict) -> tuple[Verdict, Launcher | None]:
        """Decide whether another attempt follows, and prepare it.

        Args:
            end: The verdict on this attempt.

        Returns:
            The verdict with what was decided; and the attempt, None where there is none.
        """
        from gridtf.bootstrap import attempts

        history = self._history or attempts.History()
        again: Following | str = ""
        if self.allocation is not None and not self._orphaned:
            cause = end.cause or {}
            name = cause.get("task") or ""
            record, task_type = self.hosts.tasks.get(name, {}), name.partition(":")[0]
            limit = self.spec.kill_grace + _AGENT_MARGIN + self.spec.heartbeat_timeout
            here = self.scheduler.this_host(self.system.environ)
            failure = attempts.Failure(
                verdict=end,
                in_vain=attempts.in_vain(
                    self._error,
                    record,
                    self.spec.task(task_type).on_failure,
                    stalled=self._stalled and self.spec.on_stall == "end",
                ),
                host=cause.get("host"),
                left={host: max(0.0, limit - silence) for host, silence in self.hosts.left().items()},
                reached=self._progress(),
                alone=self.hosts.alone(here),
            )
            hosts = self.allocation.hosts
            again = attempts.following(failure, history, self.restarts, hosts, self.request, here)
            if isinstance(self._error, CleanedUpError) and not isinstance(again, str):
                again = again.replace(pause=max(again.pause, _CLEANING_UP))
        if isinstance(again, str):
            done = f"after {counted(history.restarts, 'restart')}" if history.restarts else ""
            return end.noting(again or done), None
        number = self.attempt.number + 1
        told = end.noting(f"attempt {number} follows").replace(next=number, again=False)
        self._tell(told)  # those who follow the job show what they find from its folder on as the next attempt's
        try:
            following = self._patiently(
                type(self),
                *(self.run, self.spec, self.request, self.scheduler, self.job_id, self.system),
                *(self.listener_of, self.recorder_of, again, self.allocation),
            )
        except GridtfError as error:
            self._told = False
            return end.noting(f"not restarted, since {error.what}"), None
        following._record()  # one that is stopped from now on is seen to be silent
        return told, following

    def conclude(self, end: Verdict) -> int:
        """Write the verdict.

        Args:
            end: The verdict.

        Returns:
            The exit code of the job script.
        """
        if self._orphaned:
            freed = f"{self._orphaned}, so gridtf cancels the job; otherwise it would keep its hosts"
            end = end.noting(freed)
        if not self._told:
            self._tell(end)  # whoever has waited for the verdict finds the events
        try:
            self._patiently(self.attempt.write_verdict, end.record(self.nonce, self.started, self.system.time()))
        except GridtfError as error:
            self.system.log(str(error))
            return end.exit_code or 1
        self._report("ended", end.reason)
        self.recorder.settle(_SETTLING)
        self.listener.close()
        if self._orphaned:
            self._cancel()
        elif end.state == JobState.SAVED and end.again:
            return self._start_again(end)
        return end.exit_code

    def _tell(self, end: Verdict) -> None:
        """Write the verdict to the log and to the events."""
        self._told = True
        self.system.log(end.text())
        more = {"task": end.cause["task"]} if end.cause and end.cause["task"] else {}
        more |= {"next": end.next} if end.next else {}
        self._note("verdict", state=end.state, text=end.reason, **more)
        self.journal.end()
        self.recorder.settle(_SETTLING)

    def _patiently(self, write: Callable[..., _Made], *arguments: Any) -> _Made:
        """Make something in the run directory, as soon as that can be written.

        Raises:
            RunDirError: It cannot, for a minute.
        """
        deadline = self.system.monotonic() + _PATIENCE
        while True:
            try:
                return write(*arguments)
            except RunDirError:
                if self.system.monotonic() >= deadline:
                    raise
                self.system.sleep(1.0)

    def _start_again(self, end: Verdict) -> int:
        """Have the scheduler start this job again; it may end this process at once. Returns the exit code."""
        try:
            return self.scheduler.start_again(self.system.environ) or end.exit_code
        except GridtfError as error:
            from gridtf.bootstrap import walltime

            end = walltime.not_again(end, error, self.job_id, self.scheduler)
            self.system.log(end.text())
            with contextlib.suppress(GridtfError):
                self.attempt.write_verdict(end.record(self.nonce, self.started, self.system.time()))
            return end.exit_code

    # --- from the allocation to the end of the tasks

    def _monitor(self, hosts: Sequence[str], agents: Sequence[AgentHandle]) -> HostMonitor:
        limit = self.spec.heartbeat_timeout
        return HostMonitor(self.attempt, self.listener, hosts, limit, agents, self._pause, self.system)

    def _run(self) -> Verdict:
        from gridtf.schedulers.batch import SHARED_HINT, not_shared

        processes.need_open_files(0)
        self._record()
        if self.attempt.number == 1:
            self._note_queued()
        allocation = self._allocate()
        self._note("allocated", hosts=[host.name for host in allocation.hosts])
        others = any(host.address != LOOPBACK for host in allocation.hosts[1:])
        if others and (why := not_shared(self.run.path)):
            raise RunDirError(f"{self.run.path} cannot be seen by other hosts", why=why, hint=SHARED_HINT)
        processes.need_open_files(3 * len(allocation.hosts))  # a process, its pipe and the agent's connection, each
        self._open(allocation)
        self.listener.expected = len(allocation.hosts)
        call = agent_call(self.attempt, self.nonce, self.spec, self.listener, restarted=self.following is not None)
        agents = self.scheduler.start_agents(allocation, call, self.system.environ)
        hosts = [host.name for host in allocation.hosts]
        self.hosts = self._monitor(hosts, agents)
        self._tell_agents()
        plan = self._place(allocation)
        self.tasks = plan.tasks
        self.system.collect_garbage()  # all modules are loaded; an agent that was forked turns it on itself
        for host in hosts:
            self.listener.send(host, messages.PLAN, plan.of_host(host).to_record())
        plan.write()
        make_folder(self.run.output)
        count = counted(len(hosts), "host")
        self._report("waiting", f"waiting for {count}")
        self._gather(plan)
        started = f"{counted(len(plan.tasks), 'task')} on {count}"
        if self.following is not None:
            started = f"{started}; {self.following.why}"
        self._report("running", started)
        return self._watch(started)

    def _note_queued(self) -> None:
        """Note when the job was submitted, by the clock of the host where that was done."""
        with contextlib.suppress(GridtfError):
            submitted = read_record(self.run.submitted, recordtypes.Submitted, own=True)
            if submitted and "time" in submitted:
                self._note("queued", time=submitted["time"])

    def _allocate(self) -> Allocation:
        """The hosts of this attempt."""
        if self.allocation is None:
            wait = self._wait_for_allocation
            self.allocation = self.scheduler.allocation(self.system.environ, self.request, wait)
        if self.following is None and not self.spec.restarts:
            return self.allocation
        from gridtf.bootstrap import attempts

        if self.following is None:
            self._history = attempts.History(reached=self._progress())
            hosts = attempts.choose(self.allocation.hosts, self.request, self._history)
            if isinstance(hosts, str):
                raise PlacementError(hosts)
            return self.allocation.replace(hosts=hosts)
        where = some([host.name for host in self.following.hosts])
        self.system.log(f"attempt {self.attempt.number} on {where}: {self.following.why}")
        begin = self.system.monotonic()
        while (left := begin + self.following.pause - self.system.monotonic()) > 0:
            self._report("allocating", self.following.why)
            self._pause(min(left, self._longest_pause))
        return self.allocation.replace(hosts=self.following.hosts)

    def _progress(self) -> Progress:
        """How far the job has come."""
        from gridtf.bootstrap import progress

        return progress.reached(progress.output_dir(self.run, self.spec), self.hosts.tasks)

    def _open(self, allocation: Allocation) -> None:
        """Write where agents find the launcher, and the secret by which both sides know each other."""
        addresses = launcher_addresses(allocation, self.scheduler.this_host(self.system.environ), self.system.host)
        record = {
            "nonce": self.nonce,
            "addresses": addresses,
            "port": self.listener.port,
            "secret": self._secret.hex(),
        }
        write_record(self.attempt.listener, record, mode=0o600)

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
            key=os.urandom(32).hex(),
        )

    def _gather(self, plan: AttemptPlan) -> None:
        """Wait until every host has reported its ports, then write the rendezvous file and tell the agents."""
        from gridtf.bootstrap import addresses, environment, fence, rendezvous, versions

        begin, checked = self.system.monotonic(), 0.0
        while True:
            self.hosts.read()
            missing = [host for host in plan.hosts if host not in self.hosts.published]
            if not missing:
                break
            self.hosts.check()
            waited = self.system.monotonic() - begin
            if waited > self.spec.start_timeout:
                raise self._missing(missing)
            if waited - checked > _START_CHECKED:
                checked = waited
                self.hosts.check_starts()
            if waited > _SOON:
                waits = self.hosts.waits
                missing = [f"{host} ({waits[host]})" if host in waits else host for host in missing]
            reported = f"{len(plan.hosts) - len(missing)} of {counted(len(plan.hosts), 'host')}"
            self._report("waiting", f"rendezvous: {reported}, waiting for {some(missing)}")
            self._pause(self._longest_pause)
        published = self.hosts.published
        addresses.check(sorted(published.items()))
        self._gathered = True
        self._note("rendezvous")
        self._versions = versions.differing(plan.tasks, published)
        if self._versions:
            self._notice(self._versions, versions.ONE_VERSION)
        self._unfenced = fence.note(published)
        if self._unfenced:
            self._notice(self._unfenced)
        meeting = rendezvous.merge(plan.tasks, published)
        environment.need_room(plan, meeting)
        self._publish(rendezvous.text_of(self.attempt, plan.job_id, self.nonce, meeting), meeting)

    def _publish(self, text: str, meeting: Rendezvous) -> None:
        """Write the rendezvous file, which tasks read, then tell the agents, which start them."""
        path, begin = self.attempt.rendezvous, self.system.monotonic()
        self.recorder.write(path, text)
        while not self.recorder.settle(_STEP):
            error = self.recorder.errors.get(path)
            if error is not None and not may_pass(error):
                raise error
            if self.system.monotonic() - begin > self.spec.start_timeout:
                raise error or RunDirError(f"cannot write {path}: the file system does not respond")
            self.hosts.read()
            self.hosts.check()
            self._pause(_STEP)
        self.listener.send_all(messages.MEETING, meeting.to_record())

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
        from gridtf.bootstrap import membership, stalls, walltime

        policy = self.spec.success_policy
        leaders = _TimeLimit(self.spec.leader_wait, self.system)
        saving = _TimeLimit(self.spec.leader_wait, self.system)
        evaluators = _TimeLimit(self.spec.evaluator_wait, self.system)
        end_of_job = walltime.EndOfJob(self.spec, self.request, self.scheduler, self.system)
        about = self.tasks, self.hosts, self.nonce, self.recorder, self.system
        self._stalls = stalls.Stalls(
            self.spec.seconds_to_stall, *about, lambda: self.scheduler.suspended(self.system.environ)
        )
        begin = self.system.monotonic()
        self.hosts.listen()
        self._import_all()
        judged = None
        while True:
            self.hosts.read()
            if self.hosts.checkpoint or end_of_job.save_now():
                self._request_checkpoint()
            if end_of_job.end is not None:
                self._limits = {"ends": end_of_job.end}
            if judged != (self.hosts.reports, policy):  # most news are signs of life
                judged = self.hosts.reports, policy
                now = verdict.decide(self.tasks, self.hosts.tasks, policy, leader=self.spec.leader)
                separate = None
                self._look_for_own_folders()
            stalled = self._look_for_stall(waits=bool(now.ended or now.awaited))
            if now.cause is not None:
                return Verdict(JobState.FAILED, "")  # the task and the reason are determined once all states are final
            if now.saved and (now.ended or saving.over()):
                return verdict.of_saved(self.tasks, self.hosts.tasks, policy, self.spec)
            if now.leader and leaders.over():
                policy = "chief"  # from now on its success is the job's
                continue
            if stalled and self.spec.on_stall in ("end", "restart"):
                self._stalled = True
                return Verdict(JobState.FAILED, stalled, hint=stalls.HINT)
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
                if separate is None and self.system.monotonic() - begin >= membership.SOON:
                    separate = self._separate()
                notes = (separate, self._own_folder, self._versions, self._unfenced, self._unrecorded)
                self._report("running", "; ".join(filter(None, (stalled, started, waiting, *notes))))
            self._pause(self._longest_pause)
            self.system.sleep(news_interval(len(self.hosts.hosts)))

    def _look_for_stall(self, *, waits: bool) -> str:
        """That the job is stalled, as Stalls.look says it."""
        assert self._stalls is not None
        stalled = self._stalls.look(waits=waits)
        if stalled and not self._silent:
            self._note("stalled", text=stalled)
        elif self._silent and not stalled:
            self._note("going on")
        self._silent = bool(stalled)
        return stalled

    def _import_all(self) -> None:
        """Import what is needed later, when the file system may not respond."""
        from gridtf.bootstrap import agent, membership, ownfolders, supervisor

        del agent, membership, ownfolders, supervisor

    def _distributed(self) -> bool:
        """Whether a dataset was given to the data workers; True without data workers."""
        mark = self.attempt.distributed
        return not self.spec.count(DATA_WORKER) or mark.name in listdir(mark.parent)

    def _separate(self) -> str:
        """The warning that the tasks train separately, or that one keeps the others waiting; for tasks that have had
        the time to join the cluster."""
        from gridtf.bootstrap import environment, membership

        members, records = environment.members(self.spec, self.tasks), self.hosts.tasks
        found = membership.separate(self.tasks, records) or membership.absent(members, records)
        if found and not self._warned:
            self._warned = True
            self._notice(found.running, found.hint)
        return found.running if found else ""

    def _look_for_own_folders(self) -> None:
        from gridtf.bootstrap import ownfolders

        before, self._own_folder = self._own_folder, ownfolders.told(self.tasks, self.hosts.tasks)
        if self._own_folder and not before:
            self._notice(self._own_folder, ownfolders.HINT)

    # --- waiting

    def _wait_for_allocation(self, why: str, seconds: float) -> None:
        if why != self._detail:
            self.system.log(why)
        self._report("allocating", why)
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        """Wait, until there is news at the latest, and give the agents signs of life, without which they end.

        Raises:
            _Terminated: A signal that ends the job was received.
        """
        self._tell_alive()
        if self.hosts.changed:  # and not recorded yet, since the record was written a moment ago
            due = self._summarized + summary_interval(len(self.hosts.hosts)) - self.system.monotonic()
            seconds = min(seconds, max(0.0, due))
        seconds = min(seconds, self.journal.rest())
        number = self.system.wait(seconds)
        now = self.system.monotonic()
        if now - self._last_pause - seconds > self.spec.heartbeat_timeout / 2:
            self._stall, self._woken = now - self._last_pause - seconds, now
        self._last_pause = now
        if number is not None and (processes.is_end(number) or number in self.scheduler.last_warnings):
            raise _Terminated(number)
        if number == signal.SIGUSR1:
            self._request_checkpoint()

    def _tell_alive(self) -> None:
        """What goes on all the time: signs of life for the agents, records for the users."""
        now = self.system.monotonic()
        if now - self._beat >= interval(len(self.hosts.hosts), self.spec.heartbeat_timeout):
            self._beat = now
            self.listener.alive()
        self._record()

    def _request_checkpoint(self) -> None:
        """Request a checkpoint on all hosts."""
        if not self._checkpoint:
            self._checkpoint = True
            self._notice("a checkpoint was requested")
            self._tell_agents()
            self._record()

    def _tell_agents(self) -> None:
        """Tell the agents which process this is, and whether a checkpoint was requested."""
        self.listener.send_all(messages.LAUNCHER, {**self._identity, "began": self.started, **self._flags()})

    # --- the end

    def _tear_down(self, end: Verdict) -> Verdict:
        """End all agents and the processes that they leave behind, then determine which task failed first.

        Args:
            end: The verdict so far.

        Returns:
            The final verdict.
        """
        grace = self.spec.kill_grace
        self._stopped = self.system.time()
        if self._stalls is not None:
            self._stalls.end()
        self.listener.send_all(messages.STOP, {"state": end.state})  # before the logs are read: their folder may hang
        known = end if end.reason else self._of_tasks(end)  # for `gridtf status` until the final verdict
        self._note("stopping", text=known.reason)
        self._report("stopping", "ending the remaining processes")
        task = known.cause["task"] if known.cause else None
        stop = {"state": known.state, "reason": known.reason, "task": task}
        self.recorder.write(self.attempt.stop, json.dumps({"nonce": self.nonce, **stop}))
        self.hosts.end(grace + _AGENT_MARGIN if self._gathered else _AGENT_ALONE, self._tell_alive)
        self._read_if_possible()
        self._record(final=True)
        self.recorder.settle(_SETTLING)
        with contextlib.suppress(OSError):
            self.attempt.listener.unlink(missing_ok=True)
        from gridtf.bootstrap.supervisor import Supervisor

        # Processes that a killed agent has left behind on this host are children of this process now.
        survivors = Supervisor([], self.system).tear_down(grace, self._tell_alive)
        if survivors:
            self.system.log(f"processes survived SIGKILL: {survivors}")
        for host in self.hosts.forked:  # whose agent may have been killed
            local_dir.remove(local_dir.places(self.system.environ, self.nonce, host))
            if not survivors:
                self.hosts.note_over(host)
        self._read_if_possible()
        # A crashed host reports nothing; the first symptom is that other tasks cannot reach its tasks.
        lost = verdict.lost_hosts(self.tasks, self.hosts.tasks)
        also = f"lost contact with {counted(len(lost), 'host')}: {some(lost)}" if lost else ""
        if end.state == JobState.NODE_FAIL:  # its reason names the one that was missed first
            return end.noting(also) if len(lost) > 1 else end
        if end.state != JobState.FAILED:
            from gridtf.bootstrap import environment, membership, ownfolders

            members = environment.members(self.spec, self.tasks)
            end = membership.noted(end, self.tasks, members, self.hosts.tasks)
            return ownfolders.noted(end, self.tasks, self.hosts.tasks)
        if (cleaned := self.hosts.cleaned_up()) is not None:  # tasks that have failed may have done so for that
            self._error = cleaned
            return self._of_error(cleaned).noting(self._earlier_start())
        also = also or verdict.saved_before(self.tasks, self.hosts.tasks)
        final = self._of_tasks(end, also, lost)
        return final if final.reason else self._of_hosts()

    def _cancel(self) -> None:
        """Cancel this job at its scheduler."""
        try:
            self.scheduler.cancel(JobIdentity(self.job_id))
        except GridtfError as error:
            self.system.log(str(error))

    def _read_if_possible(self) -> None:
        """Hear what the hosts have reported last."""
        with contextlib.suppress(GridtfError):
            self.hosts.read()

    # --- verdicts

    def _of_tasks(self, end: Verdict, also: str = "", lost: Sequence[str] = ()) -> Verdict:
        """The verdict on the first cause, or end where no task has failed.

        Args:
            end: The verdict so far.
            also: What else was noticed.
            lost: The hosts that do not report any more.
        """
        records = self.hosts.by_one_clock()
        cause = verdict.first_cause(self.tasks, records, self.attempt, self._stopped, lost)
        if cause is None:
            return end
        if cause.how == LOST and len(lost) == 1:
            also = ""  # this is the reason itself
        also = "; ".join(filter(None, (end.reason or also, self._versions)))
        if cause.how == FAILED:
            return verdict.of_task(cause.task, records[cause.task.name], self.attempt, also)
        return verdict.of_other(cause, records, self.attempt, also)

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
        known = self._of_scheduler(number)
        if known is None:
            return Verdict(JobState.CANCELLED, f"the launcher received {signal_name(number)}")
        if known.state == JobState.CANCELLED and not known.again and (error := self.hosts.ended_before()) is not None:
            return self._of_error(error)  # the scheduler has cancelled the job for that
        return known

    def _of_scheduler(self, number: int | None = None) -> Verdict | None:
        """The final state that the scheduler reports for this job; None where it reports none, or does not respond.

        Args:
            number: The signal that this process has received; None where only agents have received one.
        """
        status = self.scheduler.termination_reason(self.system.environ, self._parent)
        if status is None or status.state not in ENDED:
            return None
        warned = number in self.scheduler.last_warnings or not self.scheduler.announces_limits
        if status.state == JobState.TIMEOUT and not warned:
            return None
        reason = status.reason or f"the scheduler reports {status.state}"
        end = self._of_timeout(reason) if status.state == JobState.TIMEOUT else Verdict(status.state, reason)
        return end.replace(again=status.requeued)

    def _of_error(self, error: GridtfError) -> Verdict:
        if isinstance(error, TerminatedError) and (known := self._of_scheduler()):
            return known  # only the scheduler knows what it has decided, such as to requeue the job
        # the first agents that end because this process was stalled may make the scheduler end the others
        stalled = self.system.monotonic() - self._woken < self.spec.heartbeat_timeout
        if stalled and isinstance(error, LauncherSilentError | TerminatedError):
            what = f"the launcher on host {self.system.host} was stalled for {self._stall:.0f} s"
            hint = "was it stopped by a signal, or did a file system hang? the agents ended their tasks meanwhile"
            return Verdict(JobState.FAILED, what, why=error.what, hint=hint)
        if isinstance(error, TerminatedError):
            why = error.why or "the scheduler gives no reason"
            return Verdict(JobState.FAILED, error.what, why=why, hint=error.hint, again=None)
        state = JobState.NODE_FAIL if isinstance(error, HostLostError) else JobState.FAILED
        cause = error.cause if isinstance(error, AgentEndedError) else None
        end = Verdict(state, error.what, why=error.why, hint=error.hint, cause=cause)
        if state == JobState.NODE_FAIL and self.hosts.alone(self.scheduler.this_host(self.system.environ)):
            return end.replace(again=None)  # perhaps this host is cut off, and only the scheduler knows what happened
        return end

    def _earlier_start(self) -> str:
        """How the latest start of the job before this one has ended."""
        for attempt in reversed(self.run.attempts()):
            if attempt.number < self.attempt.number:
                with contextlib.suppress(GridtfError):
                    before = read_record(attempt.verdict, recordtypes.Verdict, own=True)
                    if before and before.get("again"):
                        return f"attempt {attempt.number} was {before['state']}: {before['reason']}"
        return ""

    def _of_timeout(self, reason: str) -> Verdict:
        self._read_if_possible()
        return verdict.of_timeout(reason, self.tasks, self.hosts.tasks, requested=self._checkpoint)

    # --- reporting

    def _flags(self) -> Record:
        return {"checkpoint": True} if self._checkpoint else {}

    def _record(self, *, final: bool = False) -> None:
        """Have the records of the launcher and of the hosts written, where they have changed or are old.

        Args:
            final: Whether the hosts will report nothing more.
        """
        recorder, now = self.recorder, self.system.monotonic()
        recorder.look()
        if recorder.failed is not None:
            clock = strftime("%H:%M:%S", localtime(recorder.failed))
            self._unrecorded = f"records could not be written for some time from {clock} on"
        self._note_news()
        self.journal.look()
        record = {"phase": self._phase, "detail": self._detail, **self._flags()}
        if record != self._written or now - self._recorded >= min(_RECORDED, self.spec.heartbeat_timeout):
            self._written, self._recorded = record, now
            who = {"nonce": self.nonce, **self._identity, "began": self.started, **self._limits}
            recorder.write(self.attempt.launcher, json.dumps({**who, **record, "time": self.system.time()}))
        hosts, age = self.hosts, float("inf") if final else now - self._summarized
        if (hosts.changed and age >= summary_interval(len(hosts.hosts))) or (
            hosts.progressed and age >= progress_interval(len(hosts.hosts), self.system.time() - self.started)
        ):
            self._summarized, hosts.changed, hosts.progressed = now, False, False
            recorder.write(self.attempt.summary, json.dumps({"nonce": self.nonce, "hosts": hosts.records()}))

    def _note(self, event: str, **more: object) -> None:
        """Note an event, after what the hosts have told by now."""
        self._note_news()
        self.journal.note(event, **more)

    def _note_news(self) -> None:
        """Note what the hosts have told of their tasks."""
        self.journal.add(self.hosts.happened)
        self.journal.sample(self.hosts.sampled)
        self.hosts.happened, self.hosts.sampled = [], []

    def _notice(self, what: str, hint: str = "") -> None:
        """Tell users something, in the log and as an event."""
        self.system.log(f"{what}\n{hint}" if hint else what)
        self._note("notice", text=what)

    def _report(self, phase: str, detail: str) -> None:
        if phase != self._phase:
            self.journal.hurry()  # those who follow the job are told first what has led to it
        self._phase, self._detail = phase, detail
        self._record()


def summary_interval(hosts: int) -> float:
    """The least time between two writes of the hosts' record, which is long where there are many of them.

    Args:
        hosts: The number of hosts.

    Returns:
        Seconds.
    """
    return max(0.2, hosts / 500)


def progress_interval(hosts: int, age: float) -> float:
    """The least time between two writes of the hosts' record for samples and progress alone.

    Args:
        hosts: The number of hosts.
        age: How long the attempt has run, in seconds: users look at a new one most.

    Returns:
        Seconds.
    """
    return max(min(_PROGRESS, age / 6), hosts / 50)


def news_interval(hosts: int) -> float:
    """How long the launcher lets news from running tasks gather, where many hosts would wake it all the time.

    Args:
        hosts: The number of hosts.

    Returns:
        Seconds: each look at all hosts takes longer the more there are, and its share of a core stays the same.
    """
    return hosts / 20_000 if hosts > 200 else 0.0


def launcher_addresses(allocation: Allocation, here: str, nodename: str) -> list[str]:
    """The addresses by which agents may reach the launcher, the best first.

    Args:
        allocation: The hosts of the job.
        here: The scheduler's name of the launcher's host.
        nodename: That host's own name.
    """
    if all(host.address == LOOPBACK for host in allocation.hosts):
        return [LOOPBACK]
    from gridtf.bootstrap.addresses import of_this_host
    from gridtf.host.network import is_loopback
    from gridtf.schedulers.batch import same_host

    known = [host.address or host.name for host in allocation.hosts if same_host(host.name, here)]
    own = [address for address in of_this_host(nodename) if not is_loopback(address)]
    return list(dict.fromkeys([*known, *own]))


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


# --- how an agent is called

# sys.path is copied from the launcher, which is faster than site's search; no garbage collection while modules load.
# One line: Grid Engine 6.2 and Open Cluster Scheduler hand a newline on to the other host as the two characters \\n.
_AGENT_SUPERVISOR = (
    "import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
    "from gridtf.bootstrap.node import supervise_agent; sys.exit(supervise_agent(sys.argv[1:]))"
)


def agent_call(
    attempt: Attempt, nonce: str, spec: JobSpec, listener: Listener, *, restarted: bool = False
) -> AgentCall:
    """Describe how a scheduler starts the agents of an attempt: forked from this process, or as new processes.

    Args:
        attempt: The attempt.
        nonce: Its nonce.
        spec: The specification of the job.
        listener: The launcher's end of the streams, which an agent that was forked closes.
        restarted: Whether agents of another attempt were started before in this allocation.
    """

    def main(arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
        from gridtf.bootstrap import agent

        listener.close()
        return agent.main(arguments, gpus)

    return AgentCall(
        arguments=(str(attempt.run.path), str(attempt.number), nonce, str(spec.start_timeout)),
        main=main,
        command=(sys.executable, "-S", "-c", _AGENT_SUPERVISOR.format(path=sys.path)),
        log=attempt.agents_log,
        outlives=bool(spec.restarts),
        restarted=restarted,
    )
