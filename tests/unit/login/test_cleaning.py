"""Which run directories gridtf clean removes, and how; the command."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import RunDirError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import cleaning, submission
from gridtf.login.cleaning import Choice, Found
from gridtf.login.job import Job
from gridtf.observe.state import Records, decide
from gridtf.run import registry
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState
from tests.support.closed import close
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]
DAY = 86400.0
GONE = JobStatus(JobState.UNKNOWN, "gone", purged=True)
SILENT = JobStatus(JobState.UNKNOWN, "it does not answer")


def found(name: str, state: str = JobState.FAILED, *, days: float = 40, queue: Any = GONE, **more: Any) -> Found:
    run = RunDir(f"/runs/{name}")
    view = decide(run, Records(), None, 0.0).replace(state=state, job_id=name, ended=-days * DAY)
    array = more.pop("array", False)
    return Found(run, view.replace(**more), queue, -days * DAY, array)


def chosen(runs: list[Found], **choice: Any) -> dict[str, str]:
    return {one.view.job_id: why for one, why in cleaning.choose(runs, Choice(**choice), 0.0)}


def test_runs_are_chosen_by_age_state_number_and_name() -> None:
    runs = [found("d", days=1), found("c", JobState.COMPLETED, days=2), found("b", days=50), found("a", days=60)]
    assert chosen(runs) == {"d": "", "c": "", "b": "", "a": ""}
    assert chosen(runs, older_than=30 * DAY) == {"b": "", "a": ""}
    assert chosen(runs, keep=3) == {"a": ""}
    assert chosen(runs, states=frozenset({"COMPLETED"})) == {"c": ""}
    assert chosen(runs, named=frozenset({Path("/runs/c"), Path("/runs/a")}), older_than=30 * DAY) == {"a": ""}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (found("x", JobState.RUNNING, ended=None), "it is RUNNING"),
        (found("x", JobState.PENDING, ended=None), "it is PENDING"),
        (found("x", JobState.FAILED, in_queue=True, queue=JobStatus(JobState.RUNNING)), "it is FAILED"),
        (found("x", JobState.UNKNOWN, ended=None, reason="no answer"), "its state is not known: no answer"),
        (found("x", queue=SILENT), "its state is not known: it does not answer"),  # it may start again
        (found("x", JobState.COMPLETED, queue=SILENT), ""),
        (found("x", JobState.COMPLETED, queue=JobStatus(JobState.RUNNING)), "its scheduler still has the job"),
        (found("x", queue=JobStatus(JobState.FAILED)), ""),
        (found("x", queue=None), ""),
        (found("x", array=True), ""),
    ],
)
def test_run_is_kept_unless_its_job_is_known_to_have_ended(one: Found, why: str) -> None:
    assert cleaning.why_kept(one, keep_output=False) == why


def test_run_is_kept_while_another_job_has_its_output_in_it() -> None:
    old = found("old")
    resumed = found("new", JobState.RUNNING, days=0, ended=None, output_dir=Path("/runs/old/output"))
    assert chosen([resumed, old]) == {"new": "it is RUNNING", "old": "job new has its output in it"}
    assert chosen([resumed, old], keep_output=True)["old"] == ""
    ended = resumed.replace(view=resumed.view.replace(state=JobState.COMPLETED, ended=0.0))
    assert chosen([ended, old]) == {"new": "", "old": ""}
    assert chosen([ended, old], keep=1) == {"old": "job new has its output in it"}


def test_steps_are_kept_until_the_last_has_ended() -> None:
    train, evaluate = found("train", JobState.COMPLETED), found("evaluate", JobState.COMPLETED)
    export = found("export", JobState.RUNNING, ended=None)
    steps = frozenset(str(one.run.path) for one in (train, evaluate, export))
    of_file = "job export is a step of the same file, and has not ended"
    kept = {"export": "it is RUNNING", "evaluate": of_file, "train": of_file}
    assert chosen([export.replace(needs=steps), evaluate, train]) == kept


def test_output_of_an_array_cannot_be_kept() -> None:
    assert "a job array" in cleaning.why_kept(found("x", array=True), keep_output=True)


# --- the command


@pytest.fixture
def ended(fake: FakeScheduler, rough_path: Path) -> Job:
    """A job that is gone from the queue, with results."""
    job = submission.submit(JobSpec(command=("x",), scheduler="slurm", name="digits"))
    (job.output_dir / "checkpoint").write_text("x" * 5000)
    job.run.log.write_text("over\n")
    fake.states = [JobStatus(JobState.FAILED, "exit code 1")]
    return job


def test_clean_removes_a_run_and_its_entry(ended: Job, capsys: Captured) -> None:
    outside = ended.run_dir.parent.parent / "data"
    outside.mkdir()
    (outside / "kept").touch()
    (ended.output_dir / "data").symlink_to(outside)
    assert main(["clean", "digits", "--yes"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "JOB", "STATE", "ENDED", "SIZE", "OUTPUT", "RUN", "DIRECTORY"]
    assert row.split()[:3] == ["digits", "101", "FAILED"]
    assert " ago " in row
    assert row.endswith(f" KiB   {ended.run_dir}")
    assert not ended.run_dir.parent.exists()  # the default run root, now empty
    assert list(registry.entries(os.environ)) == []
    assert (outside / "kept").exists()


def test_clean_leaves_recent_runs_unless_they_are_named(ended: Job, capsys: Captured) -> None:
    assert main(["clean", "--yes"]) == 0
    assert capsys.readouterr().err == "gridtf: there is nothing to remove\n"
    assert main(["clean", "--older-than", "1h", "--yes"]) == 0
    assert ended.run_dir.exists()
    assert main(["clean", "--keep", "0", "--dry-run"]) == 0
    assert "digits" in capsys.readouterr().out
    assert ended.run_dir.exists()
    assert main(["clean", "--keep", "1", "--yes"]) == 0
    assert ended.run_dir.exists()
    old = time.time() - 31 * DAY
    os.utime(ended.run_dir, (old, old))
    assert main(["clean", "--state", "completed", "--yes"]) == 0
    assert ended.run_dir.exists()
    assert main(["clean", "--state", "failed", "--yes"]) == 0
    assert not ended.run_dir.exists()


def test_clean_asks(ended: Job, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["clean", "digits"]) == 2
    assert "nothing was removed: the question before it needs a terminal" in capsys.readouterr().err
    for answer, code in (("", 1), ("\n", 1), ("n\n", 1), ("y\n", 0)):
        assert ended.run_dir.exists()
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        assert main(["clean", "digits"]) == code
        assert "Remove 1 run, " in capsys.readouterr().err
    assert not ended.run_dir.exists()


def test_clean_looks_again_after_it_has_asked(
    ended: Job, fake: FakeScheduler, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resumes(io.StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, *_: object) -> str:  # type: ignore[override]
            fake.states = [JobStatus(JobState.RUNNING)]
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Resumes())
    assert main(["clean", "digits"]) == 1
    assert "digits (101) is kept: it is RUNNING" in capsys.readouterr().err
    assert ended.run_dir.exists()


def test_clean_keeps_the_output_on_request(ended: Job, capsys: Captured) -> None:
    assert main(["clean", "digits", "--yes", "--keep-output"]) == 0
    assert " stays" in capsys.readouterr().out
    assert os.listdir(ended.run_dir) == ["output"]
    assert (ended.output_dir / "checkpoint").exists()
    assert list(registry.entries(os.environ)) == []
    assert os.listdir(ended.run_dir.parent) == [ended.run_dir.name]


def test_output_that_may_not_be_listed_is_shown_without_a_size(
    ended: Job, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(ended.output_dir, monkeypatch)
    assert main(["clean", "digits", "--dry-run"]) == 0
    assert "digits" in capsys.readouterr().out


def test_run_without_output_is_removed(ended: Job, capsys: Captured) -> None:
    shutil.rmtree(ended.output_dir)
    ended.output_dir.symlink_to("nowhere")
    assert main(["clean", "digits", "--dry-run", "--keep-output"]) == 0
    assert "0 KiB stays" in capsys.readouterr().out
    ended.output_dir.unlink()
    assert main(["clean", "digits", "--yes"]) == 0
    assert not ended.run_dir.exists()


def test_clean_says_why_a_named_run_is_kept(ended: Job, fake: FakeScheduler, capsys: Captured) -> None:
    fake.states = [JobStatus(JobState.RUNNING)]
    assert main(["clean", "101", "--yes"]) == 1
    assert capsys.readouterr().err.startswith("gridtf: digits (101) is kept: it is RUNNING\n")
    fake.refuses = "it does not answer"
    assert main(["clean", "101", "--yes"]) == 1
    assert "is kept: its state is not known: it does not answer\n" in capsys.readouterr().err
    assert ended.run_dir.exists()


@pytest.mark.parametrize("damaged", ["[]", '{"scheduler": "slu', '{"scheduler": 7}'])
def test_run_with_a_damaged_record_is_kept(damaged: str, ended: Job, capsys: Captured) -> None:
    ended.run.submitted.write_text(damaged)
    assert main(["clean", "digits", "--yes"]) == 1
    assert "digits" in (error := capsys.readouterr().err)
    assert " is kept: its state is not known" in error or " is kept: it is " in error
    assert ended.run_dir.exists()


def test_clean_removes_nothing_that_is_not_in_the_index(ended: Job, capsys: Captured) -> None:
    other = ended.run_dir.with_name("other")
    other.mkdir()
    (other / "job.json").write_text('{"spec": {}}')
    assert main(["clean", str(other), "--yes"]) == 2
    assert f"gridtf clean does not remove {other}" in capsys.readouterr().err
    assert main(["clean", str(ended.run_dir), "nothing", "--yes"]) == 2
    assert ended.run_dir.exists()
    assert main(["clean", os.path.relpath(ended.run_dir), "--yes"]) == 0  # by its path
    assert (ended.run_dir.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize(
    ("option", "value"), [("--older-than", "30"), ("--older-than", "soon"), ("--keep", "few"), ("--state", "OK")]
)
def test_clean_refuses_a_wrong_value(option: str, value: str, fake: FakeScheduler, capsys: Captured) -> None:
    assert main(["clean", option, value]) == 2
    assert f"argument {option}: " in capsys.readouterr().err


# --- removing


def test_run_directory_of_another_user_or_job_is_not_removed(ended: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(RunDirError, match="is not a folder of yours"):
        patched.setattr(cleaning, "is_ours", lambda path: False)
        cleaning.remove(RunDir(ended.run_dir), os.environ)
    with pytest.raises(RunDirError, match="was replaced"):
        cleaning.remove(RunDir(ended.run_dir, ("slurm", "102")), os.environ)
    moved = ended.run_dir.with_name("moved")
    ended.run_dir.rename(moved)
    ended.run_dir.symlink_to(moved)
    with pytest.raises(RunDirError, match="or a link"):
        cleaning.remove(ended.run, os.environ)
    assert (moved / "output" / "checkpoint").exists()


def test_what_cannot_be_removed_is_named_and_the_rest_goes(ended: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink

    def unlink(name: Any, **more: Any) -> None:
        if name == "checkpoint":
            raise PermissionError(1, "Operation not permitted")
        real(name, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        problem = cleaning.remove(ended.run, os.environ)
    (left,) = ended.run_dir.parent.iterdir()
    assert problem == f"cannot remove {left}/output/checkpoint: Operation not permitted; what is left is in {left}"
    assert [str(path.relative_to(left)) for path in left.rglob("*")] == ["output", "output/checkpoint"]
    assert list(registry.entries(os.environ)) == []
    assert list(registry.runs(os.environ)) == []


def test_run_that_cannot_be_renamed_stays_as_it_is(ended: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched, pytest.raises(RunDirError, match=r"cannot remove .*: Permission denied"):
        patched.setattr(Path, "rename", refused)
        cleaning.remove(ended.run, os.environ)
    assert [run.path for run in registry.runs(os.environ)] == [ended.run_dir]
