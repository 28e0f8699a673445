"""Whether a job may start: whether the jobs that it is to start after have ended as they must, by gridtf's own records.

The scheduler has started it, so those it knew of have ended; but how, only their verdicts tell, and one that has saved
may have been continued under another id. Hosts see the records of others late, so what a record lacks is doubted.
"""

from __future__ import annotations

from collections.abc import Callable

from gridtf.bootstrap.judge.evidence import STOP, Evidence
from gridtf.errors import GridtfError, SchedulerError
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes, reduced
from gridtf.run.following import CONDITIONS, begun, continued, waits_for
from gridtf.run.rundir import RunDir, read_record
from gridtf.schedulers.api import JobIdentity, Scheduler
from gridtf.states import ENDED, JobState
from gridtf.text import some
from gridtf.values import Value

DOUBT = 60.0  # seconds in which a verdict may become visible, and a scheduler may answer
_LONGEST_PAUSE = 30.0  # seconds between two looks at most; a tenth of the time waited so far before that


class Standing(Value):
    """What a look at the other jobs has shown.

    Attributes:
        why: What the job waits for, for the status; empty once it may start.
        ids: The scheduler's ids of the jobs that go on.
        never: The end of the job where it can never start; None where it can.
    """

    why: str = ""
    ids: tuple[str, ...] = ()
    never: Evidence | None = None


class Conditions:
    """The conditions of a job's start.

    Args:
        run: The job's run directory.
        spec: Its specification, which names the run directories of other jobs.
        scheduler: The scheduler of all of them.
        clock: Seconds, such as time.monotonic.
        waited: Whether another process of the job has looked, and has waited and doubted before: its job runner.
    """

    def __init__(
        self, run: RunDir, spec: JobSpec, scheduler: Scheduler, clock: Callable[[], float], *, waited: bool = False
    ) -> None:
        self._scheduler, self._clock, self._doubt = scheduler, clock, 0.0 if waited else DOUBT
        self._begin = clock()
        self._doubted: dict[RunDir, float] = {}  # since when
        self._vanished: dict[RunDir, str] = {}  # how jobs have ended that have left no trace
        self._words = waits_for(read_record(run.job, recordtypes.Job, own=True))
        met = begun(run)  # at an earlier start of the job
        self._others = [] if met else [(key, RunDir(path)) for key in CONDITIONS for path in getattr(spec, key)]

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return min(_LONGEST_PAUSE, 1.0 + (self._clock() - self._begin) / 10)

    def look(self) -> Standing:
        """Look at the other jobs. None is judged before all have ended: one that has saved may be continued until then,
        as where a scheduler holds the job."""
        never: Evidence | None = None
        waits: list[str] = []
        ids: list[str] = []
        for key, run in self._others:
            word = self._words.get(str(run.path), str(run.path))
            try:
                seen = _look(continued(run), self._scheduler)
            except GridtfError as error:
                seen = _Seen(unknown=error.what)
            if seen.goes_on:
                self._doubted.pop(run, None)
            since = self._doubted.setdefault(run, self._clock())
            if seen.goes_on or (not seen.sure and self._clock() - since < self._doubt):
                waits.append(word)
                ids += filter(None, [seen.goes_on])
            elif seen.unknown:
                never = never or _never(word, f"cannot be judged ({seen.unknown})", key)
            elif key != "after_any" and (seen.state == JobState.COMPLETED) != (key == "after"):
                if seen.vanished and run not in self._vanished:  # the accounting is asked once
                    self._vanished[run] = _accounted(seen.vanished, self._scheduler)
                never = never or _never(word, f"is {self._vanished.get(run, seen.state)}", key)
        return Standing(f"after {some(waits)}", tuple(ids)) if waits else Standing(never=never)


class _Seen(Value):
    """A look at one job.

    Attributes:
        state: How it has ended; empty where it has not, or that is not known.
        goes_on: The scheduler's id of it, where it has not ended.
        unknown: Why that is not known; empty where it is.
        sure: Whether the records show it: they may be seen late.
        vanished: The job, where it is gone and has left no trace, and its scheduler records all that have begun.
    """

    state: str = ""
    goes_on: str = ""
    unknown: str = ""
    sure: bool = False
    vanished: JobIdentity | None = None


def _accounted(job: JobIdentity, scheduler: Scheduler) -> str:
    """How a job has ended that has left no trace: it was deleted before it began, if the accounting lacks it."""
    found = scheduler.login.accounting([job]).get(job.job_id)
    return found.state if found else JobState.CANCELLED


def _look(run: RunDir, scheduler: Scheduler) -> _Seen:
    submitted = read_record(run.submitted, recordtypes.Submitted, own=True)
    if submitted is None:
        return _Seen(unknown=f"its run directory {run.path} does not exist any more")
    parts = [RunDir(run.elements / name) for name in submitted.get("elements", ())] or [run]
    ends = [_verdict(part) for part in parts]
    if all(end.sure for end in ends):
        return next((end for end in ends if end.state != JobState.COMPLETED), ends[0])
    identity = JobIdentity.from_record(submitted)
    try:
        queue = scheduler.login.query([identity])[identity.job_id]
    except SchedulerError as error:
        return _Seen(unknown=error.what)
    if queue.state in (JobState.PENDING, JobState.RUNNING):
        return _Seen(goes_on=identity.job_id)
    if read_record(run.cancelled, recordtypes.Cancelled, own=True) is not None:
        return _Seen(JobState.CANCELLED, sure=True)
    if queue.state == JobState.UNKNOWN and not queue.purged:
        return _Seen(unknown=queue.reason)
    known = [end.state for end in ends if end.state != JobState.COMPLETED]  # of one that was to start again
    state = queue.state if queue.state in ENDED - {JobState.COMPLETED} else JobState.FAILED
    traced = scheduler.login.accounting_delay == 0 or run.elements.exists() or run.log.exists() or run.latest()
    vanished = None if traced or not queue.purged else identity
    return _Seen(next(filter(None, known), state), vanished=vanished)


def _verdict(run: RunDir) -> _Seen:
    """How a job, or an element of an array, has ended; sure where it has been found final by its own launcher."""
    packed, latest = reduced.result(run) if run.path.is_dir() else None, run.latest()
    if packed is not None:  # of a sweep
        return _Seen(packed["verdict"]["state"], sure=True)
    verdict = (read_record(latest.verdict, recordtypes.Verdict, own=True) if latest else None) or {}
    state = str(verdict.get("state", ""))
    final = state == JobState.COMPLETED or (bool(state) and verdict.get("again") is False and "next" not in verdict)
    return _Seen(state, sure=final)


def _never(word: str, how: str, key: str) -> Evidence:
    """The end of a job that can never start."""
    reason = f"job {word} {how}, and this one was to start after it had {CONDITIONS[key]}"
    hint = "gridtf resume starts the other job again; when that has ended well, gridtf resume starts this one"
    return Evidence(STOP, reason, hint=hint if key == "after" else "", state=JobState.CANCELLED)
