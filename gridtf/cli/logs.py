"""gridtf logs: output of tasks and of the job script."""

from __future__ import annotations

import math
import re
import time
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import add_raw, find_job, new_parser, since
from gridtf.jobspec.arguments import Parser
from gridtf.observe.folding import Folding
from gridtf.run.noise import Noise
from gridtf.run.stacks import spans
from gridtf.text import counted, log_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridtf.observe.logs import Choice, Piece, Source
    from gridtf.run.rundir import RunDir

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ECMA-48: SGR, without red, which means an error
_NARROW = 60  # columns below which the hosts are left out
_WIDEST = 32  # characters of a name that others are aligned with


def parser(**more: Any) -> Parser:
    examples = ("digits -f", "4711 worker:0 --tail 20", "digits --since 10m --grep loss", "digits --errors")
    made = new_parser("logs", "JOB [TASK …] [options]", examples, job=True, **more)
    tasks = made.add_argument("tasks", metavar="TASK", nargs="*", default=[], help="these tasks, as for --task")
    made.add_argument("-f", "--follow", action="store_true", help="continue until the job ends")
    task_help = "this task (worker:0), all of a type (worker), the job script (job) or the agents (agents); repeatable"
    task = made.add_argument("--task", metavar="TASK", action="append", help=task_help)
    task.completer = tasks.completer = complete_tasks  # type: ignore[attr-defined]
    attempt_help = "this attempt, or all (default: the latest); with -f from it on"
    made.add_argument("--attempt", metavar="N", type=attempt, help=attempt_help)
    since_help = "what was printed since then: 10m, 2h, or a time such as 14:30 or '2026-11-23 14:30'"
    made.add_argument("--since", metavar="TIME", type=since, help=since_help)
    made.add_argument("--grep", metavar="PATTERN", type=pattern, help="lines that match a Python regular expression")
    made.add_argument("--tail", metavar="N", type=lines, help="start with the last N lines of each log")
    made.add_argument("--timestamps", action="store_true", help="begin each line with the time at which it was printed")
    add_raw(made)
    made.add_argument("--errors", action="store_true", help="the last error of each task instead")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.run import reduced

    with reduced.unpacked(find_job(arguments, alone_for="logs").run) as run:
        return _print(run, arguments)


def _print(run: RunDir, arguments: Namespace) -> int:
    from gridtf.observe import logs

    tasks = [*arguments.tasks, *(arguments.task or ())] or None
    choice = logs.Choice(
        tasks, arguments.attempt, arguments.since, arguments.tail, script=True, times=arguments.timestamps
    )
    if arguments.errors:  # the job script only repeats them
        return _print_errors(run, choice.replace(script=False), arguments)
    if arguments.follow:
        from gridtf.cli.follow import Following
        from gridtf.cli.pace import Pace

        pace = Pace()
        shown = Shown(arguments.grep, raw=arguments.raw, times=arguments.timestamps, see=pace.see)
        Following(run, choice, shown, pace, events=False).run()
    else:
        shown = Shown(arguments.grep, raw=arguments.raw, times=arguments.timestamps)
        for piece in logs.pieces(run, choice):
            output.write(shown.encoded(piece), flush=False)
        output.write(shown.rest())
        shown.tell()
    if not shown.shown and (arguments.grep or arguments.since):
        output.message("gridtf: no line of the logs is chosen")
    if logs.JOB in (tasks or ()):
        _say_where_script_prints(run)
    return 0


def _say_where_script_prints(run: RunDir) -> None:
    from gridtf.observe import jobs
    from gridtf.run import registry
    from gridtf.run.rundir import listdir

    submitted = jobs.read_submitted(run)
    if submitted and not registry.own_script(submitted) and run.log.name not in listdir(run.path):
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

    A terminal gets lines that several tasks print alike once, and no noise of TensorFlow.

    Args:
        grep: Only lines that it matches, also of the noise; None: all.
        raw: Whether to show all lines as they are; None: unless stdout is a terminal.
        times: Whether to begin lines with their times.
        see: Called with the name of a task, lines of its log and their time.

    Attributes:
        shown: Whether there was any line.
    """

    def __init__(
        self,
        grep: re.Pattern[str] | None = None,
        *,
        raw: bool | None = None,
        times: bool = False,
        see: Callable[[str, list[str], float], None] | None = None,
    ) -> None:
        self._grep = grep
        self._times = times
        self._see = see
        self._terminal = output.on_terminal()
        self._raw = not self._terminal if raw is None else raw
        self._colours = output.has_colours()
        self._wide = (output.screen() or (_NARROW,))[0] >= _NARROW
        self._width = 0
        self._folding = Folding()
        self._noise: dict[str, Noise] = {}
        self._left_out = 0
        self.shown = False

    def encoded(self, piece: Piece) -> bytes:
        """Lines with the prefixes of their log: on a terminal without control characters, elsewhere unchanged."""
        source, data, at = piece
        if self._raw and self._grep is None and not (self._terminal or self._times):
            self.shown = self.shown or bool(data)
            prefix = self._prefix([source])
            return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if prefix and data else data
        chosen, now = data.decode(errors="surrogateescape").split("\n")[:-1], time.time()
        if self._see is not None and chosen:
            self._see(source.name, chosen, min(at, now))
        if self._grep is not None and source.name:
            chosen = [line for line in chosen if self._grep.search(line)]
        elif not self._raw and ":" in source.name:
            all_of_them = len(chosen)
            chosen = [*self._noise.setdefault(source.name, Noise(gpus=source.gpus)).without(chosen)]
            self._left_out += all_of_them - len(chosen)
        self.shown = self.shown or bool(chosen)
        if self._raw or source.alone or (data and ":" not in source.name):
            return self.rest() + b"".join(self._line([source], line, at) for line in chosen)
        ready = self._ready(min(at, now))
        for line in chosen:
            self._folding.add(source, line, min(at, now))
        return ready

    def rest(self) -> bytes:
        """The lines that wait for those of other tasks."""
        return self._ready(float("inf"))

    def tell(self) -> None:
        """Say how many lines were left out."""
        if self._left_out:
            lines = counted(self._left_out, "line")
            output.message(f"gridtf: {lines} of TensorFlow and of progress bars left out; --raw shows all")

    def _ready(self, now: float) -> bytes:
        return b"".join(self._line(one.sources, one.line, one.time) for one in self._folding.ready(now))

    def _line(self, sources: Sequence[Source], line: str, at: float) -> bytes:
        raw = output.raw(line)
        if self._terminal:
            raw = output.encoded(log_line(raw.decode(errors="replace"), colours=self._colours))
        when = f"{_moment(at)} ".encode() if self._times and sources[0].name else b""
        return self._prefix(sources) + when + raw + b"\n"

    def _prefix(self, sources: Sequence[Source]) -> bytes:
        """The name of a log, unless it is the only one; of several, their names."""
        source, several = sources[0], len(sources) > 1
        if not source.name or source.alone:
            return b""
        name = spans([one.name for one in sources], most=4) if several else label(source, wide=self._wide)
        if self._terminal:
            self._width = max(self._width, min(len(name), _WIDEST))
            name = name.ljust(self._width)
        if not self._colours:
            return output.encoded(f"{name} | ")
        colour = 1 if several else _COLOURS[source.number % len(_COLOURS)]
        return output.encoded(f"\x1b[{colour}m{name} |\x1b[m ")


def _moment(at: float) -> str:
    """A time by this host's clock, with milliseconds; a dash where it is not known."""
    if not math.isfinite(at):
        return "-".ljust(len("2026-11-27T14:30:00.000"))
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1000):03}"


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
