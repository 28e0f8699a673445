"""gridtf cancel. Cancelling a job that has already ended is no error, and one that fails does not spare the others."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import agreed, find_job, new_parser
from gridtf.errors import GridtfError, NotFoundError, ReplacedError, UsageError
from gridtf.jobspec.arguments import Parser
from gridtf.states import ENDED, JobState
from gridtf.text import counted, plain

if TYPE_CHECKING:
    from gridtf.login.job import Job
    from gridtf.observe.views import JobView


def parser(**more: Any) -> Parser:
    from gridtf.cli.status import add_choice

    examples = ("digits", "4711 4712", "--name 'digits-*' --state PENDING")
    made = new_parser(
        "cancel", "JOB … | --name PATTERN | --state STATE,… [options]", examples, job="*", json=True, **more
    )
    add_choice(made)
    made.add_argument(
        "--yes", action="store_true", help="do not ask before jobs are cancelled that --name or --state chose"
    )
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli import report_error, show

    by_choice = arguments.name is not None or arguments.state is not None
    if by_choice == bool(arguments.job):
        hint = "write: gridtf cancel JOB; `gridtf list` shows the jobs"
        raise UsageError("gridtf cancel takes either JOB, or --name and --state", hint=hint)
    # commas as scancel and qdel take them; no job's name has one
    names = [name for word in arguments.job for name in ([word] if "/" in word else word.split(","))]
    if by_choice and not (names := _chosen(arguments)):
        return 1
    jobs = [find_job(Namespace(job=name), even_gone=True) for name in names]  # all of them before one is cancelled
    views, code = [], 0
    for job in _those_that_wait_first(jobs):
        try:
            view = _cancel(job)
        except GridtfError as error:
            if not jobs[1:]:
                raise
            code = report_error(error)
            continue
        views.append(view)
        if view.finished:
            if not arguments.json:
                output.result(show.verdict(view, time.time(), output.width()))
            continue
        output.message(f"gridtf: job {plain(job.id)} was cancelled, but is still {view.state}")
        output.message(f"  to check again: gridtf status {plain(job.id)}")
        code = code or 1
    if arguments.json:
        output.result(show.as_json(views if jobs[1:] or by_choice else views[0]))
    return code


def _chosen(arguments: Namespace) -> list[str]:
    """The run directories of the jobs that --name and --state choose and that go on, if the user agrees."""
    from gridtf.cli import show
    from gridtf.observe.overview import Overview
    from gridtf.run import registry

    overview = Overview(os.environ)
    rows = overview.rows(list(overview.runs(registry.chosen(None, arguments.name))))
    rows = [row for row in rows if row.job_id and row.state not in ENDED]
    rows = [row for row in rows if arguments.state is None or row.state in arguments.state]
    if not rows:
        raise NotFoundError("no waiting or running job has such a name and state", hint="`gridtf list` shows the jobs")
    if not arguments.yes:
        output.message(show.job_table(rows, output.width()))
        hint = "--yes cancels them without asking"
        if not agreed(f"Cancel {counted(len(rows), 'job')}? [y/N]", "nothing was cancelled", hint):
            return []
    return [row.run_dir for row in rows]


def _those_that_wait_first(jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs in the order in which they are cancelled: one that waits might start on the hosts of one that runs."""
    from gridtf.observe.jobs import views

    if not jobs[1:]:
        return jobs
    waits = [view.state == JobState.PENDING for view in views([job.run for job in jobs])]
    return [job for first in (True, False) for job, one in zip(jobs, waits, strict=True) if one is first]


def _cancel(job: Job) -> JobView:
    after = _ended(job)
    if after is None:
        return job.cancel()
    output.message(f"gridtf: job {plain(job.id)} has already ended")
    return after


def _ended(job: Job) -> JobView | None:
    """The view of a job that has ended and that its scheduler no longer lists; None for others."""
    from gridtf.observe import jobs

    try:
        view = jobs.view(job.run, since=time.monotonic())
    except ReplacedError:  # the job may still be in the queue
        return None
    return view if view.finished and not view.in_queue else None
