"""What differs between two runs, and between their code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gridtf.report import codediff
from gridtf.report.codediff import CodeDiff, code_diff
from gridtf.report.difference import ASKED, Change, difference
from gridtf.run import reduced
from gridtf.run.rundir import RunDir, write_record, write_text
from gridtf.secrets import MASK
from tests.support import recordedruns
from tests.support.plans import NONCE
from tests.support.recordedruns import BEGIN

NAMES = ("./a", "4712")
NOW = BEGIN + 7200


def with_packages(run: RunDir, **versions: str) -> RunDir:
    python = {"python": "/venv/bin/python", "version": "3.12.4", "packages": versions}
    write_record(run.attempt(1).packages, {"nonce": NONCE, "pythons": {"worker": python}})
    return run


@pytest.fixture
def two(tmp_path: Path) -> tuple[RunDir, RunDir]:
    """Two runs that are alike but for their names."""
    made = (recordedruns.make(tmp_path / name, workers=2, gpus=2, minutes=5) for name in "ab")
    first, second = (with_packages(run, keras="2.17.0", numpy="1.26.4") for run in made)
    return first, second


def snapshots(two: tuple[RunDir, RunDir], *contents: dict[str, str | bytes | Path]) -> tuple[Path, Path]:
    """Give runs snapshots with these files and links."""
    made = []
    for run, content in zip(two, contents, strict=True):
        folder = run.path.parent / f"snapshot-{run.path.name}"
        for name, data in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, Path):
                (folder / name).symlink_to(data)
            else:
                (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        record = {"top": str(folder), "files": dict.fromkeys(content, ""), "code": {}, "diff": ""}
        write_record(folder.with_name(f"{folder.name}.json"), record)
        recordedruns.describe(run, origin={"snapshot": str(folder)})
        made.append(folder)
    return made[0], made[1]


def test_runs_that_are_alike(two: tuple[RunDir, RunDir]) -> None:
    snapshots(two, {"train.py": "x"}, {"train.py": "x"})
    found = difference(*two, NAMES, NOW)
    assert found.changes == {
        **dict.fromkeys(("parameters", "code", "packages", "programs", "hosts", "outcome", "values"), ()),
        "specification": (Change("name", "a", "b", "--name", "--name"),),
    }
    assert (found.unknown, found.diff, found.same) == ({}, "", False)
    itself = difference(two[0], two[0], NAMES, NOW)
    assert (itself.unknown, itself.diff, itself.same) == ({}, "", True)
    assert not any(itself.changes.values())


def test_settings_with_their_sources_and_secrets_that_differ_unseen(two: tuple[RunDir, RunDir]) -> None:
    recordedruns.describe(two[0], {"params.lr": "--set"}, params={"lr": 0.1}, env={"A_KEY": "hunter22-secret"})
    other: dict[str, Any] = {"env": {"A_KEY": "hunter33-secret"}, "name": "a", "run_root": "/r"}
    recordedruns.describe(two[1], params={"lr": 0.2, "seed": 3}, **other)
    found = difference(*two, NAMES, NOW)
    assert found.changes["parameters"] == (Change("lr", "0.1", "0.2", "--set"), Change("seed", None, "3"))
    assert found.changes["specification"] == (Change("env.A_KEY", MASK, MASK),)
    assert "hunter" not in repr(found)


def test_programs_hosts_outcome_and_values(two: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    third = recordedruns.make(tmp_path / "c", workers=1, host_count=1, minutes=2, state="FAILED")
    with_packages(third, keras="2.18.0", numpy="1.26.4", wheel="0.43")
    found = difference(two[0], third, NAMES, NOW).changes
    assert found["packages"] == (Change("keras", "2.17.0", "2.18.0"), Change("wheel", None, "0.43"))
    assert found["programs"] == ()
    assert found["hosts"] == (
        Change("hosts", "h0, h1", "h0"),
        Change("tasks", "2", "1"),
        Change("GPUs", "2", "0"),
    )
    assert [change.name for change in found["outcome"]] == ["state", "reason", "ran for", "exit code"]
    assert found["values"][0].first == "0.08094 at step 2950 (0.08094 to 2.025)"


def test_packages_of_an_element_whose_attempts_are_packed_are_known(tmp_path: Path) -> None:
    one, other = (
        with_packages(recordedruns.make(tmp_path / name, workers=1, minutes=2), keras=version)
        for name, version in (("a", "2.17.0"), ("b", "2.18.0"))
    )
    reduced.reduce(other, {})
    assert not other.attempts()
    assert difference(one, other, NAMES, NOW).changes["packages"] == (Change("keras", "2.17.0", "2.18.0"),)


def test_specification_of_another_user_is_not_known(
    two: tuple[RunDir, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots(two, {"train.py": "x"}, {"train.py": "y"})
    closed = {two[1].job, two[1].attempt(1).plan, two[1].attempt(1).packages}
    monkeypatch.setattr("os.access", lambda path, _: Path(path) not in closed)
    found = difference(*two, NAMES, NOW)
    why = "that of 4712 is missing, or only its owner may read it"
    assert found.unknown == {
        "parameters": why,
        "specification": why,
        "packages": why,
        "code": "./a and 4712: neither a snapshot nor a commit that you may read",
    }
    assert not any(found.changes[name] for name in ASKED if name != "programs")


def test_code_of_two_snapshots(two: tuple[RunDir, RunDir]) -> None:
    many = "".join(f"{number}\n" for number in range(60_000))
    one: dict[str, str | bytes | Path] = {"same.bin": b"\0", "sub/train.py": "a\nb\nc\n", "data.bin": b"\0a"}
    one |= {"large.csv": many, "old.py": "x", "data": Path("/data/one")}
    other = {**one, "sub/train.py": "a\nB\nc\n", "data.bin": b"\0b", "large.csv": many + "1"}
    other |= {"new.py": "y", "data": Path("/data/two"), "pipe": ""}
    del other["old.py"]
    first, second = snapshots(two, one, other)
    (second / "pipe").unlink()
    os.mkfifo(second / "pipe")
    for folder in (first, second):  # by the job
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "train.pyc").write_text(str(folder))
    found = code_diff(*two, NAMES)
    assert found == CodeDiff(
        """\
--- a/data
+++ b/data
@@ -1 +1 @@
--> /data/one
+-> /data/two
# data.bin differs: it is binary, or larger than 256 KiB
# large.csv differs: it is binary, or larger than 256 KiB
--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+y
--- a/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x
# pipe cannot be read
--- a/sub/train.py
+++ b/sub/train.py
@@ -1,3 +1,3 @@
 a
-b
+B
 c"""
    )


def test_long_difference_is_cut(two: tuple[RunDir, RunDir]) -> None:
    snapshots(two, {"x": "".join(f"{n}\n" for n in range(1500))}, {"x": "".join(f"{n}.\n" for n in range(1500))})
    lines = code_diff(*two, NAMES).text.splitlines()
    assert len(lines) == 2001
    assert lines[-1] == "# more than 2000 lines: the rest is left out"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def commits(two: tuple[RunDir, RunDir], tmp_path: Path) -> Path:
    """The work tree of two runs of two commits, whose configuration would run programs."""
    folder = tmp_path / "work tree"
    folder.mkdir()
    git(folder, "init", "-q")
    for run, text in zip(two, ("lr = 1\n", "lr = 2\n"), strict=True):
        (folder / "train.py").write_text(text)
        git(folder, "add", "train.py")
        git(folder, "commit", "-q", "-m", "x")
        commit = git(folder, "rev-parse", "HEAD")
        write_record(run.code, {"folder": str(folder), "commit": commit, "branch": "main", "dirty": False})
    git(folder, "config", "diff.external", f"touch {tmp_path}/run-by-git")
    return folder


def test_code_of_two_commits(two: tuple[RunDir, RunDir], commits: Path, tmp_path: Path) -> None:
    found = code_diff(*two, NAMES)
    assert found.unknown == ""
    assert found.text.splitlines()[-2:] == ["-lr = 1", "+lr = 2"]
    assert not (tmp_path / "run-by-git").exists()
    record = codediff.code_of(two[1])
    write_record(two[1].code, {**record, "dirty": True, "diff": True})
    write_text(two[1].diff, "--- a/x\n+++ b/x\n")
    assert code_diff(*two, NAMES).text.endswith(
        "-lr = 1\n+lr = 2\n# not committed in ./a:\n# nothing\n# not committed in 4712:\n--- a/x\n+++ b/x"
    )
    changes = difference(*two, NAMES, NOW).changes["code"]
    assert [change.name for change in changes] == ["commit", "not committed"]


def test_commits_that_are_gone_and_diffs_that_are_not_known(two: tuple[RunDir, RunDir], commits: Path) -> None:
    record = codediff.code_of(two[1])
    write_record(two[1].code, {**record, "commit": "f" * 40, "dirty": True, "diff": None})
    found = code_diff(*two, NAMES)
    assert found.text == ""
    assert found.unknown.endswith(
        " and ffffffffffff are not both at hand here; what was not committed in 4712 is not known as a whole"
    )
    write_record(two[1].code, {**record, "commit": "--output=x"})
    assert "are not both at hand here" in code_diff(*two, NAMES).unknown
    for run in two:
        write_record(run.code, {**record, "untracked": ["model.py"]})
    assert code_diff(*two, NAMES) == CodeDiff("", "untracked files are not compared")
