"""gridtf in Python: ``submit``, ``render``, ``load`` and ``jobs``, with the configuration files below a JobSpec."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
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


class Jobs(list["Job"]):
    """Jobs, as a list and as a table."""

    def table(self) -> list[dict[str, Any]]:
        """A row for each of the jobs, in their order: ``pandas.DataFrame(gridtf.jobs().table())``.

        Schedulers are asked once for all jobs, and the records of each job are read: with its samples, which takes
        about a second for 20,000 of them.

        Returns:
            A dict of strings, numbers and None for each job. These columns all have, None where a value is not known:
            ``name``, ``job_id``, ``scheduler``, ``state`` and ``reason`` as `gridtf status` shows them; ``cause``, the
            task that failed first; ``submitted``, ``started`` and ``ended`` in seconds since the epoch; ``hosts``,
            their names with a space between two; ``tasks``, their number; ``run_dir``. Where its records can be read:
            ``seconds`` for which its tasks ran, in all attempts, until now for a job that runs; ``cpu_seconds`` and
            ``gpu_seconds``, these times the CPUs that its tasks had requested (one without a request), and times their
            GPUs; ``step``, the last that was reported; ``commit`` of the code. Of a job with parameters or values also
            ``params.NAME``, and ``last.NAME``, ``least.NAME`` and ``most.NAME`` of what gridtf.progress has reported:
            the last value, the smallest and the largest; pandas fills in NaN for the others. A job whose records cannot
            be read has the reason in ``reason``; this raises nothing for it.
        """
        from gridtf.report import table

        return table.rows([job.run for job in self], time.time())


def jobs(
    *,
    name: str | None = None,
    since: float | None = None,
    states: Collection[str] | None = None,
    sweep: str | None = None,
) -> Jobs:
    """This user's jobs whose run directories exist, newest first. Their states are looked up for ``states`` alone.

    Args:
        name: A shell pattern that their names fit, such as ``digits-*``; None: any name.
        since: Only those submitted since then, in seconds since the epoch; None: of any time.
        states: Only those in one of these states, such as ``["RUNNING", "PENDING"]``; None: in any.
        sweep: A sweep or another job array, as `gridtf status` takes it: the elements of this that have started, in
            their order, instead of the jobs themselves. ``name`` and ``since`` are not for these.

    Returns:
        A list of Job, whose ``table()`` has a row for each.

    Raises:
        NotFoundError: When there is no such sweep.
        UsageError: For ``name`` or ``since`` with ``sweep``.
        RunDirError: When the index of jobs cannot be read.
    """
    from gridtf.login.job import Job, find

    if sweep is None:
        runs = list(registry.runs(os.environ, registry.chosen(since, name)))
    elif name is None and since is None:
        runs = registry.elements_of(find(sweep).run)
    else:
        raise UsageError("gridtf.jobs takes name and since, or sweep", hint="choose rows of the table of the sweep")
    if states is not None:
        from gridtf.observe.jobs import views

        runs = [run for run, view in zip(runs, views(runs), strict=True) if view.state in states]
    return Jobs(Job(run) for run in runs)


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
