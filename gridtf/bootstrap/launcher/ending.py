"""The end of an attempt: its processes are ended, and the judge is told what is known of it."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache

from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.judge import evidence, outcome, verdict
from gridtf.bootstrap.judge.blame import FAILED, LOST, Cause
from gridtf.bootstrap.judge.evidence import (
    ABANDONED,
    ACCUSED,
    BESIDE,
    CLEANED_UP,
    EXPLAINS,
    GONE,
    HOST_OF_RANK,
    LAUNCHER,
    OF_TASKS,
    SCHEDULER,
    STOP,
    TASK,
    USER,
    Evidence,
    joined,
)
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.api import Feature, LauncherView, Starter
from gridtf.bootstrap.launcher.contact import Contact, TerminatedBySignal
from gridtf.bootstrap.launcher.hosts import AgentEndedError, LauncherSilentError
from gridtf.bootstrap.wire import messages
from gridtf.errors import GridtfError, HostLostError, OutOfMemoryError, TerminatedError
from gridtf.features import Features
from gridtf.host.processes import signal_name
from gridtf.run import recordtypes
from gridtf.run.rundir import RunDir, read_record, run_dirs_of
from gridtf.schedulers.api import JobIdentity, Parent
from gridtf.states import ENDED, JobState
from gridtf.text import counted, some

AGENT_MARGIN = 12.0  # seconds, in addition to kill_grace, for agents that tear their tasks down
_SOON_KNOWN = frozenset({TASK, STOP, GONE, ABANDONED})  # who may be asked before the processes have ended
_AGENT_ALONE = 2.0  # seconds for agents without tasks
# What ends an attempt -> who may know better.
_ASKED_ABOUT: tuple[tuple[type[Exception], tuple[str, ...]], ...] = (
    (TerminatedBySignal, (USER, SCHEDULER)),
    (HostLostError, ()),  # no command of a user's makes a host silent
    (TerminatedError, (USER, SCHEDULER, LAUNCHER)),  # only the scheduler knows what it has decided
    (LauncherSilentError, (USER, LAUNCHER)),
    (GridtfError, (USER,)),  # what has started the agents may be ended before this process is
    (Exception, ()),
)


class Ending:
    """Ends an attempt, and hands over what is known of its end.

    Args:
        view: The attempt.
        contact: The signs of life for the agents meanwhile.
        starter: What has started its tasks.
        features: Those of the job.

    Attributes:
        known: What was noticed before the start, and is told with an end.
        error: What has ended the attempt, where that was no task and no signal.
        final: Why what has ended the attempt forbids another one; empty: it does not.
        orphaned: Why the scheduler cannot learn of the job's end any more; empty where it can.
    """

    def __init__(self, view: LauncherView, contact: Contact, starter: Starter, features: Features[Feature]) -> None:
        self._view, self._contact, self._starter, self._features = view, contact, starter, features
        self._job, self._hosts, self._reporter = view.job, view.hosts, view.reporter
        self._system, self._injob = view.job.system, view.job.scheduler.injob
        self._parent = Parent(self._system.parent(), self._system.name(self._system.parent()))
        self._begun = float("inf")  # when the tear-down began, in seconds since the epoch
        self.known: list[Evidence] = []
        self.error: Exception | None = None
        self.final = self.orphaned = ""

    def tear_down(self, end: Evidence) -> Verdict:
        """End all agents and the processes that they leave behind, then have it judged why the attempt has ended.

        Args:
            end: What has ended it.
        """
        self.final, self._features.ending = end.final, True
        self._begun = self._system.time()
        self._hear_of_starter()
        self._hosts.listener.send_all(messages.STOP, {"state": end.state})  # before logs are read: they may hang
        self._tell_until_it_is_final(end)
        self._end_processes()
        # A crashed host reports nothing; the first symptom is that other tasks cannot reach its tasks.
        lost = outcome.lost_hosts(self._view.tasks, self._hosts.reports.tasks)
        found = end if end.state != JobState.FAILED else self._found(end, lost) or end
        self._look_after_parent()
        return self._conclude(found, [*self._known(end, found, lost)])

    def _hear_of_starter(self) -> None:
        """Wait while what has started the tasks may still say, on its host, why they have ended."""
        begin = self._system.monotonic()
        while not self._hosts.reports.gone and (limit := self._starter.patience(well=False)):
            if self._system.monotonic() - begin > limit:
                return
            self._system.wait(0.1)
            self._contact.tell_alive()
            self._read_if_possible()

    def _look_after_parent(self) -> None:
        """Find out whether the process is still there that would report the end of this job to the scheduler."""
        if self._system.parent() != self._parent.pid:
            self.orphaned = self._injob.parent_lost(self._parent)

    def cancel(self) -> None:
        """Cancel this job at its scheduler."""
        try:
            self._job.scheduler.login.cancel(JobIdentity(self._job.job_id))
        except GridtfError as error:
            self._system.log(str(error))

    def _tell_until_it_is_final(self, end: Evidence) -> None:
        """Tell users why the attempt is ended, as far as that is known."""
        found = end if end.kind != TASK else self._found(end, [], _SOON_KNOWN)
        known = self._conclude(found or end)
        task = known.cause["task"] if known.cause else None
        self._reporter.note("stopping", text=known.reason)
        self._reporter.report("stopping", "ending the remaining processes")
        stop = {"nonce": self._reporter.nonce, "state": known.state, "reason": known.reason, "task": task}
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
        supervisor.kept = self._view.processes.pids(outlive=True)
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

    # --- evidence

    def interrupted(self, error: Exception) -> Evidence:
        """What is known of an end that a signal or an error brings.

        Args:
            error: The exception; after any, the tasks are ended and a verdict is written.
        """
        number = error.number if isinstance(error, TerminatedBySignal) else None
        knows: dict[str, Callable[[], Evidence | None]] = {
            USER: self._of_user,
            SCHEDULER: lambda: self._of_scheduler(number),
            LAUNCHER: lambda: self._of_launcher(error),
        }
        asked = next(kinds for kind, kinds in _ASKED_ABOUT if isinstance(error, kind))
        knows = {**{kind: knows[kind] for kind in asked}, STOP: lambda: self._of_error(error)}
        found = evidence.first(evidence.INTERRUPTED, knows)
        assert found is not None  # the error itself says something
        return found

    def _of_user(self) -> Evidence | None:
        """That a user has cancelled the job, or an element of it, with gridtf."""
        for folder in run_dirs_of(self._job.run.log):
            with contextlib.suppress(GridtfError):
                if cancelled := read_record(RunDir(folder).cancelled, recordtypes.Cancelled, own=True):
                    who = f"{cancelled.get('user')} on {cancelled.get('host')}"
                    return Evidence(USER, f"cancelled by {who}", state=JobState.CANCELLED)
        return None

    def _of_scheduler(self, number: int | None) -> Evidence | None:
        """The final state that the scheduler reports for this job; None where it reports none, or does not respond.

        Args:
            number: The signal that this process has received; None where only agents have received one.
        """
        if number == signal.SIGALRM:
            return self._of_timeout("the walltime is over")
        status = self._injob.termination_reason(self._system.environ, self._parent)
        if status is None or status.state not in ENDED:
            return None
        warned = number in self._injob.last_warnings or not self._injob.announces_limits
        if status.state == JobState.TIMEOUT and not warned:
            return None
        cancelled = status.state == JobState.CANCELLED and not status.requeued and number is not None
        if cancelled and (error := self._hosts.ended_before()) is not None:
            return self._of_error(error)  # the scheduler has cancelled the job for that
        reason = status.reason or f"the scheduler reports {status.state}"
        end = self._of_timeout(reason) if status.state == JobState.TIMEOUT else Evidence(SCHEDULER, reason)
        return end.replace(state=status.state, again=status.requeued)

    def _of_timeout(self, reason: str) -> Evidence:
        self._read_if_possible()
        requested = self._reporter.checkpoint
        return outcome.of_timeout(reason, self._view.tasks, self._hosts.reports.tasks, requested=requested)

    def _of_launcher(self, error: Exception) -> Evidence | None:
        """That this process was stalled: the first agents that end for it may make the scheduler end the others."""
        if not self._contact.was_stalled():
            return None
        what = f"the launcher on host {self._system.host} was stalled for {self._contact.stall:.0f} s"
        hint = "was it stopped by a signal, or did a file system hang? the agents ended their tasks meanwhile"
        return Evidence(LAUNCHER, what, error.what if isinstance(error, GridtfError) else "", hint)

    def _of_error(self, error: Exception) -> Evidence:
        """What a signal or an error says by itself."""
        if isinstance(error, TerminatedBySignal):
            return Evidence(STOP, f"the launcher received {signal_name(error.number)}", state=JobState.CANCELLED)
        if not isinstance(error, GridtfError):
            from traceback import format_exception

            self._system.log("".join(format_exception(error)))
            return Evidence(STOP, f"the launcher could not continue: {error}", hint=f"see {self._job.run.log}")
        end = Evidence(STOP, error.what, error.why, error.hint)
        if isinstance(error, TerminatedError):  # only the scheduler knows what it has decided, as to requeue the job
            return end.replace(why=error.why or "the scheduler gives no reason", again=None)
        if isinstance(error, HostLostError):
            # perhaps this host is cut off, and only the scheduler knows what happened
            again = None if self._hosts.alone(self._job.here) else False
            return end.replace(state=JobState.NODE_FAIL, again=again, lost=error.host)
        if isinstance(error, OutOfMemoryError):
            return end.replace(state=JobState.OUT_OF_MEMORY)
        return end.replace(cause=error.cause) if isinstance(error, AgentEndedError) else end

    def _found(self, end: Evidence, lost: list[str], moment: Collection[str] = evidence.OVER) -> Evidence | None:
        """Why an attempt has failed, or has been stopped.

        Args:
            end: What has ended it.
            lost: The hosts that do not report any more.
            moment: Who may be asked.
        """
        reports, attempt = self._hosts.reports, self._reporter.attempt
        records = reports.by_one_clock()

        @cache
        def cause() -> Cause | None:
            return outcome.first_cause(self._view.tasks, records, attempt, self._begun, lost)

        def of_task(*, abandoned: bool) -> Evidence | None:
            found = cause()
            if found is None or bool(records.get(found.task.name, {}).get("abandoned")) != abandoned:
                return None
            kind = ABANDONED if abandoned else TASK if found.how == FAILED else ACCUSED
            return Evidence(kind, found=found)

        def of_lost_host() -> Evidence | None:
            cut_off = {*lost} - reports.gone.keys() if self._starter.is_world else ()
            task = next((task for task in self._view.tasks if task.host in cut_off), None)
            found = cause()
            return Evidence(HOST_OF_RANK, found=Cause(task, LOST, found.task if found else None)) if task else None

        return evidence.first(
            moment,
            {
                CLEANED_UP: self._of_cleaning_up,
                TASK: lambda: of_task(abandoned=False),
                HOST_OF_RANK: of_lost_host,
                STOP: lambda: end if end.kind != TASK else self._starter.stop(),
                GONE: self._of_agents,
                ABANDONED: lambda: of_task(abandoned=True),
            },
        )

    def _of_agents(self) -> Evidence | None:
        """Why agents say that they have ended."""
        if not self._hosts.reports.gone:
            return None
        try:
            self._hosts.check()
        except (TerminatedBySignal, GridtfError) as error:
            return self.interrupted(error)
        return None

    def _of_cleaning_up(self) -> Evidence | None:
        """That the scheduler has ended agents as those of an earlier start, and how that start has ended."""
        if (error := self._hosts.cleaned_up()) is None:
            return None
        self.error = error
        end = self.interrupted(error)
        for attempt in reversed(self._job.run.attempts()):
            if attempt.number < self._reporter.attempt.number:
                with contextlib.suppress(GridtfError):
                    before = read_record(attempt.verdict, recordtypes.Verdict, own=True)
                    if before and before.get("again"):
                        earlier = f"attempt {attempt.number} was {before['state']}: {before['reason']}"
                        return end.replace(why=joined((end.why, earlier)))
        return end

    def _known(self, end: Evidence, found: Evidence, lost: list[str]) -> Iterator[Evidence]:
        """What else is known, in the order in which it is told.

        Args:
            end: What has ended the attempt.
            found: What the verdict is on.
            lost: The hosts that do not report any more.
        """
        reports, tasks, cause = self._hosts.reports, self._view.tasks, found.found
        missed = f"lost contact with {counted(len(lost), 'host')}: {some(lost)}" if lost else ""
        if len(lost) > 1:
            yield Evidence(EXPLAINS, missed, on=(JobState.NODE_FAIL,))
        if stopped := end if end.kind != TASK else self._starter.stop():
            yield Evidence(EXPLAINS, stopped.what, on=OF_TASKS)
        if end.kind == TASK and cause and not (cause.how == LOST and len(lost) == 1):  # that is the reason itself
            yield Evidence(EXPLAINS, missed or outcome.saved_before(tasks, reports.tasks), on=OF_TASKS)
        if cause:
            yield Evidence(EXPLAINS, outcome.failed_before(cause, tasks, reports.by_one_clock()), on=OF_TASKS)
        yield from self.known
        for each in self._features.each(lambda one: [*one.known(found)]):
            yield from each
        yield from self._starter.known(found)
        yield Evidence(BESIDE, self._features.failures())
        yield Evidence(BESIDE, reports.leftovers())
        if self.orphaned:
            freed = f"{self.orphaned}, so gridtf cancels the job; otherwise it would keep its hosts"
            yield Evidence(BESIDE, freed)

    def _conclude(self, end: Evidence, known: Sequence[Evidence] = ()) -> Verdict:
        return verdict.conclude(end, known, self._hosts.reports.by_one_clock(), self._reporter.attempt)
