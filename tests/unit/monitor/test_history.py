"""What the monitor keeps of samples: those of the file, and the newest ones that are not in it yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridtf.monitor.history import History, reported, used
from gridtf.observe.views import HostView, JobView, TaskView
from gridtf.values import fields

SAMPLE: dict[str, Any] = {
    "time": 10.0,
    "host": "h0",
    "cpus": 8,
    "cpu": 3.0,
    "memory": 1,
    "memory_total": 2,
    "received": 0.0,
    "sent": 0.0,
    "gpus": {"0": {"use": 90.0}, "1": {"use": 10.0}, "2": {}},
    "tasks": {"worker:0": {"cpu": 2.0, "memory": 5, "step": 7, "values": {"loss": 0.5}}},
}


def at(time: float, cpu: float) -> dict[str, Any]:
    return {**SAMPLE, "time": time, "cpu": cpu}


def view(sample: dict[str, Any]) -> JobView:
    """A view whose only host has this sample."""
    none: dict[str, Any] = dict.fromkeys(fields(JobView))
    of_host = {key: value for key, value in sample.items() if key not in ("host", "tasks")}
    task = TaskView("worker:0", "h0", "RUNNING", gpus=("0",), sample=sample["tasks"]["worker:0"])
    host = HostView("h0", ("worker:0",), of_host)
    return JobView(**{**none, "state": "RUNNING", "run_dir": Path("/run"), "tasks": (task,), "hosts": (host,)})


def cpus(history: History, name: str) -> list[float]:
    return [use.cpu for use in history.recent().get(name, ())]


def test_newest_samples_follow_those_of_the_file_until_the_file_has_them() -> None:
    history = History()
    history.add(at(10.0, 1.0))
    for newest in (at(10.0, 9.0), at(15.0, 2.0), at(15.0, 2.0), at(20.0, 3.0)):
        history.see(view(newest))
    assert cpus(history, "h0") == [1.0, 2.0, 3.0]
    history.add(at(15.0, 2.5))
    assert cpus(history, "h0") == [1.0, 2.5, 3.0]
    assert cpus(history, "worker:0") == [2.0, 2.0, 2.0]


def test_recent_use_is_bounded() -> None:
    history = History()
    for number in range(100):
        history.add(at(float(number), float(number)))
        history.see(view(at(1000.0 + number, 0.0)))
    assert len(cpus(history, "h0")) == 24


def test_curves_have_the_newest_values_too() -> None:
    history = History()
    history.add(SAMPLE)
    newest = {**SAMPLE["tasks"]["worker:0"], "step": 8, "values": {"loss": 0.25}}
    history.see(view({**SAMPLE, "time": 15.0, "tasks": {"worker:0": newest}}))
    assert history.curves() == {("worker:0", "loss"): ((7, 0.5, 0.5), (8, 0.25, 0.25))}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, True, None, "0.5", [1.0], {}])
def test_values_that_cannot_be_drawn_are_left_out(value: object) -> None:
    task = {**SAMPLE["tasks"]["worker:0"], "values": {"loss": value, "ok": 1}}
    assert reported({**SAMPLE, "tasks": {"worker:0": task}}) == {("worker:0", "ok"): (7, 1)}


def test_use_of_gpus_is_that_of_the_task_s_own() -> None:
    uses = used(SAMPLE, {"worker:0": ["0"]})
    assert (uses["worker:0"].gpu, uses["h0"].gpu) == (90.0, 50.0)
