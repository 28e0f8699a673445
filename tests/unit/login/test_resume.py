"""Submitting a job once more that goes on with the results of another one."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import GridtfError, NotFoundError, RunDirError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.login.resume import resume
from gridtf.run.rundir import BY_HAND, RunDir, write_record
from gridtf.schedulers.api import JobStatus
from tests.support.scheduler import FakeScheduler
from tests.support.states import COMPLETED, PENDING, UNKNOWN

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm", name="train", env={"A": "1"})


def ended(fake: FakeScheduler, state: str = "SAVED", spec: JobSpec = RUNS) -> Job:
    """A job that was submitted and has ended."""
    job = submission.submit(spec, {"name": "--name"})
    record: dict[str, Any] = {"nonce": "n", "state": state, "reason": "r", "hint": "", "cause": None, "again": False}
    attempt = job.run.new_attempt()
    attempt.plan.write_text(json.dumps({"nonce": "n"}))
    attempt.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, "exit_code": 42, **record}))
    fake.states = [JobStatus(UNKNOWN, purged=True)]
    return job


def test_resumed_job_has_the_specification_and_the_output_of_the_other(fake: FakeScheduler, rough_path: Path) -> None:
    first = ended(fake)
    second = resume(first)
    assert (second.id, second.name, second.run_dir.parent) == ("102", "train", first.run_dir.parent)
    assert second.run_dir != first.run_dir
    assert second.output_dir == first.output_dir == first.run.output
    spec = JobSpec.from_dict(json.loads(second.run.job.read_text())["spec"])
    assert spec.env == {"A": "1", "OUTPUT_DIR": str(first.run.output)}
    assert (spec.command, spec.chdir) == (RUNS.command, str(rough_path))


def test_job_that_was_resumed_can_be_resumed(fake: FakeScheduler, rough_path: Path) -> None:
    first = ended(fake)
    second = resume(first)
    shutil.copytree(first.run.attempt(1).path, second.run.attempt(1).path)
    assert resume(second).output_dir == first.output_dir


def test_run_directory_of_the_user_s_own_name_gets_a_neighbour(fake: FakeScheduler, rough_path: Path) -> None:
    first = ended(fake, spec=RUNS.replace(run_dir="first"))
    second = resume(first)
    assert second.run_dir.parent == rough_path
    assert second.run_dir.name.startswith("train-")


def test_output_dir_of_the_user_s_own_stays(fake: FakeScheduler, rough_path: Path) -> None:
    (rough_path / "results").mkdir()
    first = ended(fake, spec=RUNS.replace(env={"OUTPUT_DIR": "results"}))
    assert resume(first).output_dir == rough_path / "results"


def test_job_that_has_not_ended_is_not_resumed(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    with pytest.raises(GridtfError, match="job 101 has not ended: it is RUNNING"):
        resume(job)
    saved = ended(fake)
    fake.states = [JobStatus(PENDING)]  # it will be started again
    with pytest.raises(GridtfError, match="has not ended: it is PENDING"):
        resume(saved)
    assert fake.count == 2


def test_job_that_has_completed_is_not_resumed(fake: FakeScheduler, rough_path: Path) -> None:
    with pytest.raises(GridtfError, match="has completed: nothing is left to resume"):
        resume(ended(fake, COMPLETED))


def test_second_job_does_not_write_the_results_that_a_resumed_one_writes(fake: FakeScheduler, rough_path: Path) -> None:
    first = ended(fake)
    second = resume(first)
    fake.states = [JobStatus(UNKNOWN, purged=True), JobStatus(PENDING)]
    with pytest.raises(GridtfError, match="job 102 has not ended: it is PENDING"):
        resume(first)
    assert {*first.run_dir.parent.iterdir()} == {first.run_dir, second.run_dir}
    # neither where another one has resumed the one that was resumed
    shutil.copytree(first.run.attempt(1).path, second.run.attempt(1).path)
    fake.states = [JobStatus(UNKNOWN, purged=True)]
    third = resume(second)
    fake.states = [JobStatus(UNKNOWN, purged=True), JobStatus(UNKNOWN, purged=True), JobStatus(PENDING)]
    with pytest.raises(GridtfError, match="job 103 has not ended: it is PENDING"):
        resume(first)
    shutil.rmtree(third.run_dir)
    fake.states = [JobStatus(UNKNOWN, purged=True)]
    assert resume(first).id == "104"


def test_job_that_is_being_resumed_at_the_same_moment_is_not(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, claim = ended(fake), submission._hand_over

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(submission, "_hand_over", claim)
        with pytest.raises(GridtfError, match="is being resumed at this moment, in "):
            resume(first)
        return claim(*arguments)

    monkeypatch.setattr(submission, "_hand_over", meanwhile)
    assert resume(first).id == "102"


def test_job_without_its_results_is_not_resumed(fake: FakeScheduler, rough_path: Path) -> None:
    job = ended(fake)
    job.run.output.rmdir()
    with pytest.raises(RunDirError, match="does not exist any more"):
        resume(job)


def test_job_of_a_hand_written_script_is_not_resumed(fake: FakeScheduler, rough_path: Path) -> None:
    job = ended(fake)
    record = json.loads(job.run.submitted.read_text())
    job.run.submitted.write_text(json.dumps({**record, "command": [BY_HAND]}))
    with pytest.raises(GridtfError, match="was not submitted by gridtf: gridtf cannot resume it") as caught:
        resume(job)
    assert caught.value.hint.endswith(f"--env OUTPUT_DIR={job.output_dir}")


def test_job_array_is_not_resumed(fake: FakeScheduler, rough_path: Path) -> None:
    job = ended(fake)
    (job.run.elements / "3").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="is an array of 1 jobs"):
        resume(job)


def test_element_of_a_sweep_goes_on_as_a_job_of_its_own(fake: FakeScheduler, rough_path: Path) -> None:
    job = ended(fake)
    element = Job(RunDir(job.run.elements / "3"))
    write_record(job.run.sweep, {"rows": [], "at_once": 1, "pack": 1, "numbers": []})
    element.run_dir.mkdir(parents=True)
    write_record(element.run.job, {"spec": {"command": ["x"]}})
    write_record(element.run.submitted, {"command": [BY_HAND], "scheduler": "slurm", "job_id": "101_3", "name": "x_3"})
    with pytest.raises(GridtfError, match="is an element of a job array: gridtf cannot resume it") as caught:
        resume(element)
    assert f"rerun {shlex.quote(str(element.run_dir))}, with --env OUTPUT_DIR={element.output_dir}" in caught.value.hint


def test_command_prints_the_new_job(fake: FakeScheduler, rough_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(fake)
    assert main(["resume", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job_id"] == "102"
    assert main(["resume", "101"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "name           train",
        "scheduler      slurm",
        "job            103",
    ]
