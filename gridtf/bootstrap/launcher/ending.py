"""The end of an attempt: its processes are ended, and why it has ended is found out."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.judge import verdict
from gridtf.bootstrap.judge.blame import FAILED, LOST, Cause
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.contact import Contact, TerminatedBySignal
from gridtf.bootstrap.launcher.hosts import AgentEndedError, HostMonitor, LauncherSilentError
from gridtf.bootstrap.launcher.reporter import Reporter
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.wire import messages
from gridtf.errors import GridtfError, HostLostError, OutOfMemoryError, TerminatedError
from gridtf.host.processes import signal_name
from gridtf.run import recordtypes
from gridtf.run.rundir import RunDir, listdir, read_record, run_dirs_of
from gridtf.schedulers import mpi
from gridtf.schedulers.api import JobIdentity, Parent
from gridtf.states import ENDED, JobState
from gridtf.text import counted, some

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask

AGENT_MARGIN = 12.0  # seconds, in addition to kill_grace, for agents that tear their tasks down
_LAST_WORDS = 1.0  # seconds for mpirun to end for what a rank has told it, and to say so
_MPIRUN_LIMIT = 4.0  # seconds for mpirun to end when it has ended ranks
_AGENT_ALONE = 2.0  # seconds for agents without tasks


class Ending:
    """Ends an attempt, and finds its verdict.

    Args:
        reporter: What users are told.
        hosts: The hosts of the attempt.
        contact: The signs of life for the agents meanwhile.

    Attributes:
        tasks: The tasks of the attempt; none before they are placed.
        noticed: What was noticed before the start, and explains failures: different versions, GPUs in use.
        idle: Which GPUs of the job no task uses; empty: all are used.
        error: What has ended the attempt, where that was no task and no signal.
        orphaned: Why the scheduler cannot learn of the job's end any more; empty where it can.
    """

    def __init__(self, job: LaunchedJob, reporter: Reporter, hosts: HostMonitor, contact: Contact) -> None:
        self._job, self._reporter, self._hosts, self._contact = job, reporter, hosts, contact
        self._system, self._injob = job.system, job.scheduler.injob
        self._parent = Parent(self._system.parent(), self._system.name(self._system.parent()))
        self._begun = float("inf")  # when the tear-down began, in seconds since the epoch
        self.tasks: Sequence[PlacedTask] = ()
        self.noticed: tuple[str, ...] = ()
        self.idle = ""
        self.error: Exception | None = None
        self.orphaned = ""

    def tear_down(self, end: Verdict | None) -> Verdict:
        """End all agents and the processes that they leave behind, then determine which task failed first.

        Args:
            end: The verdict so far; None where a task has failed.

        Returns:
            The final verdict.
        """
        state = end.state if end else JobState.FAILED
        self._begun = self._system.time()
        self._hear_of_mpirun()
        self._hosts.listener.send_all(messages.STOP, {"state": state})  # before logs are read: their folder may hang
        self._tell_until_it_is_final(end or self._of_tasks())
        self._end_processes()
        # A crashed host reports nothing; the first symptom is that other tasks cannot reach its tasks.
        lost = verdict.lost_hosts(self.tasks, self._hosts.reports.tasks)
        also = f"lost contact with {counted(len(lost), 'host')}: {some(lost)}" if lost else ""
        from gridtf.bootstrap.judge import together

        left = together.left(self.tasks, self._hosts.reports.tasks) if self._job.request.mpi else ""
        if end is not None and end.state == JobState.NODE_FAIL:  # its reason names the one that was missed first
            return end.noting(also) if len(lost) > 1 else end
        if end is not None and end.state != JobState.FAILED:
            return self._noted(end).noting(left)
        if (cleaned := self._hosts.cleaned_up()) is not None:  # tasks that have failed may have done so for that
            self.error = cleaned
            return self._of_error(cleaned).noting(self._earlier_start())
        also = also or verdict.saved_before(self.tasks, self._hosts.reports.tasks)
        return (self._of_tasks(end, also, lost) or self._of_hosts()).noting(left)

    def _hear_of_mpirun(self) -> None:
        """Where ranks have failed because mpirun has ended, or without a word, wait until its host says why."""
        reports, begin = self._hosts.reports, self._system.monotonic()
        while self._job.request.mpi and not reports.gone:
            silent = [record for record in reports.tasks.values() if record.get("exit") and not record.get("exception")]
            limit = _MPIRUN_LIMIT if any(record.get("abandoned") for record in silent) else _LAST_WORDS
            if not silent or self._system.monotonic() - begin > limit:
                return
            self._system.wait(0.1)
            self._contact.tell_alive()
            self._read_if_possible()

    def look_after_parent(self) -> None:
        """Find out whether the process is still there that would report the end of this job to the scheduler."""
        if self._system.parent() != self._parent.pid:
            self.orphaned = self._injob.parent_lost(self._parent)

    def cancel(self) -> None:
        """Cancel this job at its scheduler."""
        try:
            self._job.scheduler.login.cancel(JobIdentity(self._job.job_id))
        except GridtfError as error:
            self._system.log(str(error))

    def _tell_until_it_is_final(self, known: Verdict | None) -> None:
        """Tell users why the attempt is ended, as far as that is known."""
        state, reason = (known.state, known.reason) if known else (JobState.FAILED, "")
        task = known.cause["task"] if known and known.cause else None
        self._reporter.note("stopping", text=reason)
        self._reporter.report("stopping", "ending the remaining processes")
        stop = {"nonce": self._reporter.nonce, "state": state, "reason": reason, "task": task}
        self._reporter.recorder.write(self._reporter.attempt.stop, json.dumps(stop))

    def _end_processes(self) -> None:
        grace = self._job.spec.kill_grace
        self._hosts.end(grace + AGENT_MARGIN if self._hosts.met else _AGENT_ALONE, self._contact.tell_alive)
        self._read_if_possible()
        self._reporter.record(final=True)
        self._reporter.settle()
        with contextlib.suppress(OSError):
            self._reporter.attempt.listener.unlink(missing_ok=True)
        from gridtf.bootstrap.agent.supervisor import Supervisor

        # Processes that a killed agent has left behind on this host are children of this process now.
        supervisor = Supervisor([], self._system)
        supervisor.kept = self._contact.trackers.pids if self._contact.trackers else ()
        survivors = supervisor.tear_down(grace, self._contact.tell_alive)
        if survivors:
            self._system.log(f"processes survived SIGKILL: {survivors}")
        for host in self._hosts.forked:  # whose agent may have been killed
            local_dir.remove(local_dir.places(self._system.environ, self._reporter.nonce, host))
            if not survivors:
                self._hosts.note_over(host)
        self._read_if_possible()

    def _read_if_possible(self) -> None:
        """Hear what the hosts have reported last."""
        with contextlib.suppress(GridtfError):
            self._hosts.read()

    # --- verdicts

    def of_exception(self, error: Exception) -> Verdict:
        """The verdict on an attempt that an exception has ended.

        Args:
            error: The exception; after any, the tasks are ended and a verdict is written.
        """
        if isinstance(error, TerminatedBySignal):
            return self._of_signal(error.number)
        if isinstance(error, GridtfError):
            return self._of_error(error)
        from traceback import format_exception

        self._system.log("".join(format_exception(error)))
        return Verdict(JobState.FAILED, f"the launcher could not continue: {error}", hint=f"see {self._job.run.log}")

    def _noted(self, end: Verdict) -> Verdict:
        """A verdict other than FAILED, with what users should know of the training."""
        from gridtf.bootstrap.judge import averaged, ownfolders, together
        from gridtf.bootstrap.plan import environment

        if self.idle:
            end = end.replace(reason=f"{end.reason}; {self.idle}")
        members = environment.members(self._job.spec, self.tasks)
        end = together.noted(end, self.tasks, members, self._hosts.reports.tasks)
        end = averaged.noted(end, self.tasks, self._hosts.reports.tasks)
        return ownfolders.noted(end, self.tasks, self._hosts.reports.tasks)

    def _of_tasks(self, end: Verdict | None = None, also: str = "", lost: Sequence[str] = ()) -> Verdict | None:
        """The verdict on the first cause, or end where no task has failed.

        Args:
            end: The verdict so far.
            also: What else was noticed.
            lost: The hosts that do not report any more.
        """
        records, attempt = self._hosts.reports.by_one_clock(), self._reporter.attempt
        cause = verdict.first_cause(self.tasks, records, attempt, self._begun, lost)
        if cause is None or records[cause.task.name].get("abandoned"):
            # mpirun, which ends all ranks, has ended by itself, or because it has lost a host
            cut_off = {*lost} - self._hosts.reports.gone.keys() if self._job.request.mpi else ()
            gone = next((task for task in self.tasks if task.host in cut_off), None)
            if gone is not None:
                cause = Cause(gone, LOST, cause.task if cause else None)
            elif cause is None or end:
                return end
            elif self._hosts.reports.gone:
                return self._of_hosts()
        if cause.how == LOST and len(lost) == 1:
            also = ""  # this is the reason itself
        beside = verdict.failed_before(cause, self.tasks, records)
        also = "; ".join(filter(None, (end.reason if end else also, beside, *self.noticed)))
        if self._job.request.mpi and (cause.how != FAILED or records[cause.task.name].get("abandoned")):
            says = verdict.of_mpirun(attempt.mpi / f"{self.tasks[0].host}.log", first=False)
            also = "; ".join(filter(None, (also, f"{mpi.named(self._job.request.mpi)} says: {says}" if says else "")))
        if cause.how == FAILED:
            return verdict.of_task(cause.task, records[cause.task.name], attempt, also)
        return verdict.of_other(cause, records, attempt, also)

    def _of_hosts(self) -> Verdict:
        """Why the tasks have ended, when no task has failed by itself."""
        try:
            self._hosts.check()
        except (TerminatedBySignal, GridtfError) as error:
            return self.of_exception(error)
        return Verdict(JobState.FAILED, "the tasks were ended, and no agent has reported why")

    def _of_user(self) -> Verdict | None:
        """The verdict on a job, or an element of one, that a user has cancelled with gridtf; None: no user has."""
        for folder in run_dirs_of(self._job.run.log):
            with contextlib.suppress(GridtfError):
                if cancelled := read_record(RunDir(folder).cancelled, recordtypes.Cancelled, own=True):
                    who = f"{cancelled.get('user')} on {cancelled.get('host')}"
                    return Verdict(JobState.CANCELLED, f"cancelled by {who}")
        return None

    def _of_signal(self, number: int) -> Verdict:
        if (cancelled := self._of_user()) is not None:
            return cancelled
        if number == signal.SIGALRM:
            return self._of_timeout("the walltime is over")
        known = self._of_scheduler(number)
        if known is None:
            return Verdict(JobState.CANCELLED, f"the launcher received {signal_name(number)}")
        if known.state == JobState.CANCELLED and not known.again and (error := self._hosts.ended_before()) is not None:
            return self._of_error(error)  # the scheduler has cancelled the job for that
        return known

    def _of_scheduler(self, number: int | None = None) -> Verdict | None:
        """The final state that the scheduler reports for this job; None where it reports none, or does not respond.

        Args:
            number: The signal that this process has received; None where only agents have received one.
        """
        status = self._injob.termination_reason(self._system.environ, self._parent)
        if status is None or status.state not in ENDED:
            return None
        warned = number in self._injob.last_warnings or not self._injob.announces_limits
        if status.state == JobState.TIMEOUT and not warned:
            return None
        reason = status.reason or f"the scheduler reports {status.state}"
        end = self._of_timeout(reason) if status.state == JobState.TIMEOUT else Verdict(status.state, reason)
        return end.replace(again=status.requeued)

    def _of_error(self, error: GridtfError) -> Verdict:
        if not isinstance(error, HostLostError) and (cancelled := self._of_user()) is not None:
            return cancelled  # what has started the agents may be ended before this process is
        if isinstance(error, TerminatedError) and (known := self._of_scheduler()):
            return known  # only the scheduler knows what it has decided, such as to requeue the job
        # the first agents that end because this process was stalled may make the scheduler end the others
        if self._contact.was_stalled() and isinstance(error, LauncherSilentError | TerminatedError):
            what = f"the launcher on host {self._system.host} was stalled for {self._contact.stall:.0f} s"
            hint = "was it stopped by a signal, or did a file system hang? the agents ended their tasks meanwhile"
            return Verdict(JobState.FAILED, what, why=error.what, hint=hint)
        if isinstance(error, TerminatedError):
            why = error.why or "the scheduler gives no reason"
            return Verdict(JobState.FAILED, error.what, why=why, hint=error.hint, again=None)
        states = {HostLostError: JobState.NODE_FAIL, OutOfMemoryError: JobState.OUT_OF_MEMORY}
        state = next((states[kind] for kind in states if isinstance(error, kind)), JobState.FAILED)
        cause = error.cause if isinstance(error, AgentEndedError) else None
        end = Verdict(state, error.what, why=error.why, hint=error.hint, cause=cause)
        if state == JobState.NODE_FAIL and self._hosts.alone(self._job.here):
            return end.replace(again=None)  # perhaps this host is cut off, and only the scheduler knows what happened
        return end

    def _earlier_start(self) -> str:
        """How the latest start of the job before this one has ended."""
        for attempt in reversed(self._job.run.attempts()):
            if attempt.number < self._reporter.attempt.number:
                with contextlib.suppress(GridtfError):
                    before = read_record(attempt.verdict, recordtypes.Verdict, own=True)
                    if before and before.get("again"):
                        return f"attempt {attempt.number} was {before['state']}: {before['reason']}"
        return ""

    def _of_timeout(self, reason: str) -> Verdict:
        self._read_if_possible()
        requested = self._reporter.checkpoint
        return verdict.of_timeout(reason, self.tasks, self._hosts.reports.tasks, requested=requested)


def of_killed(run: RunDir, number: int, now: float) -> None:
    """Write the verdict of an attempt whose launcher a signal has ended, where the scheduler will not tell of that.

    Args:
        run: Its run directory.
        number: The signal.
        now: Seconds since the epoch.
    """
    with contextlib.suppress(GridtfError):
        attempt = run.latest()
        launcher = read_record(attempt.launcher, recordtypes.Launcher, own=True) if attempt else None
        if attempt and launcher and attempt.verdict.name not in listdir(attempt.path):
            what = f"the launcher on host {launcher['host']} was killed by {signal_name(number)}"
            attempt.write_verdict(Verdict(JobState.FAILED, what).record(launcher["nonce"], launcher["began"], now))
