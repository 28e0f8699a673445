"""Which job follows which: the conditions of a job's start, the job that goes on with another one's results, steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gridtf.errors import RunDirError
from gridtf.run import recordtypes
from gridtf.run.reading import Reading
from gridtf.run.rundir import Record, RunDir, is_ours, listdir, read_record

# Key of the specification -> what the jobs that it names must have done before this one starts.
CONDITIONS = {"after": "completed", "after_any": "ended", "after_failed": "failed"}
WAITING = "after"  # the phase of a launcher that waits for other jobs although its scheduler has started its own
RESUMED = ".gridtf-resumed-{}"  # links in a folder of results, which name the jobs that go on with them, from 1 on
TO = "run:"  # so that the link leads nowhere: who copies the results would follow it


def output_dir(run: RunDir, job: Record | None) -> Path:
    """The folder that the tasks of a job have as OUTPUT_DIR. Pure.

    Args:
        run: Its run directory.
        job: Its job.json; None where only its owner may read it.

    Returns:
        That of the run directory, or the one that the job's ``env`` names; placeholders in it are not replaced.
    """
    spec = (job or {}).get("spec", {})
    named = spec.get("env", {}).get("OUTPUT_DIR")
    return Path(spec.get("chdir", run.path), named) if isinstance(named, str) and named else run.output


def waits_for(job: Record | None) -> dict[str, str]:
    """The jobs that a job starts after: run directory -> the words for it, such as ``train (4711)``. Pure.

    Args:
        job: Its job.json.
    """
    return dict((job or {}).get("origin", {}).get("waits_for", {}))


def begun(run: RunDir) -> bool:
    """Whether an attempt of the job has placed its tasks: the conditions of its start have been met."""
    return any(attempt.plan.name in listdir(attempt.path) for attempt in run.attempts())


def continued(run: RunDir) -> RunDir:
    """The newest job of this user that goes on with the results of a job (`gridtf resume`); itself without one.

    Raises:
        RunDirError: When records cannot be read, or those of the job are not this user's.
    """
    folder = output_dir(run, read_record(run.job, recordtypes.Job, own=True))
    own = read_record(run.submitted, recordtypes.Submitted, own=True) or {}
    marks = [match[1] for name in listdir(folder) if (match := re.fullmatch(RESUMED.format(r"(\d{1,9})"), name))]
    for number in sorted(map(int, marks), reverse=True):
        try:
            other = RunDir(str((folder / RESUMED.format(number)).readlink()).removeprefix(TO))
        except OSError:  # no link: some other file
            continue
        if other.path == run.path:
            break
        try:  # a submission that was refused has left its mark
            known = is_ours(other.path) and read_record(other.submitted, recordtypes.Submitted, own=True)
        except RunDirError:
            continue
        # results of several jobs may be in one folder of the user's
        if known and known.get("time", 0.0) >= own.get("time", 0.0):
            return other
    return run


def steps(run: RunDir, job: Record | None, reading: Reading) -> Mapping[str, str]:
    """The steps of the job file that a job is a step of: name -> run directory; empty for any other job.

    Args:
        run: Its run directory.
        job: Its job.json; None where only its owner may read it.
        reading: Reads the record of the steps.
    """
    origin = (job or {}).get("origin", {})
    first = origin.get("chain") or (run.path if "step" in origin else None)
    record = reading.record(RunDir(first).steps, recordtypes.Steps) if first else None
    found: Mapping[str, str] = (record or {}).get("steps", {})
    return found


def of_chain(run: RunDir, origin: Record) -> dict[str, str]:
    """What a job that goes on with a step, or runs it again, has in its ``origin``; empty where it is no step. Pure.

    Args:
        run: The run directory of the step.
        origin: ``origin`` in its job.json.
    """
    return {"step": origin["step"], "chain": origin.get("chain", str(run.path))} if "step" in origin else {}
