"""What can be asked of submitted jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf import submission
from gridtf.errors import GridtfError
from gridtf.schedulers.base import CANCELLED, COMPLETED, PENDING, RUNNING, JobStatus
from gridtf.spec import JobSpec
from gridtf.submission import Job
from tests.support.scheduler import FakeScheduler

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm")


def end(job: Job, state: str, **more: Any) -> None:
    attempt = job.run.new_attempt()
    for path in (attempt.plan, attempt.launcher):
        path.write_text(json.dumps({"nonce": "n", "job": {"id": job.id, "name": job.name}}))
    record = {"nonce": "n", "state": state, "reason": "r", "hint": "", "cause": None, "exit_code": 0, **more}
    attempt.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, **record}))


def test_many_jobs_are_one_question(fake: FakeScheduler, rough_path: Path) -> None:
    jobs = [submission.submit(RUNS) for _ in range(3)]
    fake.states = [JobStatus(PENDING, "Resources")]
    views = submission.views(jobs)
    assert fake.asked == [["101", "102", "103"]]
    assert [(view.job_id, view.state, view.scheduler) for view in views] == [
        (number, PENDING, "slurm") for number in ("101", "102", "103")
    ]
    assert all("Resources" in view.reason for view in views)


def test_a_scheduler_that_does_not_answer_is_no_error(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    fake.refuses = "squeue: error: timed out"
    assert "timed out" in job.status().reason
    end(job, COMPLETED)
    assert job.status().state == COMPLETED


def test_waiting_ends_with_the_job(fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submission.submit(RUNS)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            end(job, COMPLETED)

    monkeypatch.setattr(submission.time, "sleep", sleep)
    view = job.wait(poll=1.0)
    assert (view.state, len(pauses)) == (COMPLETED, 20)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.1, 1.0)


def test_waiting_has_a_limit(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    assert job.wait(timeout=0.01).state == RUNNING
    assert job.wait(timeout=0).state == RUNNING


def test_cancelling(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    view = job.cancel()
    assert (view.state, fake.cancelled) == (CANCELLED, ["101"])
    assert json.loads(job.run.cancelled.read_text()).keys() == {"user", "host", "time"}


def test_cancelling_a_job_that_has_ended_leaves_it_alone(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    end(job, COMPLETED)
    assert job.cancel().state == COMPLETED
    assert fake.cancelled == []
    assert not job.run.cancelled.exists()


def test_a_run_that_gridtf_did_not_submit_cannot_be_cancelled_by_it(fake: FakeScheduler, tmp_path: Path) -> None:
    job = Job(tmp_path)
    attempt = job.run.new_attempt()
    attempt.plan.write_text(json.dumps({"nonce": "n", "job": {"id": "9", "name": "hand"}}))
    assert (job.id, job.name) == ("9", "hand")
    with pytest.raises(GridtfError, match="was not submitted by gridtf"):
        job.cancel()


def test_the_public_names(fake: FakeScheduler, rough_path: Path) -> None:
    job = gridtf.submit(gridtf.JobSpec(command=("x",)))
    assert isinstance(job, gridtf.Job)
    assert repr(job) == f"Job({str(job.run_dir)!r})"
