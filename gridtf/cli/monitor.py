"""gridtf monitor: a job on a whole terminal, live; with --once as a page of text."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.errors import GridtfError
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from gridtf.run.rundir import RunDir

_DEFAULT_SIZE = (80, 24)
_INSTALL = "to install it: pip install textual"


def parser(**more: Any) -> Parser:
    made = new_parser("monitor", "JOB [options]", ("digits", "4711 --once"), job=True, **more)
    made.add_argument("--once", action="store_true", help="print all of it once, as text, and exit")
    return made


def run(arguments: Namespace) -> int:
    run = find_job(arguments, alone_for="monitor").run
    if arguments.once:
        return _once(run)
    plain = f"`gridtf status {shlex.quote(str(arguments.job))} --watch` shows the same in plain text"
    if not _on_terminal():
        raise GridtfError("gridtf monitor needs a terminal", hint=plain)
    if not output.redraws():
        why = f"TERM is {os.environ.get('TERM') or 'not set'}"
        raise GridtfError("gridtf monitor needs a terminal that can move the cursor", why=why, hint=plain)
    try:
        from gridtf.monitor.app import Monitor
    except ImportError as error:
        raise GridtfError(f"gridtf monitor needs Textual; {_INSTALL}", why=str(error), hint=plain) from None
    return Monitor(run, _stacks, ascii_only=not _utf8()).run_until_quit()


def _on_terminal() -> bool:
    """Whether all standard streams are a terminal: Textual reads the first and writes to the last."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _once(run: RunDir) -> int:
    from gridtf.monitor import pages
    from gridtf.monitor.lines import to_ascii
    from gridtf.monitor.reader import Reader

    reader = Reader(run)
    for snapshot in reader.look():
        if snapshot.trouble:
            raise GridtfError(snapshot.trouble)
    text = pages.as_text(reader.snapshot, shutil.get_terminal_size(_DEFAULT_SIZE).columns)
    output.write(f"{text if _utf8() else to_ascii(text)}\n")
    return 0


def _utf8() -> bool:
    """Whether the locale is one of UTF-8 (locale(7)); Python itself takes C for it."""
    named = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return "UTF8" in next(filter(None, named), "").upper().replace("-", "")


def _stacks(run: RunDir) -> Sequence[str]:
    from gridtf.cli.stacks import lines
    from gridtf.observe import stacks

    return lines(stacks.request(run))
