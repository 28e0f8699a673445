"""How many hosts, tasks and GPUs a job asks for, before anybody knows the hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gridtf.errors import SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import LEADERS, TASK_TYPES


@dataclass(frozen=True)
class Request:
    """What to ask a scheduler for.

    nodes: (fewest, most) hosts. tasks_per_node: training tasks a host (a ps or an evaluator rides along).
    gpus_per_node, gpus_per_task: 0 without GPUs. training: how many training tasks; None: as many as there is room for.
    """

    nodes: tuple[int, int]
    tasks_per_node: int
    gpus_per_node: int
    gpus_per_task: int
    cpus_per_task: int | None
    training: int | None


@dataclass(frozen=True)
class Component:
    """What a job asks of one partition.

    partition: its name; None: the scheduler's default. types: the task types that live there, in the order of
    TASK_TYPES.
    """

    partition: str | None
    types: tuple[str, ...]


def components(spec: JobSpec) -> tuple[Component, ...]:
    """What a job asks of each partition, as the components of a heterogeneous Slurm job are numbered.

    The first is the job's own partition, with all training tasks and those that ride along on their hosts. Each of
    the others has the types that name it; the one named first in the order of TASK_TYPES comes first.
    """
    homes: dict[str | None, list[str]] = {spec.partition: []}
    for name in TASK_TYPES:
        if spec.count(name) != 0:
            homes.setdefault(spec.task(name).partition or spec.partition, []).append(name)
    return tuple(Component(partition, tuple(types)) for partition, types in homes.items())


def request(spec: JobSpec) -> Request:
    """Fill in what the user left open. Raises SpecError for counts that do not fit, with the numbers."""
    per_task = gpus_per_task(spec)
    training = training_tasks(spec, per_task)
    gpus = max(gpus_of(name, spec, per_task) for name in TASK_TYPES if spec.count(name) != 0)
    if spec.gpus_per_node is not None and gpus > spec.gpus_per_node:
        key = next((f"tasks.{name}.gpus" for name, own in spec.tasks.items() if own.gpus == gpus), "gpus_per_task")
        raise SpecError(key, f"{gpus} GPUs a task, but gpus_per_node is {spec.gpus_per_node}")
    low, high = spec.node_range or (None, None)
    per_node = spec.tasks_per_node
    if per_node is None and spec.gpus_per_node and gpus:
        per_node = spec.gpus_per_node // gpus
    if per_node is None and training is not None:
        per_node = -(-training // (low or 1))
    per_node = per_node or 1
    if low is None or high is None:
        low = high = -(-(training or per_node) // per_node)
    if training is not None and training > high * per_node:
        raise SpecError(
            "tasks.worker.count",
            f"{training} training tasks do not fit into {high} x {per_node} = {high * per_node} (nodes x tasks a node)",
            hint="ask for more nodes, more GPUs or tasks a node, or fewer workers",
        )
    gpus_per_node = spec.gpus_per_node if spec.gpus_per_node is not None else gpus * per_node
    if gpus * per_node > gpus_per_node:
        raise SpecError(
            "tasks_per_node", f"{per_node} tasks x {gpus} GPUs need more than gpus_per_node = {gpus_per_node}"
        )
    return Request((low, high), per_node, gpus_per_node, gpus, spec.cpus_per_task, training)


def gpus_per_task(spec: JobSpec, *, default: int | None = None) -> int:
    """GPUs of a training task. default: where the spec says nothing at all about GPUs (1 where a host has some)."""
    if spec.gpus_per_task is not None:
        return spec.gpus_per_task
    own = [table.gpus for name, table in spec.tasks.items() if table.gpus and spec.count(name) != 0]
    if own:
        return max(own)
    if spec.gpus_per_node is not None:
        return 1 if spec.gpus_per_node else 0
    return default or 0


def gpus_of(task_type: str, spec: JobSpec, per_task: int) -> int:
    """GPUs of one task of this type. per_task: what gpus_per_task gave, for the types that do not say it themselves."""
    own = spec.task(task_type).gpus
    if not TASK_TYPES[task_type].takes_gpu:
        return 0
    return per_task if own is None else own


def gpus_in_all(spec: JobSpec, per_task: int) -> int | None:
    """GPUs of all tasks together; None when the workers are as many as there is room for."""
    counts = {name: spec.count(name) for name, row in TASK_TYPES.items() if row.takes_gpu}
    if counts["worker"] is None:
        return None
    return sum((count or 0) * gpus_of(name, spec, per_task) for name, count in counts.items())


def training_tasks(spec: JobSpec, per_task: int = 0) -> int | None:
    """How many tasks take a GPU or a slot; None when the workers are as many as there is room for.

    A leader without a GPU (``[tasks.chief] gpus = 0``) beside workers that take GPUs takes neither.
    """
    workers = spec.count("worker")
    if workers is None:
        return None
    leaders = [name for name in LEADERS if spec.count(name)]
    if workers and gpus_of("worker", spec, per_task):
        leaders = [name for name in leaders if gpus_of(name, spec, per_task)]
    return workers + len(leaders)
