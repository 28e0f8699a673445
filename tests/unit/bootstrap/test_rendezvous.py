"""The rendezvous: complete, the same for every task, and readable however large the cluster is."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gridtf import contract
from gridtf.bootstrap.plan import rendezvous
from gridtf.bootstrap.plan.environment import need_room, placeholders, task_environment
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous, host_port, merge, merge_ranks
from gridtf.bootstrap.wire import messages
from gridtf.errors import GridtfError, RendezvousError
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.schedulers.api import Allocation, Host
from tests.support.plans import NONCE, hosts, records, task, task_plan
from tests.support.streams import carried


@pytest.fixture
def plan(tmp_path: Path) -> AttemptPlan:
    """A chief, three workers, a ps and an evaluator on two hosts."""
    tables = {"chief": {}, "worker": {"count": 3}, "ps": {"count": 1}, "evaluator": {}}
    return task_plan(tmp_path / "run", hosts(2, 2), tasks=tables)


CLUSTER = {
    "chief": ("h0:20001",),
    "worker": ("h0:20002", "h1:20004", "h1:20005"),
    "ps": ("h0:20003",),
}


# --- merging


def test_merge_makes_one_cluster_in_index_order(plan: AttemptPlan) -> None:
    meeting = merge(plan.tasks, records(plan))
    assert meeting.cluster == CLUSTER
    assert "evaluator" not in meeting.cluster
    assert (meeting.master_addr, meeting.master_port) == ("h0", 30000)


# --- host:port


def test_ipv6_addresses_get_brackets(plan: AttemptPlan) -> None:
    assert host_port("fe80::1", 5) == "[fe80::1]:5"
    assert host_port("10.0.0.1", 5) == "10.0.0.1:5"
    meeting = merge(plan.tasks, records(plan, address={"h1": "2001:db8::7"}))
    assert meeting.cluster["worker"] == ("h0:20002", "[2001:db8::7]:20004", "[2001:db8::7]:20005")
    plain = merge(plan.tasks, records(plan, address={"h0": "2001:db8::8"}))
    assert plain.master_addr == "2001:db8::8"  # MASTER_ADDR has no port, hence no brackets


@pytest.mark.parametrize("port", [0, -1, 65536, 99999, None, "20004", 2.5])
def test_merge_refuses_invalid_ports_with_host_and_task(plan: AttemptPlan, port: object) -> None:
    """TensorFlow would take 99999 and serve on 34463."""
    found = records(plan)
    found["h1"]["ports"]["worker:1"] = port
    with pytest.raises(RendezvousError, match=f"host h1 published no port for worker:1: {port!r}"):
        merge(plan.tasks, found)
    del found["h1"]["ports"]["worker:1"]
    with pytest.raises(RendezvousError, match="host h1 published no port for worker:1: None"):
        merge(plan.tasks, found)


def test_evaluator_is_only_in_its_own_tf_config(plan: AttemptPlan) -> None:
    """Without an entry of its own TensorFlow's strategies do not find it, with one in theirs the others wait for it."""
    meeting = merge(plan.tasks, records(plan))
    assert (meeting.cluster, meeting.outside) == (CLUSTER, {"evaluator": ["h1:20006"]})
    config = json.loads(meeting.config("evaluator", 0) or "")
    assert config["cluster"] == {**json.loads(meeting.text), "evaluator": ["h1:20006"]}
    assert "evaluator" not in json.loads(meeting.config("worker", 0) or "")["cluster"]


def test_task_type_outside_the_cluster(tmp_path: Path) -> None:
    tables = {"chief": {"in_cluster": False}, "worker": {"count": 1}, "ps": {"count": 2, "in_cluster": False}}
    plan = task_plan(tmp_path / "run", hosts(None), tasks=tables)
    meeting = merge(plan.tasks, records(plan))
    assert meeting.cluster == {"worker": ("h0:20002",)}
    assert meeting.outside == {"chief": ["h0:20001"], "ps": ["h0:20003", "h0:20004"]}
    assert json.loads(meeting.config("worker", 0) or "")["cluster"] == {"worker": ["h0:20002"]}
    own = json.loads(meeting.config("ps", 1) or "")
    assert own["cluster"] == {"worker": ["h0:20002"], "ps": ["h0:20003", "h0:20004"]}
    rendezvous.publish(plan.attempt, plan.job_id, NONCE, meeting)
    env = task_environment({}, plan, plan.tasks[1], meeting, ())
    found = contract.task(env)
    assert found.cluster == meeting.cluster
    assert found.outside == {"chief": ("h0:20001",), "ps": ("h0:20003", "h0:20004")}
    assert placeholders(plan, plan.tasks[1], meeting)["ps_hosts"] == "h0:20003,h0:20004"


def test_master_address_and_port_are_the_leader_s(tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", hosts(2, 3), tasks={"chief": {"gpus": 1}, "worker": {"gpus": 2}})
    assert plan.tasks[0].host == "h1"
    found = records(plan)
    found["h0"]["master_port"], found["h1"]["master_port"] = 0, 31000
    meeting = merge(plan.tasks, found)
    assert (meeting.master_addr, meeting.master_port) == ("h1", 31000)


def test_merge_ranks() -> None:
    tasks = [task("chief:0"), task("worker:0", rank=1), task("ps:0"), task("evaluator:0")]
    published = [{"address": f"n{number}", "port": 20000 + number, "master_port": 31000} for number in range(4)]
    meeting = merge_ranks(tasks, published)
    assert meeting.cluster == {"chief": ("n0:20000",), "worker": ("n1:20001",), "ps": ("n2:20002",)}
    assert (meeting.master_addr, meeting.master_port) == ("n0", 31000)


# --- as a message


@pytest.mark.parametrize(
    "tables",
    [{"chief": {}, "worker": {"count": 3}, "ps": {"count": 1}, "evaluator": {}}, {"worker": {"count": 4}}],
)
def test_rendezvous_survives_the_way_to_an_agent(tables: dict[str, Any], tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", hosts(2, 2), tasks=tables)
    meeting = merge(plan.tasks, records(plan, address={"h1": "2001:db8::7"}))
    kind, content = carried(messages.FROM_LAUNCHER, messages.RENDEZVOUS, meeting.to_record())
    assert kind == messages.RENDEZVOUS
    assert rendezvous.rendezvous_of(content) == meeting
    assert rendezvous.rendezvous_of(content).cluster == meeting.cluster


# --- the file


def test_the_rendezvous_has_what_the_fence_needs_to_know_of_each_host(plan: AttemptPlan) -> None:
    found = records(plan)
    doors = {}
    for number, (host, record) in enumerate(found.items()):
        door = {"door": 700 + number, "addresses": [f"10.0.0.{number}"]}
        record.update(door, fence="users")
        doors[host] = {**door, "ports": sorted(record["ports"].values())}
    meeting = merge(plan.tasks, found)
    assert meeting.doors == doors
    assert rendezvous.rendezvous_of(meeting.to_record()) == meeting


def test_publish_writes_one_object_with_the_cluster_in_a_line_of_its_own(plan: AttemptPlan) -> None:
    meeting = merge(plan.tasks, records(plan))
    rendezvous.publish(plan.attempt, plan.job_id, NONCE, meeting, gpus={"worker:0": ["1"]})
    text = plan.attempt.rendezvous.read_text()
    assert text.splitlines()[1] == f' "cluster": {meeting.text}}}'
    assert json.loads(text) == {
        "job": "4711",
        "attempt": 1,
        "nonce": NONCE,
        "master_addr": "h0",
        "master_port": 30000,
        "cluster": {kind: list(members) for kind, members in CLUSTER.items()},
        "outside": {"evaluator": ["h1:20006"]},
        "gpus": {"worker:0": ["1"]},
    }


def test_task_never_takes_a_stale_or_half_written_file_for_the_rendezvous(plan: AttemptPlan) -> None:
    meeting = merge(plan.tasks, records(plan))
    env = task_environment({}, plan, plan.tasks[0], meeting, ())
    rendezvous.publish(plan.attempt, plan.job_id, NONCE, meeting)
    assert contract.task(env).cluster == meeting.cluster
    text = plan.attempt.rendezvous.read_text()
    for other in (text.replace(NONCE, "of an earlier attempt"), *(text[:end] for end in range(0, len(text) - 2, 7))):
        plan.attempt.rendezvous.write_text(other)
        with pytest.raises(GridtfError, match="is not the rendezvous file of this attempt"):
            contract.task(env)


def test_tf_config_is_read_by_tensorflow() -> None:
    meeting = Rendezvous(json.dumps({"worker": ("a:1", "[::1]:2")}), "a", 3)
    assert json.loads(meeting.config("worker", 1) or "") == {
        "cluster": {"worker": ["a:1", "[::1]:2"]},
        "task": {"type": "worker", "index": 1},
    }


# --- large clusters


def _large(folder: Path, count: int, **spec: Any) -> tuple[AttemptPlan, Rendezvous]:
    name = "node-with-a-rather-long-name.compute.example.org"
    room = Allocation(tuple(Host(f"{number:04}.{name}", 8) for number in range(count)))
    plan = task_plan(folder / "run", room, **spec)
    return plan, merge(plan.tasks, records(plan))


def _environment(plan: AttemptPlan, meeting: Rendezvous) -> dict[str, str]:
    return task_environment({"TF_CONFIG": "stale"}, plan, plan.tasks[-1], meeting, ())


def test_cluster_too_large_for_tf_config_is_read_from_the_file(tmp_path: Path) -> None:
    plan, meeting = _large(tmp_path, 512)
    rendezvous.publish(plan.attempt, plan.job_id, NONCE, meeting)
    env = _environment(plan, meeting)
    assert "TF_CONFIG" not in env
    assert json.loads(plan.attempt.rendezvous.read_text())["cluster"].keys() == {"worker"}
    found = contract.task(env)
    assert (found.name, found.rank, found.world_size) == ("worker:4095", 4095, 4096)
    assert found.cluster == meeting.cluster
    assert not found.is_chief
    with pytest.raises(GridtfError, match="is not the rendezvous file of this attempt"):
        contract.task({**env, "GRIDTF_NONCE": "another"})


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({}, r"TF_CONFIG of worker:4095 would have \d{6} bytes for 4096 tasks, but Linux allows 131071 in one string"),
        ({"command": ["train", "--workers={worker_hosts}"], "env": {"TF_CONFIG": ""}}, "'--workers={worker_hosts}' of"),
        ({"env": {"TF_CONFIG": "", "CLUSTER": "{cluster}"}}, "'CLUSTER={cluster}' of worker:4095 would have"),
    ],
)
def test_cluster_too_large_for_a_variable_or_an_argument_is_an_error_before_the_start(
    spec: dict[str, Any], what: str, tmp_path: Path
) -> None:
    plan, meeting = _large(tmp_path, 512, **spec)
    with pytest.raises(RendezvousError, match=what) as error:
        need_room(plan, meeting)
    assert error.value.hint.startswith("use shorter names (--address '{short}')")
    assert ("--env TF_CONFIG=" in error.value.hint) == (not spec)


@pytest.mark.parametrize("spec", [{"env": {"TF_CONFIG": ""}}, {"entry": "train:main"}])
def test_a_large_cluster_is_no_error_for_tasks_that_read_the_rendezvous_file(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    need_room(*_large(tmp_path, 512, **spec))


def test_need_room_takes_the_tf_config_that_a_service_gets_and_arguments_in_any_encoding(tmp_path: Path) -> None:
    services = {"board": {"kind": "service", "count": 4000, "command": ["serve", "\udcff"]}}
    plan, meeting = _large(tmp_path, 1, tasks=services)
    assert meeting.config("board", 3999) is None
    need_room(plan, meeting)


def test_longest_variable_is_the_kernel_s_limit(tmp_path: Path) -> None:
    """One byte more, and execve(2) refuses to start anything."""
    plan, _ = _large(tmp_path, 1)
    others = ("h:1",) * 7
    for longer, there in ((0, True), (1, False)):
        fixed = len("TF_CONFIG=") + len(
            Rendezvous(json.dumps({"worker": (*others, ":1")}), "a", 3).config("worker", 7) or ""
        )
        meeting = Rendezvous(
            json.dumps({"worker": (*others, "x" * (LONGEST_VARIABLE - fixed + longer) + ":1")}), "a", 3
        )
        env = _environment(plan, meeting)
        assert ("TF_CONFIG" in env) == there
        with nullcontext() if there else pytest.raises(RendezvousError, match="TF_CONFIG of worker:7"):
            need_room(plan, meeting)
        config = "x" * (LONGEST_VARIABLE - len("TF_CONFIG=") + longer)
        pid = os.fork()
        if pid == 0:
            try:
                os.execve("/bin/true", ["true"], {"TF_CONFIG": config})
            except OSError:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (0 if there else 7)
