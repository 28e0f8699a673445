"""gridtf monitor on a real terminal: a pty whose other side the test reads; and of a job that runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import RunDir
from tests.support import recordedruns
from tests.support.commands import SLEEPS, call, command, running, submit
from tests.support.jobs import PATIENCE
from tests.support.python import environment

MAIN_SCREEN = b"\x1b[?1049l"  # xterm: back from the alternate screen


class Terminal:
    """A monitor on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int, before: list[Any]) -> None:
        self.process = process
        self.seen = self.all = b""
        self._ours, self._theirs, self._before = ours, theirs, before

    def until(self, words: bytes) -> None:
        """Read until these words have been written since the last call."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._ours], [], [], 0.1)[0]:
                block = os.read(self._ours, 65536)
                self.seen, self.all = self.seen + block, self.all + block
        self.seen = self.seen.partition(words)[2]

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int, lines: int) -> None:
        resize(self._theirs, columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def ended(self) -> int:
        """Wait for its end; the terminal must be as it was before."""
        self.until(MAIN_SCREEN)
        code = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self._theirs) == self._before
        return code


def resize(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def start(run: Path, terminal: int, **environ: str) -> subprocess.Popen[bytes]:
    size = {"COLUMNS": "", "LINES": ""}  # of the terminal in which the tests run
    return subprocess.Popen(
        command("monitor", str(run)),
        env=environment(TERM="xterm-256color", LC_ALL="C.UTF-8", **size, **environ),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )


@contextlib.contextmanager
def monitor(run: Path, columns: int = 80, lines: int = 24, **environ: str) -> Iterator[Terminal]:
    ours, theirs = os.openpty()
    try:
        resize(theirs, columns, lines)
        before = termios.tcgetattr(theirs)
        process = start(run, theirs, **environ)
        try:
            yield Terminal(process, ours, theirs, before)
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return recordedruns.make(tmp_path / "digits", workers=256, host_count=32, gpus=8, minutes=1.0)


def test_keys_move_in_256_tasks_and_q_restores_the_terminal(run: RunDir) -> None:
    with monitor(run.path) as terminal:
        terminal.until(b"1 to 10 of 256")
        terminal.press(b"\x1b[F")  # xterm: End
        terminal.until(b"251 to 256 of 256")
        terminal.press(b"h")
        terminal.until(b"SAMPLE")
        terminal.press(b"l")
        terminal.until(b"log of worker:255")
        terminal.press(b"q")
        assert terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_that_end_it_leave_the_terminal_as_it_was(number: signal.Signals, run: RunDir) -> None:
    with monitor(run.path) as terminal:
        terminal.until(b"1 to 10 of 256")
        terminal.process.send_signal(number)
        assert terminal.ended() == 128 + number


def test_terminal_that_goes_ends_it(run: RunDir) -> None:
    ours, theirs = os.openpty()
    resize(theirs, 80, 24)
    with start(run.path, theirs) as process:
        os.close(theirs)
        assert os.read(ours, 1)
        os.close(ours)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def test_resized_and_narrow_terminals(run: RunDir) -> None:
    with monitor(run.path, columns=40, lines=12) as terminal:
        terminal.until(b"1 to 5 of 256")
        terminal.resize(100, 40)
        terminal.until(b"up/down select")
        terminal.resize(20, 5)
        terminal.until(b"? help")
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_no_color_means_none(run: RunDir) -> None:
    with monitor(run.path, NO_COLOR="1") as terminal:
        terminal.until(b"COMPLETED")
        terminal.until(b"1 to 10 of 256")
        terminal.press(b"q")
        terminal.until(MAIN_SCREEN)
        assert re.search(rb"\x1b\[[0-9;]*[34][0-7][0-9;]*m", terminal.all) is None


def test_job_that_runs_with_its_stacks_and_a_log(here: Path) -> None:
    job = submit("--workers", "2", "--kill-grace", "1", *SLEEPS)
    running(job["job_id"])
    assert "RUNNING" in call("monitor", job["job_id"], "--once").stdout
    with monitor(Path(job["run_dir"])) as terminal:
        terminal.until(b"RUNNING")
        terminal.press(b"k")
        terminal.until(b", process ")
        terminal.press(b"l")
        terminal.until(b"log of worker:0")
        terminal.press(b"q")
        assert terminal.ended() == 0
