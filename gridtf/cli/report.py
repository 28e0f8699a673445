"""gridtf report: what happened in a job and what it used, or two jobs compared, as one HTML file; or an archive."""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import job_names, new_parser
from gridtf.errors import UsageError
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from gridtf.login.job import Job


def parser(**more: Any) -> Parser:
    examples = ("digits", "4711 -o digits.html", "4711 4712", "--bundle digits")
    made = new_parser("report", "JOB [JOB] [options]", examples, job=True, **more)
    other = made.add_argument("other", metavar="JOB", nargs="?", help="another job, to compare the first one with")
    other.completer = job_names  # type: ignore[attr-defined]
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

    if arguments.other if arguments.bundle else arguments.anonymous:
        raise UsageError("--bundle is for one job, and --anonymous for --bundle", hint="gridtf report --bundle JOB")
    jobs = [find(name) for name in (arguments.job, arguments.other) if name]
    for job in jobs:
        registry.need_run(job.run)
        registry.need_one_job(job.run, "report")
    if arguments.with_code and arguments.other:
        raise UsageError("--with-code is for one job", hint="gridtf report --with-code JOB")
    if arguments.bundle:
        content: bytes | str = _archive(jobs[0], anonymous=arguments.anonymous, with_code=arguments.with_code)
    else:
        content = _page(jobs, with_code=arguments.with_code)
    if arguments.output == "-":
        output.write(content if isinstance(content, bytes) else content.encode())
        return 0
    from gridtf.report.save import save
    from gridtf.text import plain

    ending = "tar.gz" if arguments.bundle else "html"
    path = Path(arguments.output or f"{'-'.join(_word(job) for job in jobs)}.{ending}")
    save(path, content, force=arguments.force)
    output.result(plain(str(path)))
    return 0


def _page(jobs: list[Job], *, with_code: bool) -> str:
    from gridtf.report import page

    now = time.time()
    if len(jobs) == 1:
        return page.of_job(jobs[0].run, now, with_code=with_code)
    return page.of_two(jobs[0].run, jobs[1].run, now)


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
