"""Runs as rows of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridtf.observe import outcome
from gridtf.observe.outcome import Reported
from gridtf.report import table
from gridtf.run.rundir import RunDir, write_record
from tests.support import recordedruns
from tests.support.recordedruns import BEGIN

NOW = BEGIN + 7200


def test_row_of_a_run(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=2, ps=1, gpus=1, minutes=5, state="FAILED")
    worker = {"count": 2, "cpus": 4}
    recordedruns.describe(run, params={"lr": 0.1, "model": "cnn"}, tasks={"worker": worker, "ps": {"count": 1}})
    write_record(run.code, {"commit": "0123456789abcdef", "branch": None, "dirty": True})
    (row,) = table.rows([run], NOW)
    assert row == {
        "name": "digits",
        "job_id": "4711",
        "scheduler": "local",
        "state": "FAILED",
        "reason": "worker:0 on h0: exit code 1",
        "cause": "worker:0",
        "submitted": BEGIN,
        "started": BEGIN + 30,
        "ended": BEGIN + 331,
        "seconds": 301.0,
        "hosts": "h0 h1",
        "tasks": 3,
        "cpu_seconds": 301.0 * 9,
        "gpu_seconds": 602.0,
        "params.lr": 0.1,
        "params.model": "cnn",
        "step": 2950,
        "last.loss": 0.08094,
        "least.loss": 0.08094,
        "most.loss": 2.025,
        "last.accuracy": pytest.approx(0.97302),
        "least.accuracy": pytest.approx(0.325),
        "most.accuracy": pytest.approx(0.97302),
        "commit": "0123456789abcdef",
        "run_dir": str(run.path),
    }
    assert json.loads(json.dumps(row)) == row


def test_runs_without_this_or_that_have_rows_as_well(tmp_path: Path) -> None:
    again = recordedruns.make(tmp_path / "again", minutes=5, state="FAILED")
    recordedruns.make(tmp_path / "again", minutes=10, begin=BEGIN + 4000)
    silent = recordedruns.make(tmp_path / "silent", minutes=5, reports=False)
    damaged = recordedruns.make(tmp_path / "damaged", minutes=5)
    damaged.job.write_text('{"spec": {"params": 3}}')
    rows = table.rows([again, silent, damaged, RunDir(tmp_path / "gone")], NOW)
    assert (rows[0]["seconds"], rows[0]["started"]) == (301.0 + 601.0, BEGIN + 4030)
    assert (rows[1]["step"], [name for name in rows[1] if "." in name]) == (None, [])
    assert (rows[2]["state"], rows[2]["seconds"], rows[2]["cpu_seconds"]) == ("COMPLETED", 301.0, None)
    assert (rows[3]["state"], rows[3]["seconds"], rows[3]["started"]) == ("UNKNOWN", None, None)
    columns = table.columns(rows)
    assert columns[:2] == ["name", "job_id"]
    assert columns[-8:] == [f"{word}.{n}" for word in ("last", "least", "most") for n in ("loss", "accuracy")] + [
        "commit",
        "run_dir",
    ]
    assert {name for row in rows for name in row} == {*columns}


def test_values_that_json_does_not_have_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recordedruns.make(tmp_path / "run", minutes=1)
    monkeypatch.setattr(table, "reported", lambda _: {"loss": Reported(float("nan"), 0.5, float("inf"), 7)})
    (row,) = table.rows([run], NOW)
    assert [row[f"{word}.loss"] for word in ("last", "least", "most")] == [None, 0.5, None]


def test_what_a_run_has_reported(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", minutes=5, state="FAILED")
    recordedruns.make(tmp_path / "run", workers=1, host_count=1, minutes=2, begin=BEGIN + 4000)
    found = outcome.reported(run)
    assert found["loss"].step == 1150  # of the newest attempt alone
    assert found["loss"].least <= found["loss"].last < found["loss"].most
    assert outcome.reported(RunDir(tmp_path / "gone")) == {}
