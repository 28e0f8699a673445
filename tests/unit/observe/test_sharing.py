"""What commands of a user ask together, and whether each of them shows what it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.observe import jobs as observe
from gridtf.observe.watch import Watch
from gridtf.schedulers.api import JobStatus
from tests.support.clocks import Clock
from tests.support.scheduler import FakeScheduler
from tests.support.states import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm")


@pytest.fixture
def fake(fake: FakeScheduler, clock: Clock, rough_path: Path) -> FakeScheduler:
    """A scheduler with a server, whose jobs wait."""
    clock.now = 1000.0
    fake.server = lambda job, environ: "ctl"  # type: ignore[method-assign]
    fake.states = [JobStatus(PENDING, "Resources")]
    return fake


def end(job: Job, state: str) -> None:
    attempt = job.run.new_attempt()
    for path in (attempt.plan, attempt.launcher):
        path.write_text(json.dumps({"nonce": "n", "job": {"id": job.id, "name": job.name}}))
    record = {"nonce": "n", "state": state, "reason": "r", "hint": "", "cause": None, "exit_code": 0}
    attempt.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, **record}))


def test_commands_within_seconds_share_an_answer(fake: FakeScheduler, clock: Clock) -> None:
    one, two = (submission.submit(RUNS) for _ in range(2))
    for _ in range(10):
        assert one.status().state == PENDING
        assert [view.state for view in observe.views([one.run, two.run])] == [PENDING, PENDING]
        clock.now += 0.2
    assert fake.queried == [["101"], ["101", "102"]]
    clock.now += 3
    assert one.status().state == PENDING
    assert len(fake.queried) == 3


def test_jobs_of_two_clusters_with_the_same_id_are_told_apart(fake: FakeScheduler) -> None:
    runs = {}
    for cluster in ("a", "b"):
        fake.count = 0
        run = runs[cluster] = submission.submit(RUNS).run
        run.submitted.write_text(run.submitted.read_text().replace('"c1"', f'"{cluster}"'))
    states = {"a": JobStatus(RUNNING), "b": JobStatus(PENDING)}
    fake.server = lambda job, environ: job.details["cluster"]  # type: ignore[method-assign]
    fake.query = lambda jobs: {job.job_id: states[job.details["cluster"]] for job in jobs}  # type: ignore[method-assign]
    assert [view.state for view in observe.views([*runs.values()])] == [RUNNING, PENDING]


def test_own_submission_and_cancellation_are_seen_at_once(fake: FakeScheduler, clock: Clock) -> None:
    one = submission.submit(RUNS)
    one.status()
    clock.now += 0.1
    two = submission.submit(RUNS)
    assert [view.state for view in observe.views([one.run, two.run])] == [PENDING, PENDING]
    assert fake.queried[1:] == [["101", "102"]]
    clock.now += 0.1
    one.cancel()
    assert one.status().state == CANCELLED


def test_cancel_does_not_rely_on_an_answer_to_another_command(fake: FakeScheduler, clock: Clock) -> None:
    job = submission.submit(RUNS)
    job.status()
    end(job, FAILED)
    fake.states = [JobStatus(FAILED)]
    clock.now += 0.1
    assert job.cancel().state == FAILED
    assert fake.cancelled == []


@pytest.mark.parametrize("state", [COMPLETED, FAILED])
def test_job_that_began_after_the_answer_is_not_taken_for_one_that_is_queued_again(
    state: str, fake: FakeScheduler, clock: Clock
) -> None:
    job = submission.submit(RUNS)
    assert job.status().state == PENDING
    end(job, state)
    fake.states = [JobStatus(FAILED)]
    clock.now += 1.5
    assert job.status().state == state


@pytest.mark.thorough
def test_questions_about_jobs_that_are_queued_again_are_shared(fake: FakeScheduler, clock: Clock) -> None:
    job = submission.submit(RUNS)
    end(job, FAILED)
    watches = [Watch(job.run) for _ in range(15)]
    for _ in range(80):
        for watch in watches:
            assert not watch.ended()
            clock.now += 1 / 6  # they look at different times
    assert len(fake.queried) <= 12  # 1, 2, 4, 8, 10 s and up to 60 s apart


@pytest.mark.thorough
def test_waiting_commands_ask_together(fake: FakeScheduler, clock: Clock) -> None:
    jobs = [submission.submit(RUNS) for _ in range(30)]
    watches = []
    for second in range(120):
        if second < len(jobs):  # they begin at different times
            watches.append(Watch(jobs[second].run))
        for watch in watches:
            assert not watch.ended()
            clock.now += 1 / len(watches)
    # each asks once about its new job, which no answer covers, then one for all of them in 10 s and less
    assert len(fake.queried) <= len(jobs) + 90 / 10
    assert len(fake.queried[-1]) == len(jobs)


@pytest.mark.thorough
def test_jobs_that_end_together_are_one_question_a_second(fake: FakeScheduler, clock: Clock) -> None:
    jobs = [submission.submit(RUNS) for _ in range(30)]
    watches = [Watch(job.run) for job in jobs]
    fake.states = [JobStatus(RUNNING)]
    for watch in watches:
        assert not watch.ended()
    clock.now += 5
    for job in jobs:
        end(job, FAILED)
    asked, begin = len(fake.queried), clock.now
    while [watch for watch in watches if not watch.ended()]:
        clock.now += 0.1
        if clock.now > begin + 2:
            fake.states = [JobStatus(FAILED)]
    assert clock.now - begin < 6
    assert len(fake.queried) - asked <= 5
