"""gridtf exec and gridtf shell: a command beside a running task, on its host and in its environment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import sys
import termios
import tty
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from gridtf.cli import output
from gridtf.cli.address import complete_names
from gridtf.cli.common import find_job, new_parser
from gridtf.errors import GridtfError, UsageError
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.host.encrypted import Relay

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_IN, _OUT = 0, 1


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
    if not sys.stdin.isatty():
        raise UsageError("a shell needs a terminal, and stdin is none", hint="a command needs none: see gridtf exec")
    arguments.command, arguments.stdin, arguments.tty = _SHELL, True, True
    return run_exec(arguments)


def run_exec(arguments: Namespace) -> int:
    if not arguments.command:
        raise UsageError("there is no command", hint="it goes after --, as in: gridtf exec JOB worker:0 -- nvidia-smi")
    if arguments.tty and not sys.stdin.isatty():
        raise UsageError("-t needs a terminal, and stdin is none", hint="leave out -t; -i alone passes stdin on")
    from gridtf.host import encrypted
    from gridtf.observe import beside, jobs
    from gridtf.run import registry

    run = find_job(arguments).run
    task = beside.task_of(run, arguments.task)
    try:
        own, certificate = encrypted.identity()
    except ImportError as error:
        raise GridtfError(f"gridtf exec needs a package: {error}", hint="pip install cryptography") from None
    order = {
        "task": task,
        "command": [*arguments.command],
        "stdin": arguments.stdin,
        "tty": arguments.tty,
        "term": os.environ.get("TERM") or "dumb",
        "size": [*_size()] if arguments.tty else [0, 0],
        "certificate": certificate,
        **registry.who(),
    }
    found = beside.start(run, order)
    with beside.connect(found, own) as connection:
        # copies, which may be closed
        sinks = {encrypted.STDOUT: os.dup(1), encrypted.STDERR: os.dup(2)}
        relay = encrypted.Relay(connection, {_IN: encrypted.STDIN} if arguments.stdin else {}, sinks)
        with _raw(relay) if arguments.tty else _signals(relay):
            code = _serve(relay)
    if code is None:
        view = jobs.view(run)
        why = f"{view.state}: {view.reason}" if view.finished else ""
        raise GridtfError(f"the connection with {task} on host {found['host']} is broken", why=why)
    return code


def _serve(relay: Relay) -> int | None:
    """Copy until the command has ended. Returns its exit code; None where the connection has ended before."""
    from gridtf.host import encrypted

    code: int | None = None
    while not (relay.closed or code is not None) or not relay.written:
        relay.step(1.0)
        for kind, data in relay.news():
            if kind == encrypted.EXIT and data:
                code = data[0]
            elif kind == encrypted.NOTE:
                output.message(f"\r\ngridtf: {plain(data.decode(errors='replace'))}\r")
        if encrypted.STDOUT in relay.broken:
            raise BrokenPipeError
    return code


def _size() -> tuple[int, int]:
    """Lines and columns of the terminal; zeros where it does not know them."""
    try:
        lines, columns, _, _ = struct.unpack("4H", fcntl.ioctl(_IN, termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return 0, 0
    return lines, columns


@contextlib.contextmanager
def _raw(relay: Relay) -> Iterator[None]:
    """Pass every key on, and the size of the terminal when that changes; the terminal is as before in any case."""
    from gridtf.host import encrypted

    def resized(*_: object) -> None:
        relay.send(encrypted.SIZE, encrypted.Size.pack(*_size()))

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = termios.tcgetattr(_IN)
    signal.signal(signal.SIGWINCH, resized)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    resized()  # since the command was asked for
    try:
        tty.setraw(_IN, termios.TCSADRAIN)  # what was typed meanwhile is for the command
        yield
    finally:
        with contextlib.suppress(termios.error, OSError):  # the terminal is closed
            termios.tcsetattr(_IN, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _signals(relay: Relay) -> Iterator[None]:
    """Pass signals on to the command; a second Ctrl-C ends this process."""
    from gridtf.host import encrypted

    def passed_on(number: int, _: object) -> None:
        relay.send(encrypted.SIGNAL, bytes([number]))
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)

    for number in _PASSED_ON:
        signal.signal(number, passed_on)
    yield
