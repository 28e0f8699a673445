"""The local scheduler: jobs that can never run on this machine, options that it ignores, and cancelling."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.errors import GridtfError
from gridtf.jobspec.config import Configured
from gridtf.schedulers.api import Plan
from gridtf.schedulers.local import machine, scheduler
from tests.support.plans import job


def check(**spec: Any) -> Sequence[str]:
    made = job(**spec)
    return scheduler.login.check(
        Plan(made, scheduler, scheduler.login.resolve(made), Path("/run"), "/usr/bin/python3", Path("/boot.sh"), {})
    )


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
def test_check_accepts_jobs_that_fit(spec: dict[str, Any]) -> None:
    assert check(**spec) == ()


@pytest.mark.parametrize(
    ("spec", "slots"), [({}, 1), ({"tasks": {"chief": {"count": 1}}}, 2), ({"cpus_per_task": 2}, 1)]
)
def test_open_number_of_workers_is_one_without_gpus(spec: dict[str, Any], slots: int) -> None:
    (note,) = check(**spec)
    assert note.startswith("one worker, since ")
    assert note.endswith(" has no GPU: --workers N starts N, up to one for each of 2 cores")
    made = job(**spec)
    request = scheduler.login.resolve(made)
    assert scheduler.injob.allocation({}, request, lambda why, seconds: None).hosts[0].slots == slots


@pytest.mark.parametrize("spec", [{"tasks_per_node": 2}, {"env": {"GRIDTF_LOCAL_GPUS": "0,1"}}])
def test_open_number_of_workers_is_that_of_the_gpus_or_of_tasks_per_node(spec: dict[str, Any]) -> None:
    assert check(**spec) == ()


def test_gpus_that_the_driver_does_not_report_have_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = check(gpus_per_node=2)
    assert "has no GPU that the NVIDIA driver reports; tasks get CUDA_VISIBLE_DEVICES from 0,1 as declared" in note
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert check(gpus_per_node=2) == ()


@pytest.mark.parametrize(
    ("spec", "what", "hint"),
    [
        (
            {"tasks": {"worker": {"count": 3}}},
            "3 training tasks do not fit into the 2 CPU slots of",
            "--tasks-per-node",
        ),
        ({"tasks": {"worker": {"count": 2, "cpus": 2}}}, "2 training tasks do not fit into the 1 CPU slots", "fewer"),
        ({"gpus_per_node": 3, "env": {"GRIDTF_LOCAL_GPUS": "0,1"}}, "3 GPUs are requested, but", "request fewer"),
        ({"nodes": 2}, "2 hosts are needed, but the local scheduler has one", "raise --tasks-per-node"),
        (
            {"gpus_per_node": 2, "tasks": {"worker": {"count": 4}}},
            "2 hosts are needed, but the local scheduler has one",
            "raise --gpus-per-node",
        ),
    ],
)
def test_jobs_that_do_not_fit_are_refused(spec: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(GridtfError) as caught:
        check(**spec)
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_local_scheduler_has_no_options() -> None:
    assert scheduler.options == ()  # so schedulers.job_options need not import it


def test_note_on_ignored_options_of_other_schedulers() -> None:
    notes = schedulers.unused(job(partition="gpu", mem="8G", native=["--qos=long"]), scheduler)
    assert notes == ("the local scheduler ignores partition, native, mem",)


@pytest.mark.parametrize("wrong", [{"start": 1}, {"boot": ""}, {"boot": "another"}, {"start": None}, {"pid": 1}])
def test_cancel_does_not_signal_another_process_with_the_same_pid(wrong: dict[str, Any]) -> None:
    """A pid may belong to another process by now; only with start time and boot id it identifies a process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            right = machine.identity(process.pid).replace(user="alice")
            scheduler.login.cancel(right.replace(details={**right.details, **wrong}))
            missing = {key: value for key, value in right.details.items() if key not in wrong}
            scheduler.login.cancel(right.replace(details=missing))
            assert process.poll() is None
            scheduler.login.cancel(right)
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()


def test_examination_names_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Configured(job(), {})
    for listed, words in (("", "2 cores, no GPU that the driver reports"), ("0,1", "2 cores, 2 GPUs (0, 1)")):
        (finding,) = scheduler.login.examine({"GRIDTF_LOCAL_GPUS": listed}, given).findings
        assert (finding.level, finding.check) == ("ok", "scheduler")
        assert finding.message == f"jobs run on this machine, {os.uname().nodename}: {words}"
