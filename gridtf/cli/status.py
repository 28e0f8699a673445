"""gridtf status and gridtf list: states of jobs."""

from __future__ import annotations

import itertools
import os
import time

from gridtf.cli import output, restore_sigchld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from gridtf.jobspec.arguments import Parser

_NEWEST = 20  # jobs that are listed without --all


def parser_list(**more: Any) -> Parser:
    from gridtf.cli.common import new_parser

    made = new_parser("list", "[options]", ("", "--all --json"), json=True, **more)
    made.add_argument("--all", action="store_true", help=f"all jobs (default: the newest {_NEWEST})")
    return made


def run_list(arguments: Namespace) -> int:
    return list_jobs(everything=arguments.all, as_json=arguments.json)


def list_jobs(*, everything: bool, as_json: bool) -> int:
    """Print this user's jobs, newest first.

    Args:
        everything: Whether to print all jobs, not only the newest 20.
        as_json: Whether to print JSON instead of a table.

    Returns:
        The exit code.
    """
    from gridtf.run import registry

    runs = registry.runs(os.environ)
    newest = list(runs if everything else itertools.islice(runs, _NEWEST))
    if not newest:  # the imports below take time
        output.write("[]\n" if as_json else "no jobs yet\n")
        return 0
    from gridtf.cli import show
    from gridtf.observe import jobs

    restore_sigchld()
    views = jobs.views(newest)
    output.write(f"{show.as_json(views) if as_json else show.job_table(views)}\n")
    return 0


def parser_status(**more: Any) -> Parser:
    from gridtf.cli.common import new_parser

    return new_parser("status", "JOB [options]", ("digits", "4711 --json"), job=True, json=True, **more)


def run_status(arguments: Namespace) -> int:
    from gridtf.cli import show
    from gridtf.cli.common import find_job
    from gridtf.errors import NotFoundError
    from gridtf.observe import jobs
    from gridtf.run import registry

    try:
        view = find_job(arguments).status()
    except NotFoundError:
        # a job array whose script was written by hand has no run directory of its own
        views = jobs.views(list(registry.elements(arguments.job, os.environ).values()))
        if not views:
            raise
        text = show.as_json(views) if arguments.json else show.job_table(views, why=True)
    else:
        text = show.as_json(view) if arguments.json else show.job(view, time.time())
    output.write(f"{text}\n")
    return 0
