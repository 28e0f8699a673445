"""gridtf report: what happened in a job and what it used, or two jobs compared, as one HTML file."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import job_names, new_parser
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from gridtf.login.job import Job


def parser(**more: Any) -> Parser:
    examples = ("digits", "4711 -o digits.html", "4711 4712")
    made = new_parser("report", "JOB [JOB] [options]", examples, job=True, **more)
    other = made.add_argument("other", metavar="JOB", nargs="?", help="another job, to compare the first one with")
    other.completer = job_names  # type: ignore[attr-defined]
    file_help = "the file, - for stdout (default: NAME-JOBID.html in the current folder)"
    made.add_argument("-o", "--output", metavar="FILE", help=file_help)
    return made


def run(arguments: Namespace) -> int:
    from gridtf.login.job import find
    from gridtf.run import registry

    jobs = [find(name) for name in (arguments.job, arguments.other) if name]
    for job in jobs:
        registry.need_run(job.run)
        registry.need_one_job(job.run, "report")
    text = _page(jobs)
    if arguments.output == "-":
        output.write(text.encode())
        return 0
    from gridtf.report.save import save
    from gridtf.text import plain

    path = Path(arguments.output or f"{'-'.join(_word(job) for job in jobs)}.html")
    save(path, text)
    output.result(plain(str(path)))
    return 0


def _page(jobs: list[Job]) -> str:
    from gridtf.report import page

    now = time.time()
    return page.of_job(jobs[0].run, now) if len(jobs) == 1 else page.of_two(jobs[0].run, jobs[1].run, now)


def _word(job: Job) -> str:
    """Name and id of a job, as a file can be called."""
    words = "-".join(word for word in (job.name, job.id) if word)
    return re.sub(r"[^\w.+=-]", "-", words, flags=re.ASCII).lstrip(".-")[:100] or "job"
