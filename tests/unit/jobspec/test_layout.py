"""How many hosts, tasks and GPUs a job asks for."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec.layout import Component, Request, components, gpus_per_task, request
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login.render import LOGIN_SIDE


def spec(workers: int | None = None, ps: int = 0, **values: Any) -> JobSpec:
    tasks = {"ps": TaskSpec(count=ps)}
    if workers is not None:
        tasks["worker"] = TaskSpec(count=workers)
    return JobSpec(command=("x",), tasks=tasks, **values)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # columns: nodes, tasks a node, GPUs a node, GPUs a task, CPUs a task, training tasks
        (spec(), Request((1, 1), 1, 0, 0, None, None)),
        (spec(workers=4), Request((1, 1), 4, 0, 0, None, 4)),
        (spec(workers=4, ps=3), Request((1, 1), 4, 0, 0, None, 4)),  # a ps rides along
        (spec(workers=5, nodes=2), Request((2, 2), 3, 0, 0, None, 5)),
        (spec(workers=4, tasks_per_node=2), Request((2, 2), 2, 0, 0, None, 4)),
        (spec(workers=5, tasks_per_node=2, cpus_per_task=4), Request((3, 3), 2, 0, 0, 4, 5)),
        (spec(nodes=2, gpus_per_node=4), Request((2, 2), 4, 4, 1, None, None)),
        (spec(nodes=2, gpus_per_node=4, gpus_per_task=2), Request((2, 2), 2, 4, 2, None, None)),
        (spec(workers=6, gpus_per_node=4), Request((2, 2), 4, 4, 1, None, 6)),
        (spec(workers=4, gpus_per_task=1), Request((1, 1), 4, 4, 1, None, 4)),
        (spec(workers=4, gpus_per_node=0), Request((1, 1), 4, 0, 0, None, 4)),
        (spec(nodes="2-4", gpus_per_node=8), Request((2, 4), 8, 8, 1, None, None)),
    ],
)
def test_what_is_left_open_is_filled_in(asked: JobSpec, expected: Request) -> None:
    assert request(asked) == expected


@pytest.mark.parametrize(
    ("asked", "key", "numbers"),
    [
        (
            spec(workers=9, nodes=2, tasks_per_node=4),
            "tasks.worker.count",
            "9 training tasks do not fit into 2 x 4 = 8 (nodes x tasks a node)",
        ),
        (
            spec(workers=3, nodes=1, gpus_per_node=2),
            "tasks.worker.count",
            "3 training tasks do not fit into 1 x 2 = 2 (nodes x tasks a node)",
        ),
        (
            spec(workers=4, nodes=1, tasks_per_node=4, gpus_per_node=2),
            "tasks_per_node",
            "4 tasks x 1 GPUs need more than gpus_per_node = 2",
        ),
        (
            JobSpec(command=("x",), nodes=2, gpus_per_node=2, tasks={"worker": TaskSpec(count=8, gpus=3)}),
            "tasks.worker.gpus",
            "3 GPUs a task, but gpus_per_node is 2",
        ),
        (spec(gpus_per_node=0, gpus_per_task=1), "gpus_per_task", "1 GPUs a task, but gpus_per_node is 0"),
    ],
)
def test_counts_that_do_not_fit_are_told_with_the_numbers(asked: JobSpec, key: str, numbers: str) -> None:
    with pytest.raises(SpecError) as caught:
        request(asked)
    assert (caught.value.key, caught.value.problem) == (key, numbers)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, (Component("gpu", ("worker",)),)),
        ({"ps": {}, "evaluator": {"count": 0, "partition": "cpu"}}, (Component("gpu", ("worker", "ps")),)),
        ({"ps": {"partition": "gpu"}}, (Component("gpu", ("worker", "ps")),)),
        (
            {"chief": {}, "ps": {"partition": "cpu"}},
            (Component("gpu", ("chief", "worker")), Component("cpu", ("ps",))),
        ),
        (
            {"evaluator": {"partition": "cpu"}, "ps": {"partition": "cpu"}},
            (Component("gpu", ("worker",)), Component("cpu", ("ps", "evaluator"))),
        ),
        (  # in the order of task types, not in that of the file
            {"evaluator": {"partition": "a"}, "ps": {"partition": "b"}},
            (Component("gpu", ("worker",)), Component("b", ("ps",)), Component("a", ("evaluator",))),
        ),
        (
            {"worker": {"count": 0}, "master": {"partition": "gpu"}, "ps": {"partition": "b"}},
            (Component("gpu", ("master",)), Component("b", ("ps",))),
        ),
    ],
)
def test_components(tables: dict[str, dict[str, Any]], expected: tuple[Component, ...]) -> None:
    tasks = {name: TaskSpec(**table) for name, table in tables.items()}
    assert components(JobSpec(command=("x",), partition="gpu", tasks=tasks)) == expected


def test_a_job_without_a_partition_has_its_own_all_the_same() -> None:
    tasks = {"ps": TaskSpec(partition="cpu")}
    assert components(JobSpec(command=("x",), tasks=tasks)) == (Component(None, ("worker",)), Component("cpu", ("ps",)))


@pytest.mark.parametrize("partition", [None, "gpu"])
def test_components_are_the_same_inside_the_job_which_is_not_told_its_partition(partition: str | None) -> None:
    tasks = {
        "worker": TaskSpec(count=1, partition=partition),
        "ps": TaskSpec(partition="gpu"),
        "evaluator": TaskSpec(partition="cpu"),
    }
    outside = JobSpec(command=("x",), partition=partition, tasks=tasks)
    told = {key: value for key, value in outside.to_dict().items() if key not in LOGIN_SIDE}
    inside = JobSpec.from_dict(told)
    assert [part.types for part in components(inside)] == [part.types for part in components(outside)]


def test_a_range_of_nodes_may_have_room_at_its_upper_end() -> None:
    assert request(spec(workers=8, nodes="1-2", tasks_per_node=4)).nodes == (1, 2)


def test_gpus_of_a_task() -> None:
    assert gpus_per_task(spec(gpus_per_task=2)) == 2
    assert gpus_per_task(JobSpec(command=("x",), tasks={"worker": TaskSpec(gpus=3)})) == 3
    assert gpus_per_task(spec(gpus_per_node=8)) == 1
    assert gpus_per_task(spec(gpus_per_node=0), default=1) == 0
    assert (gpus_per_task(spec()), gpus_per_task(spec(), default=1)) == (0, 1)
