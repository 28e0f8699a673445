"""Watches the tasks of an attempt until they have succeeded, or one has failed."""

from __future__ import annotations

from collections.abc import Callable
from time import localtime, strftime

from gridtf.bootstrap.judge import evidence, outcome
from gridtf.bootstrap.judge.evidence import AGENTS, STOP, TASK, TRAINED, Evidence, joined
from gridtf.bootstrap.judge.outcome import Outcome
from gridtf.bootstrap.launcher.api import Feature, LauncherView, Starter
from gridtf.bootstrap.launcher.contact import Contact
from gridtf.bootstrap.launcher.endofjob import EndOfJob
from gridtf.bootstrap.launcher.requests import Requests
from gridtf.bootstrap.system import System
from gridtf.features import Features
from gridtf.jobspec.tasktypes import DATA_WORKER
from gridtf.run.rundir import Record, listdir
from gridtf.text import some


class Watch:
    """Decides when an attempt is over, and tells users meanwhile how it goes.

    Args:
        view: The attempt, with its tasks.
        contact: Pauses, and requests for checkpoints.
        starter: What has started the tasks.
        features: Those of the job.
        started: What runs, for the status; and what is not as it should be from the start on.
    """

    def __init__(
        self,
        view: LauncherView,
        contact: Contact,
        starter: Starter,
        features: Features[Feature],
        started: tuple[str, ...],
    ) -> None:
        self._view, self._features, self._contact = view, features, contact
        self._starter, self._started = starter, started
        self._job, self._tasks, self._hosts, self._reporter = view.job, view.tasks, view.hosts, view.reporter
        job, spec, system = view.job, view.job.spec, view.job.system
        self._policy = spec.success_policy  # "chief" as soon as the others have had their time after its success
        self._leaders, self._saving = TimeLimit(spec.leader_wait, system), TimeLimit(spec.leader_wait, system)
        self._evaluators = TimeLimit(spec.evaluator_wait, system)
        self._end_of_job = EndOfJob(spec, job.request, job.scheduler, system)
        self._requests = Requests(view.attempt, view.reporter.nonce, system, [*features])
        self._awaiting = 0.0  # since when all tasks have ended, and what has started them may say why
        self._places = ""  # what is to be known of the places of the tasks
        self._now = self._view.now = Outcome(False)
        self._apart: Evidence | None = None  # that they are none, which ends the attempt

    def until_the_end(self) -> Evidence:
        """Watch until the attempt is over.

        Returns:
            What has ended it; which of its tasks was the first that failed can be said when all have ended.

        Raises:
            GridtfError: An agent has ended, or a host is silent.
        """
        judged = None
        asked: dict[str, Callable[[], Evidence | None]] = {
            TASK: lambda: Evidence(TASK, f"{self._now.cause.name} has failed") if self._now.cause else None,
            STOP: lambda: self._apart or next(filter(None, self._features.each(lambda one: one.stop())), None),
            TRAINED: self._of_training,
            AGENTS: self._of_agents,
        }
        while True:
            self._hosts.read()
            self._look_at_walltime()
            self._look_for_requests()
            if judged != (self._hosts.reports.states, self._policy):  # most news are signs of life
                judged = self._hosts.reports.states, self._policy
                self._look_at_tasks()
            if self._now.leader and self._leaders.over():
                self._policy = "chief"  # from now on its success is the job's
                continue
            self._features.tell(lambda one: one.look())
            if (end := evidence.first(evidence.RUNNING, asked)) is not None:
                return end
            self._report()
            self._contact.pause(self._contact.longest)
            self._job.system.sleep(news_interval(len(self._hosts.hosts)))

    def _look_at_tasks(self) -> None:
        records = self._hosts.reports.tasks
        self._now = outcome.decide(self._tasks, records, self._policy, leader=self._job.spec.leader)
        self._view.now = self._now
        self._places, self._apart = self._starter.status(), self._starter.stop()

    def _of_training(self) -> Evidence | None:
        """That all tasks that are awaited have succeeded, or have saved."""
        now, of = self._now, (self._tasks, self._hosts.reports.tasks, self._policy, self._job.spec)
        if now.saved and (now.ended or self._saving.over()):
            return outcome.of_saved(*of)
        if now.ended and not self._is_explained_soon() and (not now.lingering or self._evaluators.over()):
            return outcome.of_success(*of, distributed=self._distributed())
        return None

    def _of_agents(self) -> None:
        """Raise what ends the attempt if an agent has ended, or a host is silent; not while only evaluators run."""
        if not self._now.ended or self._is_explained_soon():
            self._hosts.check()

    def _is_explained_soon(self) -> bool:
        """Whether what has started the tasks, which have ended well, may still say that they have not."""
        if not (limit := self._starter.patience(well=True)):
            return False
        self._awaiting = self._awaiting or self._job.system.monotonic()
        return self._job.system.monotonic() - self._awaiting < limit

    def end(self) -> None:
        """End the processes that look for requests of users, and ask for the end of the job."""
        self._view.now = None
        self._requests.end()
        self._end_of_job.close()

    def _report(self) -> None:
        now = self._now
        if now.ended and now.lingering:
            lingering = f"training has ended; waiting for {some(now.lingering)} {self._evaluators}"
            self._reporter.report("running", lingering)
        if now.ended:
            return
        limit = f" {self._saving}" if now.saved else f" {self._leaders}" if now.leader else ""
        how = f"{some(now.saved)} saved a checkpoint" if now.saved else f"{some(now.early)} ended"
        waiting = f"{how}, waiting for {some(now.awaited)}{limit}" if now.awaited else ""
        waiting = self._places or waiting
        started, *notes = self._started
        wrong = *self._features.each(lambda one: one.status()), self._features.failures()
        about = (*wrong, started, waiting, *notes, self._reporter.unrecorded)
        self._reporter.report("running", joined(each or "" for each in about))

    def _look_at_walltime(self) -> None:
        if self._hosts.reports.checkpoint or self._end_of_job.save_now():
            self._contact.request_checkpoint()
        if self._end_of_job.end is not None:
            self._reporter.ends = self._end_of_job.end

    def _look_for_requests(self) -> None:
        for asks, request in self._requests.look():
            self._pass_on(asks, request)

    def _pass_on(self, asks: str, request: Record) -> None:
        self._features.tell(lambda one: one.asked(request) if asks in one.asks else None)

    def _distributed(self) -> bool:
        """Whether a dataset was given to the data workers; True without data workers."""
        mark = self._reporter.attempt.distributed
        return not self._job.spec.count(DATA_WORKER) or mark.name in listdir(mark.parent)


def news_interval(hosts: int) -> float:
    """How long the launcher lets news from running tasks gather, where many hosts would wake it all the time.

    Args:
        hosts: The number of hosts.

    Returns:
        Seconds: each look at all hosts takes longer the more there are, and its share of a core stays the same.
    """
    return hosts / 20_000 if hosts > 200 else 0.0


class TimeLimit:
    """A time limit that begins with the first call of over(); as text, it says until when.

    Args:
        seconds: The limit.
        system: The host whose clock counts.
    """

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
