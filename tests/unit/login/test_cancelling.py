"""Several jobs are cancelled at once: what schedulers are asked, what is waited for, and what users are told."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence

import pytest

from gridtf.cli import main
from gridtf.login.job import find
from gridtf.run.rundir import write_record
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.schedulers.commands import NoAnswerError
from tests.support.clocks import Clock
from tests.support.scheduler import FakeScheduler
from tests.support.states import CANCELLED, COMPLETED, PENDING, RUNNING

Captured = pytest.CaptureFixture[str]
CLOCK = r"\d\d:\d\d:\d\d"
NAMES = ("c (103)", "a (101)", "b (102)")


class Queue:
    """Three jobs, 101 to 103, of which 103 waits for its start, in the queue of a fake scheduler.

    Attributes:
        jobs: The jobs.
        stay: Ids of those that stay there although they were cancelled.
        calls: Ids of the jobs that the scheduler was asked to end, with a ``!`` where by force.
    """

    def __init__(self, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
        self.stay: set[str] = set()
        self.calls: list[str] = []
        for name in ("a", "b", "c"):
            assert main(["submit", "--name", name, "--kill-grace", "10", "--quiet", "--", "x"]) == 0
        self.jobs = [find(name) for name in ("101", "102", "103")]
        monkeypatch.setattr(fake, "query", self.query)
        monkeypatch.setattr(fake, "cancel", self.cancel)
        capsys.readouterr()

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        gone = {call.rstrip("!") for call in self.calls} - self.stay
        states = {name: PENDING if name == "103" else RUNNING for name in (job.job_id for job in jobs)}
        return {
            name: JobStatus(CANCELLED, purged=True) if name in gone else JobStatus(state)
            for name, state in states.items()
        }

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        self.calls.append(job.job_id + "!" * force)

    def recorded(self) -> list[str]:
        """Ids of the jobs that have a cancelled.json."""
        return [job.id for job in self.jobs if job.run.cancelled.exists()]


@pytest.fixture
def queue(fake: FakeScheduler, rough_path: object, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Queue:
    return Queue(fake, monkeypatch, capsys)


def test_all_jobs_are_asked_to_end_before_one_is_waited_for(queue: Queue, clock: Clock, capsys: Captured) -> None:
    """None of them ends before all were asked, as where they use each other's hosts."""
    queue.stay = {"101", "102"}
    clock.at(5, lambda: queue.stay.clear() if queue.calls == ["103", "101", "102"] else None)
    assert main(["cancel", "a", "102", "c", "b"]) == 0
    shown = capsys.readouterr()
    what = f"waiting until {CLOCK} for 2 jobs to end, then what is left is killed: 101, 102"
    assert re.fullmatch(f"gridtf: {what}\n", shown.err)
    assert [line for line in shown.out.splitlines() if "(" in line] == [f"{n}: CANCELLED" for n in NAMES]
    assert queue.calls == ["103", "101", "102"]
    assert 5 <= clock.now < 7


def test_jobs_that_do_not_end_in_time_are_killed_and_given_up(queue: Queue, clock: Clock, capsys: Captured) -> None:
    queue.stay = {"101", "102"}
    clock.at(30, lambda: queue.stay.discard("102"))
    assert main(["cancel", "a", "b", "c"]) == 1
    assert queue.calls == ["103", "101", "102", "101!", "102!"]
    waits, kills, *given_up = capsys.readouterr().err.splitlines()
    assert waits.startswith("gridtf: waiting until ")
    assert re.fullmatch(
        f"gridtf: what had not ended was killed; waiting until {CLOCK} for 2 jobs to end: 101, 102", kills
    )
    assert given_up == ["gridtf: job 101 was cancelled, but is still RUNNING", "  to check again: gridtf status 101"]
    assert 40 <= clock.now < 42  # kill_grace and twice 15 s


def test_ctrl_c_in_the_wait_leaves_the_jobs_cancelled_and_says_so(queue: Queue, clock: Clock, capsys: Captured) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    queue.stay = {"101", "102"}
    clock.at(3, interrupt)
    assert main(["cancel", "a", "b", "c"]) == 130
    said = capsys.readouterr().err.splitlines()[1:]
    assert said == ["", "gridtf: 2 jobs were cancelled, but not seen to end: 101, 102", "  to check again: gridtf list"]
    assert queue.recorded() == ["101", "102", "103"]


def test_ctrl_c_between_requests_says_which_jobs_were_asked(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler, capsys: Captured
) -> None:
    def cancel(job: JobIdentity, *, force: bool = False) -> None:
        if job.job_id == "101":
            raise KeyboardInterrupt
        queue.cancel(job, force=force)

    monkeypatch.setattr(fake, "cancel", cancel)
    assert main(["cancel", "a", "b", "c"]) == 130
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["", "gridtf: it is not known whether 2 jobs will be cancelled: 101, 102"]
    assert "gridtf: 1 job was cancelled, but not seen to end: 103" in said
    assert queue.recorded() == ["103"]


def test_scheduler_that_falls_silent_is_asked_no_more_and_the_others_are_told(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler, capsys: Captured
) -> None:
    def cancel(job: JobIdentity, *, force: bool = False) -> None:
        queue.cancel(job, force=force)
        if job.job_id == "101":
            queue.stay = {"101"}
            raise NoAnswerError("it does not answer", hint="try again later")

    monkeypatch.setattr(fake, "cancel", cancel)
    assert main(["cancel", "a", "b", "c"]) == 1
    assert queue.calls == ["103", "101"]
    shown = capsys.readouterr()
    assert shown.err == "gridtf: jobs 101, 102: it does not answer\n  try again later\n"
    assert "c (103): CANCELLED" in shown.out
    assert queue.recorded() == ["103"]


def test_job_that_has_ended_meanwhile_is_told_as_it_has_ended(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler, capsys: Captured
) -> None:
    def cancel(job: JobIdentity, *, force: bool = False) -> None:
        if job.job_id == "101":  # between the look at it and the request
            attempt = queue.jobs[0].run.new_attempt()
            attempt.plan.write_text(json.dumps({"nonce": "n"}))
            write_record(attempt.verdict, {"nonce": "n", "state": COMPLETED, "exit_code": 0, "reason": "all done"})
        queue.cancel(job, force=force)

    monkeypatch.setattr(fake, "cancel", cancel)
    assert main(["cancel", "a", "b"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if "(" in line] == ["a (101): COMPLETED", "b (102): CANCELLED"]
    assert main(["cancel", "b", "c"]) == 0
    assert "gridtf: job 102 has already ended" in capsys.readouterr().err
    assert queue.calls == ["101", "102", "103"]


def test_run_directory_that_is_removed_during_the_wait_is_told_and_the_others_are_waited_for(
    queue: Queue, clock: Clock, capsys: Captured
) -> None:
    queue.stay = {"101", "102"}
    clock.at(2, lambda: shutil.rmtree(queue.jobs[0].run_dir))
    clock.at(6, queue.stay.clear)
    assert main(["cancel", "a", "b", "--json"]) == 1
    shown = capsys.readouterr()
    assert "was removed while gridtf waited for its job, 101\n" in shown.err
    assert [job["job_id"] for job in json.loads(shown.out)] == ["102"]
    assert clock.now >= 6


def test_damaged_record_of_one_job_delays_no_other(queue: Queue, clock: Clock, capsys: Captured) -> None:
    queue.jobs[0].run.job.write_text('{"spec": {"kill_grace": "x"}}')
    queue.stay = {"101", "102"}
    clock.at(3, queue.stay.clear)
    assert main(["cancel", "a", "b"]) == 0
    shown = capsys.readouterr()
    assert "a (101): CANCELLED" in shown.out
    assert "b (102): CANCELLED" in shown.out
    assert queue.calls == ["101", "102"]


def test_jobs_whose_run_directories_were_removed_are_cancelled_by_their_ids(queue: Queue, capsys: Captured) -> None:
    for job in queue.jobs[:2]:
        shutil.rmtree(job.run_dir)
    assert main(["cancel", "101", "102", "103"]) == 1
    assert sorted(queue.calls) == ["101", "102", "103"]
    shown = capsys.readouterr()
    for job_id in ("101", "102"):
        assert f"gridtf: job {job_id}: requested cancellation of slurm job {job_id}\n" in shown.err
    assert "c (103): CANCELLED" in shown.out


def test_refused_command_leaves_the_record_of_another_one_that_cancels_the_job(
    queue: Queue, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(queue.jobs[0].run.cancelled, {"user": "root", "host": "h", "time": 1.0})

    def cancel(job: JobIdentity, *, force: bool = False) -> None:
        raise NoAnswerError("it does not answer")

    monkeypatch.setattr(fake, "cancel", cancel)
    assert main(["cancel", "a", "b"]) == 1
    assert json.loads(queue.jobs[0].run.cancelled.read_text())["user"] == "root"
    assert queue.recorded() == ["101"]


def test_accounting_is_not_asked_about_cancelled_jobs(
    queue: Queue, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Grid Engine each job is a search of the whole file."""
    asked: list[JobIdentity] = []

    def accounting(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        asked.extend(jobs)
        return {}

    monkeypatch.setattr(fake, "accounting", accounting)
    assert main(["cancel", "a", "b"]) == 0
    assert queue.jobs[0].status().state == CANCELLED
    assert asked == []
