"""gridtf clean: removes old run directories, after it has shown them and asked."""

from __future__ import annotations

import os
import re
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import agreed, job_names, new_parser
from gridtf.errors import NotFoundError, RunDirError
from gridtf.jobspec.arguments import Parser
from gridtf.jobspec.units import parse_duration
from gridtf.states import ENDED
from gridtf.text import counted, duration, plain, size

if TYPE_CHECKING:
    from gridtf.login.cleaning import Choice, Found

_OLD = 30 * 86400.0  # seconds, unless the user says which


def parser(**more: Any) -> Parser:
    examples = ("--dry-run", "--older-than 90d --state FAILED", "--keep 20 --keep-output", "digits 4711 --yes")
    made = new_parser("clean", "[JOB …] [options]", examples, **more)
    jobs = made.add_argument("jobs", metavar="JOB", nargs="*", help="only these: run directories, job ids or names")
    jobs.completer = job_names  # type: ignore[attr-defined]
    age_help = "that ended so long ago, such as 12h or 30d (default: 30d, unless JOB or --keep says which)"
    made.add_argument("--older-than", metavar="TIME", type=_age, help=age_help)
    made.add_argument("--keep", metavar="N", type=_count, help="all but the newest N of your runs")
    state_help = "that ended in this state, such as FAILED; repeatable"
    made.add_argument("--state", metavar="STATE", type=_state, action="append", help=state_help)
    made.add_argument("--keep-output", action="store_true", help="leave the results where they are, in output/")
    made.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    made.add_argument("--yes", action="store_true", help="do not ask")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.login import cleaning
    from gridtf.schedulers import answers

    runs = cleaning.found(os.environ, time.monotonic() - answers.RECENT)
    choice = _choice(arguments, runs)
    chosen = cleaning.choose(runs, choice, time.time())
    going = [one for one, why in chosen if not why]
    kept = _show_kept(chosen)
    code = cleaning.snapshots(runs, [one.run.path for one in going])
    if not going and not code:
        output.message("gridtf: there is nothing to remove")
        return int(bool(arguments.jobs))
    total = _show(going, choice) if going else 0
    for path in code:
        output.message(plain(f"gridtf: no other run needs the snapshot {path}"))
    if arguments.dry_run:
        return 0
    results = " (their output stays)" if choice.keep_output else " with their output"
    what = [f"{counted(len(going), 'run')}, {size(total)}{results}"] if going else []
    what += [counted(len(code), "snapshot")] if code else []
    if not arguments.yes and not agreed(
        f"Remove {' and '.join(what)}? [y/N]",
        "nothing was removed",
        "--yes removes them without asking, --dry-run only shows them",
    ):
        return 1
    # a job may have been resumed, or started again, while the user was asked
    runs = cleaning.found(os.environ, time.monotonic())
    again = choice.replace(named=frozenset(one.run.path for one in going), keep=0)
    chosen = cleaning.choose(runs, again, time.time())
    kept += _show_kept(chosen)
    remove = partial(cleaning.remove, environ=os.environ, keep_output=choice.keep_output)
    failed = [one for one, why in chosen if not why and not _done(partial(remove, one.run))]
    free = cleaning.snapshots(runs, (), {path.parent for path in code})
    spared = [path for path in free if path in code and not _done(partial(_free, path))]
    return int(bool(failed or spared or (kept and arguments.jobs)))


def _choice(arguments: Namespace, runs: Sequence[Found]) -> Choice:
    """What the arguments choose. Raises NotFoundError for a job that is not in the index."""
    from gridtf.login.cleaning import Choice

    named = None
    if arguments.jobs:
        paths = {one.run.path.resolve(): one.run.path for one in runs}
        wanted = [path for job in arguments.jobs for path in _paths(job)]
        for path in wanted:
            if path not in paths:
                hint = "it removes runs that `gridtf list --all` shows; another folder: rm -r"
                raise NotFoundError(f"gridtf clean does not remove {path}: it is not in your list of jobs", hint=hint)
        named = frozenset(paths[path] for path in wanted)
    by_age = named is None and arguments.keep is None
    return Choice(
        named=named,
        older_than=_OLD if by_age and arguments.older_than is None else arguments.older_than,
        keep=arguments.keep or 0,
        states=frozenset(arguments.state or ()),
        keep_output=arguments.keep_output,
    )


def _paths(job: str) -> list[Path]:
    """The run directories that a JOB stands for: several for an array whose script was written by hand."""
    from gridtf.login.job import find
    from gridtf.run import registry

    if elements := registry.elements(job, os.environ):
        return [run.path.resolve() for run in elements.values()]
    return [find(job).run_dir.resolve()]


def _show(going: Sequence[Found], choice: Choice) -> int:
    """Show what would be removed; returns its bytes."""
    from gridtf.cli.tasktable import table
    from gridtf.login import cleaning

    rows, total = [("NAME", "JOB", "STATE", "ENDED", "SIZE", "OUTPUT", "RUN DIRECTORY")], 0
    for one in going:
        results = cleaning.size(one.run.output)
        ago = f"{duration(time.time() - one.used)} ago"
        goes = cleaning.size(one.run.path) - (results if choice.keep_output else 0)
        there = f"{size(results)} stays" if choice.keep_output else size(results)
        view = one.view
        rows.append((view.name, view.job_id, view.state, ago, size(goes), there, str(one.run.path)))
        total += goes
    output.write(table([[plain(word) for word in row] for row in rows]) + "\n")
    return total


def _show_kept(chosen: Sequence[tuple[Found, str]]) -> int:
    """Say which of the chosen runs are kept, and why; returns their number."""
    lines = [f"gridtf: {one.view.name} ({one.view.job_id}) is kept: {why}" for one, why in chosen if why]
    for line in lines:
        output.message(plain(line))
    return len(lines)


def _done(remove: Callable[[], str | None]) -> bool:
    """Remove something, and say what went wrong; whether nothing did."""
    try:
        problem = remove()
    except RunDirError as error:
        problem = error.what
    if problem:
        output.message(f"gridtf: {plain(problem)}")
    return not problem


def _free(path: Path) -> None:
    """Remove a snapshot."""
    from gridtf.login import snapshot, submission

    snapshot.remove(path)
    submission.remove_default_root(path.parents[1])


def _age(text: str) -> float:
    try:
        if text.isdecimal():  # minutes elsewhere
            raise ValueError(f"{text} has no unit")
        return float(parse_duration(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}: write a time such as 12h or 30d") from None


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ArgumentTypeError(f"{text!r} is not a number of runs")
    return int(text)


def _state(text: str) -> str:
    if text.upper() not in ENDED:
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(sorted(ENDED))}")
    return text.upper()
