"""Runs a job again: its specification with changes, and its code, in a run directory of its own."""

from __future__ import annotations

import os
from pathlib import Path

from gridtf import files, schedulers
from gridtf.contract import OUTPUT_DIR
from gridtf.errors import GridtfError, SpecError, UsageError
from gridtf.jobspec import config, merging, placeholders
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.sweep import Sweep
from gridtf.login import sweeps
from gridtf.login.job import Job
from gridtf.login.resume import need_own
from gridtf.run import recordtypes, registry
from gridtf.run.following import CONDITIONS, of_chain
from gridtf.run.reading import known
from gridtf.run.rundir import Record, RunDir, here, listdir, read_record

_OUTPUT = f"env.{OUTPUT_DIR}"
_NOTHING: dict[str, tuple[str, ...]] = dict.fromkeys(CONDITIONS, ())  # is waited for


def again(job: Job, typed: config.Typed, *, code_now: bool = False) -> config.Configured:
    """The job that a job is when it is run again with changes: what submission.submit takes.

    Its run directory is a new one beside that of the other job, and so is its OUTPUT_DIR. It waits for no job that the
    other one has waited for.

    Args:
        job: A job of this user, in any state.
        typed: The changes, as on a command line. GRIDTF_SUBMIT_ variables change nothing.
        code_now: Whether the working folder as it is now runs, even if the other job has run a snapshot.

    Raises:
        GridtfError: The job is another user's, was not submitted by gridtf, or cannot be run again.
        UsageError: For a wrong change.
    """
    need_own(job, "rerun")
    registry.need_one_job(job.run, "rerun")
    array = RunDir(job.run_dir.parent.parent)
    element = job.run_dir.parent == array.elements
    run = array if element else job.run
    record = read_record(run.job, recordtypes.Job, own=True) or {}
    submitted = read_record(run.submitted, recordtypes.Submitted, own=True)
    swept = element and "sweep.json" in listdir(run.path)
    if "spec" not in record or submitted is None or not registry.own_script(submitted) or (element and not swept):
        what = "is an element of a job array" if element else "was not submitted by gridtf"
        hint = "start it again in the way it was started" if not element else "submit it as a job of its own"
        raise GridtfError(f"the job in {job.run_dir} {what}: gridtf cannot run it again", hint=hint)
    sources = record.get("sources", {})
    spec = sweeps.element_spec(job) if swept else sweeps.submitted_as(run)[0]
    env = {name: text for name, text in spec.env.items() if name != OUTPUT_DIR or not _of_a_run(text, sources)}
    spec = spec.replace(
        scheduler=submitted["scheduler"], env=env, run_dir=None, run_root=str(run.path.parent), **_NOTHING
    )
    made, source = _changed(job, spec, typed)
    kept = made.sources.get(_OUTPUT) == source  # it is no folder that the command line names
    results, new = (placeholders.fixed(one.env[OUTPUT_DIR] if kept else "", one.params) for one in (spec, made.spec))
    if results and results == new:
        hint = f"choose another folder: --env {OUTPUT_DIR}=DIR; `gridtf resume` goes on with the training in it"
        raise GridtfError(f"{job.name} has its results in {results}, where this job would write as well", hint=hint)
    known = record.get("origin", {})
    origin = {"rerun_of": str(job.run_dir), **of_chain(run, known)}
    return made.replace(origin={**origin, **_code(job, made, source, known, now=code_now)})


def failed(job: Job, typed: config.Typed, *, code_now: bool = False) -> tuple[config.Configured, Sweep]:
    """Those elements of a sweep that have ended and did not complete, and those that never ran, with changes.

    Their results count in the table of the sweep.

    Args:
        job: The sweep, or one that runs elements of it again.
        typed: As for again, and so is ``code_now``. What the elements differ in stays, and so does their place.

    Returns:
        What submission.submit takes.

    Raises:
        GridtfError: When there is nothing to run again.
        UsageError: For a wrong change.
        RunDirError: When a record is damaged or another user's.
    """
    job = Job(sweeps.first_of(job))
    need_own(job, "rerun")
    some, place, begun = sweeps.to_run_again(job.run)
    spec, known = sweeps.submitted_as(job.run)
    if begun:
        spec = spec.replace(**_NOTHING)
    name = f"{spec.title[:52]}-{place.path.name}"  # so that the name of the sweep still means the sweep
    spec = spec.replace(name=name, scheduler=job.scheduler, run_dir=str(place.path))
    made, source = _changed(job, spec, typed)
    for key in ("name", "scheduler", "run_dir", "run_root", *(f"params.{name}" for name in some.rows[0])):
        if made.sources.get(key, source) != source:
            what = f"elements that --failed runs again keep the {key.replace('params.', '')} of the sweep"
            raise UsageError(f"{made.sources[key]}: {what}", hint="leave it out, or submit a sweep of its own")
    try:
        sweeps.check_outputs(made.spec, some.rows)
    except SpecError as error:
        raise merging.located(error, made.sources) from None
    origin = {"rerun_of": str(job.run_dir), **_code(job, made, source, known, now=code_now)}
    return made.replace(origin=origin), some


def _changed(job: Job, spec: JobSpec, typed: config.Typed) -> tuple[config.Configured, str]:
    """A specification from a job with the changes of a command line, and the source of the values without a change."""
    source = f"from {job.name} ({job.id})"
    made = schedulers.with_options(
        lambda table, complete: config.change(spec, source, typed, os.environ, here(), table, complete=complete)
    )
    return made, source


def _code(job: Job, made: config.Configured, source: str, known: Record, *, now: bool) -> Record:
    """The snapshot of a job, for the origin of one that runs it again; empty where that runs the working folder.

    Args:
        job: The job.
        made: The one that runs it again.
        source: Of the values that it has from the job.
        known: The origin of the job.
        now: Whether the working folder as it is now is to run.
    """
    snapshot = known.get("snapshot")
    if not snapshot or not made.spec.snapshot or now or made.sources.get("chdir") != source:
        return {}
    if not files.is_folder(Path(snapshot)):
        hint = "--code now runs the working folder as it is now"
        raise GridtfError(f"the snapshot that {job.name} has run is gone: {snapshot}", hint=hint)
    return {"snapshot": snapshot}


def code_notes(made: config.Configured, job: Job) -> list[str]:
    """What is to be said of the code of a job that was run again in the working folder as it is now.

    Args:
        made: What again or failed has returned.
        job: The new job.
    """
    runs = (RunDir(made.origin["rerun_of"]), job.run)
    before, now = (known(run.code, recordtypes.Code).get("commit") for run in runs)
    if "snapshot" in made.origin or not (before and now) or before == now:
        return []
    return [f"it runs the code as it is now, commit {now:.10}; that of the other job was {before:.10}"]


def _of_a_run(results: str, sources: Record) -> bool:
    """Whether it is the folder of the run that `gridtf resume` went on with, and none that the user has named."""
    return _OUTPUT not in sources and RunDir(Path(results).parent).output == Path(results)
