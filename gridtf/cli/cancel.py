"""gridtf cancel. A job that has ended already is told so; that is no error, for nothing of it runs any more."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from typing import Any

from gridtf.arguments import Parser
from gridtf.cli.common import add_job, find_job, new_parser


def parser(**more: Any) -> Parser:
    made = new_parser("cancel", "JOB [options]", ("digits", "4711"), **more)
    add_job(made)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli import show
    from gridtf.schedulers.base import ENDED

    job = find_job(arguments)
    before = job.status()
    if before.state in ENDED:
        print(f"gridtf: job {job.id} had ended already", file=sys.stderr)
        after = before
    else:
        after = job.cancel()
    if arguments.json:
        show.as_json(after)
    elif after.state in ENDED:
        print(show.verdict(after, time.time()))
    if after.state in ENDED:
        return 0
    print(f"gridtf: job {job.id} was told to end, but is still {after.state}", file=sys.stderr)
    print(f"  look again with: gridtf status {job.id}", file=sys.stderr)
    return 1
