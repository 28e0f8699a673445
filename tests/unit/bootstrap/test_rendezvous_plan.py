"""The plan of an attempt: what the launcher tells is what every agent reads, and of no other format."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.plan.environment import task_environment
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, merge, plan_of
from gridtf.bootstrap.wire import messages
from gridtf.errors import RendezvousError
from gridtf.run.rundir import read_record
from gridtf.schedulers.api import Allocation, Host
from tests.support.plans import NONCE, hosts, records, task_plan
from tests.support.streams import carried

TABLES: dict[str, Any] = {"chief": {}, "ps": {"count": 2, "command": ["./ps"], "env": {"A": 'x"\n'}}}


@pytest.fixture
def plan(tmp_path: Path) -> AttemptPlan:
    return task_plan(tmp_path / "run", hosts(2, 2, cpus=4), tasks=TABLES, env={"B": "Ü"}, kill_grace=0.5)


def test_record_of_a_plan_makes_an_equal_plan(plan: AttemptPlan) -> None:
    found = plan_of(plan.to_record(), plan.attempt)
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


def test_plan_json_is_readable_by_its_owner_only(plan: AttemptPlan) -> None:
    plan.write()
    assert stat.S_IMODE(plan.attempt.plan.stat().st_mode) == 0o600


@pytest.mark.parametrize("odd", [3, 1, None, "2"])
def test_plan_of_another_format_is_an_error(odd: object, plan: AttemptPlan) -> None:
    with pytest.raises(RendezvousError, match=rf"the launcher's plan has format {odd!r}, the agent on \S+ reads 2"):
        plan_of({**plan.to_record(), "format": odd}, plan.attempt)


def test_request_that_cannot_be_read_is_an_error(plan: AttemptPlan) -> None:
    with pytest.raises(RendezvousError, match=r"plan\.json holds a request that cannot be read"):
        plan_of({**plan.to_record(), "request": {}}, plan.attempt)


def test_plan_has_the_scheduler_s_addresses(tmp_path: Path) -> None:
    room = Allocation((Host("n1", 1, address="10.0.0.1"), Host("n2", 1)))
    plan = task_plan(tmp_path / "run", room)
    assert plan_of(plan.to_record(), plan.attempt).hosts == {"n1": "10.0.0.1", "n2": "n2"}


def part_of(plan: AttemptPlan, host: str) -> AttemptPlan:
    """The plan that the agent of a host receives."""
    _, content = carried(messages.FROM_LAUNCHER, messages.PLAN, plan.of_host(host).to_record())
    return plan_of(content, plan.attempt)


@pytest.mark.parametrize("host", ["h0", "h1"])
def test_part_of_a_host_has_its_tasks_alone_and_the_sizes_of_the_whole(plan: AttemptPlan, host: str) -> None:
    part = part_of(plan, host)
    assert part.tasks == tuple(plan.on(host))
    assert part.hosts == {host: host}
    assert (part.host_count, part.world_size) == (len(plan.hosts), plan.world_size)
    same = ("nonce", "job_id", "spec", "request", "python", "cwd")
    assert [getattr(part, name) for name in same] == [getattr(plan, name) for name in same]


def test_tasks_start_from_the_part_of_their_host_as_from_the_whole_plan(plan: AttemptPlan) -> None:
    meeting = merge(plan.tasks, records(plan))
    for task in plan.tasks:
        whole = task_environment({}, plan, task, meeting, ())
        assert task_environment({}, part_of(plan, task.host), task, meeting, ()) == whole


def test_part_of_a_plan_does_not_grow_with_the_job(tmp_path: Path) -> None:
    sizes = []
    for count in (4, 400):
        room = Allocation(tuple(Host(f"h{number:03}", 8) for number in range(count)))
        large = task_plan(tmp_path / f"run{count}", room)
        sizes.append(len(messages.encoded(messages.PLAN, large.of_host("h001").to_record())))
    assert sizes[1] < 1.1 * sizes[0]
