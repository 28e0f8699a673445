"""Which task runs where in a heterogeneous job: training on component 0, the rest where its partition is."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from gridtf.bootstrap.plan.placement import PlacedTask, place
from gridtf.errors import PlacementError
from gridtf.schedulers.api import Allocation, Host
from gridtf.schedulers.slurm import scheduler
from tests.support.plans import hosts, job, resolved

ON_CPU = {"partition": "cpu"}


def allocated(*components: tuple[int, ...], gpus: int = 2, cpus: int | None = None) -> Allocation:
    """Hosts g0, g1, … of component 0 with these GPUs, then c1.0, c1.1, … of component 1 and so on with these slots."""
    made = [Host(f"g{number}", slots, gpus, cpus) for number, slots in enumerate(components[0])]
    for component, slots in enumerate(components[1:], 1):
        made += [Host(f"c{component}.{at}", free, 0, cpus, component=component) for at, free in enumerate(slots)]
    return Allocation(tuple(made))


def placed(allocation: Allocation, **tables: Any) -> tuple[PlacedTask, ...]:
    return place(allocation, resolved(job(partition="gpu", tasks=tables)))


def by_host(tasks: tuple[PlacedTask, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for task in tasks:
        found.setdefault(task.host, []).append(task.name)
    return found


def test_only_ps_tasks_are_placed_on_the_partition_of_ps() -> None:
    tasks = placed(allocated((2, 2), (1, 1)), chief={}, ps={"count": 2, **ON_CPU}, evaluator={})
    assert by_host(tasks) == {
        "g0": ["chief:0", "worker:0", "evaluator:0"],
        "g1": ["worker:1", "worker:2"],
        "c1.0": ["ps:0"],
        "c1.1": ["ps:1"],
    }
    assert [task.rank for task in tasks] == [0, 1, 2, 3, None, None, None]
    assert [task.gpus for task in tasks] == [1, 1, 1, 1, 0, 0, 0]


def test_open_worker_count_takes_no_slot_of_another_component() -> None:
    assert by_host(placed(allocated((3,), (8,), gpus=0), ps={"count": 1, **ON_CPU})) == {
        "g0": ["worker:0", "worker:1", "worker:2"],
        "c1.0": ["ps:0"],
    }


@pytest.mark.parametrize(
    ("slots", "count", "loads"),
    [
        ((2, 2), 4, [2, 2]),
        ((3, 1), 4, [3, 1]),
        ((3, 3), 4, [2, 2]),
        ((1, 5), 4, [1, 3]),
        ((0, 2), 2, [0, 2]),
        ((2, 2, 2), 2, [1, 1, 0]),
    ],
)
def test_tasks_are_spread_as_evenly_as_the_slots_allow(slots: tuple[int, ...], count: int, loads: list[int]) -> None:
    tasks = placed(allocated((2,), slots), ps={"count": count, **ON_CPU})
    load = Counter(task.host for task in tasks if task.type == "ps")
    assert [load[f"c1.{number}"] for number in range(len(slots))] == loads


def test_types_with_the_same_partition_share_its_slots() -> None:
    tasks = placed(allocated((2,), (2, 1)), ps={"count": 2, **ON_CPU}, evaluator=ON_CPU)
    assert by_host(tasks) == {
        "g0": ["worker:0", "worker:1"],
        "c1.0": ["ps:0", "evaluator:0"],
        "c1.1": ["ps:1"],
    }


def test_types_with_different_partitions_share_no_hosts() -> None:
    tasks = placed(allocated((2,), (2,), (1,)), evaluator={"partition": "big"}, ps={"count": 2, **ON_CPU})
    assert by_host(tasks) == {"g0": ["worker:0", "worker:1"], "c1.0": ["ps:0", "ps:1"], "c2.0": ["evaluator:0"]}


def test_hosts_of_component_0_come_first_whatever_the_order() -> None:
    allocation = allocated((2, 2), (1,))
    tasks = {"ps": {"count": 1, **ON_CPU}, "evaluator": {}}
    assert placed(Allocation((allocation.hosts[2], *allocation.hosts[:2])), **tasks) == placed(allocation, **tasks)


def test_cpus_of_a_component_s_host_are_shared_by_its_tasks() -> None:
    tasks = placed(allocated((2,), (3,), cpus=8), ps={"count": 2, **ON_CPU})
    assert [(task.name, task.cpus) for task in tasks] == [("worker:0", 4), ("worker:1", 4), ("ps:0", 4), ("ps:1", 4)]


@pytest.mark.parametrize("gpus", [(2, 2), (None, None)])
def test_partition_is_ignored_without_components(gpus: tuple[int | None, ...]) -> None:
    """As on one machine: non-GPU tasks are placed as they are without partitions."""
    allocation = hosts(*gpus, slots=2)
    assert placed(allocation, ps={"count": 3, **ON_CPU}) == placed(allocation, ps={"count": 3})


@pytest.mark.parametrize(
    ("components", "tables", "what", "why"),
    [
        (
            ((2,), (1,)),
            {"ps": {"count": 3, **ON_CPU}},
            "3 tasks on partition cpu do not fit into 1 host with 1 slot (room for 1)",
            "requested: 3 ps",
        ),
        (
            ((2,), (1, 2)),
            {"ps": {"count": 3, **ON_CPU}, "evaluator": ON_CPU},
            "4 tasks on partition cpu do not fit into 2 hosts with 1 to 2 slots each (room for 3)",
            "requested: 3 ps + 1 evaluator",
        ),
        (
            ((2,), (2,)),
            {"ps": {"count": 2, **ON_CPU}, "evaluator": {"partition": "big"}},
            "1 task on partition big does not fit into 0 hosts with 0 slots (room for 0)",
            "requested: 1 evaluator",
        ),
    ],
)
def test_too_few_slots_are_an_error_with_the_numbers(
    components: tuple[tuple[int, ...], ...], tables: dict[str, Any], what: str, why: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        placed(allocated(*components), **tables)
    assert (caught.value.what, caught.value.why) == (what, why)
    assert caught.value.hint


def test_training_tasks_are_not_placed_on_another_component() -> None:
    with pytest.raises(PlacementError, match="3 training tasks do not fit into 1 host with 2 GPUs"):
        placed(allocated((2,), (8,)), worker={"count": 3}, ps={"count": 1, **ON_CPU})


@pytest.mark.thorough
def test_component_invariants_hold_for_all_combinations() -> None:
    count = 0
    for main, cpu, big, servers, evaluator in itertools.product(
        ((1,), (2, 2)), ((1,), (3, 1), (2, 2, 2)), ((), (1,)), (1, 2, 4), (None, "cpu", "big", "gpu")
    ):
        tables: dict[str, Any] = {"ps": {"count": servers, **ON_CPU}}
        if evaluator or big:
            tables["evaluator"] = {"partition": evaluator}
        tasks_on_cpu = servers + (evaluator == "cpu")
        allocation = allocated(main, cpu, *([big] if big else []))
        if tasks_on_cpu > sum(cpu) or (evaluator == "big" and not big):
            with pytest.raises(PlacementError):
                placed(allocation, **tables)
            continue
        tasks = placed(allocation, **tables)
        home = {host.name: host for host in allocation.hosts}
        expected = {"worker": 0, "ps": 1, "evaluator": {"cpu": 1, "big": 2}.get(evaluator or "", 0)}
        assert all(home[task.host].component == expected[task.type] for task in tasks)
        load = Counter(task.host for task in tasks)
        assert all(load[host.name] <= host.slots for host in allocation.hosts if host.component)
        assert Counter(task.type for task in tasks)["ps"] == servers
        count += 1
    assert count > 50


def test_leader_with_gpus_of_another_model_is_on_its_own_host() -> None:
    tables = {"chief": {"gpus": 2, "gpu_model": "v100"}, "worker": {"count": 3, "gpus": 1}, "ps": {"count": 1}}
    request = scheduler.login.resolve(job(gpu_model="a100", tasks=tables))
    there = allocated((2, 2), (1,))
    old = there.hosts[2].replace(gpus=2)
    tasks = place(there.replace(hosts=(*there.hosts[:2], old)), request)
    assert by_host(tasks) == {"c1.0": ["chief:0"], "g0": ["worker:0", "worker:1"], "g1": ["worker:2", "ps:0"]}
    assert [(task.name, task.rank, task.gpus) for task in tasks][:2] == [("chief:0", 0, 2), ("worker:0", 1, 1)]
    with pytest.raises(PlacementError, match="room for"):
        place(there, request)  # no GPU there
    # one machine has any model
    assert by_host(place(hosts(5), request)) == {"h0": ["chief:0", "worker:0", "worker:1", "worker:2", "ps:0"]}
