"""gridtf cancel. Cancelling a job that has already ended is no error."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.errors import ReplacedError
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.login.job import Job
    from gridtf.observe.state import JobView


def parser(**more: Any) -> Parser:
    return new_parser("cancel", "JOB [options]", ("digits", "4711"), job=True, json=True, **more)


def run(arguments: Namespace) -> int:
    from gridtf.cli import show

    job = find_job(arguments, even_gone=True)
    name = plain(job.id)
    after = _ended(job)
    if after is not None:
        output.message(f"gridtf: job {name} has already ended")
    else:
        after = job.cancel()
    if arguments.json:
        output.result(show.as_json(after))
    elif after.finished:
        output.result(show.verdict(after, time.time()))
    if after.finished:
        return 0
    output.message(f"gridtf: job {name} was cancelled, but is still {after.state}")
    output.message(f"  to check again: gridtf status {name}")
    return 1


def _ended(job: Job) -> JobView | None:
    """The view of a job that has ended and that its scheduler no longer lists; None for others."""
    from gridtf.observe import jobs

    try:
        view = jobs.view(job.run, since=time.monotonic())
    except ReplacedError:  # the job may still be in the queue
        return None
    return view if view.finished and not view.in_queue else None
