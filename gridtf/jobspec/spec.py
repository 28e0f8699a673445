"""The specification of a job: JobSpec and TaskSpec. Frozen, validated; no I/O, clock or environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf.errors import GridtfError, SpecError, UsageError, nearest
from gridtf.jobspec.placeholders import CONTAINER_NAMES, HOST_NAMES, host_address, is_whole, misspelt, placeholders
from gridtf.jobspec.tasktypes import (
    ALWAYS,
    CLIENT,
    DATA_WORKER,
    DISPATCHER,
    KINDS,
    LEADERS,
    MOST_IN_PLACE,
    ON_FAILURE,
    ON_REQUEST,
    RESTART,
    TASK_TYPES,
    TaskType,
    properties,
)
from gridtf.jobspec.units import (
    MOST,
    WALLTIME_FORMS,
    format_walltime,
    parse_duration,
    parse_memory,
    parse_nodes,
    parse_pause,
    parse_walltime,
)
from gridtf.text import counted, toml
from gridtf.values import Value, fields

# Lists are accepted and stored as tuples. Not Sequence[str], because a single string is one as well.
Strings = tuple[str, ...] | list[str]
# The keys of a job that are lists of strings.
LISTS = ("command", "serve", "exclude", "native", "setup", "container_binds", "container_command")


class _Keywords(Value):
    """Base of both classes: an unknown keyword is a SpecError that names what to write."""

    if not TYPE_CHECKING:  # which would accept any keyword

        def __new__(cls, *values: object, **keywords: object) -> _Keywords:
            known = fields(cls)
            for word, value in keywords.items():
                if word not in known:
                    from gridtf.jobspec.options import as_keyword

                    hint = as_keyword(word, value) or nearest(word, list(known)) or f"known: {', '.join(known)}"
                    raise SpecError(word, f"{cls.__name__} has no such keyword", hint=hint)
            return super().__new__(cls)


class TaskSpec(_Keywords):
    """One task type's table in the job file (``[tasks.worker]``).

    Attributes:
        count: Number of tasks. None: as many workers as the allocation has room for, unless only a client is to train;
            one task of another type that has a table, none of a type without one.
        gpus: GPUs per task. None: the job's ``gpus_per_task`` for a type that trains, else 0.
        cpus: CPUs per task. None: the job's ``cpus_per_task``.
        mem: Memory per task, in MiB or as text such as "8G". None: the job's ``mem_per_task``.
        partition: For a type that takes no GPU: the partition its tasks run on (Slurm only), such as one without GPUs.
            The job's ``mem`` does not apply there. None: the job's.
        kind: What a type of the job's own is. A "service" runs beside the training, in no cluster: it is stopped when
            the training ends, and its failure does not end the job. A "member" is in TensorFlow's cluster, and is
            treated as a ps is. A "client" trains, and is in no cluster. None for TensorFlow's and gridtf's types.
        in_cluster: Whether its tasks are members of TensorFlow's cluster. None: those of chief, master, worker, ps and
            a type of kind "member" are. Other tasks have a port, but appear in no TF_CONFIG except that of an evaluator
            or of a type that this key leaves out, which lists tasks of its own type as well.
        on_failure: What the failure of one of its tasks does. "restart": the task is started again on its port, up to
            five times, while the others go on. "attempt": all tasks are ended, and start again if ``restarts`` allows.
            "end": the job ends. None: "restart" for a worker that gridtf serves and for the tf.data service, if a
            signal has killed it; else "attempt".
        command: The program and arguments of its tasks. None: the job's ``command``.
        env: Environment variables for this type, added to the job's ``env``.
    """

    count: int | None = None
    gpus: int | None = None
    cpus: int | None = None
    mem: str | int | None = None
    partition: str | None = None
    kind: str | None = None
    in_cluster: bool | None = None
    on_failure: str | None = None
    command: Strings | None = None
    env: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        command: object = self.command
        if isinstance(command, list):
            object.__setattr__(self, "command", tuple(command))
        _copy_tables(self, "env")


class JobSpec(_Keywords):
    """The specification of a job, validated on construction.

    Field names are the job file's keys and, with dashes, the flags. None always means "not given".
    ``spec.replace(nodes=4)`` returns a specification with some fields changed.

    Attributes:
        command: The program and arguments of every task; placeholders such as ``{task_index}`` are filled in.
        entry: The training loop as a function, ``module:function``, instead of ``command``.
        name: Job name; up to 63 letters, digits and ``_ . + = -``. None: derived from the command or the entry.
        scheduler: Name of the scheduler, such as "slurm". None: the one found on this machine, else "local".
        tasks: Task type -> TaskSpec, or a dict of its fields, which becomes one: ``{"ps": {"count": 1}}``.
        leader: The task that leads the others: "chief" or "master" (TensorFlow 1's name for it), which is added to the
            workers, or "first-worker". When it has exited with 0, the others have ``leader_wait`` seconds left. None:
            the chief or master if ``tasks`` has one, in a job with ps the first worker, else none.
        serve: Task types ("ps", "worker") for which gridtf runs a plain TensorFlow server instead of the command.
        success_policy: Which exit codes of 0 complete the job: those of "all" tasks that train, or the "chief"'s alone.
        nodes: Number of hosts, or a range such as "2-4". None: as many as the tasks need.
        gpus_per_node: GPUs per host. None: what the tasks of a host need.
        tasks_per_node: Training tasks per host. None: one for each ``gpus_per_task`` GPUs of a host.
        gpus_per_task: GPUs per training task. None: 1 where hosts have GPUs, else 0.
        cpus_per_task: CPUs per task. None: the scheduler's default.
        mem_per_task: Memory per task, in MiB or as text such as "8G". Excludes ``mem``.
        mem: Memory per host, in MiB or as text such as "16G". Excludes ``mem_per_task``.
        time: Walltime, in minutes or as text such as "2:00:00", "90m", "1-12" and the other forms of Slurm. None: the
            site's default.
        checkpoint_before: How long before the end of the walltime a checkpoint is requested, as text such as "5m" or in
            minutes, like ``time``. None: it is not requested.
        continuations: How often a job that has saved a checkpoint and ended (exit code 42) is started again, as the
            next attempt of the same job; a file may call it ``continue``. Needs ``checkpoint_before``.
        checkpoint_signal: The signal, "USR1" or "USR2", that a request for a checkpoint also sends to those processes
            of the tasks that catch it. None: none is sent.
        partition: Slurm's partition, Grid Engine's queue; a file may call it ``queue``. None: the site's default.
        account: Slurm's account, Grid Engine's project; a file may call it ``project``. None: the user's default.
        pe: Grid Engine's parallel environment.
        slots: Grid Engine's slots, a number or a range such as "8-16". None: what the tasks need.
        gpu_resource: The site's name of its GPU resource (a complex of Grid Engine, complex(5)).
        gpu_variable: Name of the variable by which a Grid Engine site grants GPUs. None: those that gridtf knows.
        exclude: Hosts that the job must not use, as the scheduler calls them (Slurm and Grid Engine).
        notify: "mail": the scheduler sends mail when the job ends or is started again (Slurm and Grid Engine), to the
            user who submits it; "mail:ann@example.org": to that address.
        options: Options of schedulers from other packages, by key; in a job file they are top-level keys.
        native: Options passed to the scheduler unchanged, one per item, such as "--qos=long".
        env: Environment variables of all tasks.
        setup: Shell lines that run on the first host before the tasks start, such as "module load cuda".
        container: The image in which the tasks run: the path of a file or folder, or a URI such as
            "docker://tensorflow/tensorflow:2.17.0". None: no container, unless ``container_command`` makes one.
        container_binds: Further files and folders that exist in the container, as ``SOURCE[:TARGET[:MODE]]``: a path on
            the host, the path in the container (the same if it is left out) and the mode ("ro" or "rw").
        container_command: The words in front of a task's command that run it in a container, with ``{image}`` and
            ``{chdir}``; one with ``{bind}`` or ``{env}`` is repeated for each bind, or for the name of each variable
            that gridtf or the job sets. Empty: ``apptainer exec`` or ``singularity exec``, whichever a host has.
        python: The Python that runs ``entry`` and served tasks. None: gridtf's own; after set-up lines, ``python``; in
            a container, its ``python3``.
        chdir: Working folder of the tasks. None: that of the job file, without one the current one.
        template: Path of the user's own template of the job script.
        run_dir: Path of the run directory, which must not exist yet. None: a new one in ``run_root``.
        run_root: Folder in which run directories are made. None: ``gridtf-runs`` in the working folder.
        kill_grace: Seconds between TERM and KILL.
        address: Pattern of the name by which tasks reach a host, such as "{host}i" for a second network; ``{host}`` is
            the scheduler's name of the host, ``{short}`` that name up to the first dot. None: the scheduler's name.
        interface: The network interface by whose address tasks reach a host, such as "ib0". Excludes ``address``.
        ports: What becomes of the port that gridtf reserves for a task: "hold" it, since TensorFlow 2.3 and newer share
            it with gridtf, "release" it just before the task starts, or "auto": by the version that the task's Python
            has, "hold" where that is not known.
        fence: Who may connect to the ports of the tasks. "users": connections of your own on the job's hosts, each of
            which takes about a second to begin; "hosts": whoever is on the job's hosts; "off": everybody; "auto":
            "hosts" where the job requests its hosts for itself, else "users".
        hook: Whether Python programs of tasks note the exception that ends them, so that the verdict can name it, and
            print their stacks when they crash: a ``sitecustomize`` of gridtf's comes first on their PYTHONPATH, and
            loads the one that it hides.
        restarts: How often the job may go on with a further attempt in its allocation, after a task has failed or a
            host was lost. All tasks start again.
        spare_nodes: Hosts that are requested in addition to ``nodes``, for restarts without those that were lost. A
            range in ``nodes`` allows restarts with fewer hosts instead. Slurm and Grid Engine only.
        stall_after: How long no task does anything until the job is stalled, as text such as "10m" or in minutes, like
            ``time``: no line in a log, no reported step, less than 1 % of a core, and stacks that do not change.
            "off" or 0: that is not looked after.
        on_stall: What becomes of a stalled job: "report" it in status and log, "end" it, or "restart" all tasks, which
            needs ``restarts``.
        log_limit: How large the log of a task may become, in MiB or as text such as "1G". gridtf then writes the logs,
            and keeps at least the newest half of that. None: tasks write their logs themselves, and nothing is removed.
        sample_interval: Seconds between two samples of what tasks use, such as CPU time, memory and GPUs; with hundreds
            of hosts the interval is longer. 0: there are none, and logs have no times.
        start_timeout: Seconds to wait for all hosts and tasks to start.
        heartbeat_timeout: Seconds of silence after which a host counts as lost.
        evaluator_wait: Seconds that an evaluator may run on after the training has ended.
        leader_wait: Seconds that the other tasks may run on after the leader has exited with 0, or a task with 42.

    Raises:
        SpecError: For an invalid value; its ``key`` names the field.
    """

    command: Strings = ()
    entry: str | None = None
    name: str | None = None
    scheduler: str | None = None
    tasks: Mapping[str, Any] = {}
    leader: str | None = None
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
    checkpoint_before: str | int | None = None
    continuations: int = 0
    checkpoint_signal: str | None = None
    partition: str | None = None
    account: str | None = None
    pe: str | None = None
    slots: int | str | None = None
    gpu_resource: str = "gpu"
    gpu_variable: str | None = None
    exclude: Strings = ()
    notify: str | None = None
    options: Mapping[str, Any] = {}
    native: Strings = ()
    env: Mapping[str, str] = {}
    setup: Strings = ()
    container: str | None = None
    container_binds: Strings = ()
    container_command: Strings = ()
    python: str | None = None
    chdir: str | None = None
    template: str | None = None
    run_dir: str | None = None
    run_root: str | None = None
    address: str | None = None
    interface: str | None = None
    kill_grace: float = 5.0
    ports: str = "auto"
    fence: str = "off"
    hook: bool = True
    restarts: int = 0
    spare_nodes: int = 0
    stall_after: str | int = "10m"
    on_stall: str = "report"
    log_limit: str | int | None = None
    sample_interval: float = 5.0
    start_timeout: float = 600.0
    heartbeat_timeout: float = 30.0
    evaluator_wait: float = 60.0
    leader_wait: float = 300.0

    def __post_init__(self) -> None:
        for name in LISTS:
            object.__setattr__(self, name, _list(name, getattr(self, name)))
        object.__setattr__(self, "tasks", _tables(self.tasks))
        _copy_tables(self, "env", "options")
        for check in _CHECKS:
            check(self)

    @property
    def walltime(self) -> int | None:
        """The walltime in seconds; None when not given."""
        return None if self.time is None else parse_walltime(self.time)

    @property
    def seconds_to_save(self) -> int | None:
        """How long before the end of the walltime a checkpoint is requested, in seconds; None: it is not."""
        return None if self.checkpoint_before is None else parse_duration(self.checkpoint_before)

    @property
    def seconds_to_stall(self) -> int | None:
        """For how long no task of a stalled job does anything, in seconds; None: that is not looked after."""
        return parse_pause(self.stall_after)

    @property
    def node_range(self) -> tuple[int, int] | None:
        """(fewest, most) hosts; None when not given."""
        return None if self.nodes is None else parse_nodes(self.nodes)

    @property
    def mem_mib(self) -> int | None:
        """Memory per host in MiB (as Slurm's --mem); None when not given."""
        return None if self.mem is None else parse_memory(self.mem)

    @property
    def log_bytes(self) -> int | None:
        """How large the log of a task may become, in bytes; None: there is no limit."""
        return None if self.log_limit is None else parse_memory(self.log_limit) << 20

    @property
    def title(self) -> str:
        """The job's name: ``name``, or one derived from the entry or the command, such as ``train`` for train.py."""
        if self.name:
            return self.name
        if self.entry:
            program = self.entry.split(":")[0]
        else:
            scripts = [part for part in self.command if part.endswith((".py", ".sh"))]
            candidates = scripts or _module(self.command) or self.command or ["gridtf"]
            program = candidates[0].rsplit("/", 1)[-1].removesuffix(".py").removesuffix(".sh")
        return as_name(program) or "gridtf"

    @property
    def contained(self) -> bool:
        """Whether the tasks run in a container."""
        return bool(self.container or self.container_command)

    def option(self, key: str) -> Any:
        """The value of an option that only some schedulers know; None if the user has not set it."""
        return getattr(self, key) if key in fields(JobSpec) else self.options.get(key)

    def task(self, task_type: str) -> TaskSpec:
        """The table of one task type; an empty one if the job has none."""
        table: TaskSpec = self.tasks.get(task_type, TaskSpec())
        return table

    @property
    def types(self) -> tuple[str, ...]:
        """The task types that the job can have, in rank order: TensorFlow's and its own."""
        own = sorted(name for name in self.tasks if name not in TASK_TYPES)  # inside the job as at the submission
        return tuple(sorted([*TASK_TYPES, *own], key=lambda name: not self.row(name).trains))

    def row(self, task_type: str) -> TaskType:
        """How gridtf treats tasks of this type."""
        return properties(task_type, self.task(task_type).kind or "")

    def count(self, task_type: str) -> int | None:
        """Number of tasks of this type; None: as many workers as the allocation has room for.

        A job with a client of its own has workers only where it names them.
        """
        table: TaskSpec | None = self.tasks.get(task_type)
        if table is not None and table.count is not None:
            return table.count
        if task_type == "worker":
            client = any(one.kind == CLIENT and one.count != 0 for one in self.tasks.values())
            return 0 if table is None and client and "worker" not in self.serve else None
        if task_type == DISPATCHER:  # data workers need one
            return int(table is not None or bool(self.count(DATA_WORKER)))
        if task_type in LEADERS and self.leader is not None:
            return int(task_type == self.leader)
        return 0 if table is None else 1

    def in_cluster(self, task_type: str) -> bool:
        """Whether tasks of this type are members of TensorFlow's cluster."""
        in_cluster = self.task(task_type).in_cluster
        return self.row(task_type).in_cluster if in_cluster is None else in_cluster

    def serves(self, task_type: str) -> bool:
        """Whether gridtf runs a TensorFlow server in tasks of this type.

        It does for the types in ``serve``, for those of the tf.data service, and for the ps of an entry job unless it
        has a command or is left out of the cluster.
        """
        if task_type in self.serve or self.row(task_type).served == ALWAYS:
            return True
        has_command = self.task(task_type).command is not None
        return task_type == "ps" and bool(self.entry) and not has_command and self.in_cluster(task_type)

    def in_place(self, task_type: str) -> int:
        """How often a task of this type may be started again on its port while the others go on."""
        chosen = self.task(task_type).on_failure
        if chosen is None:
            return self.row(task_type).restarts if self.serves(task_type) else 0
        return MOST_IN_PLACE if chosen == RESTART else 0

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as plain values for JSON, keyed as in the job file."""
        return _plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobSpec:
        """Make a JobSpec from the values that to_dict returns.

        Args:
            data: Key -> value, as in a job file.

        Raises:
            SpecError: For an unknown key or an invalid value.
        """
        _refuse_unknown(data, [*fields(cls)], "")
        return cls(**data)


def container_path(image: str | None) -> str:
    """The path that ``container`` names; empty for a URI, and for the name of an image with its tag (``tf:2.17``)."""
    return image if image and (":" not in image or image.startswith(("/", "./", "../"))) else ""


def container_programs(spec: JobSpec) -> tuple[str, ...]:
    """The programs of which a host needs one to run tasks in a container; empty where tasks run in none."""
    return (*spec.container_command[:1],) or (("apptainer", "singularity") if spec.container else ())


def no_container_program(spec: JobSpec, host: str) -> GridtfError:
    """The error for a host without a program that makes containers.

    Args:
        spec: The job, with a container or a container_command.
        host: The host.
    """
    if spec.container_command:
        what = f"host {host} has no program {spec.container_command[0]}, with which container_command begins"
        return GridtfError(what, hint="load it in the set-up lines: --setup 'module load …'")
    hint = "load one in the set-up lines, as in --setup 'module load apptainer', or write a container_command"
    return GridtfError(f"host {host} has neither {' nor '.join(container_programs(spec))}", hint=hint)


def _module(command: Sequence[str]) -> list[str]:
    """``["module"]`` for ``python -m package.module``, after any options without a value; else an empty list."""
    if "-m" not in command[1:] or not command[0].rsplit("/", 1)[-1].startswith("python"):
        return []
    position = command.index("-m", 1)
    options_only = all(word.startswith("-") for word in command[1:position])
    return [word.rsplit(".", 1)[-1] for word in command[position + 1 : position + 2] if options_only]


def _plain(spec: JobSpec | TaskSpec) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, default in fields(type(spec)).items():
        value = getattr(spec, key)
        if value == default:
            continue
        if key == "tasks":
            value = {name: _plain(table) for name, table in value.items()}
            for table in value.values():
                # left out where it is the job's own, which is not known inside the job
                if "partition" in table and table["partition"] == spec.partition:
                    del table["partition"]
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        result[key] = value
    return result


def _copy_tables(spec: JobSpec | TaskSpec, *names: str) -> None:
    """Copy tables, which the caller may change later."""
    for name in names:
        if isinstance(value := getattr(spec, name), Mapping):
            object.__setattr__(spec, name, dict(value))


def _as_list(name: str, text: str) -> str:
    from gridtf.jobspec import synonyms

    return f"write {name} = {toml(synonyms.as_list(name, text))}"


def _tables(tasks: object) -> dict[str, TaskSpec]:
    """The tables of task types, each of which may be a TaskSpec or a dict of its keys."""
    if not isinstance(tasks, Mapping):
        hint = 'write tasks={"ps": {"count": 1}}, or [tasks.ps] and count = 1 in a file'
        raise SpecError("tasks", f"expected a table of task types, not {spell(tasks)}", hint=hint)
    made = {}
    for name, table in tasks.items():
        if isinstance(table, Mapping):
            _refuse_unknown(table, [*fields(TaskSpec)], f"tasks.{name}.")
            table = TaskSpec(**table)
        elif not isinstance(table, TaskSpec):
            hint = f'write tasks={{"{name}": {{"count": 1}}}}, or [tasks.{name}] and count = 1 in a file'
            raise SpecError(f"tasks.{name}", f"expected a table, not {spell(table)}", hint=hint)
        made[name] = table
    return made


def _refuse_unknown(table: Mapping[str, Any], known: list[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise SpecError(
                f"{prefix}{key}", "unknown key", hint=nearest(str(key), known) or f"known: {', '.join(known)}"
            )


_A_KIND = f'kind = "{next(iter(KINDS))}", or {" or ".join(toml(name) for name in [*KINDS][1:])}'
A_TYPE_OF_ONE_S_OWN = f"a type of your own needs a kind: {_A_KIND}"
_TYPE = re.compile(r"[a-z][a-z_]{0,31}")
FIRST_WORKER = "first-worker"
_CHOICES = {
    "success_policy": ("all", "chief"),
    "ports": ("hold", "release", "auto"),
    "fence": ("users", "hosts", "off", "auto"),
    "checkpoint_signal": ("USR1", "USR2"),
    "on_stall": ("report", "restart", "end"),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,62}")
ID = re.compile(r"(?a)\d+([._]\d+)*")  # a name of this form cannot be told from the id of a job
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INTERFACE = re.compile(r"[!-.0-~]{1,15}")  # linux/if.h: IFNAMSIZ; no space, no slash
_NOTIFY = re.compile(r"mail(:[^\s:,;]+@[^\s:,;]+|:\w[\w.-]*)?")  # an address, or the name of a user
_MEM_FORMS = "a number with K, M, G or T, such as 16G (without: MiB)"
# Slurm's words for "no limit". gridtf needs numbers; --native passes these to the scheduler alone.
_LIMITLESS = ("0", "-1", "unlimited", "infinite")
_NAME_A_PROGRAM = 'write JobSpec(command=["python", "train.py"]), or JobSpec(entry="module:function")'
_NAME_AN_IMAGE = 'name the image: --container IMAGE, or container = "IMAGE" in a file'
# As Docker writes it, without the forms of Apptainer that have no // either.
_REGISTRY = re.compile(
    r"(?!(?:docker-archive|docker-daemon|oci|oci-archive|oci-sif):)\w[\w.-]*(?:[/#][\w.-]+)*:[\w.-]+"
)
_MAY_BE_ZERO = ("kill_grace", "evaluator_wait", "leader_wait", "sample_interval")  # in seconds


def as_name(text: str) -> str:
    """The name of a job that is called after something else, such as a program; empty where no letter is left."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]", "-", text).lstrip(".+=-")
    return (f"run-{name}" if ID.fullmatch(name) else name)[:63]


def need_program(spec: JobSpec, hint: str = _NAME_A_PROGRAM) -> None:
    """Check that every task has a program to run.

    Args:
        spec: The job.
        hint: How to name one.

    Raises:
        SpecError: When a command has only arguments.
        UsageError: When a task type has no command, no entry and is not served.
    """
    own = ((f"tasks.{name}.command", table.command) for name, table in spec.tasks.items())
    for key, command in (("command", spec.command), *own):
        if command and command[0].startswith("-"):
            what = f"the first item, the program to run, begins with a dash: {command[0]!r}"
            raise SpecError(key, what, hint='write the program first, such as "python"')
    if spec.command or spec.entry:
        return
    types = [name for name in spec.types if spec.count(name) != 0 and not spec.serves(name)]
    idle = [name for name in types if spec.task(name).command is None]
    if idle:
        which = "" if len(idle) == len(types) else f" on {', '.join(idle)}"
        raise UsageError(f"nothing to run{which}", hint=hint)


def spell(value: object) -> str:
    """Format a value as a job file (TOML) spells it, for messages."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {spell(item)}' for key, item in value.items())}}}"
    return repr(value) if isinstance(value, str) else str(value)


def _whole(key: str, value: object, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        plain = str(value).removesuffix(".0")  # of "2" or 2.0
        meant = plain if re.fullmatch("[0-9]{1,9}", plain) and int(plain) >= least else ""
        hint = (
            f"write {meant}, without quotes" if meant == value else f"write a number, such as {meant or max(least, 2)}"
        )
        raise SpecError(key, f"{spell(value)} is not a whole number of {least} or more", hint=hint)
    if isinstance(value, int) and value > MOST:
        raise SpecError(key, f"{value} is more than the maximum, {MOST}")


def check_text(key: str, value: object) -> None:
    """Check an optional value that must be text on one line.

    Args:
        key: Its dotted key, for the error.
        value: The value; None passes.

    Raises:
        SpecError: When it is not a string, empty or contains a control character.
    """
    if value is None:
        return
    if not isinstance(value, str) or not value:
        texts = [item for item in (value if isinstance(value, list | tuple) else [value]) if item not in (None, "")]
        hint = f"write {key} = {toml(str(texts[0]))}" if len(texts) == 1 and not isinstance(texts[0], bool) else ""
        raise SpecError(key, f"{spell(value)} is not a non-empty string", hint=hint)
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise SpecError(key, f"{value!r} contains a control character", hint="leave out newlines, tabs and the like")


def _list(key: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):  # a string is a sequence as well
        what = "one string" if isinstance(value, str) else spell(value)
        hint = _as_list(key, value) if isinstance(value, str) else ""
        raise SpecError(key, f"expected a list of strings, not {what}", hint=hint)
    return tuple(value)


def check_strings(key: str, value: object) -> tuple[str, ...]:
    """Check a list of strings.

    Args:
        key: Its dotted key, for the error.
        value: The value.

    Returns:
        The list.

    Raises:
        SpecError: When it is something else, or an item is not a string.
    """
    items = _list(key, value)
    _strings(key, items, newlines=True)
    return items


def _strings(key: str, value: Sequence[object], *, newlines: bool) -> None:
    for item in value:
        if not isinstance(item, str):
            raise SpecError(key, f"{spell(item)} is not a string")
        if "\0" in item or (not newlines and "\n" in item):
            raise SpecError(key, f"{item!r} contains a {'NUL' if newlines else 'newline'}, which cannot be passed on")


def _command(key: str, words: Sequence[object], names: Sequence[str]) -> None:
    _strings(key, words, newlines=True)
    if words and not words[0]:
        raise SpecError(key, "the first item, the program to run, is empty")
    for word in map(str, words):
        _placeholders(key, word, names)


def _placeholders(key: str, word: str, names: Sequence[str], *, whole: bool = True) -> None:
    """Refuse an unknown placeholder. whole: also a word that is like none, if it is all there is in braces."""
    for name, meant in misspelt(word, names, whole=whole and is_whole(word)):
        hint = f"did you mean {{{meant}}}?" if meant else "`gridtf submit --help` lists the placeholders;"
        literal = f"{{{{{name}}}}}" if is_whole(word) else f"{{ {name} }}"
        hint += f" to pass braces to the program itself, write {literal}"
        raise SpecError(key, f"there is no placeholder {{{name}}}", hint=hint)


def _environment(key: str, value: object, names: Sequence[str]) -> None:
    if not isinstance(value, Mapping):
        raise SpecError(key, "expected a table of strings")
    for name, text in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise SpecError(f"{key}.{name}", f"{name!r} is not a name that a shell can export")
        if not isinstance(text, str) or "\0" in text:
            raise SpecError(f"{key}.{name}", f"{spell(text)} is not a string", hint=f'write {name} = "{spell(text)}"')
        _placeholders(f"{key}.{name}", text, names, whole=False)  # {message} may be the format of a log


def _parsed(key: str, value: str | int | None, parse: Callable[[str | int], object], forms: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SpecError(key, f"{spell(value)} is of the wrong type", hint=f"write {forms}")
    try:
        parse(value)
    except ValueError as error:
        limitless = key in ("time", "mem") and str(value).lower() in _LIMITLESS
        hint = f"no limit is an option of Slurm itself, to pass in native: --{key}=0" if limitless else f"write {forms}"
        raise SpecError(key, str(error), hint=hint) from None


def _check_texts(spec: JobSpec) -> None:
    for key in ("scheduler", "python", "chdir", "template", "run_dir", "run_root"):
        check_text(key, getattr(spec, key))
    if spec.name is not None and not (isinstance(spec.name, str) and _NAME.fullmatch(spec.name)):
        raise SpecError(
            "name",
            f"{spell(spec.name)} is not a job name",
            hint="use up to 63 letters, digits and _ . + = -, with a letter, digit or _ first",
        )
    names = placeholders(spec.tasks)
    _command("command", spec.command, names)
    _strings("setup", spec.setup, newlines=True)
    _strings("native", spec.native, newlines=False)
    for host in spec.exclude:
        check_text("exclude", host)
    if spec.notify is not None and not _NOTIFY.fullmatch(str(spec.notify)):
        address = spec.notify if _NOTIFY.fullmatch(f"mail:{spec.notify}") and isinstance(spec.notify, str) else ""
        hint = f"write mail:{address}" if address else "write mail, or mail:ann@example.org"
        raise SpecError("notify", f"{spell(spec.notify)} is no way to notify", hint=hint)
    _environment("env", spec.env, names)
    options: object = spec.options
    if not isinstance(options, Mapping):
        raise SpecError("options", f"{spell(options)} is not a table of options")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise SpecError(f"options.{key}", f"{spell(value)} is neither a string nor a number")
    for key, words in _CHOICES.items():
        value = getattr(spec, key)
        if value not in (None, *words):
            choices = ", ".join(words)
            raise SpecError(key, f"{spell(value)} is not one of {choices}", hint=nearest(str(value), list(words)))
    hook: object = spec.hook
    if not isinstance(hook, bool):
        raise SpecError("hook", f"{spell(hook)} is neither true nor false", hint="write hook = false, or leave it out")


def _check_sizes(spec: JobSpec) -> None:
    _parsed("time", spec.time, parse_walltime, WALLTIME_FORMS)
    _parsed("checkpoint_before", spec.checkpoint_before, parse_duration, WALLTIME_FORMS)
    after: object = spec.stall_after
    if after is None:
        raise SpecError("stall_after", "it has no value", hint='write a time such as "10m", or "off"')
    _parsed("stall_after", spec.stall_after, parse_pause, f'"off", {WALLTIME_FORMS}')
    _check_end(spec)
    _parsed("mem", spec.mem, parse_memory, _MEM_FORMS)
    _parsed("mem_per_task", spec.mem_per_task, parse_memory, _MEM_FORMS)
    _parsed("log_limit", spec.log_limit, parse_memory, _MEM_FORMS)
    if spec.mem is not None and spec.mem_per_task is not None:
        raise SpecError("mem_per_task", "memory is requested both per task and per host", hint="keep one of them")
    _parsed("nodes", spec.nodes, parse_nodes, "a number, or a range such as 2-4")
    least_of = {"gpus_per_node": 0, "tasks_per_node": 1, "gpus_per_task": 0, "cpus_per_task": 1}
    for key, least in {**least_of, "restarts": 0, "spare_nodes": 0}.items():
        _whole(key, getattr(spec, key), least)
    for key in ("start_timeout", "heartbeat_timeout", *_MAY_BE_ZERO):
        value = getattr(spec, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or (value == 0 and key not in _MAY_BE_ZERO):
            raise SpecError(key, f"{spell(value)} is not a number of seconds", hint=_in_seconds(value))
    if 0 < spec.sample_interval < 1:
        raise SpecError("sample_interval", f"{spell(spec.sample_interval)} is less than a second", hint="0: no samples")
    if spec.on_stall == "restart" and not spec.restarts:
        hint = "add restarts = 1 or more, or choose report or end"
        raise SpecError("on_stall", "a stalled job is to be restarted, but restarts is 0", hint=hint)
    if spec.on_stall not in (None, "report") and spec.seconds_to_stall is None:
        raise SpecError("on_stall", "stall_after is off, so that no job is stalled", hint="give stall_after a time")
    if spec.spare_nodes and not spec.restarts:
        what = f"{counted(spec.spare_nodes, 'spare host')} for restarts, but restarts is 0"
        raise SpecError("spare_nodes", what, hint="add restarts = 1 or more, or leave spare_nodes out")
    if spec.gpus_per_node and spec.gpus_per_task and spec.gpus_per_task > spec.gpus_per_node:
        what = f"{spec.gpus_per_task} GPUs per task, but gpus_per_node is {spec.gpus_per_node}"
        raise SpecError("gpus_per_task", what)


def _in_seconds(value: object) -> str:
    """What to write for a number of seconds in quotes or with a unit, such as ``10m``."""
    text = str(value)
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and text.strip("0."):
        return f"write {text}, without quotes"
    try:
        return f"write {parse_duration(text)}" if isinstance(value, str) else ""
    except ValueError:
        return "write a number, such as 60"


def _check_end(spec: JobSpec) -> None:
    before: object = spec.checkpoint_before
    given: object = spec.continuations
    if given is None:
        raise SpecError("continuations", "it has no value", hint="write a number, such as 2, or leave it out")
    _whole("continuations", given, 0)
    if given and before is None:
        hint = "say how long before the end of the walltime to save: --checkpoint-before 5m"
        raise SpecError("continuations", "a job that is never asked to save cannot be continued", hint=hint)
    if spec.walltime is not None and (spec.seconds_to_save or 0) >= spec.walltime:
        early = format_walltime(spec.seconds_to_save or 0)
        what = f"{early} is not less than the walltime, {format_walltime(spec.walltime)}"
        hint = "a checkpoint is requested that long before the end; a plain number is in minutes"
        raise SpecError("checkpoint_before", what, hint=hint)


def need_walltime(spec: JobSpec) -> None:
    """Check, before the submission, that a checkpoint is requested before an end that exists.

    Args:
        spec: The job.

    Raises:
        SpecError: For a job without a walltime.
    """
    if spec.checkpoint_before is not None and spec.time is None:
        hint = "add a walltime, such as --time 2:00:00"
        raise SpecError("checkpoint_before", "the job has no walltime before whose end it could save", hint=hint)


def _check_types(spec: JobSpec) -> None:
    for task_type, table in spec.tasks.items():
        key = f"tasks.{task_type}"
        kind: object = table.kind
        if task_type in TASK_TYPES and kind is not None:
            raise SpecError(f"{key}.kind", f"{task_type} is a type of TensorFlow's or gridtf's", hint="leave kind out")
        if task_type in TASK_TYPES:
            continue
        if kind is None:
            hint = nearest(str(task_type), list(TASK_TYPES)) or f"known: {', '.join(TASK_TYPES)}; {A_TYPE_OF_ONE_S_OWN}"
            raise SpecError(key, "unknown task type", hint=hint)
        if kind not in KINDS:
            raise SpecError(f"{key}.kind", f"{spell(kind)} is no kind of task", hint=f"write {_A_KIND}")
        if not _TYPE.fullmatch(str(task_type)):
            hint = "use up to 32 lower-case letters and _, with a letter first, as in parameter_cache"
            raise SpecError(key, f"{task_type!r} cannot be the name of a task type", hint=hint)
        if task_type == "job":
            what = "'job' cannot be the name of a task type: in `gridtf logs --task job` it stands for the job script"
            raise SpecError(key, what, hint="choose another name")


def _check_tasks(spec: JobSpec) -> None:
    names = placeholders(spec.tasks)
    for task_type, table in spec.tasks.items():
        key, row = f"tasks.{task_type}", spec.row(task_type)
        _whole(f"{key}.count", table.count, 0)
        _whole(f"{key}.gpus", table.gpus, 0)
        _whole(f"{key}.cpus", table.cpus, 1)
        _parsed(f"{key}.mem", table.mem, parse_memory, _MEM_FORMS)
        _check_partition(f"{key}.partition", task_type, spec)
        _check_membership(f"{key}.in_cluster", task_type, spec)
        _check_on_failure(f"{key}.on_failure", task_type, spec)
        _environment(f"{key}.env", table.env, names)
        if table.command is not None:
            if not isinstance(table.command, tuple) or not table.command:
                given: object = table.command
                if given == ():
                    raise SpecError(f"{key}.command", "the list is empty: there is nothing to run")
                hint = _as_list("command", given) if isinstance(given, str) else ""
                what = "one string" if hint else spell(given)
                raise SpecError(f"{key}.command", f"expected a list of strings, not {what}", hint=hint)
            _command(f"{key}.command", table.command, names)
            if row.served == ALWAYS:
                raise SpecError(f"{key}.command", f"gridtf runs a server in a {task_type}", hint="leave it out")
        if row.limit is not None and (table.count or 0) > row.limit:
            raise SpecError(f"{key}.count", f"{table.count} requested, but a job can have only {row.limit}")
        if table.gpus and not row.takes_gpu:
            raise SpecError(f"{key}.gpus", f"a {task_type} takes no GPU", hint="leave it out, or write 0")
    if bool(spec.count(DISPATCHER)) != bool(spec.count(DATA_WORKER)):
        has, lacks = (DISPATCHER, DATA_WORKER) if spec.count(DISPATCHER) else (DATA_WORKER, DISPATCHER)
        hint = "request data workers with --data-workers N: that adds the dispatcher"
        raise SpecError(f"tasks.{lacks}.count", f"there is a {has}, but no {lacks}", hint=hint)
    _check_leader(spec)
    leaders = [leader for leader in LEADERS if spec.count(leader)]
    if len(leaders) > 1:
        raise SpecError("tasks.master", "chief and master are two names of one task", hint="keep one of them")
    if not any(spec.count(name) != 0 and spec.row(name).trains for name in spec.types):
        raise SpecError("tasks.worker.count", "no worker and no chief: nothing would train")


def _check_leader(spec: JobSpec) -> None:
    if spec.leader is None:
        return
    known = (*LEADERS, FIRST_WORKER)
    if spec.leader not in known:
        hint = nearest(str(spec.leader), list(known))
        raise SpecError("leader", f"{spell(spec.leader)} is not one of {', '.join(known)}", hint=hint)
    for name in LEADERS:
        if (count := spec.task(name).count) is not None and count != (name == spec.leader):
            what = f"the leader is {spec.leader}, but tasks.{name}.count is {count}"
            raise SpecError("leader", what, hint=f"leave out tasks.{name}.count")
    if spec.leader == FIRST_WORKER and spec.count("worker") == 0:
        raise SpecError("leader", "there is no worker that could lead", hint='write leader = "chief"')


def _check_partition(key: str, task_type: str, spec: JobSpec) -> None:
    partition = spec.task(task_type).partition
    check_text(key, partition)
    if partition not in (None, spec.partition) and spec.row(task_type).takes_gpu:
        non_training = ", ".join(name for name in spec.types if not spec.row(name).takes_gpu)
        raise SpecError(
            key,
            f"a {task_type} trains, and training tasks run on the job's own partition",
            hint=f"set the job's partition instead; only {non_training} can have one of their own",
        )


def _check_on_failure(key: str, task_type: str, spec: JobSpec) -> None:
    chosen = spec.task(task_type).on_failure
    if chosen is not None and chosen not in ON_FAILURE:
        choices = ", ".join(ON_FAILURE)
        hint = nearest(str(chosen), list(ON_FAILURE)) or f"choose from {choices}"
        raise SpecError(key, f"{spell(chosen)} is not one of {choices}", hint=hint)
    if chosen == RESTART and task_type == "ps":
        what = "a ps that starts again has lost the variables that it held"
        raise SpecError(key, what, hint='write "attempt", and restarts = 1 or more: then all tasks start again')


def _check_membership(key: str, task_type: str, spec: JobSpec) -> None:
    member = spec.task(task_type).in_cluster
    if member is not None and not isinstance(member, bool):
        raise SpecError(key, f"{spell(member)} is neither true nor false")
    if member and not spec.row(task_type).in_cluster:
        what = f"TensorFlow's strategies would wait for a cluster member of type {task_type}"
        raise SpecError(key, what, hint="leave in_cluster out")
    if member is False and task_type in spec.serve:
        raise SpecError(key, f"gridtf serves {task_type}, and a TensorFlow server is a member of the cluster")
    if member is False and not any(spec.count(name) != 0 and spec.in_cluster(name) for name in spec.types):
        raise SpecError(key, "no task would be left in the cluster", hint="leave in_cluster out")


def _check_program(spec: JobSpec) -> None:
    if spec.command and spec.entry:
        raise SpecError("entry", "both a command and an entry function are given", hint="keep one of them")
    if spec.entry is not None and not (isinstance(spec.entry, str) and _ENTRY.fullmatch(spec.entry)):
        raise SpecError("entry", f"{spell(spec.entry)} is not module:function", hint="main() in train.py is train:main")
    for task_type in spec.serve:
        servable = [name for name in spec.types if spec.row(name).served == ON_REQUEST]
        if task_type not in servable:
            hint = f"choose from {', '.join(servable)}"
            raise SpecError("serve", f"{spell(task_type)} cannot be served by gridtf", hint=hint)
        if spec.task(task_type).command is not None:
            raise SpecError("serve", f"{task_type} has a command of its own: tasks.{task_type}.command")
    trains = any(spec.count(name) != 0 and spec.row(name).trains and not spec.serves(name) for name in spec.types)
    if "worker" in spec.serve and not trains:
        raise SpecError("serve", "with the workers served by gridtf nothing would train", hint="request a chief too")
    if spec.success_policy == "chief" and not trains:
        raise SpecError("success_policy", "there is neither a chief nor a worker")


def _check_network(spec: JobSpec) -> None:
    for key in ("address", "interface"):
        check_text(key, getattr(spec, key))
    if spec.address is not None and spec.interface is not None:
        what = f"both an address and an interface are given, {spell(spec.address)} and {spell(spec.interface)}"
        raise SpecError("interface", what, hint="choose one of them, and leave out the other")
    if spec.interface is not None and not _INTERFACE.fullmatch(spec.interface):
        hint = "write the name of a network interface, such as ib0: `ip -brief address` on a host lists them"
        raise SpecError("interface", f"{spell(spec.interface)} is not the name of a network interface", hint=hint)
    if spec.address is None:
        return
    for name in re.findall(r"\{(.*?)\}", spec.address):
        if name not in HOST_NAMES:
            hint = "write {host}, the scheduler's name of the host, or {short}, that name up to the first dot"
            raise SpecError("address", f"there is no placeholder {{{name}}}", hint=hint)
    names = [host_address(spec.address, host) for host in ("a", "b")]
    if names[0] == names[1]:
        hint = 'write the part that differs as {host}, such as "{host}i" or "{short}-ib.cluster"'
        raise SpecError("address", f"{spell(spec.address)} is the same on every host", hint=hint)
    if not _HOST_NAME.fullmatch(names[0]):
        hint = 'write letters, digits, ".", "-", "_", and {host}: gridtf adds the port'
        raise SpecError("address", f"{spell(spec.address)} makes no host name", hint=hint)


def _check_container(spec: JobSpec) -> None:
    check_text("container", spec.container)
    for bind in spec.container_binds:
        check_text("container_binds", bind)
        parts = bind.split(":")
        if len(parts) > 3 or not all(part.startswith("/") for part in parts[:2]):
            hint = 'write a path on the host, and where it is in the container: "/data:/data", or "/data:/data:ro"'
            raise SpecError("container_binds", f"{spell(bind)} is not SOURCE:TARGET with absolute paths", hint=hint)
        if parts[2:] and not spec.container_command and parts[2] not in ("ro", "rw"):
            raise SpecError("container_binds", f"{spell(bind)}: the mode is ro or rw, not {spell(parts[2])}")
    words = spec.container_command
    for word in words:
        check_text("container_command", word)
    names = {name for word in words for name in re.findall(r"\{([a-z]+)\}", word)}
    for name in sorted(names - set(CONTAINER_NAMES)):
        hint = f"known: {', '.join(f'{{{known}}}' for known in CONTAINER_NAMES)}"
        raise SpecError("container_command", f"there is no placeholder {{{name}}}", hint=hint)
    if spec.container_binds and not spec.contained:
        raise SpecError("container_binds", "there is no container", hint=_NAME_AN_IMAGE)
    if spec.container is None and "image" in names:
        raise SpecError("container_command", "it has {image}, and there is no container", hint=_NAME_AN_IMAGE)
    if spec.container and (uri := re.fullmatch(r"([a-z]+):/([^/].*)", spec.container)):
        hint = f"write {uri[1]}://{uri[2]}"
        raise SpecError("container", f"{spec.container} is neither a path nor a URI", hint=hint)
    if spec.container and not words and (name := _REGISTRY.fullmatch(spec.container)):
        raise SpecError("container", f"{spec.container} is neither a path nor a URI", hint=f"write docker://{name[0]}")
    if words and spec.container is not None and "image" not in names:
        hint = f"write it where {words[0]} expects the image, or leave out container"
        raise SpecError("container_command", "it has no {image} for the container", hint=hint)
    if words and spec.container_binds and "bind" not in names:
        hint = f"write {words[0]}'s option for a bind once, such as --volume={{bind}}"
        raise SpecError("container_command", "it has no {bind} for container_binds", hint=hint)


_CHECKS = (_check_types, _check_texts, _check_sizes, _check_tasks, _check_program, _check_network, _check_container)
