"""What Slurm would refuse, or leave waiting for ever, told before submission with what the site offers instead."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.files import user_name
from gridtf.jobspec.layout import components
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime, parse_memory, parse_nodes, parse_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.slurm import client
from gridtf.schedulers.slurm.submit import directives

# --- what the site offers: sinfo(1) ------------------------------------------------------------------------------

_PATIENCE = 20.0  # seconds
# sinfo(1), --format. --exact: nodes are put together only when they are alike.
_SINFO = ("sinfo", "--noheader", "--all", "--exact", "--format=%P|%a|%l|%s|%D|%T|%c|%m|%G|%N")
_WORKS = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
# gpu:4   gpu:a100:4(S:0-1)   tpu:2,gpu:v100:8
_GRES = re.compile(r"(?:^|,)([^:,()]+)(?::([^:,()]+))?:(\d{1,18})(?=[(,]|$)", re.ASCII)


@dataclass(frozen=True)
class Nodes:
    """Nodes that are alike. names: a hostlist. state: sinfo's, such as ``idle`` or ``down*``. mem: MiB.
    gres: how many by (name, type), such as ("gpu", "a100"); the type may be empty."""

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
    """limit: seconds, most_nodes: a job; None: without end. up: ``up``, ``down``, ``drain`` or ``inact``."""

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
        """How many of its nodes, whatever their state, are such ones."""
        return sum(some.count for some in self.nodes if fits(some))

    def most(self, of: Callable[[Nodes], int]) -> int:
        """The most that one of its nodes has."""
        return max((of(some) for some in self.nodes), default=0)


def query_partitions() -> list[Partition]:
    """The partitions of this site. Raises SchedulerError when the controller does not answer."""
    answer = client.run(_SINFO, limit=_PATIENCE)
    if answer.code:
        raise SchedulerError(f"sinfo has failed: {client.message(answer)}")
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
            limit=_limit(some[0][2]),
            most_nodes=_number(some[0][3].rpartition("-")[2]),
            nodes=tuple(
                Nodes(names, _number(count) or 0, state, _number(cpus) or 0, _number(mem) or 0, _gres(gres))
                for _, _, _, _, count, state, cpus, mem, gres, names in some
                if _number(count)
            ),
        )
        for name, some in rows.items()
    ]


def _limit(text: str) -> int | None:
    try:
        return parse_walltime(text)
    except ValueError:  # infinite, n/a
        return None


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


# --- what a script requests, read back from its head; pure -------------------------------------------------------

_SHORT = {"p": "partition", "t": "time", "N": "nodes", "A": "account", "q": "qos", "c": "cpus-per-task", "n": "ntasks"}
# sbatch(1), INPUT ENVIRONMENT VARIABLES: they win over the lines of a script.
_VARIABLES = {
    "SBATCH_PARTITION": "partition",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
}
_LONG = re.compile(r"--([a-z][a-z-]*)(?:=(.*))?")
# 2, gpu:2, a100:2, gpu:2080ti:2, gpu:1g.10gb:1; gres/gpu:2
_GPU_OPTION = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:([^:,]+):)?(\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class ComponentRequest:
    """What one component asks for: nodes (the fewest), and of each node gpus, cpus and mem (MiB).

    partitions: empty for the default one. time: seconds. kind: the GPUs' type, mostly empty. keys: option -> the key of
    the specification, or the variable, that it comes from. options: which there are.
    """

    partitions: tuple[str, ...]
    nodes: int
    gpus: int
    kind: str
    cpus: int
    mem: int
    time: int | None
    keys: Mapping[str, str]
    options: frozenset[str] = frozenset()

    def key(self, option: str) -> str:
        """The key to blame for this option of sbatch."""
        return self.keys.get(option, option.replace("-", "_"))


def parse_requests(
    lines: Sequence[str], spec: JobSpec, types: Sequence[str], environ: Mapping[str, str]
) -> tuple[ComponentRequest, ...]:
    """What each component asks for.

    lines: the options in the script's head, ``hetjob`` between components. types: of each component after the first, a
    task type that lives there. environ: sbatch's.
    """
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == "hetjob":
            parts.append([])
        else:
            parts[-1].append(line)
    variables = {option: (name, environ[name]) for name, option in _VARIABLES.items() if environ.get(name)}
    found = []
    first: dict[str, str] = {}
    for number, part in enumerate(parts):
        options = _options(part)
        for handed_on in ("time", "account", "qos", "mem"):
            if number and handed_on in first:
                options.setdefault(handed_on, first[handed_on])
        options.update({option: text for option, (_, text) in variables.items()})
        first = first or options
        keys = _first_keys(spec) if number == 0 else _rider_keys(types[number - 1], spec)
        if number == 0:
            keys.update(dict.fromkeys(_options(spec.native), "native"))
        keys.update({option: name for option, (name, _) in variables.items()})
        found.append(_asked(options, keys))
    return tuple(found)


def _options(lines: Iterable[str]) -> dict[str, str]:
    """Option -> value; of one given twice, the last. sbatch takes ``--x=1``, ``--x 1``, ``-x 1`` and ``-x1``."""
    found: dict[str, str] = {}
    waiting = ""
    for word in (word for line in lines for word in line.split()):
        match = _LONG.fullmatch(word)
        if match:
            found[match[1]] = match[2] or ""
            waiting = "" if match[2] is not None else match[1]
        elif re.match(r"-[A-Za-z]", word):
            name = _SHORT.get(word[1], word[1])
            found[name] = word[2:].removeprefix("=")
            waiting = "" if word[2:] else name
        elif waiting:
            found[waiting] = word
            waiting = ""
    return found


def _first_keys(spec: JobSpec) -> dict[str, str]:
    """Which key has led to each option."""
    gpus = next((key for key in ("gpus_per_node", "gpus_per_task") if getattr(spec, key) is not None), "tasks")
    return {
        "nodes": "nodes" if spec.nodes is not None else "tasks",
        "gpus-per-node": gpus,
        "cpus-per-task": next((key for key in ("cpus_per_task", "tasks_per_node") if getattr(spec, key)), "tasks"),
        "mem": "mem" if spec.mem is not None else "mem_per_task",
    }


def _rider_keys(task_type: str, spec: JobSpec) -> dict[str, str]:
    table = spec.task(task_type)
    return {
        "partition": f"tasks.{task_type}.partition",
        "nodes": f"tasks.{task_type}.count",
        "cpus-per-task": f"tasks.{task_type}.cpus" if table.cpus else "cpus_per_task",
        "mem": f"tasks.{task_type}.mem" if table.mem else "mem_per_task",
    }


def _asked(options: Mapping[str, str], keys: Mapping[str, str]) -> ComponentRequest:
    kind, gpus, option = "", 0, "gpus-per-node"
    for name in ("gres", "gpus-per-node"):
        match = _GPU_OPTION.fullmatch(options.get(name, ""))
        if match and (name != "gres" or "gpu" in options[name]):
            kind, gpus, option = match[1] or "", int(match[2]), name
    cpus = (_whole(options.get("ntasks-per-node")) or 1) * (_whole(options.get("cpus-per-task")) or 1)
    mem = max(
        _mib(options.get("mem")), gpus * _mib(options.get("mem-per-gpu")), cpus * _mib(options.get("mem-per-cpu"))
    )
    return ComponentRequest(
        partitions=tuple(name for name in options.get("partition", "").split(",") if name),
        nodes=_nodes(options.get("nodes", "")),
        gpus=gpus,
        kind=kind,
        cpus=cpus,
        mem=mem,
        time=_seconds(options.get("time", "")),
        keys={**keys, "gpus": keys.get(option, option.replace("-", "_"))},
        options=frozenset(options),
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# What stands in native and is none of these is sbatch's to judge.


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
    except ValueError:  # UNLIMITED
        return None


# --- the two compared, and what sbatch --test-only answers -------------------------------------------------------

# What sbatch says, and whose fault it is. Words differ between versions: key phrases.
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


def check(plan: Plan) -> tuple[str, ...]:
    """Ask Slurm about a job without submitting it. Gives notes: what will make it wait, but is a matter of the moment.

    Its script is where the plan says. Raises SpecError, with the key to blame, for what the site does not have,
    SchedulerError when Slurm does not answer or refuses for another reason.
    """
    answer = client.run(["sbatch", "--test-only", str(RunDir(plan.run_dir).script)], limit=_PATIENCE)
    types = [part.types[0] for part in components(plan.spec)[1:]]
    asked = parse_requests(directives(plan), plan.spec, types, os.environ)
    # it says nothing of a walltime that a partition never allows, unless the site has EnforcePartLimits
    if answer.code == 0 and all(one.time is None for one in asked):
        return ()
    try:
        partitions = query_partitions()
    except SchedulerError:
        if answer.code:
            raise
        return ()
    said = answer.err or answer.out
    return judge(
        asked,
        answer.code,
        said,
        partitions,
        yours=_yours(said) if answer.code else "",
        reserved=bool(os.environ.get("SBATCH_RESERVATION")),
    )


def judge(
    asked: Sequence[ComponentRequest],
    code: int,
    said: str,
    partitions: Sequence[Partition],
    *,
    yours: str = "",
    reserved: bool = False,
) -> tuple[str, ...]:
    """Notes, or the refusal. Pure.

    code, said: what sbatch --test-only has answered. partitions: what the site has. yours: which accounts the user has.
    reserved: whether the environment names a reservation.
    """
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("Try ")]
    # a site may print lines of its own; sbatch does not mark all of its own ones
    words = [_plain(line) for line in lines if _MARKED.match(line)] or [_plain(line) for line in lines]
    slurm = "; ".join(dict.fromkeys(words)) or f"exit code {code}"
    shape = _SHAPE.search(said) is not None
    for one in asked:
        _refuse(one, partitions, [_too_long, *([_too_large, _too_much] if code and shape else [])])
    if code == 0:
        return tuple(note for one in asked if (note := _closed_now(_chosen(one, partitions))))
    for one in asked:
        _refuse_partition(one, said, slurm, partitions)
    if shape:
        chosen = [partition for one in asked for partition in _chosen(one, partitions)]
        waiting = unusable_nodes(chosen)
        if waiting:
            return (f"the job waits until nodes are back that cannot be used now: {waiting}",)
    if _NOT_YET.search(said) and (reserved or any("reservation" in one.options for one in asked)):
        return ("the job waits until its reservation begins",)
    for phrase, option, hint in _OTHERS:
        if phrase.search(said):
            key = option if option in ("account", "native") else "native"
            raise SpecError(asked[0].key(option) if option in asked[0].options else key, slurm, hint=yours or hint)
    offers = "; ".join(_offer(partition) for partition in partitions)
    raise SchedulerError(f"Slurm would refuse this job: {slurm}", hint=f"the site has {offers}" if offers else "")


def _yours(said: str) -> str:
    """Which accounts or QOS the user has, where that is the question; empty where Slurm does not say."""
    asked = re.search(r"invalid (account|qos)", said, re.IGNORECASE)
    if asked is None:
        return ""
    what = asked[1].lower()
    argv = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "associations",
        f"user={user_name(os.getuid())}",
        f"format={what}",
    ]
    try:
        answer = client.run(argv, limit=5, blame=False)
    except SchedulerError:
        return ""
    words = (line.split() for line in answer.out.splitlines())  # a site may print lines of its own, with blanks
    names = sorted({name for line in words if len(line) == 1 for name in line[0].split(",") if name})
    return f"yours are: {', '.join(names)}" if names and not answer.code else ""


def _plain(line: str) -> str:
    return re.sub(r"^(sbatch: )?((error|fatal|allocation failure): )?", "", line.strip())


def _chosen(asked: ComponentRequest, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions that a component may run in."""
    return [one for one in partitions if one.name in asked.partitions or (not asked.partitions and one.default)]


def _refuse_partition(asked: ComponentRequest, said: str, slurm: str, partitions: Sequence[Partition]) -> None:
    key = asked.key("partition")
    named = ",".join(asked.partitions)
    names = [partition.name for partition in partitions]
    unknown = [name for name in asked.partitions if name not in names]
    others = [partition for partition in partitions if partition.name not in asked.partitions]
    if unknown and _BAD_PARTITION.search(said):
        raise SpecError(
            key,
            f"partition {unknown[0]!r} is not there",
            why=nearest(unknown[0], names),
            hint=f"these are: {list_partitions(partitions)}",
        )
    closed = [one for one in _chosen(asked, partitions) if one.up not in ("up", "down")]
    if closed and _CLOSED.search(said):
        open_ones = list_partitions(one for one in others if one.up == "up")
        raise SpecError(
            key, f"partition {closed[0].name} takes no jobs now ({closed[0].up})", hint=f"these do: {open_ones}"
        )
    barred = _NOT_PERMITTED.search(said)
    if barred:
        key = {"account": asked.key("account"), "qos": asked.key("qos")}.get(barred[1].lower(), key)
        raise SpecError(key, slurm, why=f"partition {named or 'by default'}", hint=f"others: {list_partitions(others)}")


def _closed_now(chosen: Sequence[Partition]) -> str:
    if not chosen or any(one.up == "up" for one in chosen):
        return ""
    return f"the job waits until a partition is open again: {list_partitions(chosen, lambda one: one.up)}"


Judge = Callable[[ComponentRequest, Partition, Sequence[Partition]], SpecError | None]


def _refuse(asked: ComponentRequest, partitions: Sequence[Partition], judges: Sequence[Judge]) -> None:
    """Raise SpecError when no partition that the component may run in can ever give what it asks for."""
    chosen = _chosen(asked, partitions)
    if not chosen or len(chosen) < len(asked.partitions):
        return
    problems = [next(filter(None, (one(asked, partition, partitions) for one in judges)), None) for partition in chosen]
    # any of several partitions will do
    if problems[0] is not None and all(problems):
        raise problems[0]


def _too_long(asked: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    if asked.time is None or partition.limit is None or asked.time <= partition.limit or "qos" in asked.options:
        return None  # a QOS may allow more than its partition
    longer = [one for one in partitions if one.limit is None or one.limit >= asked.time]
    return SpecError(
        asked.key("time"),
        f"{format_walltime(asked.time)} is more than partition {partition.name} allows ({show_walltime(partition)})",
        why="where a QOS allows more, name it, such as --native=--qos=long",
        hint=_these("allow it", longer, partitions, show_walltime),
    )


def _too_large(asked: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    name, most = partition.name, partition.most_nodes
    if asked.nodes > partition.size:
        larger = [one for one in partitions if asked.nodes <= one.size]
        return SpecError(
            asked.key("nodes"),
            f"{asked.nodes} nodes asked for, partition {name} has {partition.size}",
            hint=_these("have enough", larger, partitions, lambda one: str(one.size)),
        )
    if most is not None and asked.nodes > most:
        freer = [one for one in partitions if one.size >= asked.nodes and (one.most_nodes or one.size) >= asked.nodes]
        return SpecError(
            asked.key("nodes"),
            f"{asked.nodes} nodes asked for, partition {name} gives a job {most} at the most",
            hint=_these("allow it", freer, partitions, lambda one: str(one.most_nodes or one.size)),
        )
    return None


def _too_much(asked: ComponentRequest, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    """More of a node than any has."""
    name, kind = partition.name, f"{asked.kind} " if asked.kind else ""

    def gpus(nodes: Nodes) -> int:
        return nodes.gpus(asked.kind)

    def fits(nodes: Nodes) -> bool:
        return gpus(nodes) >= asked.gpus and nodes.cpus >= asked.cpus and nodes.mem >= asked.mem

    kinds: tuple[tuple[str, int, Callable[[Nodes], int], str], ...] = (
        ("gpus", asked.gpus, gpus, f"{kind}GPUs"),
        ("cpus-per-task", asked.cpus, lambda nodes: nodes.cpus, "CPUs"),
        ("mem", asked.mem, lambda nodes: nodes.mem, "MiB of memory"),
    )
    for option, wanted, of, noun in kinds:
        most = partition.most(of)
        if wanted <= most:
            continue
        better = [one for one in partitions if one.most(of) >= (wanted if option != "gpus" or most else 1)]
        unit = " MiB" if option == "mem" else ""
        have = show_gpus if option == "gpus" else (lambda one, of=of, unit=unit: f"{one.most(of)}{unit}")
        what = f"{wanted} {noun} a node asked for, those of partition {name} have {most}"
        if not most and option == "gpus":
            what = f"no node of partition {name} has {noun}"
        return SpecError(asked.key(option), what, hint=_these("have", better, partitions, have))
    number = partition.fitting(fits)
    if number < asked.nodes:
        has = ", ".join(f"{wanted} {noun}" for _, wanted, _, noun in kinds if wanted)
        what = f"{asked.nodes} nodes with {has} asked for, partition {name} has {number} such"
        enough = [one for one in partitions if one.fitting(fits) >= asked.nodes]
        hint = _these("have enough", enough, partitions, lambda one: str(one.fitting(fits)))
        return SpecError(asked.key("nodes"), what, hint=hint)
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
