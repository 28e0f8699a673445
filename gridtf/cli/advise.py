"""gridtf advise: what a job could have asked for, as lines of a job file; what a user's jobs asked for and used."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import new_parser, since
from gridtf.errors import GridtfError, NotFoundError, RunDirError, UsageError
from gridtf.jobspec.arguments import Parser
from gridtf.text import counted, plain
from gridtf.values import as_dict

if TYPE_CHECKING:
    from gridtf.report.gather import Material
    from gridtf.run.rundir import RunDir

_PERMISSION = "advise_users"


def parser(**more: Any) -> Parser:
    examples = ("digits", "4711 --json", "--user ann --since 30d")
    made = new_parser("advise", "JOB [JOB …] | --user NAME", examples, job="*", json=True, **more)
    user_help = "sums of what a user's jobs asked for and used; another user's where the site permits it"
    made.add_argument("--user", metavar="NAME", help=user_help)
    since_help = "with --user: jobs submitted since then (default: 30d)"
    made.add_argument("--since", metavar="TIME", type=since, default="30d", help=since_help)
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli.show import as_json
    from gridtf.login import job
    from gridtf.login.like import Like

    if bool(arguments.job) == bool(arguments.user):
        raise UsageError("name either a job, or a user with --user", hint="gridtf advise digits")
    if arguments.user:
        return _of_user(arguments.user, arguments.since, as_json=arguments.json)
    found = [Like(job.find(name)) for name in arguments.job]
    if arguments.json:
        records = []
        for like in found:
            advised = like.advised()
            advice = [as_dict(one) | {"key": ".".join(one.key)} for one in advised.found.values()]
            records.append({"run_dir": like.run_dir, "advice": advice, "not_advised": advised.left})
        output.write(f"{as_json(records)}\n")
        return 0
    for like in found:
        lines = like.advised().lines() or ["# nothing is known of what it has used"]
        output.write("\n".join(map(plain, [f"# {like.name}", *lines])) + "\n")
    return 0


def _of_user(name: str, first: float, *, as_json: bool) -> int:
    import pwd

    import gridtf.cli.show
    import gridtf.report.totals  # noqa: F401 - Python may lie in a folder that is closed to the user
    from gridtf.jobspec.config import limit_of_site
    from gridtf.observe.overview import as_user

    if name == files.user_name(os.geteuid()):
        return _show(name, os.environ, first, as_json=as_json)
    permitted = limit_of_site(_PERMISSION, os.environ, of_root=True)
    if permitted is None or not permitted.value:
        hint = f"its file, if it is root's, can permit it: {_PERMISSION} = true below [limits]"
        raise GridtfError("this site does not permit advice on the jobs of other users", hint=hint)
    if os.geteuid() == 0:
        return as_user(name, lambda: _show(name, os.environ, first, as_json=as_json))
    try:
        home = pwd.getpwnam(name).pw_dir
    except KeyError:
        raise NotFoundError(f"no user is called {name} on this host") from None
    return _show(name, {"HOME": home}, first, as_json=as_json)


def _show(name: str, environ: Mapping[str, str], first: float, *, as_json: bool) -> int:
    """Print the sums, in which nothing of a single job is left."""
    from gridtf.cli import show
    from gridtf.report.totals import totals
    from gridtf.run import registry
    from gridtf.run.rundir import RunDir

    unread: list[RunDir] = []
    runs = [RunDir(run.path) for run in registry.runs(environ, registry.chosen(first, None))]
    states, made = totals(_materials(runs, unread))
    day = time.strftime("%Y-%m-%d", time.localtime(first))
    if as_json:
        record = {"user": name, "since": first, "states": states, "unreadable": len(unread), "totals": made}
        output.write(f"{show.as_json(record)}\n")
        return 0
    parts = [f"{count} {state}" for state, count in states.items()]
    parts += [f"{len(unread)} that cannot be read"] if unread else []
    lines = [plain(f"{name}: {counted(sum(states.values()) + len(unread), 'job')} since {day}: {', '.join(parts)}")]
    lines += [f"{'':<20}{'ASKED':>12}{'USED':>12}{'JOBS':>8}"] if made else []
    for what, one in made.items():
        asked = "-" if one.asked is None else f"{one.asked:.1f}"
        lines.append(f"{what:<20}{asked:>12}{one.used:>12.1f}{one.jobs:>8}")
    output.write("\n".join(lines) + "\n")
    return 0


def _materials(runs: list[RunDir], unread: list[RunDir]) -> Iterator[Material]:
    """Read jobs, and the elements of arrays. unread: gets those that cannot be read."""
    from gridtf.observe import jobs
    from gridtf.report.gather import gather
    from gridtf.run import registry

    now = time.time()
    for run, view in zip(runs, jobs.views(runs), strict=True):
        try:
            elements = registry.elements_of(run)
            yield from (gather(one, now) for one in elements) if elements else [gather(run, now, view)]
        except RunDirError:
            unread.append(run)
