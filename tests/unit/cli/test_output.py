"""What commands print where stdout or stderr is full, closed or of another encoding."""

from __future__ import annotations

import contextlib
import io
import json
import os
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
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]
ROOT = Path(gridtf.__file__).parents[1]
FULL = "gridtf: cannot write to stdout: No space left on device"


@pytest.fixture
def full() -> Iterator[TextIO]:
    """A disk without room."""
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as file:
        yield file


def gridtf_in_bash(words: str) -> subprocess.CompletedProcess[str]:
    """A command line with redirections."""
    line = f"{shlex.quote(sys.executable)} -m gridtf {words}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", ["list", "list --json", "--help", "--version", "submit --help", "bootstrap-path"])
def test_a_full_stdout_is_an_error_of_one_line(words: str) -> None:
    done = gridtf_in_bash(f"{words} >/dev/full")
    assert (done.returncode, done.stderr) == (1, f"{FULL}\n")


@pytest.mark.parametrize(
    ("words", "code"), [("list <&- >&- 2>&-", 0), ("list 2>/dev/full", 0), ("lsit 2>/dev/full", 2), ("lsit 2>&-", 2)]
)
def test_the_exit_code_needs_no_stream(words: str, code: int) -> None:
    assert gridtf_in_bash(words).returncode == code


def test_a_stream_that_is_closed_leaves_its_number_to_no_file() -> None:
    code = (
        "import os, sys; from gridtf.cli import output; output.prepare(); output.write('x'); output.message('x')\n"
        "print(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 1)), file=sys.stderr)\n"
        "assert all(map(os.get_inheritable, (0, 1)))\n"
    )
    line = f'exec {shlex.quote(sys.executable)} -c "$1" <&- >&-'
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line, "-", code], env=environ, stderr=-1, text=True, timeout=60, check=True)
    assert done.stderr == "x\n/dev/null /dev/null\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_job_that_was_submitted_is_told_all_the_same(
    options: list[str], full: TextIO, fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it a failure, a script would submit the job again."""
    told = io.StringIO()
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "stderr", told)
    assert main(["submit", "--name", "n", *options, "--", "x"]) == 0
    words = told.getvalue()
    assert words.startswith(f"{FULL}\n")
    assert all(word in words for word in ("101", "n", str(registry.find("n", os.environ, rough_path).path.name)))


def test_a_script_is_rendered_where_nobody_reads_about_it(
    full: TextIO, rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stderr", full)
    assert main(["render", "--scheduler", "local", "--", "x"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n")


def test_a_path_is_printed_as_the_bytes_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the terminal can show, since nobody could open what is printed otherwise."""
    for encoding, shown in (("utf-8", b"\xc3\xa9\xe2\x80\xa6\xff"), ("latin-1", b"\xe9?\xff"), ("ascii", b"??\xff")):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        output.prepare()
        output.write("\u00e9\u2026\udcff")
        assert raw.getvalue() == shown


def test_a_run_directory_of_any_bytes_is_found_by_what_is_printed(
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
