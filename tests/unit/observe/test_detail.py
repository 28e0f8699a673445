"""What status shows beyond the state of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gridtf.cli import show
from gridtf.observe import jobs
from gridtf.observe.detail import MOST_LOGS, detailed, unmoved
from gridtf.observe.views import JobView
from gridtf.run.rundir import Record, RunDir, write_record
from tests.support import recordedruns
from tests.support.plans import NONCE
from tests.support.states import COMPLETED, FAILED, PENDING, RUNNING, UNKNOWN
from tests.unit.run.test_noise import LEFT

NOW = recordedruns.BEGIN + 630


def view_of(run: RunDir) -> JobView:
    return jobs.job_view(run, jobs.read_submitted(run), None, NOW)


def test_last_lines_and_steps_of_logs(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, reports=False, state=RUNNING)
    run.attempt(1).task_log("worker", 1).write_bytes(b"Epoch 2/3\n\r 1/9 [>..]\r 5/9 [==>.] \x1b[2J\xff")
    first, second = detailed(view_of(run), NOW).tasks
    assert (first.last_line, first.logged) == (
        "step 19 loss 0.0500 of worker:0",
        {"step": 19, "steps": None, "epoch": None, "epochs": None},
    )
    assert (second.last_line, second.logged) == (" 5/9 [==>.] \ufffd", {"step": 5, "steps": 9, "epoch": 2, "epochs": 3})


@pytest.mark.parametrize(("state", "shown"), [(COMPLETED, "fit has ended"), (FAILED, "The tasks have crashed. ")])
def test_last_line_is_no_crash_that_tensorflow_supposes_where_tasks_have_completed(
    state: str, shown: str, tmp_path: Path
) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, state=state)
    run.attempt(1).task_log("worker", 0).write_text(f"fit has ended\n{LEFT}")
    assert str(detailed(view_of(run), NOW).tasks[0].last_line).startswith(shown)


def test_logs_of_tasks_that_report_steps_are_not_searched_for_them(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=1, state=RUNNING)
    (task,) = detailed(view_of(run), NOW).tasks
    assert task.progress
    assert task.logged is None


def test_logs_of_few_tasks_are_read(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=MOST_LOGS + 2, minutes=0.1, lines=1)
    tasks = detailed(view_of(run), NOW).tasks
    assert [task.name for task in tasks if task.last_line is None] == ["worker:64", "worker:65"]


def test_vanished_log_has_no_last_line(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=1, state=RUNNING)
    view = view_of(run)
    run.attempt(1).task_log("worker", 0).unlink()
    (task,) = detailed(view, NOW).tasks
    assert task.last_line == ""


# --- attempts


def test_attempts_are_a_chain(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=1, state=FAILED)
    for _ in range(3):
        run.new_attempt()
    verdict = {"nonce": NONCE, "state": "NODE_FAIL", "reason": "h1 is lost", "started": 5.0, "ended": 65.0}
    write_record(run.attempt(2).verdict, verdict)
    run.attempt(3).verdict.write_text('{"state": 7}')
    first, second, third, last = detailed(view_of(run), NOW).attempts
    assert (first.number, first.state, first.reason) == (1, FAILED, "worker:0 on h0: exit code 1")
    assert (second.state, second.reason, second.started, second.ended) == ("NODE_FAIL", "h1 is lost", 5.0, 65.0)
    assert third.state == UNKNOWN
    assert "verdict.json" in third.reason
    assert last.state == view_of(run).state


def test_attempt_without_a_verdict_is_unknown(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=1, state=RUNNING)
    run.new_attempt()
    first = detailed(view_of(run), NOW).attempts[0]
    assert (first.state, first.reason) == (UNKNOWN, "it left no verdict: its launcher was killed, or its host was lost")


# --- what events tell


def tell(run: RunDir, *happened: Record, attempt: int = 1) -> None:
    """Add events to those of an attempt, in the order of their times."""
    path = run.attempt(attempt).events
    head, *lines = path.read_text().splitlines()
    events = sorted([*map(json.loads, lines), *happened], key=lambda event: float(event["time"]))
    path.write_text("".join(f"{line}\n" for line in (head, *map(json.dumps, events))))


def slow(at: float, task: str, host: str, what: str = "input") -> Record:
    text = f"{task} on {host} holds the others up"
    return {"time": NOW - at, "event": "slow", "task": task, "host": host, "what": what, "text": text}


def in_step(at: float) -> Record:
    return {"time": NOW - at, "event": "in step", "task": "worker:1", "host": "h1", "what": "input"}


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        ([], ""),
        ([slow(300, "worker:1", "h1")], "worker:1 on h1 held the others up for 5 min 0 s: input"),
        (
            [slow(300, "worker:1", "h1"), in_step(240)],
            "worker:1 on h1 held the others up for 1 min 0 s: input",
        ),
        (
            [slow(300, "worker:1", "h1"), slow(200, "worker:0", "h0", "CPU"), slow(9, "worker:1", "h1", "network")],
            "worker:1 on h1 held the others up for 9 s: network",
        ),
        ([{"time": NOW - 300, "event": "slow"}], " on  held the others up for 5 min 0 s: "),  # cut short by a newer one
    ],
)
def test_last_task_that_was_slow_is_known_when_the_job_has_ended(
    tmp_path: Path, happened: list[Record], told: str
) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, state=FAILED)
    tell(run, *happened)
    ended = detailed(view_of(run), NOW)
    lines = [line for line in show.job(ended, NOW).splitlines() if line.startswith("slow ")]
    assert lines == ([f"slow           {told}"] if told else [])
    assert detailed(view_of(run).replace(state=RUNNING, ended=None), NOW).was_slow is None


def test_task_that_was_slow_in_an_earlier_attempt_is_told_with_that(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, state=FAILED)
    recordedruns.make(tmp_path / "run", workers=2, begin=NOW)
    tell(run, slow(60, "worker:1", "h1"))
    shown = show.job(detailed(view_of(run), NOW + 900), NOW + 900)
    assert "slow           worker:1 on h1 held the others up for 1 min 0 s in attempt 1: input\n" in shown
    assert "state          COMPLETED after 10 min 1 s in attempt 2 (20 min 2 s in all)\n" in shown
    # the launcher of the first one was killed after that
    head, *lines = run.attempt(1).events.read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["time"] <= NOW - 60]
    run.attempt(1).events.write_text("".join(f"{line}\n" for line in (head, *kept)))
    run.attempt(1).verdict.unlink()
    shown = show.job(detailed(view_of(run), NOW + 900), NOW + 900)
    assert "slow           worker:1 on h1 held the others up in attempt 1: input\n" in shown
    assert "state          COMPLETED after 10 min 1 s in attempt 2\n" in shown


def test_status_tells_what_the_check_of_the_hosts_has_found(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, state=FAILED)
    found = {
        "time": recordedruns.BEGIN + 26,
        "event": "check",
        "text": "2 hosts checked in 5.2 s: none far",
        "hosts": [],
    }
    assert "check " not in show.job(detailed(view_of(run), NOW), NOW)
    tell(run, found)
    assert "\ncheck          2 hosts checked in 5.2 s: none far\n" in show.job(detailed(view_of(run), NOW), NOW)
    # a host was left out, and the next attempt is not checked
    tell(run, {**found, "time": recordedruns.BEGIN + 25, "text": "2 hosts checked in 6 s: h9 far", "hosts": ["h9"]})
    recordedruns.make(tmp_path / "run", workers=2, begin=NOW)
    tell(run, {**found, "time": NOW + 26, "text": "the hosts are not checked"}, attempt=2)
    assert "\ncheck          2 hosts checked in 6 s: h9 far; without h9 since\n" in show.job(
        detailed(view_of(run), NOW), NOW
    )
    tell(run, {**found, "time": recordedruns.BEGIN + 24, "text": "h1 far", "hosts": ["h1"]})  # which stays
    assert "\ncheck          h1 far\n" in show.job(detailed(view_of(run), NOW), NOW)


def test_events_that_cannot_be_read_cost_what_they_tell_alone(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, state=FAILED)
    run.attempt(1).events.unlink()
    run.attempt(1).events.mkdir()
    seen = detailed(view_of(run), NOW)
    assert (seen.check, seen.was_slow, len(seen.attempts)) == ("", None, 1)


# --- does anything move


@pytest.fixture
def still(tmp_path: Path) -> JobView:
    """A job of two tasks, whose last step was reported an hour ago, and that use no CPU."""
    run = recordedruns.make(tmp_path / "run", workers=2, state=RUNNING)
    view = view_of(run)
    tasks = tuple(task.replace(sample={"cpu": 0.01, "memory": 1}) for task in view.tasks)
    return view.replace(state=RUNNING, phase="running", tasks=tasks)


def test_job_without_news_for_ten_minutes_does_not_move(still: JobView) -> None:
    assert unmoved(still, 3600.0, NOW + 3600) == 3600.0
    assert unmoved(still, 700.0, NOW + 3600) == 700.0


@pytest.mark.parametrize("silent", [599.0, -5000.0, None])
def test_a_log_that_grows_or_whose_age_is_not_known_is_no_reason_to_warn(still: JobView, silent: float | None) -> None:
    assert unmoved(still, silent, NOW + 3600) is None


def test_a_step_or_a_start_or_a_busy_task_moves(still: JobView) -> None:
    one, other = still.tasks
    assert unmoved(still, 3600.0, NOW) is None  # its last step
    assert unmoved(still.replace(tasks=(one.replace(started=NOW + 3500), other)), 3600.0, NOW + 3600) is None
    assert unmoved(still.replace(tasks=(one.replace(sample={"cpu": 0.9}), other)), 3600.0, NOW + 3600) is None


@pytest.mark.parametrize("changes", [{"state": PENDING}, {"phase": "waiting"}, {"phase": "stopping"}])
def test_only_a_job_that_runs_its_tasks_can_be_still(still: JobView, changes: dict[str, str]) -> None:
    assert unmoved(still.replace(**changes), 3600.0, NOW + 3600) is None


def test_age_of_logs_is_by_the_clock_of_the_file_server(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=1, state=RUNNING, reports=False)
    view = view_of(run).replace(state=RUNNING, phase="running")
    view = view.replace(tasks=tuple(task.replace(sample=None) for task in view.tasks))
    log, beat = run.attempt(1).task_log("worker", 0), run.attempt(1).launcher
    os.utime(beat, (1000.0, 1000.0))
    for age, shown in ((0.0, None), (700.0, 700.0)):
        os.utime(log, (1000.0 - age, 1000.0 - age))
        assert detailed(view, NOW + 1e6).unmoved == shown
    beat.unlink()
    assert detailed(view, NOW + 1e6).unmoved is None
