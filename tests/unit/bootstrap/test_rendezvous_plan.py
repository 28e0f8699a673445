"""The plan of an attempt: what the launcher writes is what every agent reads, and no other attempt's."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.rendezvous import AttemptPlan, read_plan
from gridtf.errors import RendezvousError
from gridtf.run.rundir import RunDir, read_record
from gridtf.schedulers.api import Allocation, Host
from tests.support.plans import NONCE, hosts, task_plan

TABLES: dict[str, Any] = {"chief": {}, "ps": {"count": 2, "command": ["./ps"], "env": {"A": 'x"\n'}}}


@pytest.fixture
def plan(tmp_path: Path) -> AttemptPlan:
    return task_plan(tmp_path / "run", hosts(2, 2, cpus=4), tasks=TABLES, env={"B": "Ü"}, kill_grace=0.5)


def test_written_plan_is_read_back_equal(plan: AttemptPlan) -> None:
    plan.write()
    found = read_plan(plan.attempt.run, 1, NONCE)
    assert found is not None
    names = ("nonce", "job_id", "spec", "request", "hosts", "tasks", "python", "cwd")
    assert [getattr(found, name) for name in names] == [getattr(plan, name) for name in names]
    assert found.attempt.path == plan.attempt.path
    assert [task.name for task in found.on("h0")] == ["chief:0", "worker:0", "ps:0"]
    assert found.on("elsewhere") == []


def test_plan_json_is_readable_by_people(plan: AttemptPlan) -> None:
    plan.write()
    record = read_record(plan.attempt.plan) or {}
    assert record["job"] == {"id": "4711", "name": "train", "scheduler": "local"}
    assert (record["format"], record["attempt"], record["nonce"]) == (2, 1, NONCE)
    assert record["hosts"] == {"h0": "h0", "h1": "h1"}
    assert record["tasks"][1] == {
        "type": "worker",
        "index": 0,
        "host": "h0",
        "gpus": 1,
        "cpus": 1,
        "local_rank": 1,
        "rank": 1,
        "served": False,
        "kind": "",
        "in_cluster": True,
    }
    assert plan.attempt.plan.read_text().count("\n") > 50


def change(plan: AttemptPlan, **changes: Any) -> None:
    """Another plan in the place of this one."""
    plan.write()
    plan.attempt.plan.write_text(json.dumps({**(read_record(plan.attempt.plan) or {}), **changes}))


def test_plan_json_is_readable_by_its_owner_only(plan: AttemptPlan) -> None:
    plan.write()
    assert stat.S_IMODE(plan.attempt.plan.stat().st_mode) == 0o600


@pytest.mark.parametrize("nonce", ["stale", None])
def test_plan_of_another_attempt_is_ignored(plan: AttemptPlan, nonce: str | None) -> None:
    change(plan, nonce=nonce, format=3)
    assert read_plan(plan.attempt.run, 1, NONCE) is None


def test_plan_of_another_format_is_an_error(plan: AttemptPlan) -> None:
    change(plan, format=3)
    with pytest.raises(RendezvousError, match=r"the launcher's plan has format 3, the agent on \S+ reads 2"):
        read_plan(plan.attempt.run, 1, NONCE)


def test_missing_or_half_written_plan_is_none(plan: AttemptPlan, tmp_path: Path) -> None:
    assert read_plan(plan.attempt.run, 1, NONCE) is None
    assert read_plan(plan.attempt.run, 2, NONCE) is None
    assert read_plan(RunDir(tmp_path / "nowhere"), 1, NONCE) is None
    plan.write()
    plan.attempt.plan.write_text(plan.attempt.plan.read_text()[:-20])
    assert read_plan(plan.attempt.run, 1, NONCE) is None


def test_plan_has_the_scheduler_s_addresses(tmp_path: Path) -> None:
    room = Allocation((Host("n1", 1, address="10.0.0.1"), Host("n2", 1)))
    task_plan(tmp_path / "run", room).write()
    found = read_plan(RunDir(tmp_path / "run"), 1, NONCE)
    assert found is not None
    assert found.hosts == {"n1": "10.0.0.1", "n2": "n2"}
