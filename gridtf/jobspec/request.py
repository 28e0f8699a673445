"""The request a JobSpec makes of a scheduler: hosts, tasks, GPUs, CPUs and memory, computed once. Pure.

The request is made when a job is submitted, and is passed on in the job script and in the plan of every attempt;
directives, checks, `gridtf render`, the allocation and the placement start from it. For a hand-written script it is
made inside the job, where the scheduler's allocation takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import gcd
from typing import Any

from gridtf.errors import SpecError
from gridtf.jobspec.options import KINDS, Option
from gridtf.jobspec.primitives import check_text
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.jobspec.tasktypes import LEADERS, TaskType, properties
from gridtf.jobspec.units import MOST, parse_memory
from gridtf.text import counted
from gridtf.values import Value, as_dict


class Role(Value):
    """The tasks of one type.

    Attributes:
        type: The task type, such as ``worker``.
        count: Number of tasks; None: as many workers as the allocation has room for.
        gpus: GPUs per task; None, when not specified: one on a host that has GPUs.
        cpus: CPUs per task; None when not specified.
        mem: Memory per task in MiB; None when not specified.
        component: Index of the component of the job that the tasks belong to; 0 is the job's own partition.
        served: Whether gridtf runs a plain TensorFlow server in each of them.
        in_cluster: Whether they are members of TensorFlow's cluster.
        kind: Their kind, for a type of the job's own; empty for TensorFlow's types.
    """

    type: str
    count: int | None
    gpus: int | None
    cpus: int | None = None
    mem: int | None = None
    component: int = 0
    served: bool = False
    in_cluster: bool = True
    kind: str = ""

    @property
    def row(self) -> TaskType:
        """How gridtf treats tasks of this type."""
        return properties(self.type, self.kind)

    @property
    def takes_gpu(self) -> bool:
        """Whether tasks of this type take GPUs (or slots, without GPUs); the others run on any host."""
        return self.row.takes_gpu


class Component(Value):
    """What a job requests of one partition, or of one model of GPUs: a component of a heterogeneous Slurm job.

    Attributes:
        partition: Its name; None: the scheduler's default.
        types: The task types of this component, in rank order.
        count: Number of these tasks; 0 for the first component, whose number of workers may be open.
        cpus: CPUs of the largest of these tasks; None when not specified.
        mem: Memory of the largest of these tasks in MiB; None when not specified.
        gpus: GPUs of each of these tasks; 0 for the first component, whose hosts have gpus_per_node.
        gpu_model: The model of the GPUs; empty: any.
    """

    partition: str | None
    types: tuple[str, ...]
    count: int = 0
    cpus: int | None = None
    mem: int | None = None
    gpus: int = 0
    gpu_model: str = ""

    @property
    def key(self) -> str:
        """The key that made it a component of its own."""
        return f"tasks.{self.types[0]}.{'gpu_model' if self.gpus else 'partition'}"


class Request(Value):
    """What a job requests of its scheduler.

    Attributes:
        scheduler: The scheduler's name.
        name: The job's name.
        nodes: (fewest, most) hosts of the job's own partition.
        tasks_per_node: Training tasks per host; ps and evaluator tasks are not counted.
        gpus_per_node: GPUs per host; 0 without GPUs.
        gpus_per_task: GPUs of the training task that has the most; 0 without GPUs. This, and what follows, is of the
            job's own partition.
        training: Number of training tasks; None: as many as the allocation has room for.
        roles: The request of each task type that has tasks, in rank order.
        components: The partitions of the job; the first is the job's own.
        task_cpus: CPUs of a training task; None when not specified.
        non_training_cpus: CPUs of all non-training tasks (ps, evaluator) on the job's own partition.
        host_non_training_cpus: CPUs of the non-training tasks on the fullest host.
        host_mem: Memory of the fullest host in MiB; None when not specified.
        spare_nodes: Hosts of the job's own partition that are requested in addition, and idle until one is lost.
        mpi: What starts the ranks of an MPI world: mpirun, or a type of srun's; empty: there is none.
        walltime: Seconds; None: the scheduler's default.
        elements: Elements of the job array; empty for a single job.
        at_once: Of a sweep, how many elements of its array run at once; None: there is none, or the native options
            request it.
        pack: Of a sweep, how many elements share an allocation, which is requested for all of them.
        options: The scheduler's own options that the user has set, such as ``pe`` and ``slots``, by key.
        native: The user's native options, parsed by the scheduler: option -> value.
        left_open: Fields that the user has not specified, so that in the job the allocation decides.
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
    spare_nodes: int = 0
    mpi: str = ""
    walltime: int | None = None
    elements: tuple[str, ...] = ()
    at_once: int | None = None
    pack: int = 1
    options: Mapping[str, Any] = {}
    native: Mapping[str, str] = {}
    left_open: frozenset[str] = frozenset()

    def role(self, task_type: str) -> Role:
        """The request of this task type; a Role with no tasks if the job has none of them."""
        found = next((role for role in self.roles if role.type == task_type), None)
        return found or Role(task_type, 0, 0)

    def chosen(self, name: str) -> Any:
        """The value of a field that the user has specified; None for a field in ``left_open``."""
        return None if name in self.left_open else getattr(self, name)

    @property
    def allocated_nodes(self) -> tuple[int, int]:
        """(fewest, most) hosts of the job's own partition with the spare ones."""
        low, high = self.nodes
        return low + self.spare_nodes, high + self.spare_nodes

    @property
    def hours(self) -> tuple[float, str] | None:
        """The most that the job, or all elements of a sweep, may use: (hours, ``GPU`` or ``core``); None where its
        walltime is not known."""
        if self.walltime is None:
            return None
        hosts, others = self.allocated_nodes[1], self.components[1:]
        gpus = hosts * self.gpus_per_node + sum(other.count * other.gpus for other in others)
        cores = hosts * (self.tasks_per_node * (self.task_cpus or 1) + self.host_non_training_cpus)
        cores += sum(other.count * (other.cpus or 1) for other in others)
        if "slots" in self.options:
            cores = int(str(self.options["slots"]).rpartition("-")[2])
        jobs = -(-len(self.elements) // self.pack) or 1
        return (gpus or cores) * jobs * self.walltime / 3600, "GPU" if gpus else "core"

    @property
    def own_roles(self) -> tuple[Role, ...]:
        """The roles on the job's own partition."""
        return tuple(role for role in self.roles if not role.component)

    def gpus_of(self, task_type: str, default: int) -> int:
        """GPUs of one task of this type.

        Args:
            task_type: Such as ``worker``.
            default: GPUs of a task whose GPUs are not specified: 1 on a host that has GPUs, else 0.
        """
        gpus = self.role(task_type).gpus
        return default if gpus is None else gpus

    @property
    def gpu_share(self) -> int:
        """The most GPUs of which all tasks with GPUs have a multiple: those of each where all have the same."""
        return gcd(*(role.gpus or 0 for role in self.own_roles))

    @property
    def shares(self) -> int | None:
        """The training tasks, each counted as often as it has gpu_share GPUs; None where the number is open."""
        if self.training is None or self.gpu_share == self.gpus_per_task:
            return self.training
        return (self.gpus_in_all(0) or 0) // self.gpu_share

    @property
    def shares_per_node(self) -> int:
        """The shares per host, counted like ``shares``."""
        return self.tasks_per_node if self.gpu_share == self.gpus_per_task else self.gpus_per_node // self.gpu_share

    def most_gpus(self, default: int) -> int:
        """GPUs of the task that has the most; default as in gpus_of."""
        return max((self.gpus_of(role.type, default) for role in self.own_roles), default=0)

    def gpus_in_all(self, default: int) -> int | None:
        """GPUs of all tasks together; None where the number of workers is open. default as in gpus_of."""
        if self.role("worker").count is None:
            return None
        return sum((role.count or 0) * self.gpus_of(role.type, default) for role in self.own_roles)

    def to_dict(self, *, in_job: bool = False) -> dict[str, Any]:
        """Plain values for JSON.

        Args:
            in_job: Leave out what only the submission needs: the elements of an array.
        """
        data: dict[str, Any] = as_dict(self)
        if in_job:
            del data["elements"], data["at_once"], data["pack"]
        elif self.at_once is None:
            del data["at_once"], data["pack"]
        return data

    def of_sweep(self, elements: tuple[str, ...], at_once: int, pack: int) -> Request:
        """The request of a sweep whose elements are each such a job; ``pack`` of them share one host.

        Raises:
            SpecError: When they cannot share one, and where the native options request an array.
        """
        if self.elements:
            what = "a sweep is a job array already"
            raise SpecError("native", what, hint="leave the native options of the array out, and use --at-once")
        swept = self.replace(elements=elements, at_once=at_once, pack=pack)
        if pack == 1:
            return swept
        if self.nodes != (1, 1) or self.components[1:] or self.spare_nodes or self.mpi:
            what = "only jobs of one host can share it, without spare hosts, MPI and tasks on another partition"
            raise SpecError("pack", what, hint="write nodes = 1, or leave --pack out")
        if "slots" in self.options:
            raise SpecError("slots", "it counts those of one job, and several share the host", hint="leave it out")
        roles = tuple(role.replace(count=(role.count or self.tasks_per_node) * pack) for role in self.roles)
        return swept.replace(
            roles=roles,
            tasks_per_node=self.tasks_per_node * pack,
            gpus_per_node=self.gpus_per_node * pack,
            training=(self.training or self.tasks_per_node) * pack,
            non_training_cpus=self.non_training_cpus * pack,
            host_non_training_cpus=self.host_non_training_cpus * pack,
            host_mem=self.host_mem and self.host_mem * pack,
        )

    @property
    def array(self) -> str:
        """The elements of a sweep's array as schedulers take them: ``1-12``, or ``1-12:4`` where four share one."""
        return f"1-{len(self.elements)}{f':{self.pack}' if self.pack > 1 else ''}"


def resolve(spec: JobSpec, scheduler: str, *, options: Sequence[Option] = (), memory: bool = True) -> Request:
    """Compute the request of a job, filling in what the user has not specified; Login.resolve completes it.

    Args:
        spec: The job.
        scheduler: The scheduler's name.
        options: The scheduler's own options, of which the request keeps those that are set.
        memory: Whether memory is requested of the scheduler at all.

    Raises:
        SpecError: For counts that do not fit, with the numbers, and when only some task types request memory.
    """
    spec = spec.with_gpus_per_node
    if not any(option.key == "gpu_model" for option in options):  # any GPU will do
        spec = spec.replace(gpu_model=None, tasks={name: _of_any_model(spec, name) for name in spec.tasks})
    roles = _roles(spec)
    own = [role for role in roles if not role.component]
    training = _training_tasks(own)
    gpus = max((role.gpus or 0 for role in own), default=0)
    low, high, per_node, gpus_per_node = _uneven_shape(spec, own) or _shape(spec, own, training, gpus)
    if memory:
        _need_all_memory(roles, spec)
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
        spare_nodes=spec.spare_nodes,
        walltime=spec.walltime,
        options=_options(spec, options),
        left_open=frozenset(name for name in _MAY_BE_OPEN if getattr(spec, name) is None),
    )


def _of_any_model(spec: JobSpec, task_type: str) -> TaskSpec:
    table = spec.task(task_type)
    return table.replace(gpu_model=None, partition=None if spec.apart(task_type) else table.partition)


def _options(spec: JobSpec, options: Sequence[Option]) -> dict[str, Any]:
    values = {}
    for option in options:
        value = spec.option(option.key)
        if option.kind is KINDS["text"]:
            check_text(option.key, value)
        if value not in (None, ()):
            values[option.key] = value
    return values


_MAY_BE_OPEN = ("nodes", "tasks_per_node", "gpus_per_node", "gpus_per_task")


def _roles(spec: JobSpec) -> tuple[Role, ...]:
    per_task = _gpus_per_task(spec)
    places = _places(spec)
    roles = []
    for name in spec.types:
        row, table, count = spec.row(name), spec.task(name), spec.count(name)
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
                component=places.index(_place(spec, name)),
                served=spec.serves(name),
                in_cluster=spec.in_cluster(name),
                kind=table.kind or "",
            )
        )
    return tuple(roles)


def _gpus_per_task(spec: JobSpec) -> int | None:
    """GPUs of a training task whose table does not specify them; None when the spec does not mention GPUs at all."""
    if spec.gpus_per_task is not None:
        return spec.gpus_per_task
    if spec.count("worker") != 0 and spec.task("worker").gpus:
        return spec.task("worker").gpus
    if any(table.gpus or table.gpu_model for name, table in spec.tasks.items() if spec.count(name) != 0):
        return 1  # only the leader's are specified
    if spec.gpus_per_node is None:
        return 1 if spec.gpu_model else None
    tasks = _tasks_of_a_host(spec)
    return spec.gpus_per_node // tasks if tasks and not spec.gpus_per_node % tasks else min(spec.gpus_per_node, 1)


def _tasks_of_a_host(spec: JobSpec) -> int | None:
    """Training tasks of the fullest host that share its GPUs; None where only the allocation tells."""
    if spec.count("worker") != 0 and spec.task("worker").gpus == 0:
        return None  # the leader's are specified, or its default is one
    most = spec.tasks_per_node
    if spec.count("worker") is None:
        return most
    own = spec.partition, spec.own_model
    names = [name for name in spec.types if spec.row(name).takes_gpu and spec.task(name).gpus != 0]
    tasks = sum(spec.count(name) or 0 for name in names if _place(spec, name) == own)
    low, high = spec.node_range or (-(-tasks // (most or max(1, spec.gpus_per_node or 1))),) * 2
    return min(-(-tasks // low), most or tasks) if tasks and low == high else most


_Place = tuple["str | None", "str | None"]  # a partition, and the model of GPUs there


def _place(spec: JobSpec, task_type: str) -> _Place:
    table = spec.task(task_type)
    return table.partition or spec.partition, table.gpu_model if spec.apart(task_type) else spec.own_model


def _places(spec: JobSpec) -> list[_Place]:
    """The partitions of the job, as the components of a heterogeneous job are numbered: the job's own, then those that
    task types name, in rank order."""
    named = [_place(spec, name) for name in spec.types if spec.count(name) != 0]
    return list(dict.fromkeys([(spec.partition, spec.own_model), *named]))


def _components(spec: JobSpec, roles: Sequence[Role]) -> tuple[Component, ...]:
    components = []
    for number, (partition, model) in enumerate(_places(spec)):
        members = [role for role in roles if role.component == number]
        types = tuple(role.type for role in members)
        if not number:  # its hosts are those of the request itself
            components.append(Component(partition, types, gpu_model=model or ""))
            continue
        cpus = max((role.cpus for role in members if role.cpus is not None), default=None)
        # without the job's mem, which is that of a host of the job's own partition
        mem = max((role.mem for role in members if role.mem is not None), default=None)
        gpus = max((role.gpus or 0 for role in members), default=0)
        count = sum(role.count or 0 for role in members)
        components.append(Component(partition, types, count, cpus, mem, gpus, (gpus and model) or ""))
    return tuple(components)


def _training_tasks(roles: Sequence[Role]) -> int | None:
    """Number of tasks that take a GPU or a slot; None when the number of workers is open.

    A leader without a GPU (``[tasks.chief] gpus = 0``) takes neither when the workers take GPUs.
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


_Shape = tuple[int, int, int, int]  # fewest hosts, most hosts, training tasks per host, GPUs per host


def _uneven_shape(spec: JobSpec, roles: Sequence[Role]) -> _Shape | None:
    """The shape of a job whose leader and workers have different numbers of GPUs; None for other jobs."""
    gpus = {role.type: role.gpus for role in roles if role.gpus}
    if len(set(gpus.values())) < 2:
        return None
    (leader, of_leader), of_worker = next((name, gpus[name]) for name in LEADERS if name in gpus), gpus["worker"]
    workers, most = spec.count("worker"), spec.tasks_per_node or MOST

    def room(hosts: int, per_host: int) -> int:
        """How many workers fit beside the leader on hosts with this many GPUs each."""
        beside = min((per_host - of_leader) // of_worker, most - 1)
        return beside + (hosts - 1) * min(per_host // of_worker, most)

    least = max(of_leader, of_worker)
    per_host, (low, high) = spec.gpus_per_node, spec.node_range or (0, 0)
    if per_host is not None and least > per_host:
        key = f"tasks.{leader if of_leader == least else 'worker'}.gpus"
        raise SpecError(key, f"{least} GPUs per task, but gpus_per_node is {per_host}")
    if not low and per_host is not None and workers is not None:
        low = high = 1 + max(0, -(-(workers - room(1, per_host)) // (room(2, per_host) - room(1, per_host))))
    if not low:
        low = high = 1 if workers is None else -(-(1 + workers) // most)
    if per_host is None:
        needed = 1 if workers is None else workers
        fewest = max(least, -(-(of_leader + needed * of_worker) // low))  # each host may waste some
        sizes = range(fewest, fewest + of_leader + of_worker)
        per_host = next((size for size in sizes if room(low, size) >= needed), least if workers is None else fewest)
    if workers and room(high, per_host) < workers:
        fits = f"{counted(high, 'node')} with {counted(per_host, 'GPU')}"
        limit = f" and at most {counted(most, 'task')}" if spec.tasks_per_node else ""
        raise SpecError(
            "tasks.worker.count",
            f"a {leader} with {counted(of_leader, 'GPU')} and {counted(workers, 'worker')} with {of_worker} do not fit "
            f"into {fits}{limit} each (room for {counted(room(high, per_host), 'worker')})",
            hint="request more nodes, more GPUs or tasks per node, or fewer workers",
        )
    fullest = max(1 + (per_host - of_leader) // of_worker, per_host // of_worker)
    return low, high, min(fullest, most, 1 + (fullest if workers is None else workers)), per_host


def _shape(spec: JobSpec, roles: Sequence[Role], training: int | None, gpus: int) -> _Shape:
    """The shape of a job whose training tasks with GPUs have the same number of them.

    Args:
        spec: The job.
        roles: Those of its own partition.
        training: Number of training tasks, as _training_tasks returns it.
        gpus: GPUs of the training task that has the most.
    """
    if spec.gpus_per_node is not None and gpus > spec.gpus_per_node:
        key = next((f"tasks.{name}.gpus" for name, table in spec.tasks.items() if table.gpus == gpus), "gpus_per_task")
        raise SpecError(key, f"{gpus} GPUs per task, but gpus_per_node is {spec.gpus_per_node}")
    low, high = spec.node_range or (None, None)
    per_node = spec.tasks_per_node
    leader_alone = any(role.type == "worker" and role.gpus == 0 for role in roles)  # has GPUs, where there are any
    if per_node is None and spec.gpus_per_node and gpus and not leader_alone:
        per_node = spec.gpus_per_node // gpus
    if per_node is None and training is not None:
        per_node = -(-training // (low or 1))
    per_node = per_node or 1
    if low is None or high is None:
        low = high = -(-(training or per_node) // per_node)
    if training is not None and training > high * per_node:
        raise SpecError(
            "tasks.worker.count",
            f"{training} training tasks do not fit into {counted(high, 'node')} with {counted(per_node, 'task')} each",
            hint="request more nodes, more GPUs or tasks per node, or fewer workers",
        )
    fullest = per_node if training is None else min(per_node, -(-training // low))
    of_host = gpus if leader_alone else gpus * fullest
    gpus_per_node = spec.gpus_per_node if spec.gpus_per_node is not None else of_host
    if of_host > gpus_per_node:
        raise SpecError(
            "tasks_per_node", f"{fullest} tasks x {gpus} GPUs need more than gpus_per_node = {gpus_per_node}"
        )
    return low, high, per_node, gpus_per_node


def idle_gpus(request: Request) -> int:
    """GPUs of the requested hosts that no task would get; 0 where only the allocation tells."""
    low, high = request.nodes
    used, each = request.gpus_in_all(0), {role.gpus for role in request.own_roles if role.takes_gpu}
    if low != high or (used is None and len(each - {0}) + (request.role("worker").gpus == 0) > 1):
        return 0
    return high * request.gpus_per_node - (
        high * request.tasks_per_node * request.gpus_per_task if used is None else used
    )


def need_tasks_for_all(spec: JobSpec, request: Request, options: Sequence[Option] = ()) -> None:
    """Refuse a request for GPUs that no task would get.

    Args:
        spec: The job.
        request: What it requests.
        options: As for resolve.

    Raises:
        SpecError: With what to write instead. Where a leader has more GPUs than the workers, some may be in excess of
            what fits on hosts of one size; then it is raised only where other numbers leave none.
    """
    hosts, present = request.nodes[1], request.gpus_per_node
    idle, gpus, workers = idle_gpus(request), request.gpus_per_task, request.role("worker")
    uneven = len({role.gpus for role in request.own_roles if role.gpus}) > 1
    if not idle:
        return
    tasks = request.training or hosts * request.tasks_per_node
    if gpus and not workers.gpus:
        tasks = 1  # the leader
    used, share, odd = hosts * present - idle, present * hosts // tasks, tasks % hosts
    more = (workers.count or 0) + idle // (workers.gpus or 1)
    workers_more = {**spec.tasks, "worker": spec.task("worker").replace(count=more)}
    lines: Sequence[tuple[object, str, Mapping[str, Any]]] = (  # whether it may suit, and what it changes
        (spec.gpus and used, f"--gpus {used}", {"gpus": used}),
        (True, f"--gpus-per-task {share}", {"gpus_per_task": share}),
        (used >= hosts or not used, f"--gpus-per-node {used // hosts}", {"gpus_per_node": used // hosts}),
        (used % present == 0 or not workers.gpus, f"--nodes {used // present or 1}", {"nodes": used // present or 1}),
        (workers.count and (odd or uneven), f"--workers {more}", {"tasks": workers_more}),
    )

    def leaves_none(changed: Mapping[str, Any]) -> bool:
        with suppress(SpecError):
            asked = spec.replace(**changed)
            made = resolve(asked, request.scheduler, options=options, memory=False)
            return not idle_gpus(made) and (not asked.gpus or made.nodes[1] * made.gpus_per_node == asked.gpus)
        return False

    fitting = [line for suits, line, changed in lines if suits and leaves_none(changed)]
    if not fitting and leaves_none({"nodes": tasks, "gpus_per_node": gpus}):
        fitting = [f"--nodes {tasks} --gpus-per-node {gpus}"]
    if not fitting and (uneven or spec.with_gpus_per_node.gpus_per_node is None):
        return
    what = f"{counted(tasks, 'training task')} with {counted(gpus, 'GPU')}{' each' if tasks > 1 else ''}"
    raise SpecError(
        "gpus" if spec.gpus else "gpus_per_task" if spec.gpus_per_node is None else "gpus_per_node",
        f"{'the tasks' if uneven else what} would leave {idle} of {counted(present * hosts, 'GPU')} without a task",
        hint=f"write {' or '.join(fitting)}" if fitting else "request as many GPUs as the tasks use",
    )


def _need_all_memory(roles: Sequence[Role], spec: JobSpec) -> None:
    """Raise SpecError when only some of the task types of a partition request memory."""
    for number in {role.component for role in roles}:
        if not number and spec.mem is not None:
            continue  # mem covers the hosts of the job's own partition
        members = [role for role in roles if role.component == number]
        without = [role.type for role in members if role.mem is None]
        if without and len(without) < len(members):
            raise SpecError(
                f"tasks.{without[0]}.mem",
                "other task types request memory, this one does not",
                hint="set mem_per_task for all task types, or mem for a whole host",
            )


def _host_memory(own: Sequence[Role], non_training: Sequence[Role], per_node: int, most_a_host: int) -> int | None:
    if not any(role.mem for role in own):
        return None
    sizes = sorted((role.mem or 0 for role in non_training), reverse=True)
    training = max((role.mem or 0 for role in own if role.takes_gpu), default=0)  # none where only clients train
    return per_node * training + sum(sizes[:most_a_host])
