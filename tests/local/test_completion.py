"""Tab completion in real shells: fish and zsh (bash: tests/unit/cli/test_main.py)."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import call
from tests.support.packages import need_program

# A line as typed, and after Tab.
LINES = [
    ("gridtf stat", "gridtf status"),
    ("gridtf submit --sched", "gridtf submit --scheduler"),
    ("gridtf submit --scheduler sl", "gridtf submit --scheduler slurm"),
    ("gridtf status wor", "gridtf status work/"),
    ("gridtf submit -- python tra", "gridtf submit -- python train.py"),
]


@pytest.fixture
def environ(here: Path) -> dict[str, str]:
    """A home with a folder, a program and the gridtf command."""
    (here / "work").mkdir()
    (here / "train.py").touch()
    (here / "bin").mkdir()
    command = here / "bin" / "gridtf"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gridtf "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "HOME": str(here), "PATH": f"{here / 'bin'}:{os.environ['PATH']}", "TERM": "xterm"}


@pytest.mark.timeout(400)  # with the installation
def test_completion_in_fish(environ: dict[str, str], here: Path) -> None:
    fish = need_program("fish")
    (here / "code.fish").write_text(call("completion", "fish").stdout)
    for typed, expected in LINES:
        code = f"source code.fish; complete -C '{typed}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", code], env=environ, capture_output=True, text=True, timeout=180
        )
        assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [expected.split()[-1]], done


def test_completion_in_zsh(environ: dict[str, str], here: Path) -> None:
    zsh = need_program("zsh")
    (here / "code.zsh").write_text(call("completion", "zsh").stdout)
    master, slave = pty.openpty()
    with subprocess.Popen(
        [zsh, "-f", "-i"], stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
    ) as shell:
        os.close(slave)
        try:
            _type(master, "autoload -Uz compinit; compinit -u -D; source ./code.zsh; echo rea''dy\n", "ready")
            for typed, expected in LINES:
                _type(master, f"{typed}\t", expected)
                os.write(master, b"\x15")  # Ctrl-U deletes the line
        finally:
            shell.kill()
            os.close(master)


def _type(terminal: int, keys: str, expected: str, seconds: float = 60) -> None:
    """Type keys, and wait until the terminal shows the expected text."""
    os.write(terminal, keys.encode())
    shown, deadline = "", time.monotonic() + seconds
    while expected not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"typed {keys!r}, waited for {expected!r}, and saw {shown!r}"
        shown += os.read(terminal, 4096).decode(errors="replace")
