"""The lines of gridtf list."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf.observe import jobs
from gridtf.observe.overview import Overview, Row
from gridtf.observe.views import JobView
from gridtf.run import registry
from gridtf.run.rundir import RunDir
from gridtf.states import JobState
from tests.support import recordedruns


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories whose records are read."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found: list[Path] = []
    views = jobs.views

    def noted(runs: Sequence[RunDir]) -> list[JobView]:
        found.extend(run.path for run in runs)
        return views(runs)

    monkeypatch.setattr(jobs, "views", noted)
    return found


def made(path: Path, state: str = JobState.COMPLETED, begin: float = recordedruns.BEGIN) -> RunDir:
    run = recordedruns.make(path, workers=2, minutes=0.1, state=state, begin=begin)
    record = {"scheduler": "local", "job_id": "4711", "name": path.name, "time": begin}
    registry.add(run.path, record, os.environ)
    return run


def listed() -> list[Row]:
    overview = Overview(os.environ)
    return overview.rows(list(overview.runs()))


def test_jobs_that_ended_long_ago_are_read_once(tmp_path: Path, read: list[Path]) -> None:
    made(tmp_path / "old")
    made(tmp_path / "failed", JobState.FAILED, recordedruns.BEGIN + 1)
    new = made(tmp_path / "new", begin=time.time() - 100)
    first = listed()
    assert [(row.name, row.state, row.tasks) for row in first] == [
        ("new", "COMPLETED", 2),
        ("failed", "FAILED", 2),
        ("old", "COMPLETED", 2),
    ]
    read.clear()
    assert listed() == first
    assert read == [new.path]


def test_job_that_was_started_again_is_read_again(tmp_path: Path, read: list[Path]) -> None:
    run = made(tmp_path / "old")
    listed()
    run.new_attempt()
    (row,) = listed()
    assert row.state != JobState.COMPLETED
    assert read == [run.path, run.path]


def test_job_whose_run_directory_is_gone_is_not_listed(tmp_path: Path, read: list[Path]) -> None:
    run = made(tmp_path / "old")
    made(tmp_path / "other")
    assert len(listed()) == 2
    run.path.rename(tmp_path / "elsewhere")
    assert [row.name for row in listed()] == ["other"]


@pytest.mark.parametrize("text", ["{", "[]", '{"/x": 1}', '{"/x": {"stamp": "", "row": {}}}', "\0"])
def test_damaged_file_of_lines_is_written_anew(text: str, tmp_path: Path, read: list[Path]) -> None:
    made(tmp_path / "old")
    listed()
    file = tmp_path / "state" / "gridtf" / "ended.json"
    kept = file.read_text()
    file.write_text(text)
    assert [row.name for row in listed()] == ["old"]
    assert file.read_text() == kept
    assert file.stat().st_mode & 0o777 == 0o600


def test_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, read: list[Path]) -> None:
    made(tmp_path / "old")
    (tmp_path / "state" / "gridtf" / "ended.json").mkdir()
    assert [row.name for row in listed()] == [row.name for row in listed()] == ["old"]
