"""The rows of `gridtf doctor --conformance`: what is judged wrong, and what is not tried after a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf.doctor import conformance, probe
from gridtf.errors import GridtfError, SchedulerError
from gridtf.findings import Level
from gridtf.login.job import Job
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState
from tests.support.scheduler import FakeScheduler


def configured(*words: str) -> Any:
    return probe.configured(["--scheduler", "slurm", *words])


def told(rank: int, **more: object) -> dict[str, Any]:
    """What a task of two tells whose step and sum are exact, on a GPU of its own."""
    exact = {"tensorflow": "2.21.0", "weight": -3.0, "sums": [3.0, 3.0]}
    return {**exact, "gpus": ["NVIDIA H200"], "uuids": [f"{rank:032x}"], **more}


@pytest.fixture
def pilot(fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> conformance._Pilot:
    """A pilot of two hosts with a GPU each, whose jobs complete at once."""
    made = conformance._Pilot(configured("--gpus-per-node", "1"), lambda _: None)
    job = Job(RunDir(rough_path))
    monkeypatch.setattr(made, "submit", lambda entry, **_: made.jobs.setdefault(entry, job))
    monkeypatch.setattr(made, "ended", lambda job, state: None)
    made.jobs["train"] = job
    return made


def test_a_gpu_of_its_own_for_each_task(pilot: conformance._Pilot) -> None:
    pilot.told["train"] = [told(0), told(1)]
    assert conformance._gpus(pilot) == "2 tasks, each with a GPU of its own: NVIDIA H200"


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (told(0), "2 tasks have 1 GPU between them"),  # the same GPU
        (told(1, gpus=[]), "each task has one GPU, but worker:1 sees 0"),
        (told(1, gpus=["a", "b"]), "each task has one GPU, but worker:1 sees 2"),
    ],
)
def test_gpus_that_tasks_share_or_lack(pilot: conformance._Pilot, second: dict[str, Any], why: str) -> None:
    pilot.told["train"] = [told(0), second]
    with pytest.raises(GridtfError, match=why):
        conformance._gpus(pilot)


@pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"sums": [1.0, 3.0]}], ids=["weight", "sums"])
def test_a_task_that_trains_alone_or_adds_up_nothing(pilot: conformance._Pilot, wrong: dict[str, Any]) -> None:
    pilot.told["train"] = [told(0), told(1)]
    pilot.read = lambda entry: [told(0), told(1, **wrong)]  # type: ignore[method-assign]
    with pytest.raises(GridtfError, match=r"worker:1 has the weight .* in place of -3\.0 and 3\.0"):
        conformance._train(pilot)
    assert "train" not in pilot.told, "rows that look at this job are not tried"


@pytest.mark.parametrize(("scheduler", "more"), [("slurm", "$"), ("sge", ", or a parallel environment that spreads")])
def test_fewer_hosts_than_requested(
    pilot: conformance._Pilot, monkeypatch: pytest.MonkeyPatch, scheduler: str, more: str
) -> None:
    view = SimpleNamespace(tasks=[SimpleNamespace(host=host) for host in ("n1", "n1", "n2")])
    monkeypatch.setattr(Job, "status", lambda job: view)
    monkeypatch.setattr(Job, "scheduler", scheduler)
    pilot.told["train"], pilot.hosts = [], 3
    with pytest.raises(GridtfError, match="its tasks are on 2 hosts, 3 were requested") as raised:
        conformance._hosts(pilot)
    assert re.match(f"request as many as come: --nodes 2{more}", raised.value.hint)
    with pytest.raises(conformance._NotTriedError, match="a job of 3 hosts is not restarted on 2"):
        conformance._restart(pilot)


def test_another_task_than_the_one_that_fails_is_named(
    pilot: conformance._Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = SimpleNamespace(cause={"task": "worker:0"}, reason="worker:0 on n1: exit code 1")
    monkeypatch.setattr(pilot, "ended", lambda job, state: view)
    with pytest.raises(GridtfError, match="the verdict names worker:0 instead of worker:1: worker:0 on n1"):
        conformance._first_cause(pilot)
    view.cause = {"task": "worker:1"}
    with pytest.raises(GridtfError, match="the verdict names worker:1 without its exception: worker:0 on n1"):
        conformance._first_cause(pilot)


def test_a_line_that_has_come_in_part_is_waited_for(pilot: conformance._Pilot, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a host sees the log that another one writes on a shared file system."""
    texts = iter(['trial {"step": \n', 'trial {"step": 1}\n'])
    monkeypatch.setattr(Job, "logs", lambda job, name: next(texts))
    monkeypatch.setattr(conformance, "_POLL", 0.0)
    pilot.tasks = 1
    assert pilot.read("train") == [{"step": 1}]


def test_nccl_is_not_tried_without_gpus(pilot: conformance._Pilot) -> None:
    pilot.told["train"] = [told(0), told(1, gpus=[])]
    with pytest.raises(conformance._NotTriedError):
        conformance._nccl(pilot)


def test_first_job_that_is_refused_is_an_error(fake: FakeScheduler, rough_path: Path) -> None:
    fake.refuses = "sbatch: error: Invalid account or account/partition combination specified"
    with pytest.raises(SchedulerError, match="Invalid account"):
        conformance.conformance(configured())
    assert not list(rough_path.iterdir())


def test_options_that_the_pilot_sets_itself_are_named(fake: FakeScheduler, rough_path: Path) -> None:
    fake.states, said = [JobStatus(JobState.CANCELLED, purged=True)], list[str]()
    typed = ("--restarts", "5", "--workers=3", "--nodes=3", "--time=2m", "--gpus=6", "--setup=true")
    conformance.conformance(configured(*typed), said.append)
    assert said[0] == "the pilot sets these itself, and leaves yours out of account: --restarts, --workers"
    assert sum("leaves yours out" in line for line in said) == 1


def test_nothing_more_is_tried_after_a_job_that_does_not_start(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "_START", 0.0)
    fake.states = [JobStatus(JobState.PENDING, "Resources")]
    found, sent = conformance.conformance(configured())
    first, *others = found.findings
    assert (first.level, {other.level for other in others}) == (Level.FAILURE, {Level.WARNING})
    what = "a step of Keras and a sum of 4 MiB over all hosts (gridtf submit, logs)"
    assert first.message == f"{what}; a job has not started within 0 s: Resources; it was cancelled (0 s)"
    assert fake.cancelled == ["101"]
    assert sent is not None
    assert (sent["failed"], sent["passed"]) == (["train"], [])
    assert {row["outcome"] for row in sent["trials"][1:]} == {"not tried"}


def test_ctrl_c_cancels_the_job(fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Job.watch
    calls: list[int] = []

    def interrupted() -> Iterator[None]:
        raise KeyboardInterrupt

    def once(*arguments: object, **more: object) -> object:
        calls.append(1)
        return interrupted() if len(calls) == 1 else watch(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Job, "watch", once)
    found, sent = conformance.conformance(configured())
    assert (fake.cancelled, sent) == (["101"], None)
    assert {finding.level for finding in found.findings} == {Level.WARNING}
    assert all("not tried: interrupted" in finding.message for finding in found.findings)
    assert not list(rough_path.glob("gridtf-runs/*"))


def test_ctrl_c_during_a_submission_is_the_last_one(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = fake.submit, list[object]()

    def interrupted(plan: Any) -> Any:
        calls.append(plan)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return submit(plan)

    monkeypatch.setattr(fake, "submit", interrupted)
    monkeypatch.setattr(conformance._Pilot, "ended", lambda pilot, job, state: SimpleNamespace(cause={}, reason=""))
    monkeypatch.setattr(conformance._Pilot, "read", lambda pilot, entry: [told(0), told(1)])
    monkeypatch.setattr(
        conformance, "ROWS", {name: conformance.ROWS[name] for name in ("train", "first_cause", "restart")}
    )
    found, sent = conformance.conformance(configured())
    assert [finding.level for finding in found.findings] == [Level.OK, Level.FAILURE, Level.WARNING]
    assert (len(calls), sent) == (2, None)
