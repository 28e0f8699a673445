"""Elements of a sweep that have ended: what stays of them, and what a reader finds."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import RunDirError
from gridtf.observe import logs
from gridtf.observe.jobs import read
from gridtf.observe.outcome import reported
from gridtf.run import jsonlines, reduced
from gridtf.run.rundir import RunDir, write_record

SAMPLE = {"time": 2.0, "host": "n1", "cpus": 4, "cpu": 1.0, "memory": 1, "memory_total": 2, "gpus": {}}
SAMPLE |= {"received": 0, "sent": 0}
USED = {"cpu": 1.0, "memory": 1, "read": 0.0, "written": 0.0, "processes": 1, "threads": {}}


def element(tmp_path: Path, **verdict: Any) -> RunDir:
    """An element that has ended, with two attempts, whose tasks have reported their loss."""
    run = RunDir(tmp_path / "3")
    run.path.mkdir()
    run.log.write_text("of the script\n")
    for number in (1, 2):
        attempt = run.new_attempt()
        attempt.task_log("worker", 0).write_text(f"line of attempt {number}\n")
        tasks = [{"type": "worker", "index": index, "host": "n1", "gpus": 1} for index in (0, 1)]
        write_record(attempt.plan, {"nonce": "n", "tasks": tasks}, mode=0o600)
        samples = [
            {**SAMPLE, "tasks": {
                "worker:1": {**USED, "step": 9, "values": {"loss": 99.0, "late": 1}},
                "worker:0": {**USED, "step": 1, "values": {"loss": value}, "ranges": {"loss": [value, value + 2]}},
            }}
            for value in (-5.0, 3.0)
        ]  # fmt: skip
        attempt.samples.write_text(jsonlines.head("n") + "".join(map(jsonlines.line, samples)))
        progress = {"step": 7, "values": {"loss": -1.5, "bad": "nan"}, "time": 3.0}
        states = {"worker:0": {"progress": progress, "ranges": {"loss": [-2.5, -1.5], "bad": [0.5, 0.5]}}}
        write_record(
            attempt.summary, {"nonce": "n", "hosts": {"n1": {"tasks": states, "sample": {**SAMPLE, "tasks": {}}}}}
        )
        record = {
            "nonce": "n",
            "state": "FAILED",
            "reason": "r",
            "again": False,
            "started": 1.0,
            "ended": 3.0,
            **verdict,
        }
        cause = {
            "task": "worker:0",
            "host": "n1",
            "exit": 1,
            "signal": None,
            "log": str(attempt.logs / "worker-0.log"),
            "tail": [],
        }
        attempt.write_verdict({**record, "cause": cause})
    return run


def test_few_files_stay_and_tell_the_same(tmp_path: Path) -> None:
    run = element(tmp_path)
    before = reported(run)
    reduced.reduce(run, {"lr": 0.1})
    assert sorted(os.listdir(run.path)) == ["attempts.tar.gz", "job.log", "result.json"]
    assert run.archive.stat().st_mode & 0o777 == 0o600
    result = json.loads(run.result.read_text())
    assert (result["attempt"], result["params"]) == (2, {"lr": 0.1})
    assert (result["had"], result["hosts"], result["tasks"]) == ({"hosts": 1, "cpus": 2, "gpus": 2}, ["n1"], 2)
    assert result["verdict"]["cause"]["log"] == f"{run.archive}/attempt-2/logs/worker-0.log"
    assert {**reported(run), "bad": None} == {**before, "bad": None}
    records = read(run, None)
    assert (records.attempt, (records.verdict or {})["state"]) == (2, "FAILED")


def test_values_are_those_of_the_first_task_that_reports_them(tmp_path: Path) -> None:
    found = reported(element(tmp_path))
    loss = found["loss"]
    assert (loss.last, loss.least, loss.most, loss.step) == (-1.5, -5.0, 5.0, 7)
    assert (found["late"].last, found["late"].step) == (1, 9)
    assert str(found["bad"].last) == "nan"
    assert found["bad"].most == 0.5
    assert reported(RunDir(tmp_path)) == {}


def test_logs_are_unpacked_for_a_reader(tmp_path: Path) -> None:
    run = element(tmp_path)
    reduced.reduce(run, {})
    with reduced.unpacked(run) as copy:
        assert list(logs.read(copy)) == ["worker:0 | line of attempt 2\n"]
        assert list(logs.read(copy, ["job"])) == ["of the script\n"]
        folder = copy.path
    assert not folder.exists()
    with reduced.unpacked(RunDir(tmp_path)) as same:
        assert same.path == tmp_path


@pytest.mark.parametrize("verdict", [{"again": True}, {"again": None}, {"next": 3}], ids=["again", "perhaps", "next"])
def test_attempts_stay_where_another_start_may_follow(tmp_path: Path, verdict: dict[str, Any]) -> None:
    run = element(tmp_path, **verdict)
    reduced.reduce(run, {})
    assert sorted(os.listdir(run.path)) == ["attempt-1", "attempt-2", "job.log"]


def test_attempts_stay_where_the_archive_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = element(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(RunDirError, match="No space left"):
        reduced.reduce(run, {})
    assert sorted(os.listdir(run.path)) == ["attempt-1", "attempt-2", "job.log"]


def test_attempt_that_begins_later_counts(tmp_path: Path) -> None:
    run = element(tmp_path)
    reduced.reduce(run, {})
    assert reduced.result(run)
    run.new_attempt()
    assert reduced.result(run) is None
    assert read(run, None).verdict is None
    with reduced.unpacked(run) as same:
        assert same is run


def test_damaged_archive_is_told(tmp_path: Path) -> None:
    run = element(tmp_path)
    reduced.reduce(run, {})
    run.archive.write_bytes(run.archive.read_bytes()[:50])
    with pytest.raises(RunDirError, match="cannot read"), reduced.unpacked(run):
        pass


def test_archive_in_which_a_byte_has_changed_is_told(tmp_path: Path) -> None:
    run = element(tmp_path)
    reduced.reduce(run, {})
    whole = run.archive.read_bytes()
    for place in range(20, len(whole) - 8, len(whole) // 40 + 1):
        changed = whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]
        with contextlib.suppress(OSError, EOFError, zlib.error):
            if gzip.decompress(changed) == gzip.decompress(whole):
                continue  # zeros that are copied from other zeros
        run.archive.write_bytes(changed)
        with pytest.raises(RunDirError, match="cannot read"), reduced.unpacked(run):
            pass


@pytest.mark.parametrize("name", ["attempt-1/link/below", "attempt-1/../../out", "attempt-1/link"])
def test_member_of_an_archive_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    run = element(tmp_path)
    (run.path / "attempt-1" / "real").mkdir()
    (run.path / "attempt-1" / "real" / "file").write_text("as it was")
    (run.path / "attempt-1" / "link").symlink_to("real/file" if name.endswith("link") else "real")
    reduced.reduce(run, {})
    data = io.BytesIO(gzip.decompress(run.archive.read_bytes()))
    with tarfile.open(fileobj=data, mode="a") as archive:
        archive.addfile(tarfile.TarInfo(name))
    run.archive.write_bytes(gzip.compress(data.getvalue()))
    if name.endswith("link"):
        with reduced.unpacked(run) as copy:
            assert (copy.path / "attempt-1" / "real" / "file").read_text() == "as it was"
            assert (copy.path / "attempt-1" / "link").read_text() == ""
    else:
        with pytest.raises(RunDirError, match=r"cannot read .*(another member|out of it)"), reduced.unpacked(run):
            pass
