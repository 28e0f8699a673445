"""How far a job has come: steps, checkpoints, files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridtf.bootstrap.judge.progress import Progress, reached
from gridtf.run.rundir import Record
from gridtf.training import checkpointfolder


def _file(path: Path, when: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (when, when))


def _saved(output: Path, step: int) -> None:
    checkpointfolder.write(output / "checkpoints", step, 0, 0, {}, lambda prefix: Path(prefix).touch())


def test_largest_reported_step_of_all_tasks(tmp_path: Path) -> None:
    records: dict[str, Record] = {
        "worker:0": {"state": "RUNNING", "progress": {"step": 7, "values": {}, "time": 1.0}},
        "worker:1": {"state": "FAILED", "progress": {"step": 9, "values": {}, "time": 1.0}},
        "ps:0": {"state": "RUNNING"},
    }
    assert reached(tmp_path / "output", records) == Progress(step=9)
    assert reached(tmp_path / "output", {}) == Progress()


def test_newest_finished_checkpoint_of_gridtf(tmp_path: Path) -> None:
    for step in (9, 100):
        _saved(tmp_path, step)
    (tmp_path / "checkpoints" / "step-200.unfinished").mkdir()
    _file(tmp_path / "model.h5", 1000.0)
    assert reached(tmp_path, {}) == Progress(checkpoint=100)  # and no file's time


def test_newest_file_where_checkpoints_are_of_another_kind(tmp_path: Path) -> None:
    _file(tmp_path / "ckpt-1.index", 1000.0)
    _file(tmp_path / "deep" / "er" / "ckpt-2.index", 2000.0)
    for name in ("summaries/events.out.tfevents.1.n1", "train.log", ".ckpt-3.tmp"):
        _file(tmp_path / name, 3000.0)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    os.utime(tmp_path / "link", (2500.0, 2500.0), follow_symlinks=False)
    assert reached(tmp_path, {}) == Progress(written=2500.0)


@pytest.mark.parametrize(
    ("now", "before", "further"),
    [
        (Progress(), Progress(), False),
        (Progress(step=1), Progress(), True),
        (Progress(step=0), Progress(), True),
        (Progress(step=5), Progress(step=5), False),
        (Progress(step=4), Progress(step=5), False),
        (Progress(step=4, checkpoint=3), Progress(step=5, checkpoint=2), True),
        (Progress(step=4, checkpoint=2), Progress(step=5, checkpoint=2), False),
        (Progress(checkpoint=2), Progress(written=1.0), True),
        (Progress(), Progress(step=5, checkpoint=2, written=1.0), False),
        (Progress(written=2.0), Progress(written=1.0), True),
        (Progress(step=5, written=2.0), Progress(step=5, written=1.0), False),
    ],
)
def test_beyond(now: Progress, before: Progress, further: bool) -> None:
    assert now.beyond(before) is further


def test_farthest_of_two_attempts() -> None:
    assert Progress(5, None, 2.0).farthest(Progress(3, 2, None)) == Progress(5, 2, 2.0)


def test_record_has_only_what_is_known() -> None:
    for one in (Progress(), Progress(step=0), Progress(5, 2, 2.5)):
        assert Progress.from_record(one.to_record()) == one
    assert Progress(step=3).to_record() == {"step": 3}
