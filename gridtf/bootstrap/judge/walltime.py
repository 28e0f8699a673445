"""The end of the walltime: when a checkpoint is requested, and whether a job that has saved one is started again."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf import files
from gridtf.bootstrap.judge.progress import MOST_IDLE, Progress, output_dir, reached
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.errors import GridtfError
from gridtf.run import recordtypes, registry
from gridtf.run.rundir import Attempt, Record, RunDir, read_record
from gridtf.text import counted
from gridtf.values import Value

LAST_QUERY = 60.0  # seconds before the request in which the scheduler is not asked again for the end of the job


# --- when to save


def until_next_look(left: float) -> float:
    """How long to wait before the scheduler is asked again: the limit may be made shorter, and when it is time, longer.

    Args:
        left: Seconds until it is time to request the checkpoint.

    Returns:
        Seconds: a scheduler is asked about ten times a day.
    """
    return left if left <= LAST_QUERY else max(LAST_QUERY, left / 2)


# --- whether to go on


class Chain(Value):
    """The attempts of a job that have saved and ended, up to one of them.

    Attributes:
        links: How often the job was started again after one of them.
        idle: How many of them, at the end, made no progress.
        progress: How far they have come.
    """

    links: int = 0
    idle: int = 0
    progress: Progress = Progress()

    def after(self, progress: Progress) -> Chain:
        """The chain with a further attempt.

        Args:
            progress: How far that has come.
        """
        idle = 0 if progress.beyond(self.progress) else self.idle + 1
        return Chain(self.links, idle, self.progress.farthest(progress))

    def why_over(self, most: int) -> str:
        """Why the job is not started again; empty where it may be.

        Args:
            most: How often it may be started again.
        """
        if self.idle >= MOST_IDLE:
            return f"{self.idle} attempts in a row made no progress, {_stuck(self.progress)}"
        if self.links >= most:
            return f"it has been started again {counted(most, 'time')}, as often as it may be (--continue)"
        return ""

    def to_record(self) -> Record:
        """The entry of verdict.json."""
        return {"links": self.links, "idle": self.idle, "progress": self.progress.to_record()}

    @classmethod
    def from_record(cls, record: Record) -> Chain:
        """Read what to_record has written."""
        return cls(record["links"], record["idle"], Progress.from_record(record["progress"]))


def _stuck(progress: Progress) -> str:
    if progress.step is not None:
        return f"none came beyond step {progress.step}"
    if progress.checkpoint is not None:
        return f"the newest checkpoint is still step-{progress.checkpoint}"
    return "by new files in OUTPUT_DIR and the steps that tasks report (gridtf.progress)"


def goes_on(end: Verdict, attempt: Attempt, job: LaunchedJob, records: Mapping[str, Record]) -> Verdict:
    """Decide whether a job whose attempt has ended SAVED is started again.

    Args:
        end: The verdict on the attempt.
        records: Task name -> its record, as its host has reported it last.

    Returns:
        The verdict: ``again`` if the scheduler shall start the job again, else with the reason, and what a user can do.
    """
    resumes, most = _can_be_resumed(attempt.run), job.spec.continuations
    hint = f"to continue with its checkpoints: gridtf resume {job.job_id}" if resumes else end.hint
    if not most:
        return end.replace(hint=hint)
    chain = _before(attempt).after(reached(output_dir(attempt.run, job.spec), records))
    injob, environ = job.scheduler.injob, job.system.environ
    if why := _cancelled(attempt.run) or chain.why_over(most) or injob.why_not_again(environ):
        return end.replace(continuation=f"it is not started again: {why}", hint=hint, chain=chain.to_record())
    chain = chain.replace(links=chain.links + 1)
    continuation = f"{job.scheduler.title} starts it again ({chain.links} of {most})"
    hint = f"if that does not happen: gridtf resume {job.job_id}" if resumes else ""  # as when it leaves the queue
    return end.replace(continuation=continuation, hint=hint, again=True, chain=chain.to_record())


def not_again(end: Verdict, error: Exception, job_id: str) -> Verdict:
    """The verdict on a job that is not started again although it should be.

    Args:
        end: The verdict so far.
        error: Why not.
        job_id: The scheduler's id of the job.
    """
    why = error.what if isinstance(error, GridtfError) else f"{type(error).__name__}: {error}"
    hint = f"to continue with its checkpoints: gridtf resume {job_id}"
    return end.replace(continuation=f"it is not started again: {why}", hint=hint, again=False)


def _cancelled(run: RunDir) -> str:
    """Whether the job was cancelled while it saved; the scheduler may not have been asked to end it yet."""
    cancelled = read_record(run.cancelled, recordtypes.Cancelled, own=True)
    return f"it was cancelled by {cancelled.get('user')}" if cancelled else ""


def _before(attempt: Attempt) -> Chain:
    """The chain of the attempts before this one."""
    for earlier in reversed(attempt.run.attempts()):
        if earlier.number < attempt.number:
            verdict = read_record(earlier.verdict, recordtypes.Verdict, own=True) or {}
            if verdict.get("chain"):
                return Chain.from_record(verdict["chain"])
    return Chain()


def _can_be_resumed(run: RunDir) -> bool:
    """Whether gridtf has submitted the job, and not as a job array.

    It writes the script before, and submitted.json afterwards: a short job may end in between. A script that a user has
    rendered into that place, and submitted, has a submitted.json from its start on.
    """
    submitted = read_record(run.submitted, recordtypes.Submitted, own=True) or {}
    return files.is_file(run.script) and registry.own_script(submitted)
