"""What users see of an attempt while it runs: the records of the launcher and of the hosts, events and notices."""

from __future__ import annotations

import json
from time import localtime, strftime

from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.journal import Journal
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.run.rundir import Attempt, Record

_REWRITTEN = 30.0  # seconds after which the launcher's record is written again although nothing has changed
_PROGRESS = 10.0  # seconds after which samples and the progress of tasks are recorded
_LAST_RECORDS = 2.0  # seconds for the last records of a tear-down; a file system that hangs gets no more


class Reporter:
    """Writes what users see of an attempt.

    Args:
        attempt: Its attempt.
        nonce: The nonce of the attempt.
        recorder: What writes the files.
        hosts: The hosts of the attempt, whose news are reported.
        detail: What the launcher does first, for the status.

    Attributes:
        started: When the attempt started, in seconds since the epoch.
        ends: When the walltime ends, in seconds since the epoch; None where that is not known.
        checkpoint: Whether a checkpoint was requested.
        unrecorded: That records could not be written, and since when; empty while all is well.
    """

    def __init__(
        self, job: LaunchedJob, attempt: Attempt, nonce: str, recorder: Recorder, hosts: HostMonitor, detail: str
    ) -> None:
        self.attempt, self.nonce, self.recorder = attempt, nonce, recorder
        self._system, self._hosts = job.system, hosts
        self.started = self._system.time()
        walltime = job.request.walltime
        self.ends = self.started - self._system.age() + walltime if walltime else None
        self.checkpoint = False
        self.unrecorded = ""
        self._shown: dict[str, Record] = {}  # what features have in the launcher's record
        self.journal = Journal(attempt, nonce, recorder, self._system)
        self._identity = self._system.identity()
        self._longest = min(_REWRITTEN, job.spec.heartbeat_timeout)
        self._phase, self._detail = "allocating", detail
        self._written: Record = {}  # the launcher's record that was last written, without its time
        self._recorded = self._summarized = float("-inf")  # when these two records were last written

    def report(self, phase: str, detail: str) -> None:
        """Report what the launcher does.

        Args:
            phase: The phase of the attempt, as in the launcher's record.
            detail: One line for the status.
        """
        if phase != self._phase:
            self.journal.hurry()  # those who follow the job are told first what has led to it
        self._phase, self._detail = phase, detail
        self.record()

    def show(self, name: str, about: Record) -> None:
        """Have an entry of this name in the launcher's record; an empty one goes."""
        self._shown = {name: entry for name, entry in {**self._shown, name: about}.items() if entry}

    def waiting(self, why: str) -> None:
        """Report what the allocation waits for, in the log once."""
        if why != self._detail:
            self._system.log(why)
        self.report("allocating", why)

    def note(self, event: str, **more: object) -> None:
        """Note an event, after what the hosts have told by now.

        Args:
            event: As in Journal.note.
            more: What belongs to it.
        """
        self._note_news()
        self.journal.note(event, **more)

    def notice(self, what: str, hint: str = "") -> None:
        """Tell users something, in the log and as an event.

        Args:
            what: One line.
            hint: What they can do about it, for the log.
        """
        self._system.log(f"{what}\n{hint}" if hint else what)
        self.note("notice", text=what)

    def record(self, *, final: bool = False) -> None:
        """Have the records of the launcher and of the hosts written, where they have changed or are old.

        Args:
            final: Whether the hosts will report nothing more.
        """
        recorder, now = self.recorder, self._system.monotonic()
        recorder.look()
        if recorder.failed is not None:
            clock = strftime("%H:%M:%S", localtime(recorder.failed))
            self.unrecorded = f"records could not be written for some time from {clock} on"
        self._note_news()
        self.journal.look()
        record = {"phase": self._phase, "detail": self._detail, **self._flags()}
        record |= self._shown
        if record != self._written or now - self._recorded >= self._longest:
            self._written, self._recorded = record, now
            ends = {} if self.ends is None else {"ends": self.ends}
            who = {"nonce": self.nonce, **self._identity, "began": self.started, **ends}
            recorder.write(self.attempt.launcher, json.dumps({**who, **record, "time": self._system.time()}))
        reports, hosts = self._hosts.reports, self._hosts.hosts
        age = float("inf") if final else now - self._summarized
        if (reports.changed and age >= summary_interval(len(hosts))) or (
            reports.progressed and age >= progress_interval(len(hosts), self._system.time() - self.started)
        ):
            self._summarized, reports.changed, reports.progressed = now, False, False
            summary = {"nonce": self.nonce, "hosts": reports.records(hosts)}
            recorder.write(self.attempt.summary, json.dumps(summary))

    def idle(self) -> float:
        """Seconds until something is due to be written; infinite where nothing is."""
        if not self._hosts.reports.changed:
            return self.journal.rest()
        due = self._summarized + summary_interval(len(self._hosts.hosts)) - self._system.monotonic()
        return min(max(0.0, due), self.journal.rest())

    def identity(self) -> Record:
        """What agents are told of the launcher: which process it is, and whether a checkpoint was requested."""
        return {**self._identity, "began": self.started, **self._flags()}

    def settle(self) -> None:
        """Wait until the last records are written, for a short time."""
        self.recorder.settle(_LAST_RECORDS)

    def _flags(self) -> Record:
        return {"checkpoint": True} if self.checkpoint else {}

    def _note_news(self) -> None:
        """Note what the hosts have told of their tasks."""
        reports = self._hosts.reports
        self.journal.add(reports.happened)
        self.journal.sample(reports.sampled)
        reports.happened, reports.sampled = [], []


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
