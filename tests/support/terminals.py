"""A command on a real terminal: the one side of a pty, of which the test is the other."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess

from tests.support.commands import command
from tests.support.python import environment


def on_terminal(*words: str, **environ: str) -> tuple[int, bytes]:
    """A gridtf command line; gives its exit code, and all that it has written, newlines as they were."""
    ours, theirs = pty.openpty()
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        process = subprocess.Popen(
            command(*words),
            env=environment(TERM="xterm", **environ),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        seen = b""
        with process, contextlib.suppress(OSError):  # EIO: nobody has the other side any more
            while block := terminal.read(65536):
                seen += block
        return process.returncode, seen.replace(b"\r\n", b"\n")
