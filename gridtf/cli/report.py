"""gridtf report: what happened in a job and what it used, or several compared, as one HTML file; or an archive."""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import new_parser
from gridtf.errors import UsageError
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from gridtf.login.job import Job
    from gridtf.run.rundir import RunDir


def parser(**more: Any) -> Parser:
    examples = (
        "digits",
        "4711 -o digits.html",
        "4711 4712 4713",
        "sweep --by loss",
        "4711 4712 --csv",
        "--bundle digits",
    )
    made = new_parser("report", "JOB [JOB …] [options]", examples, job="+", json=True, **more)
    made.add_argument("--csv", action="store_true", help="print a table as CSV, a row for each job")
    by_help = "the best runs first: those with the smallest value, with NAME:max the largest; of a sweep the best 50"
    made.add_argument("--by", metavar="NAME", help=by_help)
    file_help = "the file, - for stdout (default: NAME-JOBID.html or .tar.gz in the current folder)"
    made.add_argument("-o", "--output", metavar="FILE", help=file_help)
    made.add_argument("-f", "--force", action="store_true", help="replace the file, whatever it is")
    bundle_help = "instead, write an archive for a support ticket: records and the last of each log, secrets masked"
    made.add_argument("--bundle", action="store_true", help=bundle_help)
    made.add_argument("--anonymous", action="store_true", help="in the archive, replace your name and home folder too")
    code_help = "also show how the code differs from its commit; in the archive, the files of its snapshot too"
    made.add_argument("--with-code", action="store_true", help=code_help)
    return made


def run(arguments: Namespace) -> int:
    from gridtf.login.job import find
    from gridtf.run import registry

    if arguments.job[1:] if arguments.bundle else arguments.anonymous:
        raise UsageError("--bundle is for one job, and --anonymous for --bundle", hint="gridtf report --bundle JOB")
    printed = arguments.csv or arguments.json
    if arguments.csv + arguments.json + arguments.bundle + bool(printed and arguments.output) > 1:
        raise UsageError("--csv, --json, --bundle and -o exclude each other", hint="--csv and --json go to stdout")
    jobs = [find(name) for name in arguments.job]
    for job in jobs:
        registry.need_run(job.run)
    runs = [run for job in jobs for run in registry.elements_of(job.run) or [job.run]]
    if arguments.bundle:
        registry.need_one_job(jobs[0].run, "report")
    if arguments.by and (len(runs) == 1 or arguments.bundle):
        raise UsageError("--by is for several runs", hint="name a sweep, or more than one job")
    if printed:
        return _print(_chosen(runs, arguments.by, len(runs))[0], as_json=arguments.json)
    if arguments.with_code and runs[1:]:
        raise UsageError("--with-code is for one job", hint="gridtf report --with-code JOB")
    if arguments.bundle:
        content: bytes | str = _archive(jobs[0], anonymous=arguments.anonymous, with_code=arguments.with_code)
    else:
        content = _page(jobs, runs, arguments.by, with_code=arguments.with_code)
    if arguments.output == "-":
        output.write(content if isinstance(content, bytes) else content.encode())
        return 0
    from gridtf.report.save import save
    from gridtf.text import plain

    ending = "tar.gz" if arguments.bundle else "html"
    words = [_word(job) for job in jobs[:2]] if len(jobs) < 3 else [_word(jobs[0]), f"and-{len(jobs) - 1}-more"]
    path = Path(arguments.output or f"{'-'.join(words)}.{ending}")
    save(path, content, force=arguments.force)
    output.result(plain(str(path)))
    return 0


def _page(jobs: list[Job], runs: list[RunDir], by: str | None, *, with_code: bool) -> str:
    from gridtf.report import page
    from gridtf.report.compare import MOST

    now = time.time()
    if len(runs) == 1:
        return page.of_job(runs[0], now, with_code=with_code)
    if len(jobs) > MOST:
        hint = f"name at most {MOST}; --csv and --json print the table of any number"
        raise UsageError(f"{len(jobs)} jobs are too many for one page", hint=hint)
    shown, told = _chosen(runs, by, MOST)
    if len(shown) == 2:
        return page.of_two(shown[0], shown[1], now)
    return page.of_several(shown, now, told)


def _chosen(runs: list[RunDir], by: str | None, most: int) -> tuple[list[RunDir], str]:
    """At most so many of these runs, and what is to be said of the choice."""
    if by is None:
        told = f"These are the first {most} of {len(runs)}: --by VALUE chooses the best ones."
        return runs[:most], told if len(runs) > most else ""
    from gridtf.observe.outcome import ordered, reported

    found, name, best = ordered([(run, reported(run)) for run in runs], by)
    told = f"The best first, by the {'largest' if best == 'most' else 'smallest'} {name}"
    return found[:most], f"{told}{f': {most} of {len(runs)}' if len(runs) > most else ''}."


def _print(runs: list[RunDir], *, as_json: bool) -> int:
    from gridtf.cli import show
    from gridtf.report import table
    from gridtf.secrets import Masker

    of_params, mask = table.PARAMS, Masker().value
    rows = [
        {
            key: mask(key.removeprefix(of_params), value) if key.startswith(of_params) else value
            for key, value in row.items()
        }
        for row in table.rows(runs, time.time())
    ]
    output.write(f"{show.as_json(rows)}\n" if as_json else show.as_csv(table.columns(rows), rows))
    return 0


def _archive(job: Job, *, anonymous: bool, with_code: bool) -> bytes:
    from gridtf.cli import doctor
    from gridtf.report import bundle

    own = {str(Path.home()): "HOME", files.user_name(os.getuid()): "USER"} if anonymous else {}
    examined = doctor.as_json().replace('"key":', '"setting":')  # no key that is a secret
    return bundle.make(job.run, examined, own, time.time(), with_code=with_code)


def _word(job: Job) -> str:
    """Name and id of a job, as a file can be called."""
    words = "-".join(word for word in (job.name, job.id) if word)
    return re.sub(r"[^\w.+=-]", "-", words, flags=re.ASCII).lstrip(".-")[:100] or "job"
