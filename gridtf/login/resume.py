"""Submits the job of a run directory once more, with the OUTPUT_DIR of that run: it goes on from its checkpoints."""

from __future__ import annotations

import shlex
from itertools import count
from pathlib import Path

from gridtf import files
from gridtf.contract import OUTPUT_DIR
from gridtf.errors import GridtfError, RunDirError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.observe.views import JobView
from gridtf.run import recordtypes, registry
from gridtf.run.following import CONDITIONS, RESUMED, TO, begun, of_chain
from gridtf.run.rundir import RunDir, is_ours, listdir, mark, owner, read_record
from gridtf.states import JobState


def resume(job: Job) -> Job:
    """Submit a job once more that has ended before it was done.

    The new job has the specification of the other one, a run directory of its own beside that of the other one, and the
    OUTPUT_DIR of the other one.

    Args:
        job: The job that has ended.

    Returns:
        The new job.

    Raises:
        GridtfError: When the job has not ended, has completed or was not submitted by gridtf.
        UsageError, RunDirError, SchedulerError, MaybeSubmittedError: As submission.submit does.
    """
    need_own(job, "resume")
    registry.need_one_job(job.run, "resume")
    record = read_record(job.run.job, recordtypes.Job, own=True)
    submitted = read_record(job.run.submitted, recordtypes.Submitted, own=True)
    if record is None or submitted is None or not registry.own_script(submitted):
        element = job.run_dir.parent == RunDir(job.run_dir.parent.parent).elements
        what = "is an element of a job array" if element else "was not submitted by gridtf"
        how = "submit it as a job of its own" if element else "start it again in the way it was started"
        if element and registry.whole(job.run).sweep.name in listdir(registry.whole(job.run).path):
            how = f"gridtf rerun {shlex.quote(str(job.run_dir))}"
        hint = f"{how}, with --env OUTPUT_DIR={job.output_dir}"
        raise GridtfError(f"the job in {job.run_dir} {what}: gridtf cannot resume it", hint=hint)
    need_unfinished(job.status())
    spec = again(JobSpec.from_dict(record["spec"]), job)
    if begun(job.run):  # the jobs that it was to start after have ended
        spec = spec.replace(**dict.fromkeys(CONDITIONS, ()))
    if not files.is_folder(job.output_dir):
        raise RunDirError(
            f"the folder with its results, {job.output_dir}, does not exist any more, or is closed to you"
        )
    known = record.get("origin", {})
    origin = {**{key: path for key, path in known.items() if key == "snapshot"}, **of_chain(job.run, known)}
    return submission.submit(spec, record.get("sources"), claim=lambda new: _claim(job.output_dir, new), origin=origin)


def need_own(job: Job, command: str) -> None:
    """Check that the job is one, and this user's.

    Args:
        command: What is to be done with it, for the hint.

    Raises:
        GridtfError: When it is not.
    """
    registry.need_run(job.run)
    if not is_ours(job.run_dir):
        user = owner(job.run_dir)
        raise RunDirError(f"the job in {job.run_dir} belongs to user {user}", hint=f"only {user} can {command} it")


def _claim(results: Path, new: Path) -> None:
    """Note in the folder of the results which job is the next to write them: two that are resumed at once would both.

    Locks do not hold between login hosts; the making of a symbolic link does.

    Args:
        results: The folder.
        new: The run directory of the new job.

    Raises:
        GridtfError: When another one has resumed this training, and has not ended or has completed.
    """
    for number in count(1):
        if mark(path := results / RESUMED.format(number), f"{TO}{new}"):
            return
        other = RunDir(str(path.readlink()).removeprefix(TO))
        if other.path.is_dir() and other.path != new:  # a submission that was refused has left the name free
            _need_ended(Job(other))


def _need_ended(other: Job) -> None:
    if not other.run.submitted.exists():
        what = f"this training is being resumed at this moment, in {other.run_dir}"
        raise GridtfError(what, hint="if no other command does, remove that folder")
    need_unfinished(other.status())


def need_unfinished(view: JobView) -> None:
    """Check that a job has ended, and before it was done. Pure.

    Args:
        view: Its state.

    Raises:
        GridtfError: When it has not.
    """
    if not view.finished:
        hint = "wait for its end, or cancel it: two jobs would write the same results"
        raise GridtfError(f"job {view.job_id} has not ended: it is {view.state}", hint=hint)
    if view.state == JobState.COMPLETED:
        hint = "its results are in the folder that `gridtf output` prints; to train on, submit a job of its own"
        raise GridtfError(f"job {view.job_id} has completed: nothing is left to resume", hint=hint)


def again(spec: JobSpec, job: Job) -> JobSpec:
    """The specification of the new job: a new run directory beside the old one, and the same OUTPUT_DIR. Pure.

    Args:
        spec: The specification of the job that has ended.
        job: That job.
    """
    env = {OUTPUT_DIR: str(job.run.output), **spec.env}
    return spec.replace(scheduler=job.scheduler, env=env, run_dir=None, run_root=str(job.run_dir.parent))
