"""How many hosts, tasks and GPUs a job asks for."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.layout import Request, gpus_per_task, request
from gridtf.spec import JobSpec, TaskSpec


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
            "tasks",
            "9 training tasks do not fit into 2 x 4 = 8 (nodes x tasks a node)",
        ),
        (
            spec(workers=3, nodes=1, gpus_per_node=2),
            "tasks",
            "3 training tasks do not fit into 1 x 2 = 2 (nodes x tasks a node)",
        ),
        (
            spec(workers=4, nodes=1, tasks_per_node=4, gpus_per_node=2),
            "tasks_per_node",
            "4 tasks x 1 GPUs need more than gpus_per_node = 2",
        ),
    ],
)
def test_counts_that_do_not_fit_are_told_with_the_numbers(asked: JobSpec, key: str, numbers: str) -> None:
    with pytest.raises(SpecError) as caught:
        request(asked)
    assert (caught.value.key, caught.value.problem) == (key, numbers)


def test_a_range_of_nodes_may_have_room_at_its_upper_end() -> None:
    assert request(spec(workers=8, nodes="1-2", tasks_per_node=4)).nodes == (1, 2)


def test_gpus_of_a_task() -> None:
    assert gpus_per_task(spec(gpus_per_task=2)) == 2
    assert gpus_per_task(JobSpec(command=("x",), tasks={"worker": TaskSpec(gpus=3)})) == 3
    assert gpus_per_task(spec(gpus_per_node=8)) == 1
    assert gpus_per_task(spec(gpus_per_node=0), default=1) == 0
    assert (gpus_per_task(spec()), gpus_per_task(spec(), default=1)) == (0, 1)
