"""Records, logs and schedulers with control characters meant for the user's terminal; shown on a real one, a pty."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from gridtf.run import registry
from gridtf.run.rundir import RunDir, write_record
from tests.support.commands import call, command
from tests.support.terminals import on_terminal

# the clipboard, a title, a cleared screen, a line up (twice), a line of its own, text that runs back
EVIL = "\x1b]52;c;eA==\x07\x1b]0;title\x1b\\\x1b[2J\x1b[1A\x9b1A\nall is well\r\u202eevil"
LOG = b"\x1b[31mred\x1b[0m \xff \x1b]52;c;eA==\x07end\x1b[2J\n\x00\x9b1A\x07\x1b[8mhidden\nlast\n"
COLOURED = re.compile("\x1b\\[(?:1|3[125])m([A-Z _]+)\x1b\\[m")  # headings and states
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def hostile(tmp_path: Path) -> RunDir:
    """The run directory of a failed job, forged by another user."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    submitted = {"scheduler": "local", "job_id": "7", "name": f"n{EVIL}", "host": EVIL, "user": EVIL, "time": 1}
    write_record(run.submitted, submitted)
    attempt = run.new_attempt()
    task = {"type": "worker", "index": 0, "host": f"h{EVIL}"}
    write_record(attempt.plan, {"spec": {}, "job": {"name": EVIL, "id": EVIL}, "tasks": [task]})
    cause = {"task": "worker:0", "host": EVIL, "exit": 1, "signal": EVIL, "log": EVIL, "tail": [EVIL, "\x1b[31mred"]}
    verdict = {"state": "FAILED", "reason": f"r{EVIL}", "hint": f"h{EVIL}", "exit_code": 1, "started": 1, "ended": 2}
    write_record(attempt.verdict, {**verdict, "cause": cause})
    attempt.task_log("worker", 0).write_bytes(LOG)
    registry.add(run.path, submitted, os.environ)
    return run


def shown(code: int, *words: str, **environ: str) -> str:
    """The output of a command on a terminal, which must be printable."""
    ended, seen = on_terminal(*words, **environ)
    text = COLOURED.sub(r"\1", seen.decode())
    assert ended == code, text
    assert not OBEYED.search(text), ascii(text)
    assert "all is well" not in [line.strip() for line in text.splitlines()]
    return text


@pytest.mark.parametrize(("name", "code"), [("status", 0), ("wait", 1), ("cancel", 0)])
def test_control_characters_in_records_are_escaped(name: str, code: int, hostile: RunDir) -> None:
    text = shown(code, name, str(hostile.path))
    assert r"n\x1b]52;c;eA==\x07\x1b]0;title" in text
    assert r"h\x1b]52" in text
    assert r"\x1b[31mred" in text


def test_control_characters_in_list_and_errors_are_escaped(hostile: RunDir) -> None:
    assert r"n\x1b]52;c;eA==\x07" in shown(0, "list")
    assert r"no such task: x\x1b[2J\nall is well" in shown(
        2, "logs", str(hostile.path), "--task", "x\x1b[2J\nall is well"
    )


def test_json_has_no_control_characters(hostile: RunDir) -> None:
    _, seen = on_terminal("status", "--json", str(hostile.path))
    assert not OBEYED.search(seen.decode())
    assert json.loads(seen)["reason"] == f"r{EVIL}"


def test_logs_on_a_terminal_keep_colours_only(hostile: RunDir) -> None:
    ended, seen = on_terminal("logs", str(hostile.path))
    assert (ended, seen.decode()) == (0, "\x1b[31mred\x1b[0m \ufffd end\x1b[m\n\ufffd1A\x1b[8mhidden\x1b[m\nlast\n")


def test_logs_in_a_pipe_are_the_original_bytes(hostile: RunDir) -> None:
    done = subprocess.run(command("logs", str(hostile.path)), stdout=subprocess.PIPE, timeout=180, check=True)
    assert done.stdout == LOG


def test_control_characters_from_a_scheduler_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sinfo", "sbatch"):
        (folder / name).write_text("#!/bin/sh\nprintf 'error: \\033[2J\\033]0;x\\007no\\n' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    text = shown(1, "submit", "--scheduler", "slurm", "--workers", "1", "--", "true", PATH=path)
    assert r"\x1b[2J\x1b]0;x\x07no" in text


def test_control_characters_in_a_job_file_are_escaped_by_render(tmp_path: Path) -> None:
    template = tmp_path / "own.j2"
    template.write_text("echo \x1b[2J\x1b]0;x\x07\n")
    job = tmp_path / "job.toml"
    job.write_text('command = ["a\\u009b2J"]\ntemplate = "own.j2"\n[env]\nA = "\\u001b[2J\\u202e"\n')
    text = shown(0, "render", "--scheduler", "local", str(job))
    assert r"echo \x1b[2J\x1b]0;x\x07" in text
    assert (
        call("render", "--scheduler", "local", str(job)).stdout == template.read_text()
    )  # in a pipe, the script unchanged
