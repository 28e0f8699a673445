"""gridtf logs: output of tasks and of the job script."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.jobspec.arguments import Parser
from gridtf.text import log_line


def parser(**more: Any) -> Parser:
    made = new_parser("logs", "JOB [options]", ("digits -f", "4711 --task worker:0 --tail 20"), job=True, **more)
    made.add_argument("-f", "--follow", action="store_true", help="continue until the job ends")
    task_help = "this task (worker:0), all of a type (worker), or the job script (job); repeatable"
    task = made.add_argument("--task", metavar="TASK", action="append", help=task_help)
    task.completer = complete_tasks  # type: ignore[attr-defined]
    made.add_argument("--tail", metavar="N", type=lines, help="start with the last N lines of each log")
    return made


def run(arguments: Namespace) -> int:
    import time

    from gridtf.observe import logs, watch
    from gridtf.run import registry

    run = find_job(arguments).run
    registry.need_run(run)
    registry.need_one_job(run, "logs")
    if arguments.follow:
        ended = watch.Watch(run).ended
        printed = logs.follow(run, arguments.task, ended, time.sleep, tail=arguments.tail)
    else:
        printed = logs.read(run, arguments.task, arguments.tail)
    show = _for_terminal if output.on_terminal() else output.raw
    for line in printed:
        output.write(show(line), flush=arguments.follow)
    return 0


def _for_terminal(line: str) -> str:
    """A line without control characters except colours."""
    text = output.raw(line.removesuffix("\n")).decode(errors="replace")
    return f"{log_line(text, colours=True)}\n"


def complete_tasks(prefix: str, parsed_args: Namespace, **_: object) -> list[str]:
    """Tasks and task types of the job that begin with prefix, for tab completion."""
    from gridtf.observe import logs

    if not parsed_args.job:  # JOB may come later on the command line
        return []
    latest = find_job(parsed_args).run.latest()
    names = logs.planned(latest)[0] if latest else []
    words = [*names, *(name.partition(":")[0] for name in names), logs.JOB]
    return [word for word in dict.fromkeys(words) if word.startswith(prefix)]


def lines(text: str) -> int:
    """Parse a number of lines, for argparse.

    Raises:
        ArgumentTypeError: For other text.
    """
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)
