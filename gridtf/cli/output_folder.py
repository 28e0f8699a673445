"""gridtf output."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import add_job, find_job, new_parser
from gridtf.errors import NotFoundError
from gridtf.jobspec.arguments import Parser


def parser(**more: Any) -> Parser:
    made = new_parser("output", "JOB", ("digits", "4711"), **more)
    add_job(made)
    made.epilog = 'examples:\n  ls "$(gridtf output digits)"\n  tensorboard --logdir "$(gridtf output digits)"'
    return made


def run(arguments: Namespace) -> int:
    from gridtf.run import registry

    job = find_job(arguments)
    registry.need_run(job.run)
    registry.need_one_job(job.run, "output")
    folder = job.run.output
    if not folder.is_dir():
        raise NotFoundError(f"job {job.name} has no output: there is no {folder}")
    output.insist(str(folder))
    return 0
