"""gridtf status."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import add_job, find_job, new_parser
from gridtf.errors import NotFoundError
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from gridtf.observe.state import JobView


def parser(**more: Any) -> Parser:
    made = new_parser("status", "JOB [options]", ("digits", "4711 --json"), **more)
    add_job(made)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli import show

    try:
        view = find_job(arguments).status()
    except NotFoundError:
        views = _of_elements(arguments.job)
        if not views:
            raise
        text = show.as_json(views) if arguments.json else show.job_table(views, why=True)
    else:
        text = show.as_json(view) if arguments.json else show.job(view, time.time())
    output.write(f"{text}\n")
    return 0


def _of_elements(job_id: str) -> list[JobView]:
    """How the elements of an array stand that has no run directory of its own, since its script was written by hand."""
    from gridtf.observe import jobs
    from gridtf.run import registry

    return jobs.views(list(registry.elements(job_id, os.environ).values()))
