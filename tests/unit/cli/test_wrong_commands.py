"""Wrong commands that newcomers type, and all that gridtf answers, compared with tests/golden/wrong-commands.txt.

To add a command, write its ``$`` line into that file, below a line ``FILE| TEXT`` for every line of a file that it
needs. Then ``python -m tests.unit.cli.test_wrong_commands`` writes the answers, as after any intended change of them;
review the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from gridtf import resources
from gridtf.cli import main
from gridtf.run import registry

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wrong-commands.txt"
_FILE_LINE = re.compile(r"([\w./-]+)\| ?(.*)")


class Case(NamedTuple):
    """A command line, the files that it needs, and the comments above it."""

    line: str
    files: tuple[tuple[str, str], ...]
    comments: tuple[str, ...]


def cases(text: str) -> Iterator[Case]:
    files: list[tuple[str, str]] = []
    comments: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            comments.append(line)
        elif line.startswith("$ "):
            yield Case(line[2:], tuple(files), tuple(comments))
            files, comments = [], []
        elif match := _FILE_LINE.fullmatch(line):
            files.append((match[1], match[2]))


def prepare(folder: Path) -> dict[str, str]:
    """Make a folder with a program, a job named digits and a PATH without schedulers; returns the environment."""
    (folder / "bin").mkdir()
    for name in ("python", "true"):
        (folder / "bin" / name).touch(mode=0o755)
    (folder / "train.py").write_text("def main():\n    pass\n")
    (folder / "runs" / "digits").mkdir(parents=True)
    (folder / "runs" / "digits" / "job.json").write_text('{"spec": {}}')
    environ = {"PATH": str(folder / "bin"), "HOME": str(folder / "home"), "GRIDTF_SITE_CONFIG": ""}
    record = {"scheduler": "slurm", "job_id": "4711", "name": "digits", "time": 1.0}
    registry.add(folder / "runs" / "digits", record, environ)
    return environ


def answer(case: Case, folder: Path, environ: dict[str, str]) -> str:
    """The block of the golden file for a case."""
    made = {name: "".join(f"{text}\n" for other, text in case.files if other == name) for name, _ in case.files}
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    words = shlex.split(case.line)
    at = words.index("gridtf")
    variables = dict(word.split("=", 1) for word in words[:at])
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {**environ, **variables}, clear=True),
        mock.patch.object(os, "sched_getaffinity", lambda pid: {0, 1}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(words[at + 1 :])
    for name in made:
        (folder / name).unlink()
    shown = [*(f"stdout: {line}" for line in out.getvalue().splitlines()), *err.getvalue().splitlines(), f"exit {code}"]
    places = {str(folder): "/here", str(resources.templates()): "/templates", os.uname().nodename: "HOST"}
    block = "\n".join([*(f"{name}| {text}".rstrip() for name, text in case.files), f"$ {case.line}"])
    for place, name in places.items():
        shown = [line.replace(place, name) for line in shown]
    return "\n".join([*case.comments, block, *(f"    {line}" for line in shown)])


def answers(text: str, folder: Path) -> str:
    environ = prepare(folder)
    os.chdir(folder)
    return "\n\n".join(answer(case, folder, environ) for case in cases(text)) + "\n"


@pytest.fixture(autouse=True)
def _any_program() -> None:
    """Here commands are checked: see tests/unit/conftest.py."""


@pytest.mark.thorough
def test_answers_equal_the_golden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # and back, after answers()
    text = GOLDEN.read_text(encoding="utf-8")
    assert answers(text, tmp_path) == text


def test_every_answer_has_at_most_three_lines_and_exit_code_2() -> None:
    blocks = GOLDEN.read_text(encoding="utf-8").split("\n\n")
    assert len(blocks) > 100
    for block in blocks:
        shown = [line.strip() for line in block.splitlines() if line.startswith("    ")]
        assert shown[-1] == "exit 2", block
        assert 1 <= len(shown) - 1 <= 3, block


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        written = answers(GOLDEN.read_text(encoding="utf-8"), Path(name).resolve())
        GOLDEN.write_text(written, encoding="utf-8")
