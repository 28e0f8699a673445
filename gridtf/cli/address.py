"""gridtf address: where the TensorFlow server of a task of a running job is."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.cli.logs import complete_tasks
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain


def parser(**more: Any) -> Parser:
    made = new_parser("address", "JOB TASK", ("digits worker:0", "4711 ps:0"), job=True, **more)
    task = made.add_argument("task", metavar="TASK", help="a task, such as worker:0")
    task.completer = complete_names  # type: ignore[attr-defined]
    return made


def run(arguments: Namespace) -> int:
    output.result(plain(find_job(arguments).address(arguments.task)))
    return 0


def complete_names(prefix: str, parsed_args: Namespace, **_: object) -> list[str]:
    """Tasks of the job that begin with prefix, for tab completion."""
    return [word for word in complete_tasks(prefix, parsed_args) if ":" in word]
