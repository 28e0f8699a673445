"""gridtf status and gridtf list: states of jobs."""

from __future__ import annotations

import itertools
import os
import time

from gridtf.cli import output, restore_sigchld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Collection
    from typing import Any

    from gridtf.jobspec.arguments import Parser
    from gridtf.run.registry import Entry

_NEWEST = 20  # jobs that are listed without --all
# The words of squeue(1), JOB STATE CODES.
_SHORT = {"PD": "PENDING", "R": "RUNNING", "CD": "COMPLETED", "F": "FAILED", "CA": "CANCELLED", "TO": "TIMEOUT"}


def parser_list(**more: Any) -> Parser:
    from gridtf.cli.common import job_names, new_parser, since

    examples = ("", "--state RUNNING,PENDING", "--since 2d --all", "SWEEP --by loss")
    made = new_parser("list", "[SWEEP] [options]", examples, json=True, **more)
    sweep = made.add_argument("job", metavar="SWEEP", nargs="?", help="the elements of a sweep instead, as a table")
    sweep.completer = job_names  # type: ignore[attr-defined]
    by_help = "of a sweep: sort by a value, the smallest first; accuracy:max sorts the largest first"
    made.add_argument("--by", metavar="VALUE", help=by_help)
    made.add_argument("--csv", action="store_true", help="of a sweep: print it as CSV")
    made.add_argument("--all", action="store_true", help=f"all jobs (default: the newest {_NEWEST})")
    add_choice(made)
    made.add_argument(
        "--since", metavar="TIME", type=since, help="only jobs submitted since then: 2d, 12h, or a time such as 14:30"
    )
    made.add_argument("--user", metavar="NAME", help="the jobs of another user, for root")
    return made


def add_choice(parser: Parser) -> None:
    """Add the options that choose jobs by name and state."""
    parser.add_argument("--state", metavar="STATE,…", type=_states, help="only jobs in one of these states")
    name_help = "only jobs whose name fits a shell pattern, such as 'digits-*'"
    parser.add_argument("--name", metavar="PATTERN", help=name_help)


def run_list(arguments: Namespace) -> int:
    from gridtf.run import registry

    def listed() -> int:
        if arguments.job is not None:
            return _list_sweep(arguments)
        chosen = registry.chosen(arguments.since, arguments.name)
        return list_jobs(everything=arguments.all, as_json=arguments.json, states=arguments.state, wanted=chosen)

    if arguments.user is None:
        return listed()
    import gridtf.cli.show  # noqa: F401 - Python may lie in a folder that is closed to the user
    from gridtf.observe.overview import as_user

    return int(as_user(arguments.user, listed))


def _list_sweep(arguments: Namespace) -> int:
    from gridtf.cli import sweep
    from gridtf.cli.common import find_job
    from gridtf.errors import UsageError

    for flag in ("all", "since", "name"):
        if getattr(arguments, flag) not in (None, False):
            raise UsageError(f"--{flag} is for a list of jobs", hint="leave it out, or the sweep")
    form = "json" if arguments.json else "csv" if arguments.csv else "table"
    return sweep.show(find_job(arguments), by=arguments.by, form=form, states=arguments.state)


def list_jobs(
    *,
    everything: bool,
    as_json: bool,
    states: Collection[str] | None = None,
    wanted: Callable[[Entry], bool] | None = None,
) -> int:
    """Print this user's jobs, newest first.

    Args:
        everything: Whether to print all jobs, not only the newest 20.
        as_json: Whether to print JSON instead of a table.
        states: Only jobs in these states; None: in any.
        wanted: Which entries of the index count; None: all.

    Returns:
        The exit code.
    """
    from gridtf.run import registry

    none = "[]\n" if as_json else "no jobs yet\n" if states is None and wanted is None else "no such jobs\n"
    if next(registry.entries(os.environ), None) is None:  # the imports below take time
        output.write(none)
        return 0
    from gridtf.cli import show
    from gridtf.observe import jobs
    from gridtf.observe.overview import Overview

    restore_sigchld()
    overview = Overview(os.environ)
    most = None if everything else _NEWEST
    runs = list(itertools.islice(overview.runs(wanted), most if states is None else None))
    if states is not None:
        rows = zip(runs, overview.rows(runs), strict=True)
        runs = list(itertools.islice((run for run, row in rows if row.state in states), most))
    if as_json:
        output.write(f"{show.as_json(jobs.views(runs))}\n")
    else:
        output.write(f"{show.job_table(overview.rows(runs), output.width())}\n" if runs else none)
    return 0


def _states(text: str) -> list[str]:
    from argparse import ArgumentTypeError

    from gridtf.errors import nearest
    from gridtf.states import JobState

    names = [_SHORT.get(name.strip().upper(), name.strip().upper()) for name in text.split(",")]
    for name in names:
        if name not in [*JobState]:
            hint = nearest(name, [*JobState]) or f"choose from {', '.join(JobState)}"
            raise ArgumentTypeError(f"{name!r} is no state of a job: {hint}")
    return names


def parser_status(**more: Any) -> Parser:
    from gridtf.cli.common import new_parser

    examples = ("digits", "digits --watch", "4711 --json")
    made = new_parser("status", "JOB [options]", examples, job=True, json=True, **more)
    made.add_argument("-w", "--watch", action="store_true", help="show it again every few seconds until the job ends")
    return made


def run_status(arguments: Namespace) -> int:
    from gridtf.cli import redraw, show
    from gridtf.cli.common import find_job
    from gridtf.errors import NotFoundError, UsageError
    from gridtf.observe import jobs, overview
    from gridtf.observe.detail import detailed
    from gridtf.run import registry

    if arguments.watch and arguments.json:
        raise UsageError("--watch shows tables, not JSON", hint="leave out --json, or --watch")
    try:
        job = find_job(arguments)
    except NotFoundError:
        elements = {} if arguments.watch else registry.elements(arguments.job, os.environ)
        if not elements:
            raise
        # a job array whose script was written by hand has no run directory of its own
        views = jobs.views(list(elements.values()))
        rows = [overview.row(view) for view in views]
        output.write(f"{show.as_json(views) if arguments.json else show.job_table(rows, output.width(), why=True)}\n")
        return 0
    if arguments.watch:
        return redraw.follow(job)
    now = time.time()
    view = detailed(job.status(), now)
    text = show.as_json(view) if arguments.json else show.job(view, now, output.width())
    output.write(f"{text}\n")
    return 0
