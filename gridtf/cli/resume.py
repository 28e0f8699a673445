"""gridtf resume: the job of another one's specification, which goes on with the results of that one."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain


def parser(**more: Any) -> Parser:
    return new_parser("resume", "JOB [options]", ("digits", "4711"), job=True, json=True, **more)


def run(arguments: Namespace) -> int:
    from gridtf.cli import submit
    from gridtf.login import resume

    job = resume.resume(find_job(arguments))
    for note in job.notes:
        output.message(f"gridtf: {plain(note)}")
    output.result(submit.as_json(job) if arguments.json else submit.described(job, job.scheduler))
    return 0
