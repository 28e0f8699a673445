"""What the local scheduler says of a job before it starts it: what can never run here, what means nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.errors import GridtfError
from gridtf.schedulers import local
from gridtf.schedulers.api import Plan
from gridtf.schedulers.local import scheduler
from tests.support.plans import job


def check(**spec: Any) -> Sequence[str]:
    asked = job(**spec)
    request = scheduler.resolve(asked)
    plan = Plan(asked, request, Path("/run"), "/usr/bin/python3", Path("/boot.sh"), {})
    return scheduler.check(plan)


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.mark.parametrize(
    "spec",
    [
        {"tasks": {"worker": {"count": 2}, "ps": {"count": 5}}},
        {"tasks": {"worker": {"count": 9}}, "tasks_per_node": 9},
        {"tasks": {"worker": {"count": 9}}, "setup": ["export GRIDTF_LOCAL_GPUS=0,1,2,3,4,5,6,7,8"]},
        {"gpus_per_node": 2, "env": {"GRIDTF_LOCAL_GPUS": "0,1"}},
    ],
)
def test_what_fits(spec: dict[str, Any]) -> None:
    assert check(**spec) == ()


@pytest.mark.parametrize(
    ("spec", "what", "hint"),
    [
        (
            {"tasks": {"worker": {"count": 3}}},
            "3 training tasks do not fit into the 2 CPU slots of",
            "--tasks-per-node",
        ),
        ({"tasks": {"worker": {"count": 2, "cpus": 2}}}, "2 training tasks do not fit into the 1 CPU slots", "fewer"),
        ({"gpus_per_node": 3, "env": {"GRIDTF_LOCAL_GPUS": "0,1"}}, "3 GPUs are asked for, but", "ask for fewer"),
        ({"nodes": 2}, "2 hosts are needed, but the local scheduler has one", "raise --tasks-per-node"),
        (
            {"gpus_per_node": 2, "tasks": {"worker": {"count": 3}}},
            "2 hosts are needed, but the local scheduler has one",
            "raise --gpus-per-node",
        ),
    ],
)
def test_what_does_not_fit(spec: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(GridtfError) as caught:
        check(**spec)
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_this_machine_has_no_options_of_its_own() -> None:
    assert scheduler.options == ()  # schedulers.job_options does not ask for them


def test_what_is_set_for_another_scheduler_is_told() -> None:
    notes = schedulers.unused(job(partition="gpu", mem="8G", native=["--qos=long"]), scheduler)
    assert notes == ("the local scheduler has no use for partition, native, mem",)


@pytest.mark.parametrize("wrong", [{"start": 1}, {"boot": ""}, {"boot": "another"}, {"start": None}, {"pid": 1}])
def test_cancel_ends_no_process_that_only_has_the_number(wrong: dict[str, Any]) -> None:
    """A number may be anybody's by now: with its start and its boot it names one process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            own = replace(local._identity(process.pid), user="alice")
            scheduler.cancel(replace(own, details={**own.details, **wrong}))
            scheduler.cancel(
                replace(own, details={key: value for key, value in own.details.items() if key not in wrong})
            )
            assert process.poll() is None
            scheduler.cancel(own)
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()
