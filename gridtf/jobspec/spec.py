"""The specification of a job: JobSpec and TaskSpec. Frozen, validated; no I/O, clock or environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf.errors import GridtfError, SpecError, nearest
from gridtf.jobspec import tasktypes, units
from gridtf.jobspec.checks import CHECKS
from gridtf.jobspec.primitives import as_name, as_tuple, spell
from gridtf.values import Value, fields

# Lists are accepted and stored as tuples. Not Sequence[str], because a single string is one as well.
Strings = tuple[str, ...] | list[str]
# The keys of a job that are lists of strings.
LISTS = (
    *("command", "serve", "serve_imports", "nodelist", "exclude", "native", "setup", "host_setup", "stage", "on"),
    *("after", "after_any", "after_failed", "container_binds", "container_command"),
)


ONE_MODEL = "keep one of them; a leader whose GPUs differ has its own under [tasks.chief]"


class _Keywords(Value):
    """Base of both classes: an unknown keyword is a SpecError that names what to write."""

    if not TYPE_CHECKING:  # which would accept any keyword

        def __new__(cls, *values: object, **keywords: object) -> _Keywords:
            known = fields(cls)
            for word, value in keywords.items():
                if word not in known:
                    from gridtf.jobspec import synonyms

                    hint = synonyms.keyword(word, value) or nearest(word, list(known)) or f"known: {', '.join(known)}"
                    raise SpecError(word, f"{cls.__name__} has no such keyword", hint=hint)
            return super().__new__(cls)


class TaskSpec(_Keywords):
    """One task type's table in the job file (``[tasks.worker]``).

    Attributes:
        count: Number of tasks. None: as many workers as the allocation has room for, unless only a client is to train;
            one task of another type that has a table, none of a type without one.
        gpus: GPUs per task, also with their model as in "a100:2". None: the job's ``gpus_per_task`` for a type that
            trains, else 0.
        gpu_model: The model of these GPUs, where it differs from the job's. A leader whose GPUs differ from those of
            the workers has a host of its own (Slurm only).
        cpus: CPUs per task. None: the job's ``cpus_per_task``.
        mem: Memory per task, in MiB or as text such as "8G". None: the job's ``mem_per_task``.
        partition: For a type that takes no GPU, or GPUs of another model: the partition its tasks run on (Slurm only),
            such as one without GPUs. The job's ``mem`` does not apply there. None: the job's.
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
    gpu_model: str | None = None
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
        _split_gpus(self)


class JobSpec(_Keywords):
    """The specification of a job, validated on construction.

    Field names are the job file's keys and, with dashes, the flags. None always means "not given".
    ``spec.replace(nodes=4)`` returns a specification with some fields changed.

    Attributes:
        command: The program and arguments of every task; placeholders such as ``{task_index}`` are filled in.
        entry: The training loop as a function, ``module:function``, instead of ``command``.
        params: Parameters of the program, name -> number, text, true or false: ``{params.lr}`` in a command is one of
            them, ``{params}`` all of them as flags, GRIDTF_PARAMS all of them as JSON.
        snapshot: Whether the job runs in a copy of its working folder, made at the submission.
        name: Job name; up to 63 letters, digits and ``_ . + = -``. None: derived from the command or the entry.
        scheduler: Name of the scheduler, such as "slurm". None: the one found on this machine, else "local".
        tasks: Task type -> TaskSpec, or a dict of its fields, which becomes one: ``{"ps": {"count": 1}}``.
        leader: The task that leads the others: "chief" or "master" (TensorFlow 1's name for it), which is added to the
            workers, or "first-worker". When it has exited with 0, the others have ``leader_wait`` seconds left. None:
            the chief or master if ``tasks`` has one, in a job with ps the first worker, else none.
        serve: Task types ("ps", "worker") for which gridtf runs a plain TensorFlow server instead of the command.
        serve_imports: Modules that served tasks import before they serve, such as "tensorflow_decision_forests", whose
            operations a plain server does not know.
        mpi: Whether all tasks are started as the ranks of an MPI world: True, or what starts them, "mpirun", a type of
            Slurm's ``srun --mpi``, such as "pmix", or "gloo" for Horovod without MPI.
        success_policy: Which exit codes of 0 complete the job: those of "all" tasks that train, or the "chief"'s alone.
        nodes: Number of hosts, or a range such as "2-4". None: as many as the tasks need.
        gpus_per_node: GPUs per host, also with their model as in "a100:4", which becomes ``gpu_model``; so may the next
            ones. None: what the tasks of a host need.
        gpus: GPUs of all hosts together, instead of ``gpus_per_node`` or of ``nodes``.
        tasks_per_node: Training tasks per host. None: one for each ``gpus_per_task`` GPUs of a host.
        gpus_per_task: GPUs per training task. None: an even share of those of its host where the number of tasks
            there is known, else 1 where hosts have GPUs, else 0.
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
        qos: Slurm's quality of service.
        time_min: Walltime, in the forms of ``time``, to which Slurm may shorten it where the job starts sooner so.
        gpu_model: The model of the GPUs, as the site calls it, such as "a100", or "1g.10gb" for a part of one.
        gpu_model_resource: The site's resource (of Grid Engine) that tells the model of GPUs. None: found in qconf -sc.
        constraint: Features that all hosts must have (Slurm's --constraint), or resources (Grid Engine's -l).
        reservation: The advance reservation that the job runs in: its name (Slurm) or id (Grid Engine).
        licenses: Licenses that the job needs, such as "matlab:2,tensor".
        nodelist: Hosts that the job must use, as the scheduler calls them.
        gpu_resource: The site's name of its GPU resource (a complex of Grid Engine, complex(5)).
        gpu_variable: Name of the variable by which a Grid Engine site grants GPUs. None: those that gridtf knows.
        exclude: Hosts that the job must not use, as the scheduler calls them (Slurm and Grid Engine).
        notify: "mail": the scheduler sends mail when the job ends or is started again (Slurm and Grid Engine), to the
            user who submits it; "mail:ann@example.org": to that address.
        options: Options of schedulers from other packages, by key; in a job file they are top-level keys.
        native: Options passed to the scheduler unchanged, one per item, such as "--qos=long".
        env: Environment variables of all tasks.
        setup: Shell lines that run on the first host before the tasks start, such as "module load cuda".
        host_setup: Shell lines that run on every host before its tasks start.
        stage: Files, folders and archives (.tar, .tar.gz, .zip) that every host copies, or unpacks, to its local disk
            before its tasks start.
        on: Shell commands that run on the first host at the job's start, its first step, a failure and its end, with
            a record of what has happened as JSON on their standard input.
        after: Jobs that must have completed before this one starts: names, ids or run directories.
        after_any: Jobs that must have ended before this one starts, in whatever way.
        after_failed: Jobs that must have ended otherwise than completed before this one starts.
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
        ports: What to do with the port that gridtf reserves for a task: "hold" it, since TensorFlow 2.3 and newer share
            it with gridtf, "release" it just before the task starts, or "auto": by the version that the task's Python
            has, "hold" where that is not known, and "release" for services and clients.
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
        avoid_bad_hosts: Whether hosts that were bad in at least two of your jobs within seven days, or that the site
            has marked, are excluded: at most a tenth of those that could run the job (of ten or fewer hosts one), and
            none that it needs. Slurm and Grid Engine only.
        stall_after: How long no task does anything until the job is stalled, as text such as "10m" or in minutes, like
            ``time``: no line in a log, no reported step, less than 1 % of a core, and stacks that do not change.
            "off" or 0: stalls are not detected.
        on_stall: What to do with a stalled job: "report" it in status and log, "end" it, or "restart" all tasks, which
            needs ``restarts``.
        check: Whether hosts are measured before the tasks start: "quick", all of them at once in about ten seconds, or
            "off". A host that is far from the others is named; a spare one takes its place where there is one.
        on_bad_host: What to do with such a host where there is none to spare: "warn", and go on, or "end" the job.
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
    params: Mapping[str, Any] = {}
    snapshot: bool = False
    name: str | None = None
    scheduler: str | None = None
    tasks: Mapping[str, Any] = {}
    leader: str | None = None
    serve: Strings = ()
    serve_imports: Strings = ()
    mpi: bool | str = False
    success_policy: str = "all"
    nodes: int | str | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
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
    qos: str | None = None
    time_min: str | int | None = None
    gpu_model: str | None = None
    gpu_model_resource: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    licenses: str | None = None
    nodelist: Strings = ()
    exclude: Strings = ()
    notify: str | None = None
    options: Mapping[str, Any] = {}
    native: Strings = ()
    env: Mapping[str, str] = {}
    setup: Strings = ()
    host_setup: Strings = ()
    stage: Strings = ()
    on: Strings = ()
    after: Strings = ()
    after_any: Strings = ()
    after_failed: Strings = ()
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
    avoid_bad_hosts: bool = False
    stall_after: str | int = "10m"
    on_stall: str = "report"
    check: str = "off"
    on_bad_host: str = "warn"
    log_limit: str | int | None = None
    sample_interval: float = 5.0
    start_timeout: float = 600.0
    heartbeat_timeout: float = 30.0
    evaluator_wait: float = 60.0
    leader_wait: float = 300.0

    def __post_init__(self) -> None:
        for name in LISTS:
            object.__setattr__(self, name, as_tuple(name, getattr(self, name)))
        object.__setattr__(self, "tasks", _tables(self.tasks))
        _copy_tables(self, "params", "env", "options")
        _split_gpus(self)
        for check in CHECKS:
            check(self)

    @property
    def walltime(self) -> int | None:
        """The walltime in seconds; None when not given."""
        return None if self.time is None else units.parse_walltime(self.time)

    @property
    def with_gpus_per_node(self) -> JobSpec:
        """The same job with ``gpus``, the GPUs of all hosts, as GPUs per host and a number of hosts.

        Raises:
            SpecError: When the hosts cannot have as many GPUs each, or as many in all.
        """
        if self.gpus is None:
            return self
        each, (low, high) = self.gpus_per_node, self.node_range or (1, 1)
        workers = 0 if any(self.count(name) for name in tasktypes.LEADERS) else self.count("worker")
        share = self.gpus // workers if workers and not self.gpus % workers else 0
        if share and each is None and self.nodes is None and self.gpus_per_task in (None, share):
            return self.replace(gpus=None, gpus_per_task=share)
        if each is None and low == high and not self.gpus % low:
            return self.replace(gpus=None, gpus_per_node=self.gpus // low)
        if each and self.nodes is None and self.gpus and not self.gpus % each:
            return self.replace(gpus=None, nodes=self.gpus // each)
        if each is not None and low == high and each * low == self.gpus:
            return self.replace(gpus=None)
        has = f"{'a range of' if low < high else low} hosts{'' if each is None else f' with {each} each'}"
        what = f"{self.gpus} GPUs in all do not fit {has}"
        raise SpecError("gpus", what, hint="leave gpus out, and write nodes = … and gpus_per_node = …")

    @property
    def least_walltime(self) -> int | None:
        """``time_min`` in seconds; None where it is not set."""
        return None if self.time_min is None else units.parse_walltime(self.time_min)

    @property
    def seconds_to_save(self) -> int | None:
        """How long before the end of the walltime a checkpoint is requested, in seconds; None: it is not."""
        return None if self.checkpoint_before is None else units.parse_duration(self.checkpoint_before)

    @property
    def seconds_to_stall(self) -> int | None:
        """For how long no task of a stalled job does anything, in seconds; None: stalls are not detected."""
        return units.parse_pause(self.stall_after)

    @property
    def node_range(self) -> tuple[int, int] | None:
        """(fewest, most) hosts; None when not given."""
        return None if self.nodes is None else units.parse_nodes(self.nodes)

    @property
    def mem_mib(self) -> int | None:
        """Memory per host in MiB (as Slurm's --mem); None when not given."""
        return None if self.mem is None else units.parse_memory(self.mem)

    @property
    def log_bytes(self) -> int | None:
        """How large the log of a task may become, in bytes; None: there is no limit."""
        return None if self.log_limit is None else units.parse_memory(self.log_limit) << 20

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
        own = sorted(name for name in self.tasks if name not in tasktypes.TASK_TYPES)  # in the job as at the submission
        return tuple(sorted([*tasktypes.TASK_TYPES, *own], key=lambda name: not self.row(name).trains))

    @property
    def own_model(self) -> str | None:
        """The model of the GPUs on the job's own hosts: that of the workers, in a job without any of its leader."""
        return self.task(self._main_type).gpu_model or self.gpu_model

    @property
    def _main_type(self) -> str:
        """The type whose hosts are the job's own: workers, in a job without any its leader."""
        return next((name for name in ("worker", *tasktypes.LEADERS) if self.count(name) != 0), "worker")

    def apart(self, task_type: str) -> bool:
        """Whether the tasks of a type have GPUs of another model, and so other hosts, than the job's own."""
        model = self.task(task_type).gpu_model
        return bool(model) and task_type != self._main_type and model != self.own_model

    def row(self, task_type: str) -> tasktypes.TaskType:
        """How gridtf treats tasks of this type."""
        return tasktypes.properties(task_type, self.task(task_type).kind or "")

    def count(self, task_type: str) -> int | None:
        """Number of tasks of this type; None: as many workers as the allocation has room for.

        A job with a client of its own has workers only where it names them.
        """
        table: TaskSpec | None = self.tasks.get(task_type)
        if table is not None and table.count is not None:
            return table.count
        if task_type == "worker":
            client = any(one.kind == tasktypes.CLIENT and one.count != 0 for one in self.tasks.values())
            return 0 if table is None and client and "worker" not in self.serve else None
        if task_type == tasktypes.DISPATCHER:  # data workers need one
            return int(table is not None or bool(self.count(tasktypes.DATA_WORKER)))
        if task_type in tasktypes.LEADERS and self.leader is not None:
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
        if task_type in self.serve or self.row(task_type).served == tasktypes.ALWAYS:
            return True
        has_command = self.task(task_type).command is not None
        return task_type == "ps" and bool(self.entry) and not has_command and self.in_cluster(task_type)

    def in_place(self, task_type: str) -> int:
        """How often a task of this type may be started again on its port while the others go on."""
        chosen = self.task(task_type).on_failure
        if chosen is None:
            return self.row(task_type).restarts if self.serves(task_type) else 0
        return tasktypes.MOST_IN_PLACE if chosen == tasktypes.RESTART else 0

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


def _split_gpus(spec: JobSpec | TaskSpec) -> None:
    """Make numbers of GPUs plain that name a model as well, such as "a100:4"."""
    try:
        for name, value in units.split_gpus(vars(spec)).items():
            object.__setattr__(spec, name, value)
    except ValueError as error:
        raise SpecError("gpu_model", str(error), hint=ONE_MODEL) from None


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
