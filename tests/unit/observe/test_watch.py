"""Watching a job: how often its run directory is looked at and its scheduler asked, and how soon an end is seen."""

from __future__ import annotations

import builtins
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import follow, redraw
from gridtf.errors import RunDirError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.observe.watch import Looker, Watch
from gridtf.run import jsonlines
from gridtf.run.rundir import write_record
from gridtf.schedulers.api import JobStatus
from tests.support.clocks import Clock
from tests.support.scheduler import FakeScheduler
from tests.support.states import CANCELLED, COMPLETED, FAILED, NODE_FAIL, PENDING, RUNNING, UNKNOWN

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm")


class Running:
    """A job whose records a test writes."""

    def __init__(self, fake: FakeScheduler, clock: Clock) -> None:
        self.job = submission.submit(RUNS)
        self.clock = clock
        self.beats = 0
        self.asked_at: list[float] = []
        query = fake.query

        def asked(jobs: Any) -> Any:
            self.asked_at.append(clock.now)
            return query(jobs)

        fake.query = asked  # type: ignore[method-assign]

    def begin(self) -> None:
        attempt = self.job.run.new_attempt()
        spec = {"heartbeat_timeout": 30.0}
        write_record(attempt.plan, {"nonce": "n", "job": {"id": self.job.id, "name": "train"}, "spec": spec})
        self.beat()

    def beat(self, phase: str = "running", detail: str = "3 tasks") -> None:
        self.beats += 1
        attempt = self.job.run.latest()
        assert attempt
        written = time.time() + self.beats / 1000  # the clock of the launcher's host is not this one
        record = {"nonce": "n", "host": "h", "time": written, "phase": phase, "detail": detail}
        write_record(attempt.launcher, record)

    def beat_until(self, end: float, every: float = 1.0) -> None:
        when = self.clock.now
        while when < end:
            self.clock.at(when, self.beat)
            when += every

    def end(self, state: str, **more: Any) -> None:
        attempt = self.job.run.latest()
        assert attempt
        record = {"nonce": "n", "state": state, "reason": "r", "hint": "", "cause": None, "exit_code": 0, **more}
        write_record(attempt.verdict, {"started": 1.0, "ended": 2.0, **record})

    @property
    def pauses(self) -> list[float]:
        """Seconds between questions to the scheduler."""
        return [round(later - earlier) for earlier, later in zip(self.asked_at, self.asked_at[1:], strict=False)]


@pytest.fixture
def running(fake: FakeScheduler, rough_path: Path, clock: Clock) -> Running:
    return Running(fake, clock)


def test_pending_job_is_asked_about_with_growing_pauses(fake: FakeScheduler, running: Running) -> None:
    fake.states = [JobStatus(PENDING, "Resources")]
    running.job.wait(timeout=300)
    assert running.pauses == [10, 20, 40, 60, 60, 60]


def test_pending_job_that_is_cancelled_is_seen_at_the_next_question(fake: FakeScheduler, running: Running) -> None:
    fake.states = [JobStatus(PENDING, "Resources")]
    running.clock.at(75, lambda: setattr(fake, "states", [JobStatus(CANCELLED, "by alice")]))
    assert running.job.wait().state == CANCELLED
    assert running.clock.now <= 130


def test_pending_job_that_gridtf_cancels_is_seen_at_once(fake: FakeScheduler, running: Running) -> None:
    def cancel() -> None:
        write_record(running.job.run.cancelled, {"user": "alice", "host": "login", "time": time.time()})
        fake.states = [JobStatus(UNKNOWN, "no longer known", purged=True)]

    fake.states = [JobStatus(PENDING, "Resources")]
    running.clock.at(75, cancel)
    assert running.job.wait().state == CANCELLED
    assert running.clock.now <= 78


def test_failed_set_up_is_asked_about_at_once(fake: FakeScheduler, running: Running) -> None:
    def fail() -> None:
        running.job.run.log.write_text("gridtf: n1: set-up line 1 failed with exit code 127: module load x\n")
        fake.states = [JobStatus(FAILED)]

    running.clock.at(2, lambda: running.job.run.log.write_text("loading\n"))
    running.clock.at(3, fail)
    assert running.job.wait().state == FAILED
    assert running.clock.now <= 5


def test_job_that_starts_is_seen_without_a_question(fake: FakeScheduler, running: Running) -> None:
    fake.states = [JobStatus(PENDING, "Resources")]
    running.clock.at(31, running.begin)
    running.clock.at(33, running.beat)
    watch, states = running.job.watch(timeout=36), []
    for view in watch:
        states.append(view.state)
    assert states[-1] == RUNNING
    assert running.pauses == [10, 20]


@pytest.mark.thorough
def test_running_job_is_asked_about_once_a_minute_while_it_has_heartbeats(running: Running) -> None:
    running.begin()
    running.beat_until(300)
    running.job.wait(timeout=300)
    assert len(running.asked_at) <= 3 + 300 / 60


def test_rare_heartbeats_of_a_large_job_are_fresh(running: Running) -> None:
    running.begin()
    running.beat_until(400, every=30)
    running.job.wait(timeout=400)
    assert len(running.asked_at) <= 6 + 400 / 60


def test_launcher_that_is_killed_is_seen_within_a_quarter_of_a_minute(fake: FakeScheduler, running: Running) -> None:
    running.begin()
    running.beat_until(100)
    running.clock.at(100, lambda: setattr(fake, "states", [JobStatus(FAILED, "its script was killed by SIGKILL")]))
    view = running.job.wait()
    assert view.state == FAILED
    assert "killed by SIGKILL" in view.reason
    assert running.clock.now <= 112


def test_silent_job_is_asked_about_every_ten_seconds(running: Running) -> None:
    running.begin()
    running.job.wait(timeout=100)
    assert running.pauses == [10] * 10


def test_completed_job_is_seen_within_a_second_and_without_a_question(running: Running) -> None:
    running.begin()
    running.beat_until(60)
    running.clock.at(59.5, lambda: running.end(COMPLETED))
    asked: list[int] = []
    running.clock.at(59, lambda: asked.append(len(running.asked_at)))
    assert running.job.wait().state == COMPLETED
    assert running.clock.now <= 60.5
    assert len(running.asked_at) == asked[0]


def test_failed_job_is_asked_about_at_once_until_it_has_left_the_queue(fake: FakeScheduler, running: Running) -> None:
    running.begin()
    running.beat_until(100)
    running.clock.at(100.5, lambda: running.end(NODE_FAIL))
    running.clock.at(120, lambda: setattr(fake, "states", [JobStatus(NODE_FAIL)]))
    view = running.job.wait()
    assert (view.state, view.finished) == (NODE_FAIL, True)
    seen = next(at for at in running.asked_at if at > 100.5)
    assert seen <= 101.5
    assert [round(at - seen) for at in running.asked_at if at >= seen] == [0, 2, 6, 14, 24]


def test_job_that_its_scheduler_lists_for_ever_after_a_final_verdict_is_over(running: Running) -> None:
    """As where slurmstepd or sge_shepherd hangs."""
    running.begin()
    running.clock.at(20, lambda: running.end(FAILED, again=False))
    view = running.job.wait(timeout=1000)
    assert (view.state, view.finished) == (FAILED, True)
    assert view.reason.endswith("; slurm still lists it 10 min later")
    assert 620 <= running.clock.now <= 625


def test_job_whose_verdict_is_not_final_is_waited_for(running: Running) -> None:
    running.begin()
    running.clock.at(20, lambda: running.end(FAILED, again=None))
    assert not running.job.wait(timeout=700).finished


def test_next_attempt_is_seen(fake: FakeScheduler, running: Running) -> None:
    running.begin()
    running.clock.at(20, lambda: running.end(NODE_FAIL))
    running.clock.at(25, lambda: setattr(fake, "states", [JobStatus(PENDING, "Priority")]))
    running.clock.at(99, lambda: setattr(fake, "states", [JobStatus(RUNNING)]))
    running.clock.at(100, running.begin)
    running.clock.at(110, lambda: running.end(COMPLETED))
    seen = [(view.state, view.attempt) for view in running.job.watch()]
    assert list(dict.fromkeys(seen)) == [
        (RUNNING, 1),
        (NODE_FAIL, 1),
        (PENDING, 1),
        (RUNNING, 2),
        (COMPLETED, 2),
    ]
    assert running.clock.now <= 112


def test_job_of_this_machine_is_asked_about_often(
    fake: FakeScheduler, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"scheduler": "local", "job_id": running.job.id, "name": "train"}
    write_record(running.job.run.submitted, record)
    running.job.wait(timeout=10)
    assert 10 <= len(running.asked_at) <= 20
    assert running.asked_at[1] <= 0.2


def test_array_is_over_when_its_last_element_has_a_verdict(fake: FakeScheduler, running: Running) -> None:
    names = [str(number) for number in range(5)]
    job = running.job
    for name in names:
        (job.run.elements / name).mkdir(parents=True)
    write_record(
        job.run.submitted, {"scheduler": "slurm", "job_id": job.id, "name": "train", "elements": names, "user": "me"}
    )

    def complete(name: str) -> Callable[[], None]:
        element = Job(job.run.elements / name).run

        def act() -> None:
            attempt = element.new_attempt()
            record = {"nonce": "n", "state": COMPLETED, "reason": "", "hint": "", "cause": None, "exit_code": 0}
            write_record(attempt.verdict, {"started": 1.0, "ended": 2.0, **record})

        return act

    for name, when in zip(names, (40.0, 3.0, 33.0, 5.0, 12.0), strict=True):
        running.clock.at(when, complete(name))
    assert job.wait().state == COMPLETED
    assert running.clock.now <= 41.5
    assert running.pauses == [10, 20]


def test_ended_may_be_called_often(fake: FakeScheduler, running: Running) -> None:
    running.begin()
    watch = Watch(running.job.run)
    for _ in range(300):
        assert not watch.ended()
        running.clock.sleep(0.1)
    assert len(running.asked_at) <= 4
    running.end(FAILED)
    fake.states = [JobStatus(FAILED)]
    calls = 0
    while not watch.ended():
        running.clock.sleep(0.1)
        calls += 1
    assert calls <= 12
    asked = len(running.asked_at)
    assert watch.ended()
    assert len(running.asked_at) == asked


@pytest.mark.parametrize(
    ("number", "seconds", "passes"), [(errno.EIO, 50, True), (errno.EIO, 70, False), (errno.EACCES, 5, False)]
)
def test_run_directory_that_cannot_be_read_for_a_moment_is_tolerated(
    number: int, seconds: float, passes: bool, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, listdir = running.clock, os.listdir

    def fails(path: Any = ".") -> list[str]:
        if 20 <= clock.now < 20 + seconds:
            raise OSError(number, os.strerror(number))
        return listdir(path)

    running.begin()
    monkeypatch.setattr(os, "listdir", fails)
    if passes:
        clock.at(75, lambda: running.end(COMPLETED))
        assert running.job.wait().state == COMPLETED
    else:
        with pytest.raises(RunDirError, match=os.strerror(number)):
            running.job.wait(timeout=200)
        assert clock.now >= 20


def test_look_does_not_cost_more_with_more_hosts(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.begin()
    attempt = running.job.run.latest()
    assert attempt
    looker = Looker(running.job.run)
    looker.look()
    write_record(attempt.summary, {"nonce": "n", "hosts": {f"n{number}": {"tasks": {}} for number in range(50)}})
    listed: list[int] = []
    opened: list[object] = []
    listdir, open_ = os.listdir, os.open

    def counted(path: Any = ".") -> list[str]:
        names = listdir(path)
        listed.append(len(names))
        return names

    def count_open(path: Any, *more: Any, **options: Any) -> int:
        opened.append(path)
        return open_(path, *more, **options)

    monkeypatch.setattr(os, "listdir", counted)
    monkeypatch.setattr(os, "open", count_open)
    monkeypatch.setattr(builtins, "open", None)
    assert looker.look() is not None
    assert len(listed) == 2
    assert max(listed) < 20
    assert opened == [attempt.launcher]


def test_wait_looks_at_the_run_directory_at_most_once_a_second(running: Running) -> None:
    running.begin()
    running.beat_until(100)
    running.job.wait(timeout=100)
    assert len(running.clock.slept) <= 100 + 5


# --- status --watch and submit --follow


def test_state_is_refreshed_without_a_question(fake: FakeScheduler, running: Running) -> None:
    watch = Watch(running.job.run)
    assert watch.refreshed() is None
    running.begin()
    watch.look()
    running.beat(detail="2 tasks")
    view = watch.refreshed()
    assert view is not None
    assert view.reason == "2 tasks"
    assert len(running.asked_at) == 1
    attempt = running.job.run.latest()
    assert attempt
    attempt.launcher.write_text('{"nonce": "n", "phase": 7}')
    view = watch.refreshed()
    assert view is not None
    assert (view.state, view.damaged) == (RUNNING, ("attempt-1/state/launcher.json",))


@pytest.mark.thorough
def test_status_watch_asks_as_rarely_as_wait(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    running.begin()
    running.beat_until(300)
    running.clock.at(300, lambda: running.end(COMPLETED))
    assert redraw.follow(running.job) == 0
    shown = capsys.readouterr().out.split("--- ")[1:]
    assert 300 / 10 <= len(shown) <= 300 / 10 + 5
    assert "state          RUNNING" in shown[0]
    assert "state          COMPLETED" in shown[-1]
    assert len(running.asked_at) <= 3 + 300 / 60


def test_follow_tells_of_states_and_events_once(
    fake: FakeScheduler, running: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridtf.cli.output.rest", running.clock.sleep)
    fake.states = [JobStatus(PENDING, "Resources", expected=0.0)]

    def happen() -> None:
        fake.states = [JobStatus(RUNNING)]
        running.begin()
        running.beat_until(50)
        attempt = running.job.run.latest()
        assert attempt
        event = {"time": 0.0, "event": "notice", "text": "a checkpoint\x1b[2J was requested"}
        attempt.events.write_text(jsonlines.head("n") + jsonlines.line(event) + '{"time": 0.0, "ev')

    running.clock.at(31, happen)
    running.clock.at(50, lambda: running.end(COMPLETED))
    assert follow.follow(running.job) == 0
    captured = capsys.readouterr()
    lines = [line.partition("  ")[2] for line in captured.err.splitlines()]
    assert [line.partition("; expected to start ")[0] for line in lines[:1]] == ["pending; Resources"]
    assert sorted(lines[1:]) == [r"a checkpoint\x1b[2J was requested", "running; 3 tasks"]
    assert captured.out.startswith(f"train ({running.job.id}): COMPLETED")
