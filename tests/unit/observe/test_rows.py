"""The samples of a job as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridtf.observe import rows
from gridtf.run.rundir import RunDir
from tests.support import recordedruns
from tests.support.plans import NONCE

GPU = {"use": 90.0, "memory": 4, "memory_total": 10, "power": 300.0}
SAMPLE = {
    "time": 1.0, "attempt": 2, "host": "n1", "cpus": 64, "cpu": 9.5, "memory": 5, "memory_total": 6, "received": 7.0,
    "sent": 8.0, "gpus": {"0": GPU, "1": {**GPU, "use": 50.0}, "2": {}},
    "tasks": {
        "worker:0": {"cpu": 2.0, "memory": 3, "threads": {"R": 1}, "step": 4, "values": {"loss": 0.5, "a": {"b": 1}}},
        "ps:0": {"cpu": 1.0, "memory": 2, "threads": {}},
    },
}  # fmt: skip


def test_each_task_has_a_row_with_what_its_host_and_gpus_did() -> None:
    worker, ps = rows.of_sample(SAMPLE, {"worker:0": ["0", "1"], "worker:1": ["2"]})
    head = {"time": 1.0, "attempt": 2, "host": "n1"}
    host = {"host.cpus": 64, "host.cpu": 9.5, "host.memory": 5, "host.memory_total": 6}
    host |= {"host.received": 7.0, "host.sent": 8.0}
    own = {"cpu": 2.0, "memory": 3, "threads.R": 1, "step": 4, "values.loss": 0.5, "values.a.b": 1}
    gpu = {"gpu.use": 70.0, "gpu.memory": 8, "gpu.memory_total": 20, "gpu.power": 600.0}
    assert worker == {**head, "task": "worker:0", **own, **host, **gpu}
    assert ps == {**head, "task": "ps:0", "cpu": 1.0, "memory": 2, **host}


@pytest.mark.parametrize("names", [["2"], ["7"], []])
def test_gpu_that_the_driver_does_not_tell_of_has_no_columns(names: list[str]) -> None:
    row = next(rows.of_sample(SAMPLE, {"worker:0": names}))
    assert not [name for name in row if name.startswith("gpu.")]


def test_rows_of_a_run_are_of_all_tasks_and_times(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=3, host_count=2, gpus=2, minutes=1)
    with run.attempt(1).samples.open("a") as file:
        file.write('{"time": 3}\nrubbish\n{"time": 1764000000.0, "host": "h0", "cp')  # damaged, and cut off
    found = rows.rows(run)
    assert len(found) == 3 * 12
    assert {(row["task"], row["host"]) for row in found} == {
        ("worker:0", "h0"), ("worker:1", "h0"), ("worker:2", "h1")
    }  # fmt: skip
    assert {row["task"] for row in found if "gpu.use" in row} == {"worker:0", "worker:1", "worker:2"}
    assert [row["step"] for row in found if row["task"] == "worker:1"] == [50 * number for number in range(12)]
    run.attempt(1).summary.write_text(json.dumps({"nonce": NONCE})[:9])
    assert not [row for row in rows.rows(run) if "gpu.use" in row]


def test_run_without_samples_has_no_rows(tmp_path: Path) -> None:
    assert rows.rows(RunDir(tmp_path)) == []
