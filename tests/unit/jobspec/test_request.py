"""The request of a job: hosts, tasks, GPUs, CPUs and memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.errors import SpecError
from gridtf.jobspec.request import Request, need_tasks_for_all, resolve
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login.render import LOGIN_SIDE
from gridtf.run import recordtypes
from gridtf.schedulers.words import PLACE


def spec(workers: int | None = None, ps: int = 0, **values: Any) -> JobSpec:
    tasks = {"ps": TaskSpec(count=ps)}
    if workers is not None:
        tasks["worker"] = TaskSpec(count=workers)
    return JobSpec(command=("x",), tasks=tasks, **values)


Part = tuple[str | None, tuple[str, ...]]


def part(partition: str | None, types: tuple[str, ...]) -> Part:
    return partition, types


def parts(asked: JobSpec) -> tuple[Part, ...]:
    return tuple((one.partition, one.types) for one in resolve(asked, "slurm").components)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # columns: nodes, tasks per node, GPUs per node, GPUs per task, CPUs of a training task, training tasks
        (spec(), ((1, 1), 1, 0, 0, None, None)),
        (spec(workers=4), ((1, 1), 4, 0, 0, None, 4)),
        (spec(workers=4, ps=3), ((1, 1), 4, 0, 0, None, 4)),  # a ps rides along
        (spec(workers=5, nodes=2), ((2, 2), 3, 0, 0, None, 5)),
        (spec(workers=4, tasks_per_node=2), ((2, 2), 2, 0, 0, None, 4)),
        (spec(workers=5, tasks_per_node=2, cpus_per_task=4), ((3, 3), 2, 0, 0, 4, 5)),
        (spec(nodes=2, gpus_per_node=4), ((2, 2), 4, 4, 1, None, None)),
        (spec(nodes=2, gpus_per_node=4, gpus_per_task=2), ((2, 2), 2, 4, 2, None, None)),
        (spec(workers=8, gpus_per_node=4), ((2, 2), 4, 4, 1, None, 8)),
        (spec(workers=6, gpus_per_node=3), ((2, 2), 3, 3, 1, None, 6)),
        # the GPUs of a host are shared evenly
        (spec(workers=1, nodes=1, gpus_per_node=4), ((1, 1), 1, 4, 4, None, 1)),
        (spec(workers=2, gpus_per_node=4), ((1, 1), 2, 4, 2, None, 2)),
        (spec(workers=4, nodes=2, gpus_per_node=4), ((2, 2), 2, 4, 2, None, 4)),
        (spec(nodes=2, gpus_per_node=4, tasks_per_node=2), ((2, 2), 2, 4, 2, None, None)),
        (spec(workers=2, nodes=2, gpus=8), ((2, 2), 1, 4, 4, None, 2)),
        (spec(workers=2, nodes="1-2", gpus_per_node=4), ((1, 2), 4, 4, 1, None, 2)),  # only the allocation tells
        (spec(workers=4, gpus_per_task=1), ((1, 1), 4, 4, 1, None, 4)),
        (spec(workers=4, gpus_per_node=0), ((1, 1), 4, 0, 0, None, 4)),
        (spec(nodes="2-4", gpus_per_node=8), ((2, 4), 8, 8, 1, None, None)),
    ],
)
def test_resolve_fills_in_unspecified_fields(asked: JobSpec, expected: tuple[object, ...]) -> None:
    found = resolve(asked, "slurm")
    shape = (found.nodes, found.tasks_per_node, found.gpus_per_node, found.gpus_per_task)
    assert (*shape, found.task_cpus, found.training) == expected


def uneven(workers: int | None, chief: int, worker: int | None = None, **values: Any) -> JobSpec:
    tasks = {"chief": TaskSpec(gpus=chief), "worker": TaskSpec(count=workers, gpus=worker)}
    return JobSpec(command=("x",), tasks=tasks, **values)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # columns: nodes, tasks per node, GPUs per node, shares, GPUs of a share
        (uneven(6, 2, 1, nodes=2, gpus_per_node=4), ((2, 2), 4, 4, 8, 1)),
        (uneven(6, 2, nodes=2, gpus_per_node=4), ((2, 2), 4, 4, 8, 1)),  # a worker has one unless somebody says more
        (uneven(6, 2, 1, gpus_per_node=4), ((2, 2), 4, 4, 8, 1)),
        (uneven(6, 2, 1, nodes=2), ((2, 2), 4, 4, 8, 1)),
        (uneven(6, 2, 1, tasks_per_node=4), ((2, 2), 4, 4, 8, 1)),
        (uneven(6, 2, 1), ((1, 1), 7, 8, 8, 1)),
        (uneven(2, 2, 4, nodes=2, gpus_per_node=8), ((2, 2), 2, 8, 5, 2)),
        (uneven(3, 2, 4, nodes=2), ((2, 2), 2, 8, 7, 2)),  # 14 GPUs, but not on two hosts with 7
        (uneven(None, 2, 1, nodes=2, gpus_per_node=4), ((2, 2), 4, 4, None, 1)),
        (uneven(0, 2, 1, nodes=1, gpus_per_node=2), ((1, 1), 1, 2, 1, 2)),
        (uneven(4, 0, 2, nodes=2), ((2, 2), 2, 4, 4, 2)),
        (uneven(6, 2, 1, nodes="1-2", gpus_per_node=4), ((1, 2), 4, 4, 8, 1)),
    ],
)
def test_resolve_counts_different_gpus_of_leader_and_workers(asked: JobSpec, expected: tuple[object, ...]) -> None:
    found = resolve(asked, "slurm")
    shape = (found.nodes, found.tasks_per_node, found.gpus_per_node, found.shares, found.gpu_share)
    assert shape == expected


@pytest.mark.parametrize(
    ("asked", "key", "numbers"),
    [
        (
            uneven(7, 2, 1, nodes=2, gpus_per_node=4),
            "tasks.worker.count",
            "a chief with 2 GPUs and 7 workers with 1 do not fit into 2 nodes with 4 GPUs each (room for 6 workers)",
        ),
        (
            uneven(6, 2, 1, nodes=2, gpus_per_node=4, tasks_per_node=3),
            "tasks.worker.count",
            "a chief with 2 GPUs and 6 workers with 1 do not fit into 2 nodes with 4 GPUs and at most 3 tasks each "
            "(room for 5 workers)",
        ),
        (uneven(1, 2, 1, gpus_per_node=1), "tasks.chief.gpus", "2 GPUs per task, but gpus_per_node is 1"),
    ],
)
def test_leader_and_workers_that_do_not_fit_are_refused_with_their_numbers(
    asked: JobSpec, key: str, numbers: str
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(asked, "slurm")
    assert (caught.value.key, caught.value.problem) == (key, numbers)


@pytest.mark.parametrize(
    ("asked", "key", "numbers"),
    [
        (
            spec(workers=9, nodes=2, tasks_per_node=4),
            "tasks.worker.count",
            "9 training tasks do not fit into 2 nodes with 4 tasks each",
        ),
        (
            spec(workers=3, nodes=1, gpus_per_node=2),
            "tasks.worker.count",
            "3 training tasks do not fit into 1 node with 2 tasks each",
        ),
        (
            spec(workers=4, nodes=1, tasks_per_node=4, gpus_per_node=2),
            "tasks_per_node",
            "4 tasks x 1 GPUs need more than gpus_per_node = 2",
        ),
        (
            JobSpec(command=("x",), nodes=2, gpus_per_node=2, tasks={"worker": TaskSpec(count=8, gpus=3)}),
            "tasks.worker.gpus",
            "3 GPUs per task, but gpus_per_node is 2",
        ),
        (spec(gpus_per_node=0, gpus_per_task=1), "gpus_per_task", "1 GPUs per task, but gpus_per_node is 0"),
    ],
)
def test_counts_that_do_not_fit_are_refused_with_their_numbers(asked: JobSpec, key: str, numbers: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(asked, "slurm")
    assert (caught.value.key, caught.value.problem) == (key, numbers)


@pytest.mark.parametrize(
    ("asked", "idle", "line"),
    [
        (spec(workers=1, gpus_per_node=4, gpus_per_task=1), "3 of 4", "--gpus-per-task 4 or --gpus-per-node 1"),
        (spec(workers=3, gpus_per_node=4), "1 of 4", "--gpus-per-node 3"),
        (spec(workers=6, gpus_per_node=4), "2 of 8", "--gpus-per-node 3"),
        (spec(workers=5, gpus_per_node=4), "3 of 8", "--workers 8"),
        (spec(workers=3, nodes=2, gpus_per_node=4), "2 of 8", "--workers 4"),
        (spec(workers=3, nodes=2, gpus_per_task=1), "1 of 4", "--workers 4"),
        (spec(workers=1, nodes=2, gpus_per_node=4), "4 of 8", "--nodes 1 or --workers 2"),
        (spec(nodes=2, gpus_per_node=4, gpus_per_task=3), "2 of 8", "--gpus-per-task 4 or --gpus-per-node 3"),
        (spec(nodes=2, gpus_per_node=4, tasks_per_node=3), "2 of 8", "--gpus-per-node 3"),
        (spec(workers=4, gpus=6), "2 of 6", "--gpus 4"),
        (spec(workers=4, gpus=8, gpus_per_task=1), "4 of 8", "--gpus 4 or --gpus-per-task 2"),
        (spec(gpus_per_node=4, gpus_per_task=0), "4 of 4", "--gpus-per-task 4 or --gpus-per-node 0"),
        (spec(workers=3, nodes=2, gpus_per_node=4, gpus_per_task=0), "8 of 8", "--gpus-per-node 0"),
        (spec(workers=5, gpus_per_node=8, gpus_per_task=3), "9 of 24", "--nodes 5 --gpus-per-node 3"),
        (spec(workers=1, nodes=2, gpus_per_node=3, gpus_per_task=2), "4 of 6", "--nodes 1 --gpus-per-node 2"),
        (spec(workers=3, gpus_per_node=4, tasks_per_node=4), "1 of 4", "--gpus-per-node 3"),
        # a leader with more than the workers; with GPUs, and workers without any
        (uneven(1, 4, 1, nodes=1, gpus_per_node=6), "1 of 6", "--gpus-per-node 5 or --workers 2"),
        (uneven(3, 2, 0, nodes=2, gpus_per_node=2), "2 of 4", "--nodes 1"),
    ],
)
def test_gpus_that_no_task_would_get_are_refused_with_the_line_to_write(asked: JobSpec, idle: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        need_tasks_for_all(asked, resolve(asked, "slurm"))
    assert caught.value.problem.endswith(f"would leave {idle} GPUs without a task")
    assert caught.value.hint == f"write {line}"


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        (spec(workers=2, gpus=4, tasks_per_node=4), 4),  # requested as often as there are tasks
        (spec(workers=1, gpus_per_node=4, tasks_per_node=4), 4),
        (uneven(8, 2, 0, gpus_per_node=2), 2),
        (uneven(None, 1, 3, nodes=1), 4),  # a worker beside the leader
        (uneven(3, 2, 4, nodes=2, gpus_per_node=8), 8),  # no other number would leave fewer
        (spec(workers=3, nodes="1-2", gpus_per_node=4), 4),  # only the allocation tells
        (spec(workers=6, gpus_per_node=6), 6),
    ],
)
def test_requests_for_gpus_that_tasks_get_or_that_no_other_number_would_spare(asked: JobSpec, gpus: int) -> None:
    request = resolve(asked, "slurm")
    need_tasks_for_all(asked, request)
    assert request.gpus_per_node == gpus


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, (part("gpu", ("worker",)),)),
        ({"ps": {}, "evaluator": {"count": 0, "partition": "cpu"}}, (part("gpu", ("worker", "ps")),)),
        ({"ps": {"partition": "gpu"}}, (part("gpu", ("worker", "ps")),)),
        (
            {"chief": {}, "ps": {"partition": "cpu"}},
            (part("gpu", ("chief", "worker")), part("cpu", ("ps",))),
        ),
        (
            {"evaluator": {"partition": "cpu"}, "ps": {"partition": "cpu"}},
            (part("gpu", ("worker",)), part("cpu", ("ps", "evaluator"))),
        ),
        (  # in the order of task types, not in that of the file
            {"evaluator": {"partition": "a"}, "ps": {"partition": "b"}},
            (part("gpu", ("worker",)), part("b", ("ps",)), part("a", ("evaluator",))),
        ),
        (
            {"worker": {"count": 0}, "master": {"partition": "gpu"}, "ps": {"partition": "b"}},
            (part("gpu", ("master",)), part("b", ("ps",))),
        ),
    ],
)
def test_components_by_partition_in_the_order_of_task_types(
    tables: dict[str, dict[str, Any]], expected: tuple[Part, ...]
) -> None:
    tasks = {name: TaskSpec(**table) for name, table in tables.items()}
    assert parts(JobSpec(command=("x",), partition="gpu", tasks=tasks)) == expected


def test_first_component_has_the_default_partition() -> None:
    tasks = {"ps": TaskSpec(partition="cpu")}
    assert parts(JobSpec(command=("x",), tasks=tasks)) == (part(None, ("worker",)), part("cpu", ("ps",)))


@pytest.mark.parametrize("partition", [None, "gpu"])
def test_components_inside_the_job_equal_those_of_the_submission(partition: str | None) -> None:
    tasks = {
        "worker": TaskSpec(count=1, partition=partition),
        "ps": TaskSpec(partition="gpu"),
        "evaluator": TaskSpec(partition="cpu"),
    }
    outside = JobSpec(command=("x",), partition=partition, tasks=tasks)
    told = {key: value for key, value in outside.to_dict().items() if key not in LOGIN_SIDE}
    inside = JobSpec.from_dict(told)
    assert [types for _, types in parts(inside)] == [types for _, types in parts(outside)]


def test_tasks_may_need_the_upper_end_of_a_node_range() -> None:
    assert resolve(spec(workers=8, nodes="1-2", tasks_per_node=4), "slurm").nodes == (1, 2)


def test_gpus_of_returns_specified_gpus_or_the_default() -> None:
    def gpus(asked: JobSpec, default: int = 0) -> int:
        return resolve(asked, "slurm").gpus_of("worker", default)

    assert gpus(spec(gpus_per_task=2)) == 2
    assert gpus(JobSpec(command=("x",), tasks={"worker": TaskSpec(gpus=3)})) == 3
    assert gpus(spec(gpus_per_node=8)) == 1
    assert gpus(spec(gpus_per_node=0), default=1) == 0
    assert (gpus(spec()), gpus(spec(), default=1)) == (0, 1)


def test_non_training_tasks_add_cpus_and_memory_to_the_fullest_host() -> None:
    tasks = {"worker": TaskSpec(count=4, cpus=2, mem="1G"), "ps": TaskSpec(count=3, cpus=3, mem=512)}
    found = resolve(JobSpec(command=("x",), nodes=2, tasks=tasks), "slurm")
    assert (found.task_cpus, found.non_training_cpus, found.host_non_training_cpus, found.host_mem) == (
        2,
        9,
        6,
        2 * 1024 + 2 * 512,
    )


def test_memory_of_a_job_in_which_only_clients_train() -> None:
    tasks = {"worker": TaskSpec(count=0), "ps": TaskSpec(count=2), "driver": TaskSpec(kind="client")}
    found = resolve(JobSpec(command=("x",), tasks=tasks, mem_per_task="1G"), "slurm")
    assert (found.nodes, found.training, found.host_mem) == ((1, 1), 0, 3 * 1024)


def test_memory_of_only_some_task_types_is_refused() -> None:
    asked = JobSpec(command=("x",), tasks={"worker": TaskSpec(count=1, mem="1G"), "ps": TaskSpec(count=1)})
    with pytest.raises(SpecError) as caught:
        resolve(asked, "slurm")
    assert caught.value.key == "tasks.ps.mem"
    assert resolve(asked, "local", memory=False).host_mem is None


@pytest.mark.parametrize(
    "asked",
    [
        spec(),
        spec(workers=5, ps=2, nodes="2-4", tasks_per_node=2, cpus_per_task=3, time="1:00:00", mem="4G"),
        JobSpec(command=("x",), partition="gpu", tasks={"chief": TaskSpec(gpus=0), "ps": TaskSpec(partition="cpu")}),
    ],
)
def test_request_round_trips_through_json(asked: JobSpec) -> None:
    made = resolve(asked, "slurm", options=PLACE)
    assert recordtypes.read(Request, json.loads(json.dumps(made.to_dict()))) == made
    in_job = recordtypes.read(Request, json.loads(json.dumps(made.to_dict(in_job=True))))
    assert in_job == made.replace(elements=())


@pytest.mark.parametrize(
    "data", [{}, {"nodes": 1}, {"nodes": [1, 1], "roles": [{}], "components": [], "left_open": []}]
)
def test_from_dict_refuses_invalid_requests(data: dict[str, Any]) -> None:
    with pytest.raises((TypeError, LookupError, ValueError)):
        recordtypes.read(Request, data)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("partition", {"partition": ""}),
        ("partition", {"partition": "a\nb"}),
        ("account", {"account": 7}),
        ("slots", {"slots": 0, "pe": "mpi"}),
        ("slots", {"slots": "8-", "pe": "mpi"}),
        ("slots", {"slots": 4}),
    ],
)
def test_invalid_scheduler_option_is_refused_with_its_key(key: str, values: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        schedulers.get("sge").login.resolve(JobSpec(command=("x",), **values))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("values", "hours"),
    [
        ({"nodes": 2, "gpus_per_node": 4, "time": "2h"}, (16.0, "GPU")),
        ({"nodes": "2-4", "gpus_per_node": 4, "time": "30m"}, (8.0, "GPU")),
        ({"nodes": 2, "gpus_per_node": 4, "time": "1h", "spare_nodes": 1, "restarts": 1}, (12.0, "GPU")),
        ({"nodes": 2, "tasks_per_node": 3, "cpus_per_task": 4, "time": "1h"}, (24.0, "core")),
        (
            {"nodes": 1, "time": "1h", "tasks": {"worker": {"count": 1}, "ps": {"count": 2, "partition": "c"}}},
            (3, "core"),
        ),
        ({"nodes": 1}, None),
    ],
)
def test_hours_are_the_most_that_the_job_may_use(values: dict[str, Any], hours: tuple[float, str] | None) -> None:
    assert resolve(JobSpec.from_dict({"command": ["x"], **values}), "slurm").hours == hours


def test_hours_of_a_sweep_are_those_of_all_elements() -> None:
    made = resolve(JobSpec.from_dict({"command": ["x"], "gpus_per_node": 1, "nodes": 1, "time": "1h"}), "slurm")
    elements = tuple(map(str, range(1, 9)))
    assert made.of_sweep(elements, 4, 1).hours == (8.0, "GPU")
    assert made.of_sweep(elements, 4, 4).hours == (8.0, "GPU")
