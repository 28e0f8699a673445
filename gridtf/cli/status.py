"""gridtf status."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from gridtf.arguments import Parser
from gridtf.cli import output
from gridtf.cli.common import add_job, find_job, new_parser


def parser(**more: Any) -> Parser:
    made = new_parser("status", "JOB [options]", ("digits", "4711 --json"), **more)
    add_job(made)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli import show

    view = find_job(arguments).status()
    text = show.as_json(view) if arguments.json else show.job(view, time.time())
    output.write(f"{text}\n")
    return 0
