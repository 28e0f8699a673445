"""What a JobSpec comes to on a scheduler: hosts, tasks, GPUs, CPUs and memory, worked out once. Pure.

The request is made when a job is submitted and carried in the job script and in the plan of every attempt; directives,
checks, `gridtf render`, the allocation and the placement start from it. A hand-written script has none: there it is
made inside the job, and what the scheduler says of the allocation wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gridtf.errors import SpecError
from gridtf.jobspec.options import Option
from gridtf.jobspec.spec import JobSpec, check_text
from gridtf.jobspec.tasktypes import LEADERS, TASK_TYPES
from gridtf.jobspec.units import parse_memory


@dataclass(frozen=True)
class Role:
    """The tasks of one type.

    Attributes:
        type: The task type, such as ``worker``.
        count: How many tasks; None: as many workers as the allocation has room for.
        gpus: GPUs of one task; None: one on a host that has GPUs, since the user has said nothing about them.
        cpus: CPUs of one task; None where the user has not said.
        mem: Memory of one task in MiB; None where the user has not said.
        component: Index of the component of the job that the tasks belong to; 0 is the job's own partition.
        served: Whether gridtf itself runs a plain TensorFlow server in each of them.
        in_cluster: Whether TensorFlow's cluster holds them.
    """

    type: str
    count: int | None
    gpus: int | None
    cpus: int | None = None
    mem: int | None = None
    component: int = 0
    served: bool = False
    in_cluster: bool = True

    @property
    def takes_gpu(self) -> bool:
        """Whether the type takes its share of GPUs or slots; tasks of other types ride along on any host."""
        return TASK_TYPES[self.type].takes_gpu


@dataclass(frozen=True)
class Component:
    """What a job requests of one partition: a component of a heterogeneous Slurm job.

    Attributes:
        partition: Its name; None: the scheduler's default.
        types: The task types that live there, in the order of TASK_TYPES.
        count: How many tasks that are; 0 for the first component, whose number of workers may be open.
        cpus: CPUs of the largest of these tasks; None where the user has not said.
        mem: Memory of the largest of these tasks in MiB; None where the user has not said.
    """

    partition: str | None
    types: tuple[str, ...]
    count: int = 0
    cpus: int | None = None
    mem: int | None = None


@dataclass(frozen=True)
class Request:
    """What a job requests of its scheduler.

    Attributes:
        scheduler: The scheduler's name.
        name: The job's name.
        nodes: (fewest, most) hosts of the job's own partition.
        tasks_per_node: Training tasks a host; a ps or an evaluator rides along.
        gpus_per_node: GPUs a host; 0 without GPUs.
        gpus_per_task: GPUs of the training task that has the most; 0 without GPUs.
        training: How many training tasks; None: as many as there is room for.
        roles: What each task type with tasks requests, in the order of TASK_TYPES.
        components: The partitions of the job; the first is the job's own.
        task_cpus: CPUs of a training task; None where the user has not said.
        non_training_cpus: CPUs of all tasks that ride along (ps, evaluator) on the job's own partition.
        host_non_training_cpus: CPUs of those of them on the fullest host.
        host_mem: Memory of the fullest host in MiB; None where the user has not said.
        walltime: Seconds; None: the scheduler's default.
        elements: Elements of the job array that the native options ask for; empty for a single job.
        options: The scheduler's own options that the user has set, such as ``pe`` and ``slots``, by key.
        native: The user's raw options, parsed by the scheduler: option -> value.
        left_open: Fields that the user has left open, so that in the job the allocation decides.
    """

    scheduler: str
    name: str
    nodes: tuple[int, int]
    tasks_per_node: int
    gpus_per_node: int
    gpus_per_task: int
    training: int | None
    roles: tuple[Role, ...]
    components: tuple[Component, ...] = (Component(None, ()),)
    task_cpus: int | None = None
    non_training_cpus: int = 0
    host_non_training_cpus: int = 0
    host_mem: int | None = None
    walltime: int | None = None
    elements: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    native: Mapping[str, str] = field(default_factory=dict)
    left_open: frozenset[str] = frozenset()

    def role(self, task_type: str) -> Role:
        """What this task type requests; no tasks where the job has none of it."""
        found = next((role for role in self.roles if role.type == task_type), None)
        return found or Role(task_type, 0, 0)

    def chosen(self, name: str) -> Any:
        """The value of a field where the user has said it, None where it was left open."""
        return None if name in self.left_open else getattr(self, name)

    def gpus_of(self, task_type: str, default: int) -> int:
        """GPUs of one task of this type.

        Args:
            task_type: Such as ``worker``.
            default: GPUs of a task where the user has said nothing: 1 where a host has GPUs, else 0.
        """
        gpus = self.role(task_type).gpus
        return default if gpus is None else gpus

    def most_gpus(self, default: int) -> int:
        """GPUs of the task that has the most; default as in gpus_of."""
        return max((self.gpus_of(role.type, default) for role in self.roles), default=0)

    def gpus_in_all(self, default: int) -> int | None:
        """GPUs of all tasks together; None where the number of workers is open. default as in gpus_of."""
        if self.role("worker").count is None:
            return None
        return sum((role.count or 0) * self.gpus_of(role.type, default) for role in self.roles)

    def to_dict(self, *, in_job: bool = False) -> dict[str, Any]:
        """Plain values for JSON. in_job: without what only the submission needs, such as the elements of an array."""
        data = asdict(self)
        data["left_open"] = sorted(self.left_open)
        if in_job:
            del data["elements"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Request:
        """The inverse of to_dict.

        Raises:
            TypeError, KeyError, ValueError: For what is no request.
        """
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        low, high = values["nodes"]
        values["nodes"] = int(low), int(high)
        values["roles"] = tuple(Role(**role) for role in values["roles"])
        values["components"] = tuple(
            Component(**{**part, "types": tuple(part["types"])}) for part in values["components"]
        )
        values["elements"] = tuple(values.get("elements", ()))
        values["left_open"] = frozenset(values["left_open"])
        return cls(**values)


def resolve(spec: JobSpec, scheduler: str, *, options: Sequence[Option] = (), memory: bool = True) -> Request:
    """Fill in what the user has left open. What only the scheduler knows, its Scheduler.resolve adds.

    Args:
        spec: What the user asked for.
        scheduler: The scheduler's name.
        options: The scheduler's own options, kept where the user has set them.
        memory: Whether memory is requested of the scheduler at all.

    Raises:
        SpecError: For counts that do not fit, with the numbers, and when only some task types say their memory.
    """
    roles = _roles(spec)
    training = _training_tasks(spec, roles)
    gpus = max((role.gpus or 0 for role in roles), default=0)
    low, high, per_node = _shape(spec, training, gpus)
    gpus_per_node = spec.gpus_per_node if spec.gpus_per_node is not None else gpus * per_node
    if gpus * per_node > gpus_per_node:
        raise SpecError(
            "tasks_per_node", f"{per_node} tasks x {gpus} GPUs need more than gpus_per_node = {gpus_per_node}"
        )
    if memory:
        _need_all_memory(roles, spec)
    own = [role for role in roles if not role.component]
    non_training = [role for role in own if not role.takes_gpu for _ in range(role.count or 0)]
    most_a_host = -(-len(non_training) // low)
    non_training_cpus = sorted((role.cpus or 0 for role in non_training), reverse=True)
    task_cpus = max((role.cpus or 1 for role in own if role.takes_gpu), default=1)
    return Request(
        scheduler=scheduler,
        name=spec.title,
        nodes=(low, high),
        tasks_per_node=per_node,
        gpus_per_node=gpus_per_node,
        gpus_per_task=gpus,
        training=training,
        roles=roles,
        components=_components(spec, roles),
        task_cpus=task_cpus if any(role.cpus for role in own) else None,
        non_training_cpus=sum(non_training_cpus),
        host_non_training_cpus=sum(non_training_cpus[:most_a_host]),
        host_mem=spec.mem_mib or (_host_memory(own, non_training, per_node, most_a_host) if memory else None),
        walltime=spec.walltime,
        options=_options(spec, options),
        left_open=frozenset(name for name in _MAY_BE_OPEN if getattr(spec, name) is None),
    )


def _options(spec: JobSpec, options: Sequence[Option]) -> dict[str, Any]:
    found = {option.key: value for option in options if (value := spec.option(option.key)) is not None}
    for option in options:
        if option.kind == "text":
            check_text(option.key, found.get(option.key))
    return found


_MAY_BE_OPEN = ("nodes", "tasks_per_node", "gpus_per_node", "gpus_per_task")


def _roles(spec: JobSpec) -> tuple[Role, ...]:
    per_task = _gpus_per_task(spec)
    places = _places(spec)
    roles = []
    for name, row in TASK_TYPES.items():
        table, count = spec.task(name), spec.count(name)
        if count == 0:
            continue
        mem = spec.mem_per_task if table.mem is None else table.mem
        roles.append(
            Role(
                type=name,
                count=count,
                gpus=(per_task if table.gpus is None else table.gpus) if row.takes_gpu else 0,
                cpus=table.cpus or spec.cpus_per_task,
                mem=None if mem is None else parse_memory(mem),
                component=places.index(table.partition or spec.partition),
                served=spec.serves(name),
                in_cluster=spec.in_cluster(name),
            )
        )
    return tuple(roles)


def _gpus_per_task(spec: JobSpec) -> int | None:
    """GPUs of a training task that does not say them itself; None where the spec says nothing at all about GPUs."""
    if spec.gpus_per_task is not None:
        return spec.gpus_per_task
    own = [table.gpus for name, table in spec.tasks.items() if table.gpus and spec.count(name) != 0]
    if own:
        return max(own)
    return None if spec.gpus_per_node is None else min(spec.gpus_per_node, 1)


def _places(spec: JobSpec) -> list[str | None]:
    """The partitions of the job, as the components of a heterogeneous job are numbered: the job's own, then those that
    task types name, in the order of TASK_TYPES."""
    named = [spec.task(name).partition or spec.partition for name in TASK_TYPES if spec.count(name) != 0]
    return list(dict.fromkeys([spec.partition, *named]))


def _components(spec: JobSpec, roles: Sequence[Role]) -> tuple[Component, ...]:
    found = []
    for number, partition in enumerate(_places(spec)):
        there = [role for role in roles if role.component == number]
        types = tuple(role.type for role in there)
        if not number:  # its hosts are those of the request itself
            found.append(Component(partition, types))
            continue
        cpus = max((role.cpus for role in there if role.cpus is not None), default=None)
        # the job's mem is what a host of the job's own partition needs
        mem = max((role.mem for role in there if role.mem is not None), default=None)
        found.append(Component(partition, types, sum(role.count or 0 for role in there), cpus, mem))
    return tuple(found)


def _training_tasks(spec: JobSpec, roles: Sequence[Role]) -> int | None:
    """How many tasks take a GPU or a slot; None where the number of workers is open.

    A leader without a GPU (``[tasks.chief] gpus = 0``) beside workers that take GPUs takes neither.
    """
    counts = {role.type: role.count for role in roles}
    gpus = {role.type: role.gpus or 0 for role in roles}
    workers = counts.get("worker", 0)
    if workers is None:
        return None
    leaders = [name for name in LEADERS if counts.get(name)]
    if workers and gpus["worker"]:
        leaders = [name for name in leaders if gpus[name]]
    return workers + len(leaders)


def _shape(spec: JobSpec, training: int | None, gpus: int) -> tuple[int, int, int]:
    """(fewest hosts, most hosts, training tasks a host). gpus: of the training task that has the most."""
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
    return low, high, per_node


def _need_all_memory(roles: Sequence[Role], spec: JobSpec) -> None:
    """Raise SpecError when only some of the task types of a partition say how much memory they need."""
    for number in {role.component for role in roles}:
        if not number and spec.mem is not None:
            continue  # that says what a host of the job's own partition needs
        there = [role for role in roles if role.component == number]
        silent = [role.type for role in there if role.mem is None]
        if silent and len(silent) < len(there):
            raise SpecError(
                f"tasks.{silent[0]}.mem",
                "other task types say how much memory they need, this one does not",
                hint="say it for all with mem_per_task, or say what a host needs with mem",
            )


def _host_memory(own: Sequence[Role], non_training: Sequence[Role], per_node: int, most_a_host: int) -> int | None:
    if not any(role.mem for role in own):
        return None
    sizes = sorted((role.mem or 0 for role in non_training), reverse=True)
    return per_node * max(role.mem or 0 for role in own if role.takes_gpu) + sum(sizes[:most_a_host])
