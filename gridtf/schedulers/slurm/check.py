"""What Slurm would refuse or leave waiting for ever, told before anything is submitted, with what the site offers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.files import user_name
from gridtf.jobspec.layout import components
from gridtf.jobspec.units import format_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.slurm import controller, directives, site
from gridtf.schedulers.slurm.asked import Asked, asked_for
from gridtf.schedulers.slurm.site import Nodes, Partition

_PATIENCE = 20.0  # seconds

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
    answer = controller.query(["sbatch", "--test-only", str(RunDir(plan.run_dir).script)], limit=_PATIENCE)
    types = [part.types[0] for part in components(plan.spec)[1:]]
    asked = asked_for(directives.directives(plan), plan.spec, types, os.environ)
    # it says nothing of a walltime that a partition never allows, unless the site has EnforcePartLimits
    if answer.code == 0 and all(one.time is None for one in asked):
        return ()
    try:
        partitions = site.ask()
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
    asked: Sequence[Asked],
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
        waiting = site.not_working(chosen)
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
        answer = controller.query(argv, limit=5, blame=False)
    except SchedulerError:
        return ""
    words = (line.split() for line in answer.out.splitlines())  # a site may print lines of its own, with blanks
    names = sorted({name for line in words if len(line) == 1 for name in line[0].split(",") if name})
    return f"yours are: {', '.join(names)}" if names and not answer.code else ""


def _plain(line: str) -> str:
    return re.sub(r"^(sbatch: )?((error|fatal|allocation failure): )?", "", line.strip())


def _chosen(asked: Asked, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions that a component may run in."""
    return [one for one in partitions if one.name in asked.partitions or (not asked.partitions and one.default)]


def _refuse_partition(asked: Asked, said: str, slurm: str, partitions: Sequence[Partition]) -> None:
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
            hint=f"these are: {site.listed(partitions)}",
        )
    closed = [one for one in _chosen(asked, partitions) if one.up not in ("up", "down")]
    if closed and _CLOSED.search(said):
        open_ones = site.listed(one for one in others if one.up == "up")
        raise SpecError(
            key, f"partition {closed[0].name} takes no jobs now ({closed[0].up})", hint=f"these do: {open_ones}"
        )
    barred = _NOT_PERMITTED.search(said)
    if barred:
        key = {"account": asked.key("account"), "qos": asked.key("qos")}.get(barred[1].lower(), key)
        raise SpecError(key, slurm, why=f"partition {named or 'by default'}", hint=f"others: {site.listed(others)}")


def _closed_now(chosen: Sequence[Partition]) -> str:
    if not chosen or any(one.up == "up" for one in chosen):
        return ""
    return f"the job waits until a partition is open again: {site.listed(chosen, lambda one: one.up)}"


Judge = Callable[[Asked, Partition, Sequence[Partition]], SpecError | None]


def _refuse(asked: Asked, partitions: Sequence[Partition], judges: Sequence[Judge]) -> None:
    """Raise SpecError when no partition that the component may run in can ever give what it asks for."""
    chosen = _chosen(asked, partitions)
    if not chosen or len(chosen) < len(asked.partitions):
        return
    problems = [next(filter(None, (one(asked, partition, partitions) for one in judges)), None) for partition in chosen]
    # any of several partitions will do
    if problems[0] is not None and all(problems):
        raise problems[0]


def _too_long(asked: Asked, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
    if asked.time is None or partition.limit is None or asked.time <= partition.limit or "qos" in asked.options:
        return None  # a QOS may allow more than its partition
    longer = [one for one in partitions if one.limit is None or one.limit >= asked.time]
    return SpecError(
        asked.key("time"),
        f"{format_walltime(asked.time)} is more than partition {partition.name} allows ({site.walltime(partition)})",
        why="where a QOS allows more, name it, such as --native=--qos=long",
        hint=_these("allow it", longer, partitions, site.walltime),
    )


def _too_large(asked: Asked, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
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


def _too_much(asked: Asked, partition: Partition, partitions: Sequence[Partition]) -> SpecError | None:
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
        have = site.gpus if option == "gpus" else (lambda one, of=of, unit=unit: f"{one.most(of)}{unit}")
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
        return f"these {what}: {site.listed(fitting, more)}"
    return f"no partition does; there are: {site.listed(partitions, lambda one: more(one) or 'none')}"


def _offer(partition: Partition) -> str:
    has = [f"{partition.size} nodes", f"walltime {site.walltime(partition)}"]
    gpus = site.gpus(partition)
    return f"{partition.name}: {', '.join([*has, f'GPUs {gpus}'] if gpus else has)}"
