"""gridtf list."""

from __future__ import annotations

import itertools
import os
from argparse import Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import new_parser
from gridtf.jobspec.arguments import Parser

_SOME = 20


def parser(**more: Any) -> Parser:
    made = new_parser("list", "[options]", ("", "--all --json"), **more)
    made.add_argument("--all", action="store_true", help=f"all jobs (default: the newest {_SOME})")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli import show
    from gridtf.observe import jobs
    from gridtf.run import registry

    found = registry.runs(os.environ)
    views = jobs.views(list(found if arguments.all else itertools.islice(found, _SOME)))
    text = show.as_json(views) if arguments.json else show.job_table(views)
    output.write(f"{text}\n")
    return 0
