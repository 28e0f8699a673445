"""Whether a job may start, by the records of those that it starts after and by what their scheduler says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge.conditions import Conditions, Standing
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.states import JobState
from tests.support.scheduler import FakeScheduler

DOUBT = 60.0  # seconds
GONE = JobStatus(JobState.UNKNOWN, purged=True)
RUNNING = JobStatus(JobState.RUNNING)


class Site:
    """A job that starts after another one, 41, and the time."""

    def __init__(self, folder: Path, key: str = "after", **record: Any) -> None:
        self.now = 1000.0
        self.scheduler = FakeScheduler()
        self.scheduler.states = [GONE]
        self.other, self.run = RunDir(folder / "other"), RunDir(folder / "own")
        for run in (self.other, self.run):
            run.path.mkdir()
            run.job.write_text(json.dumps({"origin": {"waits_for": {str(self.other.path): "train (41)"}}}))
        submitted = {"scheduler": "slurm", "job_id": "41", "time": 1.0, **record}
        self.other.submitted.write_text(json.dumps(submitted))
        spec = JobSpec(command=("true",)).replace(**{key: (str(self.other.path),)})
        self.conditions = Conditions(self.run, spec, self.scheduler, lambda: self.now)

    def ends(self, state: str, *, run: RunDir | None = None, **more: Any) -> None:
        record = {"nonce": "n", "state": state, "again": False, **more}
        (run or self.other).new_attempt().verdict.write_text(json.dumps(record))

    def look(self, later: float = 0.0) -> Standing:
        self.now += later
        return self.conditions.look()

    def settled(self) -> Standing:
        """What is known once all records can be seen."""
        assert self.look().why == "after train (41)"
        return self.look(DOUBT + 1)


@pytest.fixture(params=["after", "after_any", "after_failed"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Site]:
    return request.param, Site(tmp_path, request.param)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "SAVED"])
def test_verdict_decides_at_once(site: tuple[str, Site], state: str) -> None:
    key, job = site
    job.ends(state)
    now = job.look()
    assert now.why == ""
    assert not job.scheduler.queried
    may = key == "after_any" or (state == "COMPLETED") == (key == "after")
    assert (now.never is None) == may
    if now.never:
        meant = {"after": "completed", "after_failed": "failed"}[key]
        assert now.never.what == f"job train (41) is {state}, and this one was to start after it had {meant}"
        assert now.never.state == JobState.CANCELLED


@pytest.mark.parametrize("more", [{"again": True}, {"again": None}, {"next": 2}])
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING])
def test_job_that_goes_on_is_waited_for(tmp_path: Path, more: dict[str, Any], state: JobState) -> None:
    job = Site(tmp_path)
    job.ends("SAVED", **more)
    job.scheduler.states = [JobStatus(state)]
    for later in (0.0, DOUBT + 1, 1e6):
        assert job.look(later) == Standing("after train (41)", ("41",))
    job.ends("COMPLETED")
    assert job.look() == Standing()


def test_verdict_that_this_host_sees_late(tmp_path: Path) -> None:
    job = Site(tmp_path)
    assert job.look() == Standing("after train (41)")
    assert job.look(DOUBT - 1) == Standing("after train (41)")
    job.ends("COMPLETED")
    assert job.look() == Standing()


def test_doubt_begins_with_the_end_of_the_other(tmp_path: Path) -> None:
    job = Site(tmp_path)
    job.scheduler.states = [RUNNING]
    assert [job.look(1e5).ids for _ in range(2)] == [("41",)] * 2
    job.scheduler.states = [GONE]
    assert job.settled().never


def test_job_without_a_verdict_has_failed(site: tuple[str, Site]) -> None:
    key, job = site
    end = job.settled().never
    assert (end.what if end else "") == (
        "job train (41) is FAILED, and this one was to start after it had completed" if key == "after" else ""
    )


def test_cancelled_job_is_known_at_once(tmp_path: Path) -> None:
    job = Site(tmp_path)
    job.other.cancelled.write_text("{}")
    end = job.look().never
    assert end is not None
    assert "is CANCELLED" in end.what


@pytest.mark.parametrize(
    ("delay", "log", "accounted", "state"),
    [
        (20.0, False, None, "CANCELLED"),
        (20.0, False, JobStatus(JobState.FAILED), "FAILED"),  # such as one whose log could not be made
        (20.0, True, None, "FAILED"),
        (0.0, False, None, "FAILED"),
    ],
)
def test_job_that_was_deleted_while_it_was_held_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: float, log: bool, accounted: JobStatus | None, state: str
) -> None:
    """As for `gridtf status`. The accounting, which may be slow, is asked once."""
    job, asked = Site(tmp_path), []

    def accounting(jobs: list[JobIdentity]) -> dict[str, JobStatus]:
        asked.append(jobs[0].job_id)
        return {"41": accounted} if accounted else {}

    monkeypatch.setattr(job.scheduler.login, "accounting", accounting)
    monkeypatch.setattr(job.scheduler.login, "accounting_delay", delay)
    if log:
        job.other.log.touch()
    for end in (job.settled().never, job.look(1).never):
        assert end is not None
        assert f"job train (41) is {state}, and" in end.what
    assert asked == ["41"] * (delay > 0 and not log)


def test_job_that_was_to_start_again_and_was_deleted(tmp_path: Path) -> None:
    job = Site(tmp_path)
    job.ends("SAVED", again=True)
    end = job.settled().never
    assert end is not None
    assert "is SAVED" in end.what


def test_scheduler_that_does_not_answer(site: tuple[str, Site]) -> None:
    _, job = site
    job.scheduler.refuses = "squeue does not answer"
    end = job.settled().never
    assert end is not None
    assert "job train (41) cannot be judged (squeue does not answer), and this one" in end.what


def test_run_directory_that_is_gone(site: tuple[str, Site], tmp_path: Path) -> None:
    _, job = site
    job.other.path.rename(tmp_path / "elsewhere")
    end = job.settled().never
    assert end is not None
    assert f"cannot be judged (its run directory {job.other.path} does not exist any more)" in end.what


def test_record_that_is_damaged(tmp_path: Path) -> None:
    job = Site(tmp_path)
    job.ends("COMPLETED", started="x")
    end = job.settled().never
    assert end is not None
    assert "is damaged" in end.what


def test_job_that_has_saved_is_not_judged_before_the_others_have_ended(tmp_path: Path) -> None:
    """Until then, it may be continued; it was to have completed."""
    job = Site(tmp_path)
    also = RunDir(tmp_path / "also")
    also.path.mkdir()
    also.submitted.write_text(json.dumps({"scheduler": "slurm", "job_id": "42"}))
    spec = JobSpec(command=("true",), after=(str(job.other.path), str(also.path)))
    conditions = Conditions(job.run, spec, job.scheduler, lambda: job.now)
    job.ends("SAVED")
    job.scheduler.states = [RUNNING]
    for _ in range(3):
        job.now += 1000
        assert conditions.look() == Standing(f"after {also.path}", ("42",))
    job.ends("COMPLETED", run=also)
    end = conditions.look().never
    assert end is not None
    assert "is SAVED" in end.what


def test_array_has_completed_when_all_elements_have(tmp_path: Path) -> None:
    job = Site(tmp_path, elements=["1", "2"])
    parts = [RunDir(job.other.elements / name) for name in ("1", "2")]
    for part in parts:
        part.path.mkdir(parents=True)
    job.ends("COMPLETED", run=parts[0])
    job.scheduler.states = [RUNNING]
    assert job.look().ids == ("41",)
    job.ends("FAILED", run=parts[1])
    end = job.look().never
    assert end is not None
    assert "is FAILED" in end.what
    job.ends("COMPLETED", run=parts[1])
    assert job.look() == Standing()


def test_job_that_has_begun_before_starts_again(tmp_path: Path) -> None:
    """Its conditions were met then; the others may have been removed since."""
    job = Site(tmp_path)
    attempt = job.run.new_attempt()
    assert job.look().why
    attempt.plan.write_text("{}")
    spec = JobSpec(command=("true",), after=(str(job.other.path),))
    assert Conditions(job.run, spec, job.scheduler, lambda: 0.0).look() == Standing()


def test_launcher_of_a_local_job_doubts_nothing_again(tmp_path: Path) -> None:
    """Its job runner has waited for the records before."""
    job = Site(tmp_path)
    job.other.submitted.unlink()
    spec = JobSpec(command=("true",), after=(str(job.other.path),))
    assert job.look().why
    assert Conditions(job.run, spec, job.scheduler, lambda: 0.0, waited=True).look().never is not None


def test_looks_become_rare(tmp_path: Path) -> None:
    job, pauses = Site(tmp_path), []
    for later in (0, 10, 50, 10000):
        job.now += later
        pauses.append(job.conditions.pause)
    assert pauses == [1.0, 2.0, 7.0, 30.0]
