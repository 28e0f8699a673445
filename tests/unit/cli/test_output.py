"""What commands print when stdout or stderr is full, closed or has another encoding."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

import gridtf
from gridtf.cli import main, output
from gridtf.run import registry
from gridtf.run.rundir import RunDir, read_record, write_record
from tests.support import recordedruns
from tests.support.scheduler import FakeScheduler
from tests.support.terminals import on_terminal

Captured = pytest.CaptureFixture[str]
ROOT = Path(gridtf.__file__).parents[1]
FULL = "gridtf: cannot write to stdout: No space left on device"


@pytest.fixture
def full() -> Iterator[TextIO]:
    """A file on a full disk."""
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as file:
        yield file


def gridtf_in_bash(words: str) -> subprocess.CompletedProcess[str]:
    """Run a command line with redirections."""
    line = f"{shlex.quote(sys.executable)} -m gridtf {words}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("words", ["list", "list --json", "--help", "--version", "submit --help", "bootstrap-path"])
def test_full_stdout_is_reported_in_one_line(words: str) -> None:
    done = gridtf_in_bash(f"{words} >/dev/full")
    assert (done.returncode, done.stderr) == (1, f"{FULL}\n")


@pytest.mark.parametrize(
    ("words", "code"), [("list <&- >&- 2>&-", 0), ("list 2>/dev/full", 0), ("lsit 2>/dev/full", 2), ("lsit 2>&-", 2)]
)
def test_exit_code_without_writable_streams(words: str, code: int) -> None:
    assert gridtf_in_bash(words).returncode == code


def test_closed_streams_are_replaced_by_dev_null() -> None:
    code = (
        "import os, sys; from gridtf.cli import output; output.prepare(); output.write('x'); output.message('x')\n"
        "print(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 1)), file=sys.stderr)\n"
        "assert all(map(os.get_inheritable, (0, 1)))\n"
    )
    line = f'exec {shlex.quote(sys.executable)} -c "$1" <&- >&-'
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line, "-", code], env=environ, stderr=-1, text=True, timeout=180, check=True)
    assert done.stderr == "x\n/dev/null /dev/null\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_submitted_job_is_printed_to_stderr_when_stdout_is_full(
    options: list[str], full: TextIO, fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that counted as a failure, a script would submit the job again."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert main(["submit", "--name", "n", *options, "--", "x"]) == 0
    text = stderr.getvalue()
    assert text.startswith(f"{FULL}\n")
    assert all(word in text for word in ("101", "n", str(registry.find("n", os.environ, rough_path).path.name)))


def test_render_works_when_stderr_is_full(
    full: TextIO, rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stderr", full)
    assert main(["render", "--scheduler", "local", "--", "x"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n")


def test_paths_are_printed_as_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any encoding of stdout: a path that is printed differently could not be opened."""
    for encoding, shown in (("utf-8", b"\xc3\xa9\xe2\x80\xa6\xff"), ("latin-1", b"\xe9?\xff"), ("ascii", b"??\xff")):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        output.prepare()
        output.write("\u00e9\u2026\udcff")
        assert raw.getvalue() == shown


def test_json_preserves_undecodable_bytes_of_run_directories(
    fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    Path("b\udcff\udce9").mkdir()
    os.chdir("b\udcff\udce9")
    assert main(["submit", "--json", "--", "x"]) == 0
    submitted = json.loads(capsys.readouterr().out)
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    for view in (submitted, listed):
        assert os.listdir(os.fsencode(view["run_dir"]))


# --- colours and terminals

RED = b"\x1b[31mFAILED\x1b[m"


@pytest.fixture
def listed(tmp_path: Path) -> RunDir:
    """A job that failed, in the list of jobs."""
    run = recordedruns.make(tmp_path / "run", workers=2, state="FAILED", lines=2)
    registry.add(run.path, read_record(run.submitted) or {}, os.environ)
    return run


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "environ", "coloured"),
    [
        ((), {}, True),
        ((), {"NO_COLOR": "1"}, False),
        ((), {"TERM": "dumb"}, False),
        ((), {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ((), {"TERM": "dumb", "CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        (("--color=always",), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
    ],
)
def test_terminal_gets_colours_unless_they_are_declined(
    words: tuple[str, ...], environ: dict[str, str], coloured: bool, listed: RunDir
) -> None:
    others = [] if words else [("status", str(listed.path))]  # what words say is known before the command is
    for command in (("list",), *others):
        code, seen = on_terminal(*words, *command, COLUMNS="80", **environ)
        assert code == 0
        assert (RED in seen, b"\x1b" in seen) == (coloured, coloured)


@pytest.mark.thorough
def test_pipe_gets_colours_if_they_are_demanded(listed: RunDir) -> None:
    assert "\x1b" not in gridtf_in_bash("list").stdout
    assert RED.decode() in gridtf_in_bash("list --color always").stdout
    assert json.loads(gridtf_in_bash("list --color always --json").stdout)[0]["state"] == "FAILED"


@pytest.mark.parametrize("words", [["--color", "blue", "list"], ["list", "--color"], ["list", "--color="]])
def test_wrong_colour_is_refused(words: list[str], capsys: Captured) -> None:
    assert main(words) == 2
    assert "is not one of auto, always, never\n" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(("columns", "environ"), [("20", {}), ("40", {"LC_ALL": "C"}), ("80", {"TERM": "dumb"})])
def test_no_line_is_longer_than_the_terminal_is_wide(columns: str, environ: dict[str, str], listed: RunDir) -> None:
    write_record(listed.submitted, {**(read_record(listed.submitted) or {}), "name": "m\u00fcller-" * 9})
    code, seen = on_terminal("list", COLUMNS=columns, **environ)
    text = re.sub(r"\x1b\[[\d;]*m", "", seen.decode())
    assert code == 0
    assert len(text.splitlines()) == 2
    assert max(map(len, text.splitlines())) <= int(columns)
    assert text.isascii() == (environ == {"LC_ALL": "C"})
    code, seen = on_terminal("doctor", "--scheduler", "local", COLUMNS=columns, **environ)
    assert code == 0
    assert seen.isascii() or "LC_ALL" not in environ
