"""gridtf in Python: ``submit``, ``render``, ``load`` and ``jobs``, with the configuration files below a JobSpec."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.errors import GridtfError, UsageError
from gridtf.jobspec import config
from gridtf.jobspec.jobfile import JOB_FILE
from gridtf.jobspec.options import KINDS, PREFIX, Table
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.run import registry
from gridtf.values import fields

if TYPE_CHECKING:
    from gridtf.login.job import Job

_FLAG = re.compile(r"(?<![\w=-])(--[a-z][a-z-]*)(?:=('[^']*'|[^\s,;:)`]+))?")


class Layered(JobSpec):
    """A job with the values of all layers, so that submit and render add none: a value may be a default on purpose.

    Attributes:
        trusted: As in config.Configured.
        notes: As in config.Configured.
    """

    trusted: frozenset[int] | None = None
    notes: tuple[str, ...] = ()


def submit(spec: JobSpec | Sequence[str], *, layers: bool = True) -> Job:
    """Submit a job.

    After an error nothing remains on disk or in the queue, except after MaybeSubmittedError.

    Args:
        spec: The job, or its command as a list. Relative paths are resolved against the current folder.
        layers: Whether values that ``spec`` leaves at their defaults are taken from the site's and the user's file, as
            on the command line; set-up lines and variables are added to theirs. Variables such as
            GRIDTF_SUBMIT_NODES and ``gridtf.toml`` are for the command line and ``load``.

    Returns:
        The submitted job; its ``notes`` are what the command line would print to stderr.

    Raises:
        UsageError: For values that gridtf or the scheduler cannot accept.
        RunDirError: When the run directory exists already or cannot be written.
        SchedulerError: When the scheduler refuses the job.
        MaybeSubmittedError: When it is unknown whether the scheduler accepted the job.
    """
    with _in_words_of_python():
        made = _complete(spec, "submit", layers)
        job = submission.submit(made.spec, made.sources, made.trusted)
    job.notes = tuple(in_python(note, schedulers.job_options()) for note in (*made.notes, *job.notes))
    return job


def render(spec: JobSpec | Sequence[str], *, layers: bool = True) -> str:
    """The job script that submit would submit, without submitting it; as `gridtf render`.

    Args:
        spec: As for submit.
        layers: As for submit.

    Raises:
        UsageError: For values that gridtf or the scheduler cannot accept.
        GridtfError: For errors in the user's template.
    """
    with _in_words_of_python():
        made = _complete(spec, "render", layers)
        return submission.script(submission.prepare(made.spec, made.sources, made.trusted))


def load(jobfile: str | os.PathLike[str] = JOB_FILE, *, layers: bool = True) -> JobSpec:
    """Read a job file.

    Args:
        jobfile: Its path.
        layers: Whether to merge it with the site's and the user's file and variables such as GRIDTF_SUBMIT_NODES, as on
            the command line: submit and render then add nothing to the result, nor to what its ``replace`` returns.

    Returns:
        The job. Its ``chdir`` is the folder of the job file, unless a layer says otherwise.

    Raises:
        UsageError: For an invalid value in any layer; it names the file and the line.
        NotFoundError: When there is no such file.
    """
    from gridtf.run.rundir import here

    environ = dict(os.environ)
    if not layers:
        environ = {name: text for name, text in environ.items() if not name.startswith(PREFIX)}
        environ |= {config.SITE_VARIABLE: "", "XDG_CONFIG_HOME": os.devnull}
    with _in_words_of_python():
        typed, use = config.Typed(os.fspath(jobfile)), config.Use.SUBMIT if layers else config.Use.LOOK
        made = schedulers.with_options(
            lambda table, complete: config.configure(typed, environ, here(), table, complete=complete, use=use)
        )
    if made.steps:
        raise UsageError(f"{os.fspath(jobfile)} has [steps], and is no single job", hint="gridtf submit takes it")
    return Layered(**_values(made.spec), trusted=made.trusted, notes=made.notes) if layers else made.spec


def jobs() -> list[Job]:
    """This user's jobs whose run directories exist, newest first. Their states are not looked up.

    Raises:
        RunDirError: When the index of jobs cannot be read.
    """
    from gridtf.login.job import Job

    return [Job(run) for run in registry.runs(os.environ)]


def _complete(spec: JobSpec | Sequence[str], verb: str, layers: bool) -> config.Configured:
    """A job with the layers below it."""
    given: object = spec
    if isinstance(given, list | tuple) and given:
        given = JobSpec(command=list(given))
    if not isinstance(given, JobSpec):
        hint = f'write gridtf.{verb}(["python", "train.py"]), or gridtf.{verb}(gridtf.JobSpec(…))'
        raise UsageError(f"gridtf.{verb} takes a JobSpec or a list of words, not a {type(given).__name__}", hint=hint)
    if isinstance(given, Layered):
        return config.Configured(JobSpec(**_values(given)), {}, given.trusted, given.notes)
    if not layers:
        return config.Configured(given, {})
    return schedulers.with_options(
        lambda table, complete: config.complement(given, os.environ, table, complete=complete)
    )


def _values(spec: JobSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in fields(JobSpec)}


@contextlib.contextmanager
def _in_words_of_python() -> Iterator[None]:
    """Errors speak of keywords, not of flags."""
    try:
        yield
    except GridtfError as error:
        table = schedulers.job_options()
        error.what, error.why, error.hint = (in_python(text, table) for text in (error.what, error.why, error.hint))
        raise


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
            count = "1" if option.kind.of_flag else value or "…"
            return f'tasks={{"{section.removeprefix("tasks.")}": TaskSpec({name}={count})}}'
        if option.kind is KINDS["lines"] and value:
            return f'{name}=["{value}"]'
        return f"{name}={value}" if value else name

    return _FLAG.sub(keyword, text)
