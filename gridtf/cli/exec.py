"""gridtf exec and gridtf shell: a command beside a running task, on its host and in its environment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import termios
import tty
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from gridtf.cli.address import complete_names
from gridtf.cli.common import find_job, new_parser
from gridtf.errors import UsageError
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from gridtf.host.encrypted import Relay

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def parser_exec(**more: Any) -> Parser:
    examples = ("digits worker:1 -- nvidia-smi", "-it 4711 worker:0 -- python", "digits ps:0 -- env")
    made = _parser("exec", "[-it] JOB [TASK] -- COMMAND", examples, **more)
    made.add_argument("-i", "--stdin", action="store_true", help="pass stdin on to the command")
    made.add_argument("-t", "--tty", action="store_true", help="give the command a terminal, which needs one here")
    return made


def parser_shell(**more: Any) -> Parser:
    return _parser("shell", "JOB [TASK]", ("digits worker:1", "4711"), **more)


def _parser(name: str, arguments: str, examples: tuple[str, ...], **more: Any) -> Parser:
    made = new_parser(name, arguments, examples, job=True, **more)
    task = made.add_argument("task", metavar="TASK", nargs="?", help="a task, such as worker:1 (default: the only one)")
    task.completer = complete_names  # type: ignore[attr-defined]
    return made


def run_shell(arguments: Namespace) -> int:
    arguments.command, arguments.stdin, arguments.tty = _SHELL, True, True
    return run_exec(arguments)


def run_exec(arguments: Namespace) -> int:
    if not arguments.command:
        raise UsageError("there is no command", hint="it goes after --, as in: gridtf exec JOB worker:0 -- nvidia-smi")
    if arguments.tty and not sys.stdin.isatty():
        raise UsageError(
            "a terminal is needed, and stdin is none", hint="a command without one: gridtf exec, without -t"
        )
    from gridtf.observe import ask, beside

    run = find_job(arguments).run
    ask.need_allowed(run, "exec")
    term = (os.environ.get("TERM") or "dumb") if arguments.tty else ""
    attached = partial(_terminal, raw=arguments.stdin) if arguments.tty else contextlib.nullcontext
    task = beside.task_of(run, arguments.task)
    return beside.execute(run, task, arguments.command, term=term, stdin=arguments.stdin, attached=attached)


@contextlib.contextmanager
def _terminal(relay: Relay, *, raw: bool) -> Iterator[None]:
    """Pass the size of the terminal on when that changes, and if it is raw every key; it is as before in any case."""
    from gridtf.host.encrypted import SIZE

    def resized(*_: object) -> None:
        relay.send(SIZE, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = termios.tcgetattr(0)
    signal.signal(signal.SIGWINCH, resized)
    for number in _ENDS:
        signal.signal(number, end)
    try:
        if raw:  # without -i no key is passed on, and Ctrl-C must do here what it always does
            tty.setraw(0, termios.TCSADRAIN)  # what was typed meanwhile is for the command
        resized()
        yield
    finally:
        with contextlib.suppress(termios.error, OSError):  # the terminal is closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)
