"""Reading a job's records for the monitor: damaged, removed, of a long job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gridtf.errors import RunDirError
from gridtf.monitor import reader
from gridtf.monitor.reader import Reader, end_of_log
from gridtf.run import jsonlines
from gridtf.run.rundir import RunDir, read_record, write_record
from gridtf.states import JobState
from tests.support import recordedruns


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return recordedruns.make(tmp_path / "run", minutes=2.0)


def look(one: Reader) -> None:
    for _ in one.look():
        pass


def test_ended_job_is_read_once(run: RunDir) -> None:
    one = Reader(run)
    look(one)
    assert one.over
    assert len(one.snapshot.events) > 10
    assert one.snapshot.curves[("worker:0", "loss")]
    assert len(one.snapshot.recent["worker:0"]) == 24


def test_walltime_and_clock_of_the_launcher(run: RunDir) -> None:
    attempt = run.attempt(1)
    launcher = read_record(attempt.launcher)
    assert launcher is not None
    write_record(attempt.launcher, {**launcher, "ends": launcher["began"] + 3600})
    one = Reader(run)
    look(one)
    assert (one.snapshot.clock, one.snapshot.ends) == (launcher["time"], launcher["began"] + 3600)


def test_damaged_record_is_named(run: RunDir) -> None:
    summary = run.attempt(1).summary
    summary.write_text(summary.read_text().replace('"tasks"', '"tasks": 3, "other"', 1))
    one = Reader(run)
    look(one)
    assert one.over
    assert one.snapshot.view is not None
    assert one.snapshot.view.damaged == ("attempt-1/state/hosts.json",)


@pytest.mark.parametrize("name", ["events.jsonl", "samples.jsonl"])
def test_unreadable_records_are_trouble_beside_the_tasks(name: str, run: RunDir) -> None:
    path = run.attempt(1).path / name
    path.unlink()
    path.symlink_to("/dev/null")
    one = Reader(run)
    look(one)
    assert f"{path} is damaged: it is not a regular file" in one.snapshot.trouble
    assert one.snapshot.view is not None
    assert one.snapshot.view.tasks


def test_removed_run_directory_is_trouble_beside_what_was_read(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", minutes=2.0, state=JobState.RUNNING)
    one = Reader(run)
    look(one)
    shutil.rmtree(run.path)
    one._watch._next_look = 0.0  # it is due
    look(one)
    assert "was removed" in one.snapshot.trouble
    assert one.snapshot.view is not None
    assert one.snapshot.view.tasks
    assert not one.over


def test_cut_samples_and_events_are_left_out(run: RunDir) -> None:
    attempt = run.attempt(1)
    for path in (attempt.samples, attempt.events):
        path.write_bytes(path.read_bytes()[:-9] + b"\n{{{\n")
    one = Reader(run)
    look(one)
    assert one.over
    assert one.snapshot.events[-1]["event"] == "stopping"


def test_snapshots_come_while_samples_of_a_long_job_are_read(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SHOWN", 0.0)
    reading = [snapshot.reading for snapshot in Reader(run).look()]
    assert len(reading) > 10
    assert reading[-2:] == [True, False]


def test_run_of_another_user_without_its_plan(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run.attempt(1).plan.unlink()  # as for those who may not read it
    monkeypatch.setattr(reader, "is_ours", lambda path: False)
    monkeypatch.setattr(reader, "owner", lambda path: "ann")
    one = Reader(run)
    look(one)
    assert one.snapshot.private == "ann"
    assert one.snapshot.events
    assert one.snapshot.trouble == ""


def test_samples_of_a_newer_gridtf_are_left_out(run: RunDir) -> None:
    path = run.attempt(1).samples
    path.write_text(path.read_text().replace(f'"version":{jsonlines.VERSION}', '"version":99', 1))
    one = Reader(run)
    look(one)
    assert one.over


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"1%\r50%\r100%\n", ["1%", "50%", "100%"]),
        (b"\x1b[31mred\x1b[0m\x1b[2J\x07\n\ta\n", ["red", "        a"]),
        (b"\xff\x00\n", ["\ufffd"]),
    ],
)
def test_end_of_log(data: bytes, lines: list[str], tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_bytes(data)
    assert end_of_log(log) == lines


def test_end_of_a_long_log_and_of_one_without_line_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BYTES", 1 << 16)
    log = tmp_path / "worker-0.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))
    lines = end_of_log(log)
    assert (len(lines), lines[-1]) == (500, "line 99999")
    log.write_bytes(b"x" * (5 << 16))
    assert [len(line) for line in end_of_log(log)] == [1000]


def test_log_that_is_absent_is_empty_and_one_that_is_no_file_an_error(tmp_path: Path) -> None:
    assert end_of_log(tmp_path / "none.log") == []
    with pytest.raises(RunDirError):
        end_of_log(tmp_path)
