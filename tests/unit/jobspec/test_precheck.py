"""Checks before submission: entry functions, set-up lines, inaccessible paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import UsageError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm")


MODULE = '''\
"""Trains."""
from helpers import loop as borrowed
import numpy.linalg
if True:
    def inner(): ...
class Model: ...
def main(context):
    hidden = 1
async def later(): ...
made = lambda: None
first, *others = (1, 2)
'''


def entry(text: str, folder: Path, **values: Any) -> str | None:
    """The entry function of the plan for a job."""
    spec = JobSpec(entry=text, scheduler="local", chdir=str(folder), **values)
    return submission.prepare(spec, {"entry": "--entry"}).spec.entry


@pytest.mark.parametrize("name", ["main", "later", "inner", "made", "borrowed", "Model", "first", "others", "numpy"])
def test_existing_entry_function_passes(name: str, rough_path: Path) -> None:
    (rough_path / "train.py").write_text(MODULE)
    assert entry(f"train:{name}", rough_path) == f"train:{name}"


def test_missing_entry_function_or_module_is_refused(rough_path: Path) -> None:
    path = rough_path / "train.py"
    path.write_text(MODULE)
    with pytest.raises(UsageError) as caught:
        entry("train:mian", rough_path)
    assert (caught.value.what, caught.value.hint) == (f"--entry: {path} has no function mian", "did you mean main?")
    with pytest.raises(UsageError) as caught:
        entry("train:hidden", rough_path)
    assert caught.value.hint == "functions in this file: main, later, inner"
    with pytest.raises(UsageError) as caught:
        entry("trian:main", rough_path)
    assert caught.value.what == f"--entry: there is no module trian in {rough_path}"
    assert caught.value.hint == "did you mean train?"
    path.write_text("def main(:\n")
    with pytest.raises(UsageError, match=r"train\.py:1: invalid syntax"):
        entry("train:main", rough_path)


def test_entry_modules_that_may_exist_only_in_the_job_pass(rough_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no module elsewhere"):
        entry("elsewhere:main", rough_path)
    assert entry("elsewhere:main", rough_path, setup=("source venv/bin/activate",))
    assert entry("elsewhere:main", rough_path, env={"PYTHONPATH": "/lib"})
    assert entry("json:loads", rough_path)
    (rough_path / "train.py").write_text("from helpers import *\n")
    assert entry("train:main", rough_path)
    (rough_path / "package").mkdir()
    (rough_path / "package" / "__init__.py").write_text("def main(): ...\n")
    (rough_path / "package" / "sub.py").write_text("def main(): ...\n")
    assert entry("package:main", rough_path)
    assert entry("package.sub:main", rough_path)


def test_entry_module___main___is_refused(rough_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no module __main__ in "):
        entry("__main__:main", rough_path)


# --- set-up lines


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["true", "echo 'abc"], "unexpected EOF while looking for matching `''"),
        (["if true; then"], "syntax error: unexpected end of file"),
        (["cat <<END\nabc"], "here-document at line 1 delimited by end-of-file (wanted `END')"),
        (["true", "fi"], "syntax error near unexpected token `fi'"),
    ],
)
def test_setup_lines_with_bash_syntax_errors_are_refused(lines: list[str], said: str, rough_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        sources = {"setup.1": "job.toml:3", "setup.2": "job.toml:3"}
        submission.prepare(RUNS.replace(setup=lines), sources)
    assert caught.value.what == f"job.toml:3: setup: bash cannot parse this: {said}"


def test_syntax_error_in_setup_is_reported_with_the_source_of_its_line(rough_path: Path) -> None:
    spec = RUNS.replace(setup=["module() { :; }", "if true; then", "echo it's", "module load cuda"])
    sources = {"setup.1": "site.toml:3", "setup.2": "job.toml:2", "setup.3": "job.toml:2", "setup.4": "--setup"}
    with pytest.raises(UsageError) as caught:
        submission.prepare(spec, sources)
    assert caught.value.what.startswith("job.toml:2: setup: bash cannot parse this: unexpected EOF")


def test_setup_ending_in_a_backslash_is_refused(rough_path: Path) -> None:
    with pytest.raises(UsageError, match="the last line ends in a backslash"):
        submission.prepare(RUNS.replace(setup=["true", "module load cuda \\"]))
    submission.prepare(RUNS.replace(setup=["echo a \\", "b", "echo c\\\\"]))


@pytest.mark.parametrize(
    "lines",
    [
        ["if true", "then", "  cat <<END", "it's text", "END", "fi"],
        ["shopt -s extglob", "ls !(x)"],
        [b"export A='\xff'".decode(errors="surrogateescape"), "export B='été'"],
    ],
)
def test_setup_lines_are_parsed_but_not_run(lines: list[str], rough_path: Path) -> None:
    submission.prepare(RUNS.replace(setup=[*lines, f"touch '{rough_path.parent}/ran'"]))
    assert not (rough_path.parent / "ran").exists()


def test_setup_lines_are_not_checked_without_bash(rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RUNS.replace(setup=["if true"])
    with pytest.raises(UsageError, match="bash cannot parse this"):
        submission.prepare(spec)
    monkeypatch.setenv("PATH", str(rough_path))
    assert submission.prepare(spec).spec.setup == ("if true",)


# --- paths


@pytest.mark.parametrize("key", ["chdir", "template", "entry"])
def test_inaccessible_path_is_refused(key: str, rough_path: Path) -> None:
    long = "x" * 256
    values: dict[str, Any] = {"entry": f"{long}:main", "command": ()} if key == "entry" else {key: long}
    with pytest.raises(UsageError) as caught:
        submission.prepare(RUNS.replace(**values), {key: "--option"})
    assert caught.value.what.startswith("--option: cannot access ")
    assert caught.value.what.endswith(": File name too long")
