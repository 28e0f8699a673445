"""Device filters of training.server and training.session, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.contract import Task
from gridtf.errors import UsageError
from gridtf.training.servers import device_filters

CHIEF = {"chief": ("h:1",), "worker": ("h:2", "h:3"), "ps": ("h:4", "h:5")}
MASTER = {"master": ("h:1",), "worker": ("h:2", "h:3"), "ps": ("h:4",)}
WORKERS = {"worker": ("h:2", "h:3"), "ps": ("h:4",)}


def make_task(name: str, cluster: dict[str, tuple[str, ...]]) -> Task:
    task_type, _, index = name.partition(":")
    return Task(task_type, int(index), cluster, "1", "job", 1, Path("/r"), Path("/r/output"), (), None, None)


@pytest.mark.parametrize(
    ("name", "cluster", "way", "filters"),
    [
        ("worker:1", CHIEF, "async", ["/job:ps", "/job:worker/task:1"]),
        ("worker:1", CHIEF, "sync", ["/job:ps", "/job:chief/task:0", "/job:worker/task:1"]),
        ("worker:0", MASTER, "sync", ["/job:ps", "/job:master/task:0", "/job:worker/task:0"]),
        ("worker:1", WORKERS, "sync", ["/job:ps", "/job:worker/task:0", "/job:worker/task:1"]),
        ("worker:0", WORKERS, "sync", ["/job:ps", "/job:worker/task:0"]),
        ("chief:0", CHIEF, "sync", ["/job:ps", "/job:chief/task:0"]),
        ("chief:0", CHIEF, "async", ["/job:ps", "/job:chief/task:0"]),
        ("ps:1", CHIEF, "async", ["/job:ps"]),
        ("ps:0", CHIEF, "sync", ["/job:ps", "/job:chief/task:0"]),
    ],
)
def test_device_filters(name: str, cluster: dict[str, tuple[str, ...]], way: str, filters: list[str]) -> None:
    assert device_filters(make_task(name, cluster), way) == filters


def test_unknown_way_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        device_filters(make_task("worker:0", WORKERS), "asynch")
    assert str(caught.value) == "filters='asynch': filters are 'async' or 'sync'\ndid you mean async?"


def test_filters_without_parameter_servers_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        device_filters(make_task("worker:0", {"worker": ("h:1",)}), "sync")
    assert caught.value.what == "filters='sync' are for jobs with parameter servers, and this job has none"
