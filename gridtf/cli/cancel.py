"""gridtf cancel, of all jobs at once. One that has already ended is no error, and a refused one spares no other."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import agreed, new_parser
from gridtf.cli.wait import INTERRUPTED
from gridtf.errors import GridtfError, NotFoundError, UsageError
from gridtf.jobspec.arguments import Parser
from gridtf.states import ENDED
from gridtf.text import counted, plain, some

if TYPE_CHECKING:
    from gridtf.login.cancelling import Cancellation
    from gridtf.login.job import Job


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
    from gridtf.cli import show
    from gridtf.login.cancelling import Cancellation

    by_choice = arguments.name is not None or arguments.state is not None
    if by_choice == bool(arguments.job):
        hint = "write: gridtf cancel JOB; `gridtf list` shows the jobs"
        raise UsageError("gridtf cancel takes either JOB, or --name and --state", hint=hint)
    # commas as scancel and qdel take them; no job's name has one
    names = [name for word in arguments.job for name in ([word] if "/" in word else word.split(","))]
    if by_choice and not (names := _chosen(arguments)):
        return 1
    jobs = _found(names)
    cancellation = Cancellation(jobs)
    try:
        cancellation.request()
        code = _refused(cancellation, jobs)
        for job in chain(cancellation.over, cancellation.ends(say=partial(_waits, cancellation))):
            view, name = cancellation.views[job], _ids(cancellation, [job])
            if job in cancellation.over:
                output.message(f"gridtf: job {name} has already ended")
            if job in cancellation.errors:
                code = _refused(cancellation, [job])
            elif not view.finished:
                output.message(f"gridtf: job {name} was cancelled, but is still {view.state}")
                output.message(f"  to check again: gridtf status {name}")
                code = code or 1
            elif not arguments.json:
                output.result(show.verdict(view, time.time(), output.width()))
    except KeyboardInterrupt:
        return _interrupted(cancellation)
    if arguments.json:
        views = [cancellation.views[job] for job in jobs if job not in cancellation.errors]
        output.result(show.as_json(views if jobs[1:] or by_choice else views[0]))
    return code


def _found(names: Sequence[str]) -> list[Job]:
    """The jobs, all of them before one is cancelled; one that is named twice is returned once."""
    from gridtf.login.job import find
    from gridtf.run import registry

    index = None if all("/" in name for name in names) else list(registry.entries(os.environ))
    try:
        found = [find(name, even_gone=True, index=index) for name in names]
    except NotFoundError as error:
        error.why = error.why or ("no job was cancelled" if names[1:] else "")
        raise
    return list({job.run_dir: job for job in found}.values())


def _ids(cancellation: Cancellation, jobs: Sequence[Job], most: int = 16) -> str:
    return some([plain(cancellation.names[job]) for job in jobs], most=most)


def _refused(cancellation: Cancellation, jobs: Sequence[Job]) -> int:
    """Say why jobs were not cancelled, each reason once. Returns the exit code; raises the error of an only job."""
    from gridtf.cli import report_error

    reasons: dict[str, list[Job]] = {}
    for job in jobs:
        if error := cancellation.errors.get(job):
            reasons.setdefault(str(error), []).append(job)
    for theirs in reasons.values():
        error = cancellation.errors[theirs[0]]
        if not cancellation.jobs[1:]:
            raise error
        which = f"job{'s' * bool(theirs[1:])} {_ids(cancellation, theirs, len(theirs))}"
        report_error(GridtfError(f"{which}: {error.what}", why=error.why, hint=error.hint))
    return int(bool(reasons))


def _waits(cancellation: Cancellation, jobs: Sequence[Job], seconds: float, killed: bool) -> None:
    """Say what is waited for."""
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
    begin, end = ("what had not ended was killed; ", "") if killed else ("", ", then what is left is killed")
    what = f"waiting until {until} for {counted(len(jobs), 'job')} to end"
    output.message(f"gridtf: {begin}{what}{end}: {_ids(cancellation, jobs)}")


def _interrupted(cancellation: Cancellation) -> int:
    """Say, after Ctrl-C, what is cancelled all the same. Returns the exit code."""
    asked = cancellation.asked
    known = {*asked, *cancellation.over, *cancellation.errors}
    if unsure := [job for job in cancellation.jobs if job not in known]:
        ids = _ids(cancellation, unsure, len(unsure))
        output.message(f"\ngridtf: it is not known whether {counted(len(unsure), 'job')} will be cancelled: {ids}")
    if left := [job for job in asked if not cancellation.views[job].finished]:
        jobs = f"{counted(len(left), 'job')} {'were' if left[1:] else 'was'}"
        output.message(f"\ngridtf: {jobs} cancelled, but not seen to end: {_ids(cancellation, left)}")
        output.message(f"  to check again: gridtf {'list' if left[1:] else f'status {_ids(cancellation, left)}'}")
    return INTERRUPTED


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
