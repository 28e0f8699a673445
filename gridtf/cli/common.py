"""Code that commands share: finding a command, its parser, the argument JOB."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.cli import COMMANDS, output, restore_sigchld
from gridtf.errors import UsageError, nearest
from gridtf.jobspec.arguments import Parser, split_command
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured, Use
    from gridtf.jobspec.sweep import Sweep
    from gridtf.login.job import Job
    from gridtf.login.like import Like


_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
_CLOCKS = ("%H:%M", "%H:%M:%S")
WITH_COMMAND = ("exec",)  # besides those with the options of a job
WITH_JOB_OPTIONS = ("submit", "sweep", "run", "render", "when", "rerun", "doctor")
# Command -> its module in this package, if that has another name.
_MODULES = {
    "list": "status",
    "run": "submit",
    "output": "paths",
    "init": "doctor",
    "shell": "exec",
    "import": "import_job",
    "bootstrap-path": "paths",
}


class Command(Value):
    """A command: ``parser`` and ``run`` of its module; in a module with several commands ``parser_list`` and so on.

    Attributes:
        parser: Makes its parser from keyword arguments of ArgumentParser.
        run: Runs it and returns the exit code; ``arguments.command`` has the words after ``--``, None without ``--``.
    """

    parser: Callable[..., Parser]
    run: Callable[[Namespace], int]


def find_command(name: str) -> Command:
    """Import a command.

    Args:
        name: A key of COMMANDS.
    """
    module = import_module(f"gridtf.cli.{_MODULES.get(name, name)}")
    shared = f"_{name.replace('-', '_')}"
    return Command(*(getattr(module, f"{part}{shared}", None) or getattr(module, part) for part in ("parser", "run")))


def run_command(name: str, words: Sequence[str]) -> int:
    """Parse the arguments of a command and run it.

    Args:
        name: The command.
        words: Its arguments.

    Returns:
        The exit code.

    Raises:
        UsageError: For an unknown command and for wrong arguments.
        GridtfError: When the command fails.
    """
    if name not in COMMANDS:
        from gridtf.jobspec import synonyms

        meant = f"write: gridtf {name[2:]}" if name[:2] == "--" and name[2:] in COMMANDS else ""
        hint = meant or synonyms.command(name, words) or nearest(name, list(COMMANDS)) or "see `gridtf --help`"
        raise UsageError(f"unknown command {name if name.strip() else repr(name)}", hint=hint)
    command = find_command(name)
    words, after = split_command(words)
    try:
        if name in WITH_JOB_OPTIONS:
            from gridtf import schedulers

            if {"-h", "--help"} & {*words}:
                command.parser(schedulers.job_options(plugins=True)).parse(words)
            arguments = schedulers.with_options(lambda table, _: command.parser(table).parse(words, after))
        else:
            arguments = command.parser().parse(words)
    except SystemExit as end:  # --help has been printed
        return int(end.code or 0)
    if after is not None and not hasattr(arguments, "given") and name not in WITH_COMMAND:
        raise UsageError(f"gridtf {name} takes no command", hint=f"see `gridtf {name} --help`")
    arguments.command = after
    restore_sigchld()
    return command.run(arguments)


def as_ctrl_c() -> None:
    """Let SIGHUP, as of a lost connection, and SIGTERM end this command as Ctrl-C does: nothing is left behind."""
    import signal

    ends = [number for number in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]  # nohup

    def interrupt(*_: object) -> None:
        for number in ends:
            signal.signal(number, signal.SIG_IGN)  # a shell and its terminal send one each
        raise KeyboardInterrupt

    for number in ends:
        signal.signal(number, interrupt)


class _Parser(Parser):
    def print_help(self, file: object = None) -> None:
        output.write(self.format_help())


def new_parser(
    name: str, arguments: str, examples: Sequence[str], *, job: bool | str = False, json: bool = False, **more: Any
) -> Parser:
    """Make the parser of a command, with a description and examples.

    Args:
        name: The command.
        arguments: Its arguments as the usage line shows them.
        examples: Arguments of example calls.
        job: Whether to add the argument JOB; "+" for one or more of it.
        json: Whether to add the option --json.
        more: Keyword arguments of ArgumentParser.
    """
    text = "examples:\n" + "".join(f"  gridtf {name} {example}".rstrip() + "\n" for example in examples)
    description = COMMANDS[name][0].upper() + COMMANDS[name][1:] + "."
    parser = _Parser(
        f"gridtf {name}", usage=f"gridtf {name} {arguments}", description=description, epilog=text.rstrip(), **more
    )
    if job:
        number = job if isinstance(job, str) else None
        told = "a run directory, a job id or a name (the newest)"
        action = parser.add_argument("job", metavar="JOB", nargs=number, help=told)
        action.completer = job_names  # type: ignore[attr-defined]
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def add_raw(parser: Parser) -> None:
    """Add the option --raw to a command that prints logs."""
    raw_help = "all lines, as in a pipe: a terminal gets what tasks print alike once, and no noise of TensorFlow"
    parser.add_argument("--raw", action=BooleanOptionalAction, help=raw_help)


def add_like(parser: Parser) -> None:
    """Add the option --like to a command that reads a job."""
    told = "take memory, CPUs and walltime from what this job has used"
    parser.add_argument("--like", metavar="JOB", help=told).completer = job_names  # type: ignore[attr-defined]


def job_names(prefix: str, **_: object) -> list[str]:
    """Names and ids of jobs, and folders, that begin with prefix, for tab completion."""
    from argcomplete.completers import FilesCompleter

    from gridtf.run import registry

    words = [word for entry in registry.entries(os.environ) for word in (entry.name, entry.job_id)]
    folders = [path for path in FilesCompleter()(prefix) if path.endswith("/")]
    return [word for word in dict.fromkeys(words) if word.startswith(prefix)] + folders


def find_job(arguments: Namespace, *, alone_for: str = "") -> Job:
    """Find the job named by the argument JOB.

    Args:
        arguments: The parsed command line.
        alone_for: The gridtf command, if it takes no job array.

    Raises:
        NotFoundError: When there is no such job.
        RunDirError: When its run directory cannot be read.
    """
    from gridtf.login.job import find
    from gridtf.run import registry

    job = find(arguments.job)
    if alone_for:
        registry.need_one_job(job.run, alone_for)
    return job


def agreed(question: str, done: str, hint: str) -> bool:
    """Ask the user.

    Args:
        question: The question, with its answers.
        done: What is said to have happened where there is no terminal to ask on.
        hint: What to do about that.

    Raises:
        UsageError: When there is none.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{done}: the question before it needs a terminal", hint=hint)
    output.message(question)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def configured(
    arguments: Namespace, use: Use | None = None, step: str = "", like: Like | None = None, *, quiet: bool = False
) -> Configured:
    """Read the job of submit, run or render from all layers of configuration; print notes on it to stderr.

    Args:
        arguments: The parsed command line.
        use: What it is configured for; None: to submit it.
        step: Which step of the job file it is, for those after the first.
        like: The job of --like, where it has been read already.
        quiet: Whether its notes have been printed.

    Returns:
        The specification of the job, and where its values came from.

    Raises:
        UsageError: For a wrong value.
        RunDirError: When the current folder has been removed.
    """
    from gridtf import schedulers
    from gridtf.jobspec.config import Typed, Use, configure
    from gridtf.run.rundir import here

    typed, cwd = Typed(arguments.jobfile, arguments.given, arguments.command), here()
    like = like or like_of(arguments)
    job = schedulers.with_options(
        lambda table, complete: configure(
            *(typed, os.environ, cwd, table),
            complete=complete,
            use=use or Use.SUBMIT,
            like=like.layer if like else None,
            step=step,
        )
    )
    if like:
        job = job.replace(notes=(*job.notes, *like.notes), origin={"like": str(like.run_dir)})
    for note in () if step or quiet else job.notes:
        output.message(f"gridtf: {note}")
    return job


def like_of(arguments: Namespace) -> Like | None:
    """The job that --like names; None without one."""
    if not getattr(arguments, "like", None):
        return None
    from gridtf.login.job import find
    from gridtf.login.like import Like

    return Like(find(arguments.like))


def sweep_of(given: Configured, arguments: Namespace) -> Sweep:
    """The sweep that a command line means.

    Raises:
        UsageError: For one that cannot be.
    """
    from gridtf.jobspec.jobfile import JOB_FILE
    from gridtf.login import sweeps

    pack = getattr(arguments, "pack", 1)
    if pack < 1:
        raise UsageError(f"--pack: {pack} is not a whole number above 0")
    folder = Path(arguments.jobfile or JOB_FILE).absolute().parent
    return sweeps.configured(given, folder, getattr(arguments, "at_once", None), pack)


def steps_of(arguments: Namespace, first: Configured) -> dict[str, Configured]:
    """Read the steps of a job file.

    Args:
        arguments: The parsed command line.
        first: The first of them, as configured returns it.

    Returns:
        Name -> step, in the order of the file; empty for a file without any.
    """
    return {name: first if name == first.steps[0] else configured(arguments, step=name) for name in first.steps}


def since(text: str) -> float:
    """Parse a time, or how long ago it was, for argparse.

    Args:
        text: A clock time of the last 24 hours such as 14:30, a date, both, or a duration such as 10m.

    Returns:
        Seconds since the epoch.

    Raises:
        ArgumentTypeError: For other text.
    """
    from gridtf.jobspec.units import parse_duration

    now = time.time()
    for form in (*_DATES, *_CLOCKS):
        try:
            parsed = time.strptime(text.strip(), form)
        except ValueError:
            continue
        if form in _DATES:
            return time.mktime(parsed)
        today = time.localtime(now)
        for day in (today.tm_mday, today.tm_mday - 1):
            then = time.mktime((today.tm_year, today.tm_mon, day, *parsed[3:6], 0, 0, -1))
            if then <= now:
                break
        return then
    try:
        if ":" in text:
            raise ValueError
        return now - parse_duration(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is neither a duration, such as 10m or 2h, nor a time, such as 14:30"
        ) from None
