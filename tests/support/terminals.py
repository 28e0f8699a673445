"""Commands on a real terminal: a pty whose other side the test reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios

from tests.support.commands import command
from tests.support.python import environment


def on_terminal(*words: str, **environ: str) -> tuple[int, bytes]:
    """Run a gridtf command line on a terminal, which has COLUMNS if that is given and otherwise does not know its size;
    returns its exit code and its output, with newlines as written."""
    ours, theirs = pty.openpty()
    columns = int(environ.get("COLUMNS", "0"))
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24 if columns else 0, columns, 0, 0))
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        process = subprocess.Popen(
            command(*words),
            env=environment(**{"TERM": "xterm", **environ}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        seen = b""
        with process, contextlib.suppress(OSError):  # EIO: the other side is closed
            while block := terminal.read(65536):
                seen += block
        return process.returncode, seen.replace(b"\r\n", b"\n")
