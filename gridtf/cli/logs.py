"""gridtf logs: output of tasks and of the job script."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser, since
from gridtf.jobspec.arguments import Parser
from gridtf.text import log_line, plain

if TYPE_CHECKING:
    from gridtf.observe.logs import Choice, Piece, Source
    from gridtf.run.rundir import RunDir

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ECMA-48: SGR, without red, which means an error
_NARROW = 60  # columns below which the hosts are left out
_WIDEST = 32  # characters of a name that others are aligned with


def parser(**more: Any) -> Parser:
    examples = ("digits -f", "4711 --task worker:0 --tail 20", "digits --since 10m --grep loss", "digits --errors")
    made = new_parser("logs", "JOB [options]", examples, job=True, **more)
    made.add_argument("-f", "--follow", action="store_true", help="continue until the job ends")
    task_help = "this task (worker:0), all of a type (worker), the job script (job) or the agents (agents); repeatable"
    task = made.add_argument("--task", metavar="TASK", action="append", help=task_help)
    task.completer = complete_tasks  # type: ignore[attr-defined]
    attempt_help = "this attempt, or all (default: the latest); with -f from it on"
    made.add_argument("--attempt", metavar="N", type=attempt, help=attempt_help)
    since_help = "what was printed since then: 10m, 2h, or a time such as 14:30 or '2026-11-23 14:30'"
    made.add_argument("--since", metavar="TIME", type=since, help=since_help)
    made.add_argument("--grep", metavar="PATTERN", type=pattern, help="lines that match a Python regular expression")
    made.add_argument("--tail", metavar="N", type=lines, help="start with the last N lines of each log")
    made.add_argument("--errors", action="store_true", help="the last error of each task instead")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.observe import logs, watch
    from gridtf.run import registry

    run = find_job(arguments).run
    registry.need_run(run)
    registry.need_one_job(run, "logs")
    choice = logs.Choice(arguments.task, arguments.attempt, arguments.since, arguments.tail, script=True)
    if arguments.errors:  # the job script only repeats them
        return _print_errors(run, choice.replace(script=False), arguments)
    if arguments.follow:
        found = logs.following(run, choice, watch.Watch(run).ended, output.rest)
    else:
        found = logs.pieces(run, choice)
    shown, some = Shown(arguments.grep), False
    for piece in found:
        lines = shown.encoded(piece)
        some = some or bool(lines)
        output.write(lines, flush=arguments.follow)
    if not some and (arguments.grep or arguments.since):
        output.message("gridtf: no line of the logs is chosen")
    if logs.JOB in (arguments.task or ()):
        _say_where_script_prints(run)
    return 0


def _say_where_script_prints(run: RunDir) -> None:
    from gridtf.observe import jobs, state
    from gridtf.run.rundir import listdir

    submitted = jobs.read_submitted(run)
    if submitted and not state.own_script(submitted) and run.log.name not in listdir(run.path):
        output.message("gridtf: what a script with gridtf_run prints is in the file that sbatch or qsub made for it")


def _print_errors(run: RunDir, choice: Choice, arguments: Namespace) -> int:
    from gridtf.errors import UsageError
    from gridtf.observe.logerrors import errors

    for flag in ("follow", "grep", "tail", "since"):
        if getattr(arguments, flag) not in (None, False):
            raise UsageError(f"--errors shows one error of each task: leave out --{flag}")
    found = errors(run, choice)
    for source, said in found:
        output.write("\n".join([label(source, wide=True), *(f"  {line}" for line in said)]) + "\n", flush=False)
    if not found:
        output.message("gridtf: the logs end without an error")
    return 0


class Shown:
    """Lines of logs as this terminal, or any other file, gets them.

    Args:
        grep: Only lines that it matches; None: all.
    """

    def __init__(self, grep: re.Pattern[str] | None = None) -> None:
        self._grep = grep
        self._terminal = output.on_terminal()
        self._colours = output.has_colours()
        self._wide = (output.screen() or (_NARROW,))[0] >= _NARROW
        self._width = 0

    def encoded(self, piece: Piece) -> bytes:
        """Lines with the prefixes of their log: on a terminal without control characters, elsewhere unchanged."""
        source, data = piece
        if self._grep is None and not self._terminal:
            prefix = self._prefix(source)
            return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if prefix else data
        chosen = data.decode(errors="surrogateescape").split("\n")[:-1]
        if self._grep is not None and source.name:
            chosen = [line for line in chosen if self._grep.search(line)]
        prefix = self._prefix(source) if chosen else b""
        return b"".join(prefix + self._line(line) for line in chosen)

    def _line(self, line: str) -> bytes:
        raw = output.raw(line)
        if self._terminal:
            raw = output.encoded(log_line(raw.decode(errors="replace"), colours=self._colours))
        return raw + b"\n"

    def _prefix(self, source: Source) -> bytes:
        """The name of a log, unless it is the only one."""
        if not source.name or source.alone:
            return b""
        name = label(source, wide=self._wide)
        if self._terminal:
            self._width = max(self._width, min(len(name), _WIDEST))
            name = name.ljust(self._width)
        if not self._colours:
            return output.encoded(f"{name} | ")
        return output.encoded(f"\x1b[{_COLOURS[source.number % len(_COLOURS)]}m{name} |\x1b[m ")


def label(source: Source, *, wide: bool) -> str:
    """The name of a log, such as ``worker:3@n042``; without the host if it is not ``wide``."""
    host = source.host if source.host[:1].isdigit() else source.host.partition(".")[0]
    return plain(f"{source.name}@{host}" if host and wide else source.name)


def complete_tasks(prefix: str, parsed_args: Namespace, **_: object) -> list[str]:
    """Tasks and task types of the job that begin with prefix, for tab completion."""
    from gridtf.observe import logs

    if not parsed_args.job:  # JOB may come later on the command line
        return []
    latest = find_job(parsed_args).run.latest()
    names = logs.planned(latest) if latest else []
    words = [*names, *(name.partition(":")[0] for name in names), logs.JOB, logs.AGENTS]
    return [word for word in dict.fromkeys(words) if word.startswith(prefix)]


def lines(text: str) -> int:
    """Parse a number of lines, for argparse.

    Raises:
        ArgumentTypeError: For other text.
    """
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def attempt(text: str) -> int:
    """Parse the number of an attempt, or ``all``, for argparse.

    Raises:
        ArgumentTypeError: For other text.
    """
    from gridtf.observe.logs import ALL

    if text != "all" and not (text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is neither the number of an attempt nor all")
    return ALL if text == "all" else int(text)


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression, for argparse.

    Raises:
        ArgumentTypeError: When it is none.
    """
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ArgumentTypeError(f"{text!r} is not a regular expression of Python: {error}") from None
