"""What is recorded of the code of every job: its commit, and what differs from it, as git tells in time."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.jobspec.spec import JobSpec
from gridtf.login import code, submission
from gridtf.login.job import Job
from gridtf.observe.codelines import code_lines, code_of
from gridtf.report.codediff import _of_commits
from gridtf.run.reading import Reading
from tests.support.scheduler import FakeScheduler

Patch = pytest.MonkeyPatch
JOB = JobSpec(command=("python", "train.py"), scheduler="slurm", name="j")


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(rough_path: Path, fake: FakeScheduler) -> Path:
    (rough_path / "train.py").write_text("a = 1\n")
    git(rough_path, "init", "-q", "-b", "main")
    git(rough_path, "add", "train.py")
    git(rough_path, "commit", "-qm", "first")
    return rough_path


def submitted(**values: Any) -> tuple[Job, dict[str, Any]]:
    job = submission.submit(JOB.replace(**values))
    return job, json.loads(job.run.code.read_text())


def test_commit_and_changes_are_recorded_for_this_user_alone(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://ann:hunter2@example.org/digits.git")
    job, record = submitted()
    clean = {
        "folder": str(repository),
        "commit": git(repository, "rev-parse", "HEAD"),
        "branch": "main",
        "dirty": False,
        "untracked": [],
        "remote": "https://example.org/digits.git",
    }
    assert record == clean
    assert not job.run.diff.exists()
    (repository / "train.py").write_text("a = 2\n")
    (repository / "new.py").touch()
    (repository / ".env").write_text("KEY=hunter3")
    git(repository, "add", ".env")
    job, record = submitted(run_root="/proc/self/cwd/runs")
    assert record == {**clean, "dirty": True, "diff": True, "untracked": ["new.py"]}
    diff = job.run.diff.read_text()
    assert "-a = 1\n+a = 2\n" in diff
    assert "hunter" not in diff
    assert {stat.S_IMODE(path.stat().st_mode) for path in (job.run.code, job.run.diff)} == {0o600}


def test_code_is_recorded_with_its_snapshot(repository: Path) -> None:
    (repository / "train.py").write_text("a = 2\n")
    first, record = submitted(snapshot=True)
    (repository / "train.py").write_text("a = 3\n")
    second = submission.submit(JOB, origin=json.loads(first.run.job.read_text())["origin"])
    assert json.loads(second.run.code.read_text()) == record
    assert second.run.diff.read_text() == first.run.diff.read_text()
    assert "a = 2" in first.run.diff.read_text()


def test_states_of_a_repository(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert submitted()[1]["branch"] is None
    new = tmp_path / "new"
    new.mkdir()
    git(new, "init", "-q", "-b", "main")
    (new / "train.py").write_text("x")
    git(new, "add", ".")
    job, record = submitted(chdir=str(new))
    assert (record["commit"], record["branch"], record["dirty"]) == (None, "main", True)
    assert not job.run.diff.exists()
    (new / "sub").mkdir()
    assert submitted(chdir=str(new / "sub"), command=("true",))[1]["folder"] == str(new)


def test_nothing_is_recorded_without_a_repository(rough_path: Path, fake: FakeScheduler) -> None:
    job = submission.submit(JOB.replace(command=("true",)))
    assert not job.run.code.exists()
    assert code_of(job.run, Reading(job.run)) is None


def test_long_diff_is_cut(repository: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(code, "_MOST_DIFF", 1000)
    (repository / "train.py").write_text("b = 1\n" * 100_000)
    job, record = submitted()
    assert record["diff"] is False
    assert job.run.diff.stat().st_size == 1000


@pytest.mark.parametrize("program", ["sleep 60", "exit 128", "echo nonsense"])
def test_git_that_does_not_answer_delays_no_submission(program: str, repository: Path, monkeypatch: Patch) -> None:
    tools = repository.parent / "tools"
    tools.mkdir()
    (tools / "git").write_text(f"#!/bin/sh\nexec {program}\n" if program[0] == "s" else f"#!/bin/sh\n{program}\n")
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    monkeypatch.setattr(code, "_SECONDS", 0.2)
    begin = time.monotonic()
    job, record = submitted(command=("true",))
    assert time.monotonic() - begin < 30
    assert "train.py" not in job.run.code.read_text()
    if program != "echo nonsense":
        assert record == {"folder": str(repository), "unknown": "git did not answer within 0.2 s, or refused to"}
        assert code_lines(record) == ["git did not answer within 0.2 s, or refused to"]


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[], list[str]]:
    """The programs of ``named`` that were run since it was last asked."""
    (tmp_path / "ran").mkdir()

    def take() -> list[str]:
        found = sorted((tmp_path / "ran").iterdir())
        for path in found:
            path.unlink()
        return [path.name for path in found]

    return take


def named(tmp_path: Path, repository: Path, of: str, *names: str) -> None:
    """Let the configuration of a repository name a program for each of these."""
    for name in names:
        program = tmp_path / f"{of}-{name}"
        program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran/{program.name}'\necho\n")
        program.chmod(0o755)
        git(repository, "config", name, str(program))


PROGRAMS = ("core.fsmonitor", "core.pager", "core.sshCommand", "core.askPass", "gpg.program", "credential.helper")
DIFFS = ("diff.external", "diff.drv.command", "diff.drv.textconv")


@pytest.mark.thorough
def test_configuration_of_a_repository_and_its_submodule_runs_no_program(
    repository: Path, tmp_path: Path, ran: Callable[[], list[str]]
) -> None:
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    for text in ("a = 1\n", "a = 2\n"):
        (inner / "part.py").write_text(text)
        git(inner, "add", ".")
        git(inner, "commit", "-qm", text)
    (repository / ".gitmodules").write_text('[submodule "inner"]\n\tpath = inner\n\turl = ./inner\n')
    git(repository, "add", "inner", ".gitmodules")
    git(repository, "commit", "-qm", "with inner")
    git(inner, "checkout", "-q", "HEAD~")
    git(repository, "add", "inner")
    git(repository, "commit", "-qm", "other inner")
    for folder, of in ((inner, "inner"), (repository, "outer")):
        (folder / ".git/info").mkdir(exist_ok=True)
        (folder / ".git/info/attributes").write_text("*.py diff=drv\n")
        hooks = tmp_path / f"hooks-of-{of}"
        hooks.mkdir()
        for hook in ("post-index-change", "reference-transaction"):
            (hooks / hook).write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran/{hook}'\n")
            (hooks / hook).chmod(0o755)
        for name, value in (
            *(("core.hooksPath", str(hooks)), ("status.submoduleSummary", "true"), ("submodule.recurse", "true")),
            *(("diff.submodule", "diff"), ("log.showSignature", "true"), ("pager.diff", "true")),
        ):
            git(folder, "config", name, value)
        named(tmp_path, folder, of, *PROGRAMS, *DIFFS)
    (repository / "train.py").write_text("a = 2\n")
    (inner / "part.py").write_text("a = 3\n")
    git(repository, "status")
    git(repository, "diff", "--no-ext-diff", "HEAD", "HEAD~", "--", "inner")
    expected = {"inner-core.fsmonitor", "post-index-change", "outer-core.fsmonitor", "inner-diff.drv.command"}
    assert expected <= {*ran()}
    git(inner, "checkout", "-qf", "main")
    (repository / "train.py").write_text("a = 4\n")
    (inner / "part.py").write_text("a = 5\n")
    ran()
    commits = [git(repository, "rev-parse", name) for name in ("HEAD", "HEAD~")]
    ran()
    job, record = submitted()
    assert ran() == []
    assert (record["dirty"], record["diff"]) == (True, True)
    diff, between = job.run.diff.read_text(), _of_commits([record], commits)
    assert ran() == []
    assert "+a = 4" in diff
    assert f"+Subproject commit {git(inner, 'rev-parse', 'HEAD')}-dirty" in diff
    assert "+Subproject commit " in (between or "")


def test_object_that_is_missing_is_not_fetched_by_a_program_of_the_configuration(
    repository: Path, tmp_path: Path, ran: Callable[[], list[str]], monkeypatch: Patch
) -> None:
    blob = git(repository, "rev-parse", "HEAD:train.py")
    shutil.copytree(repository, tmp_path / "origin")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    (repository / "train.py").write_text("a = 2\n")
    named(tmp_path, repository, "outer", "remote.origin.uploadpack")
    values = {"remote.origin.url": str(tmp_path / "origin"), "remote.origin.promisor": "true"}
    values |= {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "protocol.file.allow": "always",
    }
    for name, value in values.items():
        git(repository, "config", name, value)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").write_text(f'#!/bin/sh\nunset GIT_NO_LAZY_FETCH\nexec {shutil.which("git")} "$@"\n')  # before 2.45
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    _, record = submitted()
    assert (record["dirty"], record["diff"], ran()) == (True, None, [])
    subprocess.run(["git", "diff"], cwd=repository, capture_output=True, check=False)
    assert ran() == ["outer-remote.origin.uploadpack"]


def test_no_git_is_no_error(repository: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    _, record = submitted(command=("/bin/true",))
    assert "unknown" in record


def test_code_in_words() -> None:
    known: dict[str, Any] = {"commit": "1234567890abcdef", "branch": "main", "dirty": True, "untracked": ["a", "b"]}
    python = {"python": "/usr/bin/python3", "version": "3.11", "packages": {"numpy": "2.0"}}
    assert code_lines({**known, "snapshot": "/s", "pythons": {"worker": python}}) == [
        "main at 1234567890ab, with changes, 2 files untracked",
        "snapshot /s",
        "worker: /usr/bin/python3, 1 package",
    ]
    assert code_lines({"commit": None, "branch": None, "dirty": False, "untracked": []}) == ["no branch at no commit"]
    assert code_lines({}) == []
