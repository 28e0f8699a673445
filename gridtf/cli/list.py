"""gridtf list."""

from __future__ import annotations

import itertools
import os
from argparse import Namespace
from typing import Any

from gridtf.arguments import Parser
from gridtf.cli.common import new_parser

_SOME = 20


def parser(**more: Any) -> Parser:
    made = new_parser("list", "[options]", ("", "--all --json"), **more)
    made.add_argument("--all", action="store_true", help=f"all jobs (default: the newest {_SOME})")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: Namespace) -> int:
    from gridtf import registry, submission
    from gridtf.cli import show

    there = dict.fromkeys(entry.run_dir for entry in registry.entries(os.environ))
    found = (submission.Job(run_dir) for run_dir in there if run_dir is not None)
    jobs = list(found if arguments.all else itertools.islice(found, _SOME))
    views = submission.views(jobs)
    if arguments.json:
        show.as_json(views)
    elif views:
        print(show.job_table(views))
    else:
        print("no jobs yet")
    return 0
