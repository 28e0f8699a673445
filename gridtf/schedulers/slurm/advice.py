"""What Slurm would refuse or never start, reported before submission with what the site offers instead."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.files import user_name
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime, parse_memory, parse_nodes, parse_walltime
from gridtf.schedulers.api import Plan
from gridtf.schedulers.slurm import submit
from gridtf.schedulers.slurm.commands import complaint, slurm
from gridtf.text import counted, toml, whole
from gridtf.values import Value

Parsed = TypeVar("Parsed")
Default = TypeVar("Default")

# --- what the site offers: sinfo(1) ------------------------------------------------------------------------------

# sinfo(1), --format. --exact: nodes are grouped only when their configurations are identical.
_SINFO = ("sinfo", "--noheader", "--all", "--exact", "--format=%P|%a|%l|%s|%D|%T|%c|%m|%G|%N")
_WORKS = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
# gpu:4   gpu:a100:4(S:0-1)   tpu:2,gpu:v100:8
_GRES = re.compile(r"(?:^|,)([^:,()]+)(?::([^:,()]+))?:(\d{1,18})(?=[(,]|$)", re.ASCII)


class Nodes(Value):
    """Nodes of a partition with the same configuration and state: one line of sinfo.

    Attributes:
        names: Hostlist of the nodes, such as ``n[1-4]``.
        count: Number of nodes.
        state: State as sinfo(1) prints it, such as ``idle`` or ``down*``; the star means not responding.
        cpus: CPUs of each node.
        mem: Memory of each node in MiB.
        gres: Generic resources of each node: (name, type), such as ("gpu", "a100"), -> number; the type may be empty.
    """

    names: str
    count: int
    state: str
    cpus: int
    mem: int
    gres: Mapping[tuple[str, str], int]

    @property
    def works(self) -> bool:
        """Whether jobs can run on these nodes, now or when other jobs have ended."""
        return "*" not in self.state and self.state.rstrip("~#!%$@^-+") in _WORKS

    def gpus(self, kind: str = "") -> int:
        """Number of GPUs of each node: of this type, or of all types if it is empty."""
        return sum(number for (name, own), number in self.gres.items() if name == "gpu" and kind in ("", own))


class Partition(Value):
    """A partition of the site.

    Attributes:
        name: Name of the partition.
        default: Whether jobs that name no partition run in it.
        up: Availability as sinfo(1) prints it: ``up``, ``down``, ``drain`` or ``inact``.
        limit: Longest walltime of a job in seconds; None: no limit.
        most_nodes: Most nodes of one job; None: no limit.
        nodes: Nodes of the partition, grouped by configuration and state.
    """

    name: str
    default: bool
    up: str
    limit: int | None
    most_nodes: int | None
    nodes: tuple[Nodes, ...]

    @property
    def size(self) -> int:
        """Number of nodes in any state."""
        return sum(group.count for group in self.nodes)

    def fitting(self, fits: Callable[[Nodes], bool]) -> int:
        """Number of nodes in any state for which fits returns True."""
        return sum(group.count for group in self.nodes if fits(group))

    def most(self, of: Callable[[Nodes], int]) -> int:
        """Largest value of ``of`` among the nodes, such as the most CPUs of a node; 0 without nodes."""
        return max((of(group) for group in self.nodes), default=0)


def query_partitions(*, limit: float | None = None, clusters: Sequence[str] = ()) -> list[Partition]:
    """Query sinfo for the partitions of this site.

    Args:
        clusters: The clusters; empty: the one that commands ask by default.
        limit: Seconds that sinfo may take; None: as any question to the queue.

    Returns:
        All partitions, in sinfo's order.

    Raises:
        SchedulerError: When sinfo fails or the controller does not answer.
    """
    which = [f"--clusters={','.join(clusters)}"] * bool(clusters)
    return parse_partitions(slurm.printed([*_SINFO, *which], limit=limit or slurm.query_patience))


def parse_partitions(text: str) -> list[Partition]:
    """Parse the output of sinfo.

    Args:
        text: Lines such as ``gpu*|up|7-00:00:00|1-infinite|4|idle|8|16000|gpu:4|n[1-4]``, in the format of _SINFO; the
            star marks the default partition. Other lines are skipped.

    Returns:
        The partitions, in the order of their first lines.
    """
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) == 10:
            rows.setdefault(words[0], []).append(words)
    return [
        Partition(
            name=name.removesuffix("*"),
            default=name.endswith("*"),
            up=lines[0][1],
            limit=_seconds(lines[0][2]),
            most_nodes=_number(lines[0][3].rpartition("-")[2]),
            nodes=tuple(
                Nodes(names, _number(count) or 0, state, _number(cpus) or 0, _number(mem) or 0, _gres(gres))
                for _, _, _, _, count, state, cpus, mem, gres, names in lines
                if _number(count)
            ),
        )
        for name, lines in rows.items()
    ]


def _number(text: str) -> int | None:
    """Parse a number of sinfo's: ``8``, ``512000+``, or ``1.50K``, its short form of large ones."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)([KMGT]?)\+?", text, re.ASCII)
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else None


def _gres(text: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for name, kind, count in _GRES.findall(text):
        found[name, kind] = found.get((name, kind), 0) + int(count)
    return found


def list_partitions(site: Iterable[Partition], more: Callable[[Partition], str] = lambda partition: "") -> str:
    """List partitions in one line, for messages.

    Args:
        site: The partitions.
        more: Returns a note on a partition, or "" for none.

    Returns:
        Names with notes: ``gpu (4 each), cpu``; a partition without a note is marked if it is the default:
        ``gpu (default), cpu``.
    """
    words = []
    for partition in site:
        note = more(partition) or ("default" if partition.default else "")
        words.append(f"{partition.name} ({note})" if note else partition.name)
    return ", ".join(words)


def show_walltime(partition: Partition) -> str:
    """Walltime limit of a partition, in the syntax of a job file."""
    return "no limit" if partition.limit is None else format_walltime(partition.limit)


def show_gpus(partition: Partition) -> str:
    """GPUs of a partition's nodes, for messages: ``4 each``, ``2 to 4 each``, ``4 a100 each``; empty without GPUs."""
    kinds = sorted({kind for group in partition.nodes for name, kind in group.gres if name == "gpu"})
    return " or ".join(_each(partition, kind) for kind in kinds)


def _each(partition: Partition, kind: str) -> str:
    return f"{_number_of_gpus(partition, kind)}{f' {kind}' if kind else ''} each"


def _number_of_gpus(partition: Partition, kind: str) -> str:
    has = sorted({count for group in partition.nodes if (count := group.gres.get(("gpu", kind), 0))})
    return f"{has[0]}" if len(has) == 1 else f"{has[0]} to {has[-1]}"


def gpus_per_node(partition: Partition) -> str:
    """GPUs of a partition's nodes as a phrase: ``4 GPUs per node``, ``1 to 4 a100 GPUs per node``; empty without."""
    kinds = sorted({kind for group in partition.nodes for name, kind in group.gres if name == "gpu"})
    each = [f"{_number_of_gpus(partition, kind)}{f' {kind}' if kind else ''}" for kind in kinds]
    return f"{' or '.join(each)} {'GPU' if each == ['1'] else 'GPUs'} per node" if each else ""


def describe(partition: Partition) -> str:
    """What one job may have in a partition: ``4 GPUs per node, up to 00:30:00``."""
    limit = "no time limit" if partition.limit is None else f"up to {show_walltime(partition)}"
    return ", ".join(filter(None, (gpus_per_node(partition), limit)))


def unusable_nodes(chosen: Sequence[Partition]) -> str:
    """List the nodes of these partitions that jobs cannot use now: ``n[1-2] down, n3 drained``; empty: none."""
    words = [
        f"{group.names} {group.state.rstrip('*')}{' (not responding)' if '*' in group.state else ''}"
        for partition in chosen
        for group in partition.nodes
        if not group.works
    ]
    return ", ".join(dict.fromkeys(words))


# --- what the job requests; pure ---------------------------------------------------------------------------------

# sbatch(1), INPUT ENVIRONMENT VARIABLES: most have the option's name. sbatch reads no others, such as SBATCH_TIME.
_SAME_NAME = (
    "ACCOUNT BATCH CLUSTERS CONSTRAINT CONTAINER CPUS_PER_GPU DELAY_BOOT DISTRIBUTION ERROR EXCLUSIVE EXPORT GPUS "
    "GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT JOB_NAME MEM_BIND MEM_PER_CPU "
    "MEM_PER_GPU NETWORK NO_KILL NO_REQUEUE OPEN_MODE OVERCOMMIT PARTITION PROFILE QOS REQUEUE RESERVATION SIGNAL "
    "SPREAD_JOB THREADS_PER_CORE TRES_BIND TRES_PER_TASK USE_MIN_NODES WCKEY"
)
_VARIABLES = {name.lower().replace("_", "-"): f"SBATCH_{name}" for name in _SAME_NAME.split()} | {
    "time": "SBATCH_TIMELIMIT",
    "mem": "SBATCH_MEM_PER_NODE",
    "array": "SBATCH_ARRAY_INX",
}
# Options that sbatch copies from the first component of a heterogeneous job to the others.
_COPIED = ("time", "account", "qos", "mem")
# 2, gpu:2, a100:2, gpu:2080ti:2, gpu:1g.10gb:1; gres/gpu:2
_GPU_OPTION = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:([^:,]+):)?(\d{1,18})", re.ASCII)


class ComponentRequest(Value):
    """What one component of a job requests; a job that is not heterogeneous has one component.

    Attributes:
        partitions: The job may run in any of these; empty: in the default partition.
        cpus: CPUs per node.
        mem: Memory per node in MiB.
        time: Walltime in seconds; None where it is not known.
        keys: Option of sbatch -> the key of the job file, or the environment variable, that it comes from.
        nodes: Fewest nodes.
        gpus: GPUs per node.
        gpu_type: Type of the GPUs; empty: any.
        tasks: Training tasks per node, which share its CPUs.
    """

    partitions: tuple[str, ...]
    cpus: int
    mem: int
    time: int | None
    keys: Mapping[str, str]
    nodes: int = 1
    gpus: int = 0
    gpu_type: str = ""
    tasks: int = 1

    def key(self, option: str) -> str:
        """The key of the job file, or the variable, to name in an error about this option of sbatch."""
        return self.keys.get(option, option.replace("-", "_"))


def component_requests(plan: Plan, environ: Mapping[str, str]) -> tuple[ComponentRequest, ...]:
    """Work out what each component of a job requests.

    Args:
        plan: The submission.
        environ: The environment of sbatch. Its variables override the user's raw options, and both override the plan's
            request.

    Returns:
        One request for each component, the one with the training tasks first.
    """
    request = plan.request
    variables = variables_of(environ)
    options = {**request.native, **{option: environ[name] for option, name in variables.items()}}
    keys = {**dict.fromkeys(request.native, "native"), **variables}
    found = [_first(plan, options, keys)]
    for component in request.components[1:]:
        own = {option: value for option, value in options.items() if option in (*_COPIED, *variables)}
        found.append(
            ComponentRequest(
                partitions=_partitions(own, component.partition),
                cpus=component.cpus or 1,
                mem=max(component.mem or 0, _mib(own.get("mem"))),
                time=_seconds(own["time"]) if "time" in own else request.walltime,
                keys={**_component_keys(component.types[0], plan.spec), **{option: keys[option] for option in own}},
            )
        )
    return tuple(found)


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which sbatch's environment overrides the directives of a script: option -> name."""
    return {option: name for option, name in _VARIABLES.items() if environ.get(name)}


def overridden(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Notes on the options of a plan that the environment overrides.

    Args:
        plan: The submission.
        environ: The environment of sbatch.

    Raises:
        SpecError: Where it makes an array of the job.
    """
    own, found = submit.parse_native(submit.directives(plan)), variables_of(environ)
    if "array" in found and "array" not in own:
        what = "it makes a job array, whose elements would share one run directory"
        raise SpecError(
            found["array"], what, hint=f"unset {found['array']}; an array is requested with --native=--array=…"
        )
    return [
        f"{name}={environ[name]} in the environment takes precedence over --{option}={own[option]}"
        for option, name in found.items()
        if own.get(option, environ[name]) != environ[name]
    ]


def _first(plan: Plan, options: Mapping[str, str], keys: Mapping[str, str]) -> ComponentRequest:
    request = plan.request
    options = {**{option: f"{mib}M" for option, mib in submit.memory(request).items()}, **options}
    gpu_type, gpus, gpu_option = _gpus(options, request.gpus_per_node)
    tasks = whole(options.get("ntasks-per-node", "")) or request.tasks_per_node
    task_cpus = whole(options.get("cpus-per-task", "")) or submit.cpus_per_task(request) or 1
    mem, per_gpu, per_cpu = (_mib(options.get(option)) for option in ("mem", "mem-per-gpu", "mem-per-cpu"))
    keys = {**_job_keys(plan.spec), **keys}
    return ComponentRequest(
        partitions=_partitions(options, request.components[0].partition),
        nodes=_parsed(parse_nodes, options["nodes"], (1, 1))[0] if "nodes" in options else request.allocated_nodes[0],
        gpus=gpus,
        gpu_type=gpu_type,
        cpus=tasks * task_cpus,
        tasks=tasks,
        mem=max(mem, gpus * per_gpu, tasks * task_cpus * per_cpu),
        time=_seconds(options["time"]) if "time" in options else request.walltime,
        keys={**keys, "gpus": keys.get(gpu_option, gpu_option)},
    )


def _gpus(options: Mapping[str, str], requested: int) -> tuple[str, int, str]:
    """(type, GPUs per node, the option that sets them). requested: GPUs per node of the plan's request."""
    if "gpus-per-node" not in options and requested:
        return "", requested, "gpus-per-node"
    for option in ("gpus-per-node", "gres"):
        match = _GPU_OPTION.fullmatch(options.get(option, ""))
        if match and (option != "gres" or "gpu" in match[0]):
            return match[1] or "", int(match[2]), option
    return "", 0, "gpus-per-node"


def _job_keys(spec: JobSpec) -> dict[str, str]:
    """Option of sbatch -> the key of the job file that it comes from, for the first component."""
    gpus = next((key for key in ("gpus_per_node", "gpus_per_task") if getattr(spec, key) is not None), "tasks")
    return {
        "nodes": "nodes" if spec.nodes is not None else "tasks",
        "gpus-per-node": gpus,
        "cpus-per-task": next((key for key in ("cpus_per_task", "tasks_per_node") if getattr(spec, key)), "tasks"),
        "mem": "mem" if spec.mem is not None else "mem_per_task",
        **({"nodelist": "exclude"} if spec.exclude else {}),
    }


def _component_keys(task_type: str, spec: JobSpec) -> dict[str, str]:
    table = spec.task(task_type)
    return {
        "partition": f"tasks.{task_type}.partition",
        "nodes": f"tasks.{task_type}.count",
        "cpus-per-task": f"tasks.{task_type}.cpus" if table.cpus else "cpus_per_task",
        "mem": f"tasks.{task_type}.mem" if table.mem else "mem_per_task",
    }


def _partitions(options: Mapping[str, str], requested: str | None) -> tuple[str, ...]:
    return tuple(name for name in options.get("partition", requested or "").split(",") if name)


# Values that cannot be parsed are left for sbatch to refuse.


def _parsed(parse: Callable[[str], Parsed], text: str | None, default: Default) -> Parsed | Default:
    try:
        return parse(text or "")
    except ValueError:
        return default


def _mib(text: str | None) -> int:
    return _parsed(parse_memory, text, 0)


def _seconds(text: str) -> int | None:
    """Parse a walltime; None for UNLIMITED, and for infinite and n/a, which sinfo prints."""
    return _parsed(parse_walltime, text, None)


# --- comparing both, with the output of sbatch --test-only ------------------------------------------------------

# Messages of sbatch are recognized by key phrases, since they differ between versions.
_BAD_PARTITION = re.compile(r"invalid partition specified: (\S+)|invalid partition name", re.IGNORECASE)
_CLOSED = re.compile(r"partition not available|partition.* (inactive|drain)", re.IGNORECASE)
_NOT_PERMITTED = re.compile(r"(group|account|qos) not permitted to use this partition", re.IGNORECASE)
_SHAPE = re.compile(
    r"node configuration is not available|node count specification|time limit is invalid|generic resource|"
    r"more processors requested|memory specification|cpu count|unable to satisfy",
    re.IGNORECASE,
)
# Seen for a job whose reservation begins later; without --test-only, sbatch queues it.
_NOT_YET = re.compile(r"invalid time specified", re.IGNORECASE)
_OTHERS = (
    ("invalid account", "account", "sacctmgr show associations user=$USER lists your accounts"),
    ("invalid qos", "qos", "sacctmgr show associations user=$USER format=qos lists your QOS"),
    ("generic resource", "gres", "sinfo --format='%P %G' lists the site's resources"),
    ("feature", "constraint", "sinfo --format='%P %f' lists the nodes' features"),
    ("reservation", "reservation", "scontrol show reservation lists the reservations"),
    ("license", "licenses", "scontrol show licenses lists the licenses"),
    ("node name", "nodelist", "sinfo --Node lists the nodes"),
    ("unrecognized option|invalid option|invalid -|depend", "native", "see man sbatch"),
)


def check(plan: Plan, *, limit: float | None = None) -> tuple[str, ...]:
    """Check with sbatch --test-only, and against the site's partitions, whether Slurm would accept and start a job.

    Args:
        plan: The submission, with its script.
        limit: Seconds that each command may take; None: as any question to the queue.

    Returns:
        Notes for the user: what the environment overrides, and what the job will have to wait for.

    Raises:
        SpecError: When the job requests what the site does not have; it names the key of the job file.
        SchedulerError: When sbatch does not answer, or refuses the job for another reason.
    """
    limit = limit or slurm.query_patience
    notes = overridden(plan, os.environ)
    answer = slurm.run(["sbatch", "--test-only"], limit=limit, text=plan.script)
    requests = component_requests(plan, os.environ)
    # sbatch accepts a walltime above the partition's limit, unless the site has EnforcePartLimits
    if answer.code == 0 and all(request.time is None for request in requests):
        return tuple(notes)
    try:
        partitions = query_partitions(limit=limit, clusters=submit.clusters(plan, os.environ))
    except SchedulerError:  # such as with PrivateData=partitions
        partitions = []
    output = f"{answer.err}\n{answer.out}"
    available = _available(output) if answer.code else ""
    return (*notes, *judge(requests, answer.code, output, partitions, available=available))


def judge(
    requests: Sequence[ComponentRequest],
    code: int,
    output: str,
    partitions: Sequence[Partition],
    *,
    available: str = "",
) -> tuple[str, ...]:
    """Judge a job by the output of sbatch --test-only and the site's partitions. Pure.

    Args:
        requests: What each component requests.
        code: Exit code of sbatch --test-only.
        output: Its output.
        partitions: The partitions of the site.
        available: Accounts or QOS that the user may use, as a hint; empty where they are not known.

    Returns:
        Notes for the user: what the job will have to wait for.

    Raises:
        SpecError: When the job requests what the site does not have; it names the key of the job file.
        SchedulerError: When Slurm refuses the job for another reason.
    """
    # sbatch marks most of its errors, but not all
    message = complaint(output) or "; ".join(filter(None, output.splitlines())) or f"exit code {code}"
    shape = _SHAPE.search(output) is not None
    for request in requests:
        _refuse(request, partitions, [_too_long, *([_too_large, _too_much] if code and shape else [])])
    if code == 0:
        return tuple(note for request in requests if (note := _closed_now(_chosen(request, partitions))))
    for request in requests:
        _refuse_partition(request, output, message, partitions)
    if shape:
        chosen = [partition for request in requests for partition in _chosen(request, partitions)]
        if unusable := unusable_nodes(chosen):
            return (f"the job waits for nodes that cannot be used now: {unusable}",)
    if _NOT_YET.search(output) and any("reservation" in request.keys for request in requests):
        return ("the job waits until its reservation begins",)
    for phrase, option, hint in _OTHERS:
        if re.search(phrase, output, re.IGNORECASE):
            key = option if option in ("account", "native") else "native"
            raise SpecError(requests[0].keys.get(option, key), message, hint=available or hint)
    offers = "; ".join(_offer(partition) for partition in partitions)
    raise SchedulerError(f"Slurm would refuse this job: {message}", hint=f"the site has {offers}" if offers else "")


def _available(output: str) -> str:
    """The accounts or QOS that the user may use, when sbatch has refused one; empty where sacctmgr lists none."""
    invalid = re.search(r"invalid (account|qos)", output, re.IGNORECASE)
    if invalid is None:
        return ""
    return list_available(associations(invalid[1].lower(), limit=5.0))


def list_available(names: Sequence[str] | None) -> str:
    """A hint that lists the user's accounts or QOS; empty where none are known."""
    return f"available to you: {', '.join(names)}" if names else ""


def associations(column: str, *, limit: float) -> list[str] | None:
    """Query sacctmgr for what the user's associations have in a column.

    Args:
        column: ``account`` or ``qos``.
        limit: Seconds that sacctmgr may take.

    Returns:
        The names in alphabetical order; None where sacctmgr does not answer.
    """
    options = ("--noheader", "--parsable2", "show", "associations", f"user={user_name(os.getuid())}")
    printed = slurm.try_run(["sacctmgr", *options, f"format={column}"], limit=limit)
    if printed is None:
        return None
    words = (line.split() for line in printed.splitlines())  # a site may print lines of its own, with blanks
    return sorted({name for line in words if len(line) == 1 for name in line[0].split(",") if name})


def _chosen(request: ComponentRequest, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions that a component may run in."""
    return [each for each in partitions if (each.name in request.partitions if request.partitions else each.default)]


def _refuse_partition(request: ComponentRequest, output: str, message: str, partitions: Sequence[Partition]) -> None:
    key = request.key("partition")
    named = ",".join(request.partitions)
    names = [partition.name for partition in partitions]
    unknown = [name for name in request.partitions if name not in names]
    chosen = _chosen(request, partitions)
    others = [partition for partition in partitions if partition not in chosen]
    if unknown and names and _BAD_PARTITION.search(output):
        raise SpecError(
            key,
            f"there is no partition {unknown[0]!r}",
            why=nearest(unknown[0], names),
            hint=f"this site has: {list_partitions(partitions)}",
        )
    closed = [partition for partition in chosen if partition.up not in ("up", "down")]
    if closed and _CLOSED.search(output):
        accepting = list_partitions(partition for partition in others if partition.up == "up")
        what = f"partition {closed[0].name} accepts no jobs now ({closed[0].up})"
        raise SpecError(key, what, hint=f"write partition = …; these do: {accepting}")
    if barred := _NOT_PERMITTED.search(output):
        key = {"account": request.key("account"), "qos": request.key("qos")}.get(barred[1].lower(), key)
        why = f"partition {named}" if named else "no partition is named, so it is the default one"
        raise SpecError(key, message, why=why, hint=f"write partition = …; others: {list_partitions(others)}")


def _closed_now(chosen: Sequence[Partition]) -> str:
    if not chosen or any(partition.up == "up" for partition in chosen):
        return ""
    return f"the job waits until its partition is up: {list_partitions(chosen, lambda partition: partition.up)}"


Judge = Callable[[ComponentRequest, Partition, Sequence[Partition]], SpecError | None]


def _refuse(request: ComponentRequest, partitions: Sequence[Partition], judges: Sequence[Judge]) -> None:
    """Raise SpecError when the request exceeds what every partition that the component may run in has or allows."""
    chosen = _chosen(request, partitions)
    if not chosen or len(chosen) < len(request.partitions):
        return
    problems = [
        next(filter(None, (judge(request, partition, partitions) for judge in judges)), None) for partition in chosen
    ]
    if problems[0] is not None and all(problems):  # of several partitions, one that fits is enough
        raise problems[0]


def _too_long(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    if request.time is None or partition.limit is None or request.time <= partition.limit or "qos" in request.keys:
        return None  # a QOS may allow more than its partition
    longer = [other for other in partitions if other.limit is None or other.limit >= request.time]
    offers = _alternatives("allow it", longer, partitions, show_walltime)
    return SpecError(
        request.key("time"),
        f"{format_walltime(request.time)} is more than partition {partition.name} allows ({show_walltime(partition)})",
        why="if a QOS allows more, request it, such as with --native=--qos=long",
        hint=f"write time = {toml(show_walltime(partition))}; {offers}",
    )


def _too_large(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    name, most = partition.name, partition.most_nodes
    if request.nodes > partition.size:
        larger = [other for other in partitions if request.nodes <= other.size]
        return SpecError(
            request.key("nodes"),
            f"{request.nodes} nodes requested, partition {name} has {partition.size}",
            hint=_alternatives("have enough", larger, partitions, lambda other: str(other.size)),
        )
    if most is not None and request.nodes > most:
        freer = [other for other in partitions if min(other.size, other.most_nodes or other.size) >= request.nodes]
        return SpecError(
            request.key("nodes"),
            f"{request.nodes} nodes requested, partition {name} allows at most {most} a job",
            hint=_alternatives("allow it", freer, partitions, lambda other: str(other.most_nodes or other.size)),
        )
    return None


def _too_much(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    """More GPUs, CPUs or memory per node than the nodes have."""
    name, kind = partition.name, f"{request.gpu_type} " if request.gpu_type else ""

    def gpus(nodes: Nodes) -> int:
        return nodes.gpus(request.gpu_type)

    def fits(nodes: Nodes) -> bool:
        return gpus(nodes) >= request.gpus and nodes.cpus >= request.cpus and nodes.mem >= request.mem

    kinds: tuple[tuple[str, int, Callable[[Nodes], int], str], ...] = (
        ("gpus", request.gpus, gpus, f"{kind}GPUs"),
        ("cpus-per-task", request.cpus, lambda nodes: nodes.cpus, "CPUs"),
        ("mem", request.mem, lambda nodes: nodes.mem, "MiB of memory"),
    )
    for option, requested, of, noun in kinds:
        most = partition.most(of)
        if requested <= most:
            continue
        no_gpus = option == "gpus" and not most
        what = f"{requested} {noun} a node requested, nodes of partition {name} have {most}"
        if option == "cpus-per-task" and request.tasks > 1:
            what = f"{request.tasks} tasks a node need {requested} CPUs, nodes of partition {name} have {most}"
        if no_gpus:
            what = f"no node of partition {name} has {noun}"
        better = [other for other in partitions if other.most(of) >= (1 if no_gpus else requested)]
        unit = " MiB" if option == "mem" else ""
        show = show_gpus if option == "gpus" else (lambda other, of=of, unit=unit: f"{other.most(of)}{unit}")
        have = "have GPUs" if no_gpus else "have enough"
        return SpecError(request.key(option), what, hint=_alternatives(have, better, partitions, show))
    number = partition.fitting(fits)
    if number < request.nodes:
        has = ", ".join(f"{requested} {noun}" for _, requested, _, noun in kinds if requested)
        what = f"{request.nodes} nodes with {has} requested, partition {name} has {number} such nodes"
        enough = [other for other in partitions if other.fitting(fits) >= request.nodes]
        hint = _alternatives("have enough", enough, partitions, lambda other: str(other.fitting(fits)))
        return SpecError(request.key("nodes"), what, hint=hint)
    return None


def _alternatives(
    what: str,
    fitting: Sequence[Partition],
    partitions: Sequence[Partition],
    more: Callable[[Partition], str] = lambda partition: "",
) -> str:
    """What the site offers instead: the partitions that fit, or if none does, what each partition has."""
    if fitting:
        return f"these partitions {what}: {list_partitions(fitting, more)}"
    singular = what.replace("have", "has").replace("allow", "allows")
    return f"no partition {singular}; there are: {list_partitions(partitions, lambda other: more(other) or 'none')}"


def _offer(partition: Partition) -> str:
    return f"{partition.name}: {counted(partition.size, 'node')}, {describe(partition)}"
