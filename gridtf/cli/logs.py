"""gridtf logs."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from typing import Any

from gridtf.arguments import Parser
from gridtf.cli.common import add_job, find_job, new_parser


def parser(**more: Any) -> Parser:
    made = new_parser("logs", "JOB [options]", ("digits -f", "4711 --task worker:0 --tail 20"), **more)
    add_job(made)
    made.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    task_help = "this task (worker:0), all of a type (worker), or the job script (job); repeatable"
    made.add_argument("--task", metavar="TASK", action="append", help=task_help)
    made.add_argument("--tail", metavar="N", type=lines, help="begin with the last N lines of each log")
    return made


def run(arguments: Namespace) -> int:
    import time

    from gridtf.observe import logs
    from gridtf.schedulers.base import ENDED

    job = find_job(arguments)
    if arguments.follow:
        printed = logs.follow(
            job.run, arguments.task, lambda: job.status().state in ENDED, time.sleep, tail=arguments.tail
        )
    else:
        printed = logs.read(job.run, arguments.task, arguments.tail)
    for line in printed:
        sys.stdout.write(line)
        if arguments.follow:
            sys.stdout.flush()
    return 0


def lines(text: str) -> int:
    """A number of lines. Raises ArgumentTypeError."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)
