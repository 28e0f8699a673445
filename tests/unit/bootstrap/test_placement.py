"""Placement of tasks on hosts: one task per GPU, evenly, in the order of the hosts; and errors with the numbers."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from gridtf.bootstrap.plan.placement import PlacedTask, idle_gpus, place
from gridtf.errors import PlacementError, SpecError
from gridtf.schedulers.api import Allocation, Host
from gridtf.values import as_dict
from tests.support.plans import hosts, job, resolved
from tests.support.topics import fast


def placed(allocation: Allocation, **values: Any) -> tuple[PlacedTask, ...]:
    return place(allocation, resolved(job(**values)))


def by_host(tasks: tuple[PlacedTask, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for task in tasks:
        found.setdefault(task.host, []).append(task.name)
    return found


def refused(allocation: Allocation, **values: Any) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        placed(allocation, **values)
    return caught.value


# --- hosts


def test_chief_six_workers_and_two_ps_on_four_hosts_of_two_gpus() -> None:
    tasks = placed(hosts(2, 2, 2, 2), tasks={"chief": {}, "worker": {"count": 6}, "ps": {"count": 2}})
    assert by_host(tasks) == {
        "h0": ["chief:0", "worker:0", "ps:1"],
        "h1": ["worker:1", "worker:2"],
        "h2": ["worker:3", "worker:4"],
        "h3": ["worker:5", "ps:0"],  # the first ps is placed on a host with the fewest tasks
    }
    assert [task.rank for task in tasks] == [0, 1, 2, 3, 4, 5, 6, None, None]
    assert [task.local_rank for task in tasks] == [0, 1, 0, 1, 0, 1, 0, None, None]
    assert [task.gpus for task in tasks] == [1] * 7 + [0, 0]


def test_open_worker_count_fills_the_allocation() -> None:
    assert by_host(placed(hosts(2, 3))) == {"h0": ["worker:0", "worker:1"], "h1": ["worker:2", "worker:3", "worker:4"]}
    assert len(placed(hosts(4), gpus_per_task=2)) == 2
    assert [task.name for task in placed(hosts(4), tasks={"chief": {}})] == [
        "chief:0",
        "worker:0",
        "worker:1",
        "worker:2",
    ]
    assert len(placed(hosts(None, None, slots=3))) == 6
    assert len(placed(hosts(4, 4, slots=3), tasks_per_node=3)) == 6


@pytest.mark.parametrize(
    ("present", "values", "expected"),
    [
        ((4,), {"tasks": {"worker": {"count": 1}}}, [4]),
        ((4,), {"tasks": {"worker": {"count": 2}}}, [2, 2]),
        ((4, 4), {"tasks": {"worker": {"count": 4}}}, [2, 2, 2, 2]),
        ((4, 4), {"tasks": {"chief": {}, "worker": {"count": 1}}}, [4, 4]),
        ((4,), {"tasks": {"chief": {"gpus": 0}, "worker": {"count": 1}}}, [0, 4]),  # who has none shares none
        ((4, 4), {"tasks_per_node": 2}, [2, 2, 2, 2]),
        ((4,), {"tasks": {"worker": {"count": 3}}}, [1, 1, 1]),
        ((4, 2), {"tasks": {"worker": {"count": 2}}}, [1, 1]),
        ((4,), {"tasks": {"worker": {"count": 2}}, "gpus_per_task": 1}, [1, 1]),
        ((4, 4), {"gpus_per_node": 2}, [1, 1, 1, 1]),  # in a larger allocation, as many as were asked for
        ((4,), {"gpus_per_node": 2, "tasks": {"worker": {"count": 1}}}, [2]),
    ],
)
def test_gpus_of_a_host_are_shared_evenly_where_nobody_has_said_how_many(
    present: tuple[int, ...], values: dict[str, Any], expected: list[int]
) -> None:
    assert [task.gpus for task in placed(hosts(*present), **values)] == expected


def test_gpus_that_no_task_gets_are_counted() -> None:
    given = hosts(4, 4, 3)
    assert idle_gpus(given.hosts, placed(given)) == ""
    tasks = placed(given, tasks={"worker": {"count": 9}})
    assert idle_gpus(given.hosts, tasks) == "no task uses 2 of 11 GPUs: 1 on h0, 1 on h1"
    assert idle_gpus(hosts(None).hosts, placed(hosts(None))) == ""


def test_chief_alone_fills_the_allocation() -> None:
    assert [task.name for task in placed(hosts(1), tasks={"chief": {}})] == ["chief:0"]


def test_master_is_placed_like_chief() -> None:
    tasks = placed(hosts(2), tasks={"master": {}, "worker": {"count": 1}})
    assert [(task.name, task.rank) for task in tasks] == [("master:0", 0), ("worker:0", 1)]


def test_workers_are_spread_evenly_over_uneven_hosts() -> None:
    tasks = placed(hosts(1, 4, 2), tasks={"worker": {"count": 6}})
    assert [len(names) for names in by_host(tasks).values()] == [1, 3, 2]
    assert [task.name for task in tasks] == [f"worker:{index}" for index in range(6)]


def test_host_without_gpus_takes_only_non_gpu_tasks() -> None:
    tasks = placed(hosts(2, 0), tasks={"ps": {"count": 1}, "evaluator": {"count": 1}})
    assert by_host(tasks) == {"h0": ["worker:0", "worker:1", "evaluator:0"], "h1": ["ps:0"]}


def test_ps_are_spread_evenly_over_uneven_hosts() -> None:
    tasks = placed(hosts(8, 1), tasks={"ps": {"count": 4}})
    assert Counter(task.host for task in tasks if task.type == "ps") == {"h0": 2, "h1": 2}


def test_more_ps_than_hosts_are_placed_in_turn() -> None:
    tasks = placed(hosts(1, 1), tasks={"worker": {"count": 2}, "ps": {"count": 5}})
    assert Counter(task.host for task in tasks if task.type == "ps") == {"h0": 3, "h1": 2}


# --- GPUs


def test_data_workers_are_spread_like_ps_and_share_the_cpus() -> None:
    tables = {"worker": {"count": 2}, "data_worker": {"count": 3}}
    tasks = placed(hosts(1, 1, cpus=12), tasks=tables)
    assert by_host(tasks) == {
        "h0": ["worker:0", "data_dispatcher:0", "data_worker:1"],
        "h1": ["worker:1", "data_worker:0", "data_worker:2"],
    }
    assert [(task.gpus, task.cpus, task.served) for task in tasks] == [(1, 4, False)] * 2 + [(0, 4, True)] * 4
    assert [task.rank for task in tasks] == [0, 1, None, None, None, None]
    assert not any(task.in_cluster for task in tasks[2:])


def test_tasks_default_to_one_gpu_on_hosts_with_gpus() -> None:
    assert [task.gpus for task in placed(hosts(2))] == [1, 1]
    assert [task.gpus for task in placed(hosts(None, slots=2))] == [0, 0]
    assert [task.gpus for task in placed(hosts(2, slots=3), gpus_per_node=0)] == [0, 0, 0]


def test_two_gpus_per_task() -> None:
    tasks = placed(hosts(4, 5), gpus_per_task=2)
    assert [(task.host, task.gpus) for task in tasks] == [("h0", 2), ("h0", 2), ("h1", 2), ("h1", 2)]


def test_chief_with_more_gpus_than_a_worker_takes_places_of_workers() -> None:
    tables = {"chief": {"gpus": 2}, "worker": {"gpus": 1}}
    tasks = placed(hosts(4, 4), tasks=tables)
    assert by_host(tasks) == {
        "h0": ["chief:0", "worker:0", "worker:1"],
        "h1": ["worker:2", "worker:3", "worker:4", "worker:5"],
    }
    assert [task.gpus for task in tasks] == [2] + [1] * 6
    error = refused(hosts(4, 4), tasks={"chief": {"gpus": 2}, "worker": {"gpus": 1, "count": 7}})
    assert error.what == "8 training tasks do not fit into 2 hosts with 4 GPUs each (room for 7)"
    assert error.why == "requested: 1 chief with 2 GPUs + 7 workers with 1 GPU each"


def test_chief_with_two_gpus_and_six_workers_fill_two_hosts_of_four() -> None:
    tables = {"chief": {"gpus": 2}, "worker": {"gpus": 1, "count": 6}}
    tasks = placed(hosts(4, 4), nodes=2, gpus_per_node=4, tasks=tables)
    assert by_host(tasks) == {
        "h0": ["chief:0", "worker:0", "worker:1"],
        "h1": ["worker:2", "worker:3", "worker:4", "worker:5"],
    }
    assert [task.gpus for task in tasks] == [2, 1, 1, 1, 1, 1, 1]


def test_chief_without_gpu_takes_no_place_of_a_worker() -> None:
    tasks = placed(hosts(2, 2, slots=1), tasks={"chief": {"gpus": 0}, "worker": {"count": 4}})
    assert [(task.name, task.host, task.gpus) for task in tasks] == [
        ("chief:0", "h0", 0),
        ("worker:0", "h0", 1),
        ("worker:1", "h0", 1),
        ("worker:2", "h1", 1),
        ("worker:3", "h1", 1),
    ]
    assert len(placed(hosts(2, 2), tasks={"chief": {"gpus": 0}})) == 5


def test_chief_is_placed_where_it_costs_the_fewest_workers() -> None:
    tasks = placed(hosts(2, 3), tasks={"chief": {"gpus": 1}, "worker": {"gpus": 2}})
    assert by_host(tasks) == {"h1": ["chief:0", "worker:1"], "h0": ["worker:0"]}


def test_workers_without_gpus_take_slots_next_to_a_chief_with_gpu() -> None:
    tasks = placed(hosts(1, 0, slots=3), tasks={"chief": {"gpus": 1}, "worker": {"gpus": 0}})
    assert [(task.host, task.gpus) for task in tasks] == [("h0", 1), ("h0", 0), ("h0", 0), *[("h1", 0)] * 3]


# --- CPUs


def test_cpus_are_shared_by_tasks_of_a_host_unless_requested() -> None:
    tasks = placed(hosts(2, cpus=8), tasks={"ps": {"count": 1, "cpus": 3}})
    assert [task.cpus for task in tasks] == [2, 2, 3]
    assert [task.cpus for task in placed(hosts(1, cpus=8), cpus_per_task=5)] == [5]
    assert [task.cpus for task in placed(hosts(None, slots=4, cpus=2))] == [1, 1, 1, 1]


def test_requested_cpus_of_a_type_are_not_shared_with_others() -> None:
    tables = {"worker": {"count": 4}, "ps": {"count": 4}}
    assert [task.cpus for task in placed(hosts(4, cpus=32), tasks=tables)] == [4] * 8
    tables["ps"]["cpus"] = 1
    assert [task.cpus for task in placed(hosts(4, cpus=32), tasks=tables)] == [7] * 4 + [1] * 4
    tables["ps"]["cpus"] = 16  # more than there are
    assert [task.cpus for task in placed(hosts(4, cpus=32), tasks=tables)] == [1] * 4 + [16] * 4
    # each host by itself
    tasks = placed(hosts(1, 1, cpus=8), tasks={"ps": {"count": 1, "cpus": 2}})
    assert [(task.host, task.cpus) for task in tasks] == [("h0", 6), ("h1", 8), ("h0", 2)]


def test_unknown_cpus_of_a_host_stay_unknown() -> None:
    assert [task.cpus for task in placed(hosts(1, cpus=None))] == [None]


# --- ranks


def test_served_tasks_have_no_rank() -> None:
    tasks = placed(hosts(None, slots=3), tasks={"chief": {}, "worker": {"count": 2}}, serve=["worker"])
    assert [(task.name, task.rank, task.local_rank, task.served) for task in tasks] == [
        ("chief:0", 0, 0, False),
        ("worker:0", None, None, True),
        ("worker:1", None, None, True),
    ]
    assert [task.trains for task in tasks] == [True, False, False]


def test_ps_of_an_entry_job_is_served_unless_it_has_a_command() -> None:
    served = placed(hosts(None), entry="train:main", tasks={"worker": {"count": 1}, "ps": {"count": 1}})
    assert [task.served for task in served] == [False, True]
    own = {"worker": {"count": 1}, "ps": {"count": 1, "command": ["./ps"]}}
    assert [task.served for task in placed(hosts(None), entry="train:main", tasks=own)] == [False, False]


# --- too few


@pytest.mark.parametrize(
    ("allocation", "values", "what", "why"),
    [
        (
            hosts(2),
            {"tasks": {"worker": {"count": 3}}},
            "3 training tasks do not fit into 1 host with 2 GPUs (room for 2)",
            "requested: 3 workers with 1 GPU each",
        ),
        (
            hosts(1),
            {"tasks": {"chief": {}, "worker": {"count": 1}}},
            "2 training tasks do not fit into 1 host with 1 GPU (room for 1)",
            "requested: 1 chief with 1 GPU + 1 worker with 1 GPU",
        ),
        (
            hosts(2, 4, 3),
            {"tasks": {"worker": {"count": 10}}},
            "10 training tasks do not fit into 3 hosts with 2 to 4 GPUs each (room for 9)",
            "requested: 10 workers with 1 GPU each",
        ),
        (
            hosts(3, 3),
            {"gpus_per_task": 2, "tasks": {"worker": {"count": 3}}},
            "3 training tasks do not fit into 2 hosts with 3 GPUs each (room for 2)",
            "requested: 3 workers with 2 GPUs each",
        ),
        (
            hosts(4, slots=2),
            {"tasks_per_node": 2, "tasks": {"worker": {"count": 3}}},
            "3 training tasks do not fit into 1 host with 4 GPUs, at most 2 tasks per host (room for 2)",
            "requested: 3 workers with 2 GPUs each",
        ),
        (
            hosts(None, None, slots=1),
            {"tasks": {"chief": {}, "worker": {"count": 2}}},
            "3 training tasks do not fit into 2 hosts with 1 CPU slot each (room for 2)",
            "requested: 1 chief + 2 workers",
        ),
        (
            hosts(None, slots=2),
            {"tasks": {"worker": {"count": 3}}},
            "3 training tasks do not fit into 1 host with 2 CPU slots (room for 2)",
            "requested: 3 workers",
        ),
        (
            hosts(2, 2),
            {"tasks": {"chief": {"gpus": 4}, "worker": {"gpus": 1, "count": 1}}},
            "2 training tasks do not fit into 2 hosts with 2 GPUs each (room for 0)",
            "requested: 1 chief with 4 GPUs + 1 worker with 1 GPU",
        ),
        (
            hosts(None, slots=4),
            {"gpus_per_task": 1},
            "1 training task does not fit into 1 host with 0 GPUs (room for 0)",
            "requested: 1 worker with 1 GPU",
        ),
        (
            hosts(None, slots=0),
            {"tasks": {"master": {}}},
            "1 training task does not fit into 1 host with 0 CPU slots (room for 0)",
            "requested: 1 master",
        ),
        (
            Allocation(()),
            {},
            "1 training task does not fit into 0 hosts with 0 CPU slots (room for 0)",
            "requested: 1 worker",
        ),
    ],
)
def test_too_few_slots_are_an_error_with_the_numbers(
    allocation: Allocation, values: dict[str, Any], what: str, why: str
) -> None:
    error = refused(allocation, **values)
    assert (error.what, error.why) == (what, why)
    assert error.hint.startswith("request more hosts")


def test_too_few_slots_hint_at_tasks_per_node() -> None:
    assert "--tasks-per-node" in refused(hosts(None, slots=1), tasks={"worker": {"count": 2}}).hint
    assert "--tasks-per-node" not in refused(hosts(1), tasks={"worker": {"count": 2}}).hint


# --- what holds for every combination


def _combinations() -> list[tuple[Allocation, dict[str, Any]]]:
    allocations = [hosts(*gpus) for count in (1, 2, 3) for gpus in itertools.product((0, 1, 3, 4), repeat=count)]
    allocations += [hosts(*[None] * count, slots=slots) for count in (1, 3) for slots in (1, 2, 5)]
    values = [
        {
            "gpus_per_task": per_task,
            "serve": ["ps"] if servers else [],
            "tasks": {
                "chief": {"count": int(chief is not None), "gpus": chief},
                "worker": {"count": workers},
                "ps": {"count": servers},
                "evaluator": {"count": evaluator},
            },
        }
        for per_task, chief, workers, servers, evaluator in itertools.product(
            (None, 1, 2), (None, 0, 1, 2), (None, 1, 2, 5), (0, 1, 4), (0, 1)
        )
    ]
    return list(itertools.product(allocations, values))


def _fits_by_brute_force(allocation: Allocation, chief: int, workers: int, needs: int) -> bool:
    """Whether these workers and a chief with this number of GPUs (-1: no chief) fit, for any host of the chief."""
    room = [host.gpus or 0 for host in allocation.hosts]
    if chief <= 0:
        return sum(free // needs for free in room) >= workers
    return any(
        free >= chief
        and sum((other - (chief if at == home else 0)) // needs for at, other in enumerate(room)) >= workers
        for home, free in enumerate(room)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("part", fast(1, 0.005, 0.2))  # all of them take minutes
def test_placement_invariants_hold_for_combinations(part: float) -> None:
    seen: Counter[str] = Counter()
    combinations = _combinations()
    for allocation, values in random.Random(1).sample(combinations, round(part * len(combinations))):
        spec = job(**values)
        present = {host.name: host for host in allocation.hosts}
        where = f"{allocation} {values}"
        with_gpus = bool(spec.gpus_per_task) or any(host.gpus for host in allocation.hosts)
        chief = spec.task("chief").gpus if spec.count("chief") else None
        try:
            tasks = place(allocation, resolved(spec))
        except PlacementError:
            seen["refused"] += 1
            workers = spec.count("worker")
            needs = spec.gpus_per_task or max(chief or 0, 1)
            if with_gpus and workers is not None:
                assert not _fits_by_brute_force(allocation, -1 if chief is None else chief, workers, needs), where
            continue
        seen["placed"] += 1
        load, riders = Counter(task.host for task in tasks), Counter(task.host for task in tasks if task.rank is None)
        # every task is there, once
        counts = Counter(task.type for task in tasks)
        for kind in ("chief", "worker", "ps", "evaluator"):
            assert spec.count(kind) in (None, counts[kind]), where
        assert all(
            task.index == index for kind in counts for index, task in enumerate(t for t in tasks if t.type == kind)
        )
        # no GPU twice, none for non-training tasks
        for name, host in present.items():
            assert sum(task.gpus for task in tasks if task.host == name) <= (host.gpus or 0), where
        assert all(task.gpus == 0 for task in tasks if task.type in ("ps", "evaluator")), where
        if not with_gpus and not chief:
            for name, host in present.items():
                assert sum(task.rank is not None for task in tasks if task.host == name) <= host.slots, where
        # ranks: without gaps, workers in the hosts' order
        assert [task.rank for task in tasks if task.rank is not None] == list(range(counts["chief"] + counts["worker"]))
        order = [list(present).index(task.host) for task in tasks if task.type == "worker"]
        assert order == sorted(order), where
        for name in present:
            local = [task.local_rank for task in tasks if task.host == name and task.rank is not None]
            assert local == list(range(len(local))), where
        # non-GPU tasks on as many hosts as possible
        spread = [riders[name] for name in present]
        assert max(spread) - min(spread) <= 1, where
        # even: a host that could take one more training task has at most one less than the fullest
        if with_gpus and chief is None:
            needs = spec.gpus_per_task or 1
            trained = {name: load[name] - riders[name] for name in present}
            for name, host in present.items():
                if (host.gpus or 0) // needs > trained[name]:
                    assert max(trained.values()) - trained[name] <= 1, where
    assert min(seen["refused"], seen["placed"]) > 1000 * part, seen


def test_placement_is_deterministic_and_survives_serialization() -> None:
    allocation, spec = hosts(2, 2, cpus=8), job(tasks={"ps": {"count": 1}})
    tasks = place(allocation, resolved(spec))
    assert tasks == place(allocation, resolved(spec))
    assert tuple(PlacedTask(**json.loads(json.dumps(as_dict(task)))) for task in tasks) == tasks


def test_placement_on_a_thousand_hosts() -> None:
    allocation = Allocation(tuple(Host(f"h{number:04}", 8, 8, 64) for number in range(1024)))
    tasks = placed(allocation, tasks={"ps": {"count": 1024}})
    assert Counter(Counter(task.host for task in tasks).values()) == {9: 1024}
    assert [task.cpus for task in tasks[:1]] == [7]


# --- the request is enough for the tasks


def test_request_adds_no_host_for_a_chief_without_gpu() -> None:
    spec = job(gpus_per_node=4, tasks={"chief": {"gpus": 0}, "worker": {"count": 8}})
    assert resolved(spec).nodes == (2, 2)
    assert resolved(spec).gpus_in_all(0) == 8
    assert resolved(job(tasks={"chief": {"gpus": 2}, "worker": {"gpus": 1, "count": 3}})).gpus_in_all(1) == 5
    assert resolved(job()).gpus_in_all(1) is None


@pytest.mark.thorough
def test_requested_nodes_have_room_for_the_tasks() -> None:
    count = 0
    for chief, workers, own, per_task, per_node, tasks_per_node, nodes in itertools.product(
        (None, 0, 1, 2), (1, 4, 7), (None, 0, 1), (None, 0, 2), (None, 0, 4), (None, 2), (None, 2, 4)
    ):
        tables = {
            "chief": {"count": int(chief is not None), "gpus": chief},
            "worker": {"count": workers, "gpus": own},
            "ps": {"count": 1},
        }
        sizes = {"gpus_per_task": per_task, "gpus_per_node": per_node, "tasks_per_node": tasks_per_node, "nodes": nodes}
        spec = job(tasks=tables, **sizes)
        try:
            request = resolved(spec)
        except SpecError:
            continue
        room = hosts(*[request.gpus_per_node] * request.nodes[0], slots=request.tasks_per_node)
        tasks = place(room, request)
        assert len(tasks) == workers + (chief is not None) + 1
        count += 1
    assert count > 500


@pytest.mark.parametrize(
    ("tasks_per_node", "slots", "tasks"),
    [(None, 10**8, {}), (None, 10**17, {"ps": {"count": 1}}), (1_000_000, 1, {"chief": {"count": 1}})],
)
def test_more_than_the_maximum_of_tasks_is_refused_at_once(tasks_per_node: int | None, slots: int, tasks: Any) -> None:
    hosts = tuple(Host(f"n{number}", slots=tasks_per_node or slots) for number in range(2))
    error = refused(Allocation(hosts), tasks_per_node=tasks_per_node, tasks=tasks)
    assert re.fullmatch(r"\d{7,} tasks are more than the maximum of 1000000", error.what)


@pytest.mark.thorough
def test_maximum_of_tasks_is_placed() -> None:
    """One pass over all hosts a task would take hours."""
    hosts = (Host("big", slots=100_000), *(Host(f"n{number}", slots=0) for number in range(10_000)))
    tasks = placed(Allocation(hosts))
    assert (len(tasks), {task.host for task in tasks}) == (100_000, {"big"})
