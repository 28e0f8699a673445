"""gridtf cancel. Cancelling a job that has already ended is no error, and one that fails does not spare the others."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.errors import GridtfError, ReplacedError
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.login.job import Job
    from gridtf.observe.state import JobView


def parser(**more: Any) -> Parser:
    return new_parser("cancel", "JOB … [options]", ("digits", "4711 4712"), job="+", json=True, **more)


def run(arguments: Namespace) -> int:
    from gridtf.cli import report_error, show

    # commas as scancel and qdel take them; no job's name has one
    names = [name for word in arguments.job for name in ([word] if "/" in word else word.split(","))]
    jobs = [find_job(Namespace(job=name), even_gone=True) for name in names]  # all of them before one is cancelled
    views, code = [], 0
    for job in jobs:
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
        output.result(show.as_json(views if jobs[1:] else views[0]))
    return code


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
