"""Watching a job until it has ended: short looks at its run directory, and questions to its scheduler when due."""

from __future__ import annotations

import time
from contextlib import suppress

from gridtf.errors import DamagedError, RunDirError
from gridtf.observe import jobs
from gridtf.observe.polling import CLUSTER, HERE, Pace
from gridtf.observe.state import why_set_up_failed
from gridtf.observe.views import JobView
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, RunDir, listdir, may_pass, read_record
from gridtf.run.tail import last_lines
from gridtf.schedulers.answers import RECENT
from gridtf.schedulers.api import JobStatus
from gridtf.states import ENDED, JobState
from gridtf.values import Value

_SLOWEST_LOOK = 1.0  # seconds between two looks at a run directory
_TOLERATED = 60.0  # seconds for which a run directory may fail to be read
_LEAVES = 600.0  # seconds after a final verdict in which the scheduler may still end the job; Slurm has 300 for a host
_PRECISION = 0.001  # seconds
_ACCOUNTED = 4.0  # seconds between two questions to accounting at most, while it may still explain an end


class Signs(Value):
    """What a short look at a run directory shows; the number of hosts and tasks makes no difference to what it costs.

    Attributes:
        begun: (whether the script has a log, number of the latest attempt or None).
        verdict: Whether the latest attempt, or each element of a job array, has a verdict.
        ending: (whether `gridtf cancel` was called, whether the script of a local job has ended, whether a set-up line
            has failed before the first attempt).
        launcher: Nonce, phase and detail in the launcher's record.
        beat: The time in it, which changes each time it is written; None where there is no record.
    """

    begun: tuple[bool, int | None]
    verdict: bool
    ending: tuple[bool, bool, bool]
    launcher: tuple[object, ...]
    beat: object

    @property
    def news(self) -> tuple[object, ...]:
        """What users want to hear of when it changes."""
        return self.begun, self.verdict, self.ending, self.launcher

    @property
    def over(self) -> bool:
        """Whether the job is about to leave the queue, as far as the records show."""
        return self.verdict or any(self.ending)


class Looker:
    """Looks at a run directory again and again."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._with_launcher: Attempt | None = None
        self._elements: list[str] | None = None

    @property
    def array(self) -> bool:
        """Whether this is a job array, of which not all elements have been seen to end."""
        return bool(self._elements)

    def look(self) -> Signs | None:
        """List the run directory and its latest attempt, and read the launcher's record.

        Returns:
            None when it is no run directory any more.

        Raises:
            RunDirError: When it cannot be read.
        """
        run = self._run
        top = listdir(run.path)
        latest = run.latest(top)
        if latest is None and run.job.name not in top:
            return None
        launcher = self._launcher(latest) if latest else {}
        verdict = _ended(run, top)
        return Signs(
            begun=(run.log.name in top, latest.number if latest else None),
            verdict=verdict or (run.elements.name in top and self._all_elements_ended()),
            ending=(
                run.cancelled.name in top,
                run.ended.name in top,
                latest is None and run.log.name in top and bool(why_set_up_failed(last_lines(run.log))),
            ),
            launcher=tuple(launcher.get(name) for name in ("nonce", "phase", "detail")),
            beat=launcher.get("time"),
        )

    def _launcher(self, latest: Attempt) -> dict[str, object]:
        # only a listing shows that it exists now, but the folder has a file for each host: it is listed until then
        if self._with_launcher is None or self._with_launcher.number != latest.number:
            if latest.launcher.name not in listdir(latest.state):
                return {}
            self._with_launcher = latest
        with suppress(DamagedError):
            return read_record(latest.launcher, recordtypes.Launcher, listed=True) or {}
        return {}

    def _all_elements_ended(self) -> bool:
        """Whether each element of a job array has a verdict; looks at those only that come before the first without."""
        if self._elements is None:
            self._elements = listdir(self._run.elements)
        while self._elements:
            element = RunDir(self._run.elements / self._elements[-1])
            if not _ended(element, listdir(element.path)):
                return False
            self._elements.pop()
        return True


def _ended(run: RunDir, names: list[str]) -> bool:
    """Whether the latest attempt has a verdict, or was packed. names: those in the run directory."""
    latest = run.latest(names)
    return run.result.name in names if latest is None else latest.verdict.name in listdir(latest.path)


def removed(run: RunDir, job_id: str) -> RunDirError:
    """The error for a run directory that was removed while gridtf waited."""
    return RunDirError(
        f"{run.path} was removed while gridtf waited for its job, {job_id}",
        why="the job itself may go on",
        hint="only the scheduler's own commands can show and cancel it",
    )


class Watch:
    """Watches a job.

    Args:
        run: Its run directory.
        poll: The longest time between two questions to its scheduler, in seconds; None: as polling.py says.

    Attributes:
        latest: The last state that was seen; None before the first look.
    """

    def __init__(self, run: RunDir, poll: float | None = None) -> None:
        self.latest: JobView | None = None
        self._run = run
        self._poll = poll
        self._slowest = _SLOWEST_LOOK if poll is None else min(_SLOWEST_LOOK, poll)
        self._looker = Looker(run)
        self._signs: Signs | None = None
        self._queue: JobStatus | None = None
        self._begun: float | None = None  # when the latest attempt was seen first
        self._pace = Pace(CLUSTER)
        self._pause = 0.0
        self._next_look = float("-inf")
        self._explained_by: float | None = None
        self._over = False
        self._stays: float | None = None  # since when a job with a final verdict has been listed by its scheduler
        self._trouble = 0.0  # since when the run directory cannot be read

    def look(self) -> JobView | None:
        """Look at the run directory and ask the scheduler, each if it is time to.

        Returns:
            The state of the job; None without news.

        Raises:
            RunDirError: When the run directory cannot be read, or was removed. A failure that may pass, as while a file
                server restarts, is tolerated for a minute.
        """
        now = time.monotonic()
        if now < self._next_look - _PRECISION:
            return None
        try:
            view = self._look(now)
        except RunDirError as error:
            self._trouble = self._trouble or now
            if self.latest is None or not may_pass(error) or now - self._trouble > _TOLERATED:
                raise
            self._next_look = now + self._slowest
            return None
        self._trouble = 0.0
        self._next_look = now + self._pause
        self._over = view is not None and view.finished
        return view

    def _look(self, now: float) -> JobView | None:
        signs = self._looker.look()
        if signs is None:
            raise removed(self._run, self.latest.job_id if self.latest else "")
        before, self._signs = self._signs or signs, signs
        self._note(before, signs, now)
        news = signs.news != before.news
        self._pause = self._pace.tempo.look if news else min(self._pause * 1.3, self._slowest)
        view = self._between(signs, now) if news else None
        if (view is None or not view.finished) and self._due(now) <= now:
            view = self._ask(signs, now)
        return self._released(view, now)

    def refreshed(self) -> JobView | None:
        """The state of the job as its run directory shows it now, without a question to the scheduler.

        Returns:
            None before the first look.
        """
        if self._signs is None or self.latest is None or self.latest.finished:
            return self.latest
        try:
            return self._between(self._signs, time.monotonic()) or self.latest
        except RunDirError:  # look tells of one that does not pass
            return self.latest

    def ended(self) -> bool:
        """Whether the job has ended; to be called often. Looks as look does, and raises the same."""
        if not self._over:
            self.look()
        return self._over

    def rest(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._next_look - time.monotonic())

    def _due(self, now: float) -> float:
        return self._pace.due(now, patient=self._patient())

    def _patient(self) -> bool:
        """Whether the job waits, or is an array: a look shows its end, and a view of it reads the records of all."""
        return self._looker.array or (self._queue is not None and self._queue.state == JobState.PENDING)

    def _note(self, before: Signs, signs: Signs, now: float) -> None:
        """Let the pace know what has changed."""
        if signs.beat is not None and signs.beat != before.beat:
            self._pace.heard(now)
        if signs.begun != before.begun:
            self._pace.changed()
            self._begun = now
        if signs.over and (signs.verdict, signs.ending) != (before.verdict, before.ending):
            self._pace.ends()

    def _ask(self, signs: Signs, now: float) -> JobView:
        """Ask the scheduler, or take the answer to another command if it is newer than the last one."""
        pace, first = self._pace, self._pace.asked is None
        since = now - RECENT
        if pace.asked is not None:
            since = max(pace.asked + 1e-6, now - pace.limited(now, patient=self._patient()))
        seen = jobs.look(self._run, since, self._begun)
        self._begun = self._begun or now
        view, self._queue = seen.view, seen.queue
        if first:
            tempo = HERE if view.scheduler in ("local", "") else CLUSTER
            pace.tempo = tempo if self._poll is None else tempo.at_most(self._poll)
            self._pause = pace.tempo.look
        pace.answered(seen.asked)
        if first and signs.over:
            pace.ends()
        elif self.latest is not None and self.latest.state != view.state:
            pace.changed()
        return view

    def _between(self, signs: Signs, now: float) -> JobView | None:
        """The state by the run directory, between two questions; None if the scheduler has to be asked as well."""
        queue = self._queue
        if signs.verdict:
            queue = None
        elif self._pace.alive(now) and (queue is None or queue.state != JobState.RUNNING):
            queue = JobStatus(JobState.RUNNING)
        record = None
        with suppress(DamagedError):  # without it the end of the job is known still
            record = jobs.read_submitted(self._run) or jobs.read_joined(self._run)
        view = jobs.job_view(self._run, record, queue, time.time())
        # a job that has failed may be started again, which only the scheduler knows
        return view if view.state == JobState.COMPLETED or not view.finished else None

    def _final(self, view: JobView) -> bool:
        """Whether the job is over by its verdict, which rules another start out, and its scheduler still lists it."""
        if view.state == JobState.COMPLETED or view.state not in ENDED or not view.in_queue or view.attempt is None:
            return False
        with suppress(DamagedError):
            verdict = read_record(self._run.attempt(view.attempt).verdict, recordtypes.Verdict)
            return verdict is not None and verdict.get("again") is False
        return False

    def _released(self, view: JobView | None, now: float) -> JobView | None:
        """The view, unless the job has ended for a reason that accounting may still come to know."""
        if view is not None:
            self.latest = view
        if self.latest is not None:
            self._stays = (self._stays or now) if self._final(self.latest) else None
            if self._stays is not None and now - self._stays >= _LEAVES:
                reason = f"{self.latest.reason}; {self.latest.scheduler} still lists it {_LEAVES / 60:g} min later"
                self.latest = view = self.latest.replace(in_queue=False, reason=reason)
        if self.latest is None or not self.latest.finished or not (delay := jobs.accounting_delay(self.latest)):
            return view
        if self._explained_by is None:
            self._explained_by = now + delay
            self._pace.ends()
        self._pace.pause = min(self._pace.pause, _ACCOUNTED)
        return self.latest if now >= self._explained_by else None
