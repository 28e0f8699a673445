"""Addresses of the tasks of a job: from the command line, in Python, and why there may be none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.errors import GridtfError, NotFoundError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.schedulers.api import JobStatus
from tests.support.scheduler import FakeScheduler
from tests.support.states import COMPLETED, PENDING, RUNNING

Captured = pytest.CaptureFixture[str]
CLUSTER = {"chief": ["n1:1001"], "worker": ["n1:1002", "[fd00::2]:1003"]}


@pytest.fixture
def job(fake: FakeScheduler, rough_path: Path) -> Job:
    """A running job whose tasks have met."""
    job = submission.submit(JobSpec(command=("python", "train.py"), scheduler="slurm", name="digits"))
    fake.states = [JobStatus(RUNNING)]
    record = {"nonce": "n", "cluster": CLUSTER, "outside": {"evaluator": ["n2:1004"]}}
    job.run.new_attempt().rendezvous.write_text(json.dumps(record))
    return job


def test_addresses_of_a_running_job(job: Job, capsys: Captured) -> None:
    assert job.cluster == {"chief": ("n1:1001",), "worker": ("n1:1002", "[fd00::2]:1003")}
    assert job.output_dir == job.run_dir / "output"
    for task, address in (("worker:1", "[fd00::2]:1003"), ("chief:0", "n1:1001"), ("evaluator:0", "n2:1004")):
        assert job.address(task) == address
        assert main(["address", "digits", task]) == 0
        assert capsys.readouterr().out == f"{address}\n"


@pytest.mark.parametrize(
    ("task", "hint"),
    [("worker:2", "worker:1 or worker:0"), ("wroker:1", "worker:1"), ("chief", "chief:0"), ("tensorboard:0", "")],
)
def test_unknown_task_is_refused(job: Job, task: str, hint: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        job.address(task)
    assert caught.value.what == f"no such task: {task}"
    assert caught.value.why == "choose from: chief:0, worker:0, worker:1, evaluator:0"
    assert hint in caught.value.hint
    assert bool(caught.value.hint) == bool(hint)


def test_job_that_waits_has_no_addresses_yet_even_after_an_earlier_attempt(job: Job, fake: FakeScheduler) -> None:
    fake.states = [JobStatus(PENDING, "Resources")]
    with pytest.raises(GridtfError) as caught:
        job.address("worker:0")
    assert str(caught.value).splitlines() == [
        "job digits is not running, its tasks have no addresses yet",
        "PENDING: Resources",
        f"see `gridtf status {job.id}`",
    ]


def test_job_whose_hosts_gather_has_no_addresses_yet(job: Job) -> None:
    job.run.new_attempt()
    with pytest.raises(GridtfError, match="its tasks have no addresses yet"):
        job.cluster  # noqa: B018


def test_job_that_has_ended_has_no_addresses_any_more(job: Job, capsys: Captured) -> None:
    latest = job.run.latest()
    assert latest
    latest.plan.write_text(json.dumps({"nonce": "n", "job": {"id": job.id, "name": job.name}}))
    verdict = {"nonce": "n", "state": COMPLETED, "reason": "all is done", "hint": "", "cause": None, "exit_code": 0}
    latest.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, **verdict}))
    assert main(["address", "digits", "worker:0"]) == 1
    error = "gridtf: job digits is not running, its tasks no longer have addresses\n  COMPLETED: all is done\n"
    assert capsys.readouterr().err == error
