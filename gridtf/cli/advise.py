"""gridtf advise: what a job could have asked for, as lines of a job file; what a user's jobs asked for and used."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import new_parser, since
from gridtf.errors import GridtfError, UsageError
from gridtf.jobspec.arguments import Parser
from gridtf.text import counted, plain


def parser(**more: Any) -> Parser:
    examples = ("digits", "4711 --json", "--user ann --since 30d")
    made = new_parser("advise", "JOB [JOB …] | --user NAME", examples, job="*", json=True, **more)
    user_help = "sums of what a user's jobs asked for and used; another user's where the site permits it"
    made.add_argument("--user", metavar="NAME", help=user_help)
    made.add_argument("--since", metavar="TIME", type=since, default="30d", help="of jobs since then (default: 30d)")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli.show import as_json
    from gridtf.login import job
    from gridtf.login.like import Like

    if bool(arguments.job) == bool(arguments.user):
        raise UsageError("name either a job, or a user with --user", hint="gridtf advise digits")
    if arguments.user:
        sums = _of_user(arguments.user, arguments.since)
        text = as_json(sums) if arguments.json else _table(arguments.user, arguments.since, sums)
    else:
        likes = [Like(job.find(name)) for name in arguments.job]
        found = [(like, like.advised()) for like in likes]
        records = [{"run_dir": like.run_dir, **advised.to_dict()} for like, advised in found]
        lines = [line for like, advised in found for line in (f"# {like.name}", *advised.lines())]
        text = as_json(records) if arguments.json else "\n".join(map(plain, lines))
    output.write(f"{text}\n")
    return 0


def _of_user(name: str, first: float) -> dict[str, Any]:
    """Sums of what a user's jobs asked for and used, in which nothing of a single job is left."""
    import gridtf.report.totals  # noqa: F401 - Python may lie in a folder that is closed to the user
    from gridtf.jobspec.config import limit_of_site
    from gridtf.observe.overview import account, as_user

    if name == files.user_name(os.geteuid()):
        return _sums(os.environ, first)
    permitted = limit_of_site("advise_users", os.environ, of_root=True)
    if permitted is None or not permitted.value:
        hint = "its file, if it is root's, can permit it: advise_users = true below [limits]"
        raise GridtfError("this site does not permit advice on the jobs of other users", hint=hint)
    if os.geteuid() != 0:
        return _sums({"HOME": account(name).pw_dir}, first)
    return dict(as_user(name, lambda: _sums(os.environ, first)))


def _sums(environ: Mapping[str, str], first: float) -> dict[str, Any]:
    from gridtf.observe import jobs
    from gridtf.report.totals import totals
    from gridtf.run import registry
    from gridtf.run.rundir import RunDir

    runs = [RunDir(run.path) for run in registry.runs(environ, registry.chosen(first, None))]
    return totals(zip(runs, jobs.views(runs), strict=True), time.time())


def _table(name: str, first: float, sums: Mapping[str, Any]) -> str:
    from gridtf.cli.tasktable import table
    from gridtf.report.totals import MEANING

    day, states = time.strftime("%Y-%m-%d", time.localtime(first)), sums["states"]
    told = f"{plain(name)}: {counted(sum(states.values()), 'job')} since {day}"
    if not states:
        return told
    parts = ", ".join(f"{count} {state}" for state, count in states.items())
    rows = [("RESOURCE", "ASKED", "USED", "JOBS", "USED, OF ASKED")]
    for what, one in sums["totals"].items():
        asked = "-" if one["asked"] is None else f"{one['asked']:.1f}"
        rows.append((what, asked, f"{one['used']:.1f}", str(one["jobs"]), MEANING[what]))
    return f"{told}: {parts}\n\n{table(rows)}"
