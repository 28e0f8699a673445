"""Commands on a real terminal: a pty whose other side the test reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence

from tests.support.commands import command
from tests.support.jobs import until
from tests.support.python import environment

USUAL = {"TERM": "xterm", "LC_ALL": "C.UTF-8"}  # wherever the tests are run


class LiveTerminal:
    """A terminal on which a gridtf command runs, for a test that reads.

    Args:
        ours: The test's side of it.
    """

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self.process = process

    def read_until(self, pattern: bytes) -> bytes:
        """Read until what was read has a match of the pattern, or to the end; returns all of it."""
        seen = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while not re.search(pattern, seen) and (block := os.read(self._ours, 65536)):
                seen += block
        return seen

    def resize(self, columns: int) -> None:
        """Change the size, of which the command is told by SIGWINCH."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))

    def close(self) -> None:
        """Close the terminal, as a user closes its window."""
        if self._ours >= 0:
            os.close(self._ours)
        self._ours = -1


@contextlib.contextmanager
def live_terminal(*words: str, columns: int = 80, controls: bool = True) -> Iterator[LiveTerminal]:
    """Run a gridtf command line on a terminal, and end it afterwards.

    Args:
        columns: Of the terminal.
        controls: Whether it is the controlling terminal of the command, which has SIGHUP when it is closed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with subprocess.Popen(
        command(*words),
        env=environment(**USUAL),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None,
    ) as process:
        os.close(theirs)
        terminal = LiveTerminal(ours, process)
        try:
            yield terminal
        finally:
            process.kill()
            terminal.close()


def on_terminal(*words: str, **environ: str) -> tuple[int, bytes]:
    """Run a gridtf command line on a terminal, which has COLUMNS if that is given and otherwise does not know its size;
    returns its exit code and its output, with newlines as written."""
    ours, theirs = pty.openpty()
    columns = int(environ.get("COLUMNS", "0"))
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24 if columns else 0, columns, 0, 0))
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        process = subprocess.Popen(
            command(*words),
            env=environment(**{**USUAL, **environ}),
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


class Terminal:
    """A terminal with a program on it, for a test that types. A context manager, which ends the program.

    Args:
        argv: The command line of the program.
        env: Its environment.
        lines: Of the terminal.
        columns: Of the terminal.

    Attributes:
        process: The program.
        seen: What it has printed.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], lines: int = 24, columns: int = 80) -> None:
        self._ours, self._theirs = pty.openpty()
        self.seen = b""
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self._theirs)

        def child() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=child,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()
        os.close(self._theirs)

    def hang_up(self) -> None:
        """Close the terminal, as its window is closed."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str) -> str:
        """Wait until the program has printed something; returns all before it, which counts as seen."""

        def shown() -> bool:
            if select.select([self._ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self._ours, 65536)
            return text.encode() in self.seen

        try:
            until(shown, f"{text!r} on the terminal")
        except AssertionError as error:
            raise AssertionError(f"{error}, which shows {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text.encode())
        return before.decode(errors="replace")

    def is_as_before(self) -> bool:
        """Whether its mode is that with which the program was started."""
        return termios.tcgetattr(self._theirs) == self.before
