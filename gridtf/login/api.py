"""``gridtf.submit``: submission from Python, with the site's and the user's file below the JobSpec."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from gridtf import schedulers
from gridtf.errors import GridtfError, UsageError
from gridtf.jobspec import config
from gridtf.jobspec.options import Table
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission

if TYPE_CHECKING:
    from gridtf.login.job import Job

_FLAG = re.compile(r"(?<![\w=-])(--[a-z][a-z-]*)(?:=('[^']*'|[^\s,;:)`]+))?")


def submit(spec: JobSpec, *, config_files: bool = True) -> Job:
    """Submit a job.

    After an error nothing remains on disk or in the queue, except after MaybeSubmittedError.

    Args:
        spec: The job. Relative paths are resolved against the current folder.
        config_files: Whether values that ``spec`` leaves at their defaults are taken from the site's and the user's
            file, as on the command line; set-up lines and variables are added to theirs. Variables such as
            GRIDTF_SUBMIT_NODES and ``gridtf.toml`` are for the command line only.

    Returns:
        The submitted job; its ``notes`` are what the command line would print to stderr.

    Raises:
        UsageError: For values that gridtf or the scheduler cannot accept.
        RunDirError: When the run directory exists already or cannot be written.
        SchedulerError: When the scheduler refuses the job.
        MaybeSubmittedError: When it is unknown whether the scheduler accepted the job.
    """
    given: object = spec
    if not isinstance(given, JobSpec):
        listed = isinstance(given, list | tuple) and given and all(isinstance(word, str) for word in given)
        command = json.dumps(given, ensure_ascii=False) if listed else '["python", "train.py"]'
        hint = f"write gridtf.submit(gridtf.JobSpec(command={command}))"
        raise UsageError(f"gridtf.submit takes a JobSpec, not a {type(given).__name__}", hint=hint)
    try:
        made = config.Configured(spec, {})
        if config_files:
            made = schedulers.with_options(
                lambda table, complete: config.complement(spec, os.environ, table, complete=complete)
            )
        job = submission.submit(made.spec, made.sources)
    except GridtfError as error:
        table = schedulers.job_options()
        error.what, error.why, error.hint = (in_python(text, table) for text in (error.what, error.why, error.hint))
        raise
    job.notes = tuple(in_python(note, schedulers.job_options()) for note in (*made.notes, *job.notes))
    return job


def in_python(text: str, table: Table) -> str:
    """Replace flags in a message by keywords of a JobSpec. Pure.

    Args:
        text: The message; flags of other programs, and short ones, stay.
        table: All options.
    """
    options = {flag: option for option in table for flag in option.flags}

    def keyword(match: re.Match[str]) -> str:
        option, value = options.get(match[1]), (match[2] or "").strip("'")
        if option is None:
            return match[0]
        section, _, name = option.key.rpartition(".")
        if section:
            count = "1" if option.kind == "switch" else value or "…"
            return f'tasks={{"{section.removeprefix("tasks.")}": TaskSpec({name}={count})}}'
        if option.kind == "lines" and value:
            return f'{name}=["{value}"]'
        return f"{name}={value}" if value else name

    return _FLAG.sub(keyword, text)
