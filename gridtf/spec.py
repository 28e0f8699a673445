"""What the user asked for: JobSpec and TaskSpec. Frozen, validated, no I/O, no clock, no environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from gridtf.errors import SpecError, nearest
from gridtf.roles import TASK_TYPES
from gridtf.units import parse_memory, parse_nodes, parse_walltime
from gridtf.validation import told, validate

# Any list of strings is taken and kept as a tuple. Not Sequence[str]: one string is that, too.
Strings = tuple[str, ...] | list[str]


@dataclass(frozen=True)
class TaskSpec:
    """One task type's table in the job file (``[tasks.worker]``).

    count: how many tasks; None for workers: as many as the allocation has room for.
    gpus: GPUs a task; None: the job's gpus_per_task where the type takes GPUs at all.
    cpus: CPUs a task; None: the job's cpus_per_task. mem: memory a task, in MiB or as text ("8G"); None: the job's
    mem_per_task.
    partition: for a ps or an evaluator, where its tasks are to run when not on the hosts of the job's own partition.
    in_cluster: whether TensorFlow's cluster holds its tasks; None: as usual for the type. A type that is left out is in
    nobody's TF_CONFIG but its own: a client without a server (chief), or helpers such as tf.data service (ps).
    command: its own command instead of the job's. env: more environment variables, for this type alone.
    """

    count: int | None = None
    gpus: int | None = None
    cpus: int | None = None
    mem: str | int | None = None
    partition: str | None = None
    in_cluster: bool | None = None
    command: Strings | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command: object = self.command
        if isinstance(command, list):
            object.__setattr__(self, "command", tuple(command))
        _keep(self, "env")


@dataclass(frozen=True)
class JobSpec:
    """A job, validated when it is made. Field names are the job file's keys and, with dashes, the flags.

    time: the walltime, in minutes or as text ("2:00:00", "90m"). mem, mem_per_task: in MiB or as text ("16G").
    kill_grace, start_timeout, heartbeat_timeout, evaluator_wait, leader_wait: in seconds.

    Raises SpecError, which names the field, when a value cannot be.
    """

    command: Strings = ()
    entry: str | None = None
    name: str | None = None
    scheduler: str | None = None
    tasks: Mapping[str, TaskSpec] = field(default_factory=dict)
    serve: Strings = ()
    success_policy: str = "all"
    nodes: int | str | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    mem_per_task: str | int | None = None
    mem: str | int | None = None
    time: str | int | None = None
    partition: str | None = None
    account: str | None = None
    pe: str | None = None
    slots: int | str | None = None
    gpu_resource: str = "gpu"
    native: Strings = ()
    env: Mapping[str, str] = field(default_factory=dict)
    setup: Strings = ()
    python: str | None = None
    chdir: str | None = None
    template: str | None = None
    run_dir: str | None = None
    run_root: str | None = None
    kill_grace: float = 5.0
    start_timeout: float = 600.0
    heartbeat_timeout: float = 30.0
    evaluator_wait: float = 60.0
    leader_wait: float = 300.0

    def __post_init__(self) -> None:
        for name in ("command", "serve", "native", "setup"):
            value = getattr(self, name)
            if isinstance(value, str):  # a str is a sequence too, of the wrong things
                raise SpecError(name, "a list of strings is wanted, not one string")
            if not isinstance(value, Sequence):
                raise SpecError(name, f"a list of strings is wanted, not {told(value)}")
            object.__setattr__(self, name, tuple(value))
        tasks: object = self.tasks
        if not isinstance(tasks, Mapping):
            raise SpecError("tasks", f"a table is wanted, not {told(tasks)}", hint=_table("ps"))
        for name, table in tasks.items():
            if not isinstance(table, TaskSpec):
                raise SpecError(f"tasks.{name}", f"a TaskSpec is wanted, not {told(table)}", hint=_table(name))
        _keep(self, "env", "tasks")
        validate(self)

    @property
    def walltime(self) -> int | None:
        """The walltime in seconds."""
        return None if self.time is None else parse_walltime(self.time)

    @property
    def node_range(self) -> tuple[int, int] | None:
        """(fewest, most) hosts."""
        return None if self.nodes is None else parse_nodes(self.nodes)

    @property
    def mem_mib(self) -> int | None:
        """Memory a host, in MiB (as Slurm's --mem)."""
        return None if self.mem is None else parse_memory(self.mem)

    @property
    def title(self) -> str:
        """The job's name, or one made from what it runs."""
        if self.name:
            return self.name
        if self.entry:
            word = self.entry.split(":")[0]
        else:
            scripts = [part for part in self.command if part.endswith((".py", ".sh"))]
            words = scripts or _module(self.command) or self.command or ["gridtf"]
            word = words[0].rsplit("/", 1)[-1]
            word = word.removesuffix(".py").removesuffix(".sh")
        return re.sub(r"[^A-Za-z0-9_.+=-]", "-", word).lstrip(".+=-")[:63] or "gridtf"

    def task(self, task_type: str) -> TaskSpec:
        """The table of one task type; an empty one where the user said nothing."""
        return self.tasks.get(task_type, TaskSpec())

    def count(self, task_type: str) -> int | None:
        """How many tasks of this type; None: as many workers as there is room for."""
        asked = self.tasks.get(task_type)
        if asked is not None and asked.count is not None:
            return asked.count
        if task_type == "worker":
            return None
        return 0 if asked is None else 1

    def in_cluster(self, task_type: str) -> bool:
        """Whether tasks of this type are members of TensorFlow's cluster."""
        said = self.task(task_type).in_cluster
        return TASK_TYPES[task_type].in_cluster if said is None else said

    def serves(self, task_type: str) -> bool:
        """Whether gridtf serves tasks of this type itself: as asked, and the ps of every entry job."""
        if task_type in self.serve:
            return True
        own = self.task(task_type).command is not None
        return task_type == "ps" and bool(self.entry) and not own and self.in_cluster(task_type)

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values: for JSON and for the job script."""
        return _plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobSpec:
        """The inverse of to_dict. Raises SpecError for keys and values that cannot be."""
        values = dict(data)
        _refuse_unknown(values, [f.name for f in fields(cls)], "")
        tables = values.pop("tasks", {})
        if not isinstance(tables, Mapping):
            raise SpecError("tasks", "a table of task types is wanted")
        tasks = {}
        for task_type, table in tables.items():
            if isinstance(table, TaskSpec):
                tasks[task_type] = table
                continue
            if not isinstance(table, Mapping):
                raise SpecError(f"tasks.{task_type}", f"a table is wanted, such as [tasks.{task_type}] count = 2")
            _refuse_unknown(table, [f.name for f in fields(TaskSpec)], f"tasks.{task_type}.")
            tasks[task_type] = TaskSpec(**table)
        return cls(tasks=tasks, **values)


def _module(command: Sequence[str]) -> list[str]:
    """The last part of what ``python -m package.module`` runs; nothing for another command."""
    before, dash_m, rest = command[:1], "-m", list(command[1:])
    if dash_m not in rest or not before[0].rsplit("/", 1)[-1].startswith("python"):
        return []
    position = rest.index(dash_m)
    options_only = all(word.startswith("-") for word in rest[:position])
    return [word.rsplit(".", 1)[-1] for word in rest[position + 1 : position + 2] if options_only]


def _plain(spec: JobSpec | TaskSpec) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for f in fields(spec):
        value = getattr(spec, f.name)
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if value == default:
            continue
        if f.name == "tasks":
            value = {name: _plain(_without_the_jobs_partition(table, spec)) for name, table in value.items()}
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        result[f.name] = value
    return result


def _without_the_jobs_partition(table: TaskSpec, spec: JobSpec | TaskSpec) -> TaskSpec:
    """The job's own partition is a type's default; inside the job, which is not told it, it would look like another."""
    return replace(table, partition=None) if table.partition == spec.partition else table


def _keep(spec: JobSpec | TaskSpec, *names: str) -> None:
    """Tables of its own: whoever has given them may go on to change theirs."""
    for name in names:
        if isinstance(value := getattr(spec, name), Mapping):
            object.__setattr__(spec, name, dict(value))


def _table(task_type: str) -> str:
    return f'write tasks={{"{task_type}": TaskSpec(count=1)}}'


def _refuse_unknown(table: Mapping[str, Any], known: list[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise SpecError(
                f"{prefix}{key}", "unknown key", hint=nearest(str(key), known) or f"known: {', '.join(known)}"
            )
