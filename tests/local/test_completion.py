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
from tests.support.packages import need_library, need_program

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


# How the code comes into the shell: by its start-up file, or from where the wheel has put it, below share/.
how = pytest.mark.parametrize("how", ["sourced", "installed"])


@how
@pytest.mark.timeout(400)  # with the installation
def test_completion_in_fish(environ: dict[str, str], here: Path, how: str) -> None:
    fish = need_program("fish")
    (here / "gridtf.fish").write_text(call("completion", "fish").stdout)
    load = {"sourced": "source gridtf.fish", "installed": "set -p fish_complete_path $PWD"}[how]
    for typed, expected in LINES:
        code = f"{load}; complete -C '{typed}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", code], env=environ, capture_output=True, text=True, timeout=180
        )
        assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [expected.split()[-1]], done


def test_completion_in_bash_is_loaded_at_the_first_tab(environ: dict[str, str], here: Path) -> None:
    """By bash-completion, from a folder that a module has added to XDG_DATA_DIRS."""
    start = need_library("/usr/share/bash-completion/bash_completion", "bash-completion")
    folder = here / "share/bash-completion/completions"
    folder.mkdir(parents=True)
    (folder / "gridtf").write_text(call("completion", "bash").stdout)
    code = f". {start}; _completion_loader gridtf; complete -p gridtf"
    own = {**environ, "XDG_DATA_DIRS": f"{here / 'share'}:/usr/share"}
    done = subprocess.run(["bash", "--norc", "-c", code], env=own, capture_output=True, text=True, timeout=180)
    assert done.stdout == "complete -o bashdefault -o nospace -F _python_argcomplete gridtf\n", done.stderr


@how
def test_completion_in_zsh(environ: dict[str, str], here: Path, how: str) -> None:
    zsh = need_program("zsh")
    (here / "_gridtf").write_text(call("completion", "zsh").stdout)
    before, after = {"sourced": ("", "source ./_gridtf;"), "installed": ("fpath=($PWD $fpath);", "")}[how]
    master, slave = pty.openpty()
    with subprocess.Popen(
        [zsh, "-f", "-i"], stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
    ) as shell:
        os.close(slave)
        try:
            _type(master, f"{before} autoload -Uz compinit; compinit -u -D; {after} echo rea''dy\n", "ready")
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
