"""What Slurm would refuse or never start, reported before submission with what the site offers instead."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.files import user_name
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime, parse_memory, parse_nodes, parse_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import Plan
from gridtf.schedulers.batch import whole
from gridtf.schedulers.slurm import submit

if TYPE_CHECKING:
    from gridtf.schedulers.slurm import Slurm

# --- what the site offers: sinfo(1) ------------------------------------------------------------------------------

# sinfo(1), --format. --exact: nodes are put together only when they are alike.
_SINFO = ("sinfo", "--noheader", "--all", "--exact", "--format=%P|%a|%l|%s|%D|%T|%c|%m|%G|%N")
_WORKS = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
# gpu:4   gpu:a100:4(S:0-1)   tpu:2,gpu:v100:8
_GRES = re.compile(r"(?:^|,)([^:,()]+)(?::([^:,()]+))?:(\d{1,18})(?=[(,]|$)", re.ASCII)


@dataclass(frozen=True)
class Nodes:
    """Nodes that are alike.

    Attributes:
        names: A hostlist.
        count: How many they are.
        state: That of sinfo, such as ``idle`` or ``down*``.
        cpus: CPUs of each.
        mem: Memory of each in MiB.
        gres: Number by (name, type), such as ("gpu", "a100"); the type may be empty.
    """

    names: str
    count: int
    state: str
    cpus: int
    mem: int
    gres: Mapping[tuple[str, str], int]

    @property
    def works(self) -> bool:
        """Whether jobs can run there now or when others have ended."""
        return "*" not in self.state and self.state.rstrip("~#!%$@^-+") in _WORKS

    def gpus(self, kind: str = "") -> int:
        """GPUs a node, of this type or of all."""
        return sum(n for (name, own), n in self.gres.items() if name == "gpu" and kind in ("", own))


@dataclass(frozen=True)
class Partition:
    """A partition of the site.

    Attributes:
        name: Its name.
        default: Whether jobs that name none run there.
        up: ``up``, ``down``, ``drain`` or ``inact``.
        limit: The longest walltime in seconds; None: no limit.
        most_nodes: The most nodes of one job; None: no limit.
        nodes: Its nodes, those that are alike together.
    """

    name: str
    default: bool
    up: str
    limit: int | None
    most_nodes: int | None
    nodes: tuple[Nodes, ...]

    @property
    def size(self) -> int:
        """How many nodes it has, whatever their state."""
        return sum(some.count for some in self.nodes)

    def fitting(self, fits: Callable[[Nodes], bool]) -> int:
        """How many of its nodes, whatever their state, fit."""
        return sum(some.count for some in self.nodes if fits(some))

    def most(self, of: Callable[[Nodes], int]) -> int:
        """The most that one of its nodes has."""
        return max((of(some) for some in self.nodes), default=0)


def query_partitions(slurm: Slurm) -> list[Partition]:
    """The partitions of this site. Raises SchedulerError when the controller does not answer."""
    answer = slurm.run(_SINFO, limit=slurm.query_patience)
    if answer.code:
        raise SchedulerError(f"sinfo has failed: {slurm.message(answer)}")
    return parse_partitions(answer.out)


def parse_partitions(text: str) -> list[Partition]:
    """What sinfo prints, put together by partition, in its order.

    ``gpu*|up|7-00:00:00|1-infinite|4|idle|8|16000|gpu:4|n[1-4]`` (the star marks the default partition)
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
            up=some[0][1],
            limit=_seconds(some[0][2]),
            most_nodes=_number(some[0][3].rpartition("-")[2]),
            nodes=tuple(
                Nodes(names, _number(count) or 0, state, _number(cpus) or 0, _number(mem) or 0, _gres(gres))
                for _, _, _, _, count, state, cpus, mem, gres, names in some
                if _number(count)
            ),
        )
        for name, some in rows.items()
    ]


def _number(text: str) -> int | None:
    """``8``, ``512000+``, and ``1.50K``, as sinfo shortens what is larger."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)([KMGT]?)\+?", text, re.ASCII)
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else None


def _gres(text: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for name, kind, count in _GRES.findall(text):
        found[name, kind] = found.get((name, kind), 0) + int(count)
    return found


def list_partitions(site: Iterable[Partition], more: Callable[[Partition], str] = lambda partition: "") -> str:
    """``gpu (default), cpu``, or with what more says of each: ``gpu (4 each)``."""
    words = []
    for partition in site:
        note = more(partition) or ("default" if partition.default else "")
        words.append(f"{partition.name} ({note})" if note else partition.name)
    return ", ".join(words)


def show_walltime(partition: Partition) -> str:
    """Its limit, as it is written in a job file."""
    return "no limit" if partition.limit is None else format_walltime(partition.limit)


def show_gpus(partition: Partition) -> str:
    """``4 each``, ``2 to 4 each``, ``4 a100 each``."""
    kinds = sorted({kind for some in partition.nodes for name, kind in some.gres if name == "gpu"})
    return " or ".join(_each(partition, kind) for kind in kinds)


def _each(partition: Partition, kind: str) -> str:
    has = sorted({count for some in partition.nodes if (count := some.gpus(kind) if kind else _untyped(some))})
    number = f"{has[0]}" if len(has) == 1 else f"{has[0]} to {has[-1]}"
    return f"{number}{f' {kind}' if kind else ''} each"


def _untyped(some: Nodes) -> int:
    return some.gres.get(("gpu", ""), 0)


def unusable_nodes(chosen: Sequence[Partition]) -> str:
    """Which nodes of these partitions jobs cannot use now: ``n[1-2] down, n3 drained``; empty: none."""
    words = [
        f"{some.names} {some.state.rstrip('*')}{' (does not answer)' if '*' in some.state else ''}"
        for partition in chosen
        for some in partition.nodes
        if not some.works
    ]
    return ", ".join(dict.fromkeys(words))


# --- what the job requests; pure ---------------------------------------------------------------------------------

# sbatch(1), INPUT ENVIRONMENT VARIABLES: they win over the lines of a script.
_VARIABLES = {
    "SBATCH_PARTITION": "partition",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
}
# Options that sbatch hands on from the first component of a heterogeneous job to the others.
_HANDED_ON = ("time", "account", "qos", "mem")
# 2, gpu:2, a100:2, gpu:2080ti:2, gpu:1g.10gb:1; gres/gpu:2
_GPU_OPTION = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:([^:,]+):)?(\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class ComponentRequest:
    """What one component requests.

    Attributes:
        partitions: Any of these; empty for the default one.
        nodes: The fewest.
        gpus: GPUs of a node.
        gpu_type: Their type; mostly empty.
        cpus: CPUs of a node.
        mem: Memory of a node in MiB.
        time: Seconds; None where that is not known.
        keys: Option of sbatch -> the key of the job file, or the variable, that it comes from.
    """

    partitions: tuple[str, ...]
    nodes: int
    gpus: int
    gpu_type: str
    cpus: int
    mem: int
    time: int | None
    keys: Mapping[str, str]

    def key(self, option: str) -> str:
        """The key to blame for this option of sbatch."""
        return self.keys.get(option, option.replace("-", "_"))


def component_requests(plan: Plan, environ: Mapping[str, str]) -> tuple[ComponentRequest, ...]:
    """What each component requests: the plan's request, but where raw options or sbatch's variables say otherwise.

    Args:
        plan: The submission.
        environ: The environment of sbatch.
    """
    request = plan.request
    variables = {option: name for name, option in _VARIABLES.items() if environ.get(name)}
    options = {**request.native, **{option: environ[name] for option, name in variables.items()}}
    keys = {**dict.fromkeys(request.native, "native"), **variables}
    found = [_first(plan, options, keys)]
    for component in request.components[1:]:
        own = {option: value for option, value in options.items() if option in (*_HANDED_ON, *variables)}
        found.append(
            ComponentRequest(
                partitions=_partitions(own, component.partition),
                nodes=1,
                gpus=0,
                gpu_type="",
                cpus=component.cpus or 1,
                mem=max(component.mem or 0, _mib(own.get("mem"))),
                time=_seconds(own["time"]) if "time" in own else request.walltime,
                keys={**_component_keys(component.types[0], plan.spec), **{option: keys[option] for option in own}},
            )
        )
    return tuple(found)


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
        nodes=_nodes(options["nodes"]) if "nodes" in options else request.nodes[0],
        gpus=gpus,
        gpu_type=gpu_type,
        cpus=tasks * task_cpus,
        mem=max(mem, gpus * per_gpu, tasks * task_cpus * per_cpu),
        time=_seconds(options["time"]) if "time" in options else request.walltime,
        keys={**keys, "gpus": keys.get(gpu_option, gpu_option)},
    )


def _gpus(options: Mapping[str, str], requested: int) -> tuple[str, int, str]:
    """(type, GPUs a node, the option that says so). requested: by the plan's request."""
    if "gpus-per-node" not in options and requested:
        return "", requested, "gpus-per-node"
    for option in ("gpus-per-node", "gres"):
        match = _GPU_OPTION.fullmatch(options.get(option, ""))
        if match and (option != "gres" or "gpu" in match[0]):
            return match[1] or "", int(match[2]), option
    return "", 0, "gpus-per-node"


def _job_keys(spec: JobSpec) -> dict[str, str]:
    """Option of sbatch -> the key that has led to it, for the job's own partition."""
    gpus = next((key for key in ("gpus_per_node", "gpus_per_task") if getattr(spec, key) is not None), "tasks")
    return {
        "nodes": "nodes" if spec.nodes is not None else "tasks",
        "gpus-per-node": gpus,
        "cpus-per-task": next((key for key in ("cpus_per_task", "tasks_per_node") if getattr(spec, key)), "tasks"),
        "mem": "mem" if spec.mem is not None else "mem_per_task",
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


# A raw option that is none of these is sbatch's to judge.


def _mib(text: str | None) -> int:
    try:
        return parse_memory(text or "")
    except ValueError:
        return 0


def _nodes(text: str) -> int:
    try:
        return parse_nodes(text)[0]
    except ValueError:
        return 1


def _seconds(text: str) -> int | None:
    try:
        return parse_walltime(text)
    except ValueError:  # UNLIMITED; of sinfo also infinite, n/a
        return None


# --- the two compared, and what sbatch --test-only answers -------------------------------------------------------

# What sbatch prints, by key phrases, since messages differ between versions.
_BAD_PARTITION = re.compile(r"invalid partition specified: (\S+)|invalid partition name", re.IGNORECASE)
_CLOSED = re.compile(r"partition not available|partition.* (inactive|drain)", re.IGNORECASE)
_NOT_PERMITTED = re.compile(r"(group|account|qos) not permitted to use this partition", re.IGNORECASE)
_SHAPE = re.compile(
    r"node configuration is not available|node count specification|time limit is invalid|generic resource|"
    r"more processors requested|memory specification|cpu count|unable to satisfy",
    re.IGNORECASE,
)
# Seen of a job whose reservation begins later, which sbatch itself queues.
_NOT_YET = re.compile(r"invalid time specified", re.IGNORECASE)
_MARKED = re.compile(r"sbatch: (error|fatal|unrecognized|invalid|option)|allocation failure", re.IGNORECASE)
_OTHERS = (
    (re.compile(r"invalid account", re.IGNORECASE), "account", "sacctmgr show associations user=$USER lists yours"),
    (re.compile(r"invalid qos", re.IGNORECASE), "qos", "sacctmgr show associations user=$USER format=qos lists yours"),
    (re.compile(r"generic resource", re.IGNORECASE), "gres", "sinfo --format='%P %G' lists the site's"),
    (re.compile(r"feature", re.IGNORECASE), "constraint", "sinfo --format='%P %f' lists what nodes have"),
    (re.compile(r"reservation", re.IGNORECASE), "reservation", "scontrol show reservation lists them"),
    (re.compile(r"license", re.IGNORECASE), "licenses", "scontrol show licenses lists them"),
    (re.compile(r"node name", re.IGNORECASE), "nodelist", "sinfo --Node lists them"),
    (re.compile(r"unrecognized option|invalid option|invalid -|depend", re.IGNORECASE), "native", "see man sbatch"),
)


def check(slurm: Slurm, plan: Plan) -> tuple[str, ...]:
    """Ask Slurm about a job without submitting it.

    Args:
        slurm: The scheduler.
        plan: The submission; its script is in the run directory.

    Returns:
        Notes: what will make the job wait, but may pass.

    Raises:
        SpecError: With the key to blame, for what the site does not have.
        SchedulerError: When Slurm does not answer, or refuses the job for another reason.
    """
    answer = slurm.run(["sbatch", "--test-only", str(RunDir(plan.run_dir).script)], limit=slurm.query_patience)
    requests = component_requests(plan, os.environ)
    # it says nothing of a walltime that a partition never allows, unless the site has EnforcePartLimits
    if answer.code == 0 and all(request.time is None for request in requests):
        return ()
    try:
        partitions = query_partitions(slurm)
    except SchedulerError:
        if answer.code:
            raise
        return ()
    output = answer.err or answer.out
    return judge(
        requests,
        answer.code,
        output,
        partitions,
        yours=_yours(slurm, output) if answer.code else "",
        reserved=bool(os.environ.get("SBATCH_RESERVATION")),
    )


def judge(
    requests: Sequence[ComponentRequest],
    code: int,
    output: str,
    partitions: Sequence[Partition],
    *,
    yours: str = "",
    reserved: bool = False,
) -> tuple[str, ...]:
    """What sbatch's answer means for the user. Pure.

    Args:
        requests: What each component requests.
        code: Exit code of sbatch --test-only.
        output: What it has printed.
        partitions: What the site has.
        yours: Which accounts or QOS the user has; mostly empty.
        reserved: Whether the environment names a reservation.

    Returns:
        Notes.

    Raises:
        SpecError: With the key to blame, for what the site does not have.
        SchedulerError: For a refusal for another reason.
    """
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("Try ")]
    # a site may print lines of its own; sbatch does not mark all of its own ones
    complaints = [_plain(line) for line in lines if _MARKED.match(line)] or [_plain(line) for line in lines]
    message = "; ".join(dict.fromkeys(complaints)) or f"exit code {code}"
    shape = _SHAPE.search(output) is not None
    for request in requests:
        _refuse(request, partitions, [_too_long, *([_too_large, _too_much] if code and shape else [])])
    if code == 0:
        return tuple(note for request in requests if (note := _closed_now(_chosen(request, partitions))))
    for request in requests:
        _refuse_partition(request, output, message, partitions)
    if shape:
        chosen = [partition for request in requests for partition in _chosen(request, partitions)]
        waiting = unusable_nodes(chosen)
        if waiting:
            return (f"the job waits until nodes are back that cannot be used now: {waiting}",)
    if _NOT_YET.search(output) and (reserved or any("reservation" in request.keys for request in requests)):
        return ("the job waits until its reservation begins",)
    for phrase, option, hint in _OTHERS:
        if phrase.search(output):
            key = option if option in ("account", "native") else "native"
            raise SpecError(requests[0].keys.get(option, key), message, hint=yours or hint)
    offers = "; ".join(_offer(partition) for partition in partitions)
    raise SchedulerError(f"Slurm would refuse this job: {message}", hint=f"the site has {offers}" if offers else "")


def _yours(slurm: Slurm, output: str) -> str:
    """Which accounts or QOS the user has, where sbatch refuses one; empty where Slurm does not say."""
    invalid = re.search(r"invalid (account|qos)", output, re.IGNORECASE)
    if invalid is None:
        return ""
    options = ("--noheader", "--parsable2", "show", "associations", f"user={user_name(os.getuid())}")
    printed = slurm.try_run(["sacctmgr", *options, f"format={invalid[1].lower()}"], limit=5.0) or ""
    words = (line.split() for line in printed.splitlines())  # a site may print lines of its own, with blanks
    names = sorted({name for line in words if len(line) == 1 for name in line[0].split(",") if name})
    return f"yours are: {', '.join(names)}" if names else ""


def _plain(line: str) -> str:
    return re.sub(r"^(sbatch: )?((error|fatal|allocation failure): )?", "", line.strip())


def _chosen(request: ComponentRequest, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions that a component may run in."""
    return [one for one in partitions if one.name in request.partitions or (not request.partitions and one.default)]


def _refuse_partition(request: ComponentRequest, output: str, message: str, partitions: Sequence[Partition]) -> None:
    key = request.key("partition")
    named = ",".join(request.partitions)
    names = [partition.name for partition in partitions]
    unknown = [name for name in request.partitions if name not in names]
    others = [partition for partition in partitions if partition.name not in request.partitions]
    if unknown and _BAD_PARTITION.search(output):
        raise SpecError(
            key,
            f"partition {unknown[0]!r} is not there",
            why=nearest(unknown[0], names),
            hint=f"these are: {list_partitions(partitions)}",
        )
    closed = [one for one in _chosen(request, partitions) if one.up not in ("up", "down")]
    if closed and _CLOSED.search(output):
        open_ones = list_partitions(one for one in others if one.up == "up")
        raise SpecError(
            key, f"partition {closed[0].name} takes no jobs now ({closed[0].up})", hint=f"these do: {open_ones}"
        )
    barred = _NOT_PERMITTED.search(output)
    if barred:
        key = {"account": request.key("account"), "qos": request.key("qos")}.get(barred[1].lower(), key)
        raise SpecError(
            key, message, why=f"partition {named or 'by default'}", hint=f"others: {list_partitions(others)}"
        )


def _closed_now(chosen: Sequence[Partition]) -> str:
    if not chosen or any(one.up == "up" for one in chosen):
        return ""
    return f"the job waits until a partition is open again: {list_partitions(chosen, lambda one: one.up)}"


Judge = Callable[[ComponentRequest, Partition, Sequence[Partition]], SpecError | None]


def _refuse(request: ComponentRequest, partitions: Sequence[Partition], judges: Sequence[Judge]) -> None:
    """Raise SpecError when no partition that the component may run in can ever give what it asks for."""
    chosen = _chosen(request, partitions)
    if not chosen or len(chosen) < len(request.partitions):
        return
    problems = [
        next(filter(None, (one(request, partition, partitions) for one in judges)), None) for partition in chosen
    ]
    # any of several partitions will do
    if problems[0] is not None and all(problems):
        raise problems[0]


def _too_long(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    if request.time is None or partition.limit is None or request.time <= partition.limit or "qos" in request.keys:
        return None  # a QOS may allow more than its partition
    longer = [one for one in partitions if one.limit is None or one.limit >= request.time]
    return SpecError(
        request.key("time"),
        f"{format_walltime(request.time)} is more than partition {partition.name} allows ({show_walltime(partition)})",
        why="where a QOS allows more, name it, such as --native=--qos=long",
        hint=_these("allow it", longer, partitions, show_walltime),
    )


def _too_large(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    name, most = partition.name, partition.most_nodes
    if request.nodes > partition.size:
        larger = [one for one in partitions if request.nodes <= one.size]
        return SpecError(
            request.key("nodes"),
            f"{request.nodes} nodes requested, partition {name} has {partition.size}",
            hint=_these("have enough", larger, partitions, lambda one: str(one.size)),
        )
    if most is not None and request.nodes > most:
        freer = [
            one for one in partitions if one.size >= request.nodes and (one.most_nodes or one.size) >= request.nodes
        ]
        return SpecError(
            request.key("nodes"),
            f"{request.nodes} nodes requested, partition {name} allows a job {most} at most",
            hint=_these("allow it", freer, partitions, lambda one: str(one.most_nodes or one.size)),
        )
    return None


def _too_much(request: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    """More of a node than any has."""
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
    for option, wanted, of, noun in kinds:
        most = partition.most(of)
        if wanted <= most:
            continue
        better = [one for one in partitions if one.most(of) >= (wanted if option != "gpus" or most else 1)]
        unit = " MiB" if option == "mem" else ""
        have = show_gpus if option == "gpus" else (lambda one, of=of, unit=unit: f"{one.most(of)}{unit}")
        what = f"{wanted} {noun} a node requested, those of partition {name} have {most}"
        if not most and option == "gpus":
            what = f"no node of partition {name} has {noun}"
        return SpecError(request.key(option), what, hint=_these("have", better, partitions, have))
    number = partition.fitting(fits)
    if number < request.nodes:
        has = ", ".join(f"{wanted} {noun}" for _, wanted, _, noun in kinds if wanted)
        what = f"{request.nodes} nodes with {has} requested, partition {name} has {number} such"
        enough = [one for one in partitions if one.fitting(fits) >= request.nodes]
        hint = _these("have enough", enough, partitions, lambda one: str(one.fitting(fits)))
        return SpecError(request.key("nodes"), what, hint=hint)
    return None


def _these(
    what: str,
    fitting: Sequence[Partition],
    partitions: Sequence[Partition],
    more: Callable[[Partition], str] = lambda partition: "",
) -> str:
    """What the site offers instead: the partitions that fit, or else what all of them have."""
    if fitting:
        return f"these {what}: {list_partitions(fitting, more)}"
    return f"no partition does; there are: {list_partitions(partitions, lambda one: more(one) or 'none')}"


def _offer(partition: Partition) -> str:
    has = [f"{partition.size} nodes", f"walltime {show_walltime(partition)}"]
    number = show_gpus(partition)
    return f"{partition.name}: {', '.join([*has, f'GPUs {number}'] if number else has)}"
