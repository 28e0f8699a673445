"""What a site offers: its partitions and their nodes, from sinfo(1), and how messages list them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gridtf.jobspec.units import format_walltime, parse_walltime
from gridtf.schedulers.slurm.commands import slurm
from gridtf.values import Value

Parsed = TypeVar("Parsed")

# sinfo(1), --format. --exact: nodes are grouped only when their configurations are identical.
_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%s|%D|%T|%c|%m|%G|%N|%f")
_WORKS = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
# gpu:4   gpu:a100:4(S:0-1)   tpu:2,gpu:v100:8
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:(\d{1,18})(?=[(,]|$)", re.ASCII)


class Nodes(Value):
    """Nodes of a partition with the same configuration and state: one line of sinfo.

    Attributes:
        names: Hostlist of the nodes, such as ``n[1-4]``.
        count: Number of nodes.
        state: State as sinfo(1) prints it, such as ``idle`` or ``down*``; the star means not responding.
        cpus: CPUs of each node.
        mem: Memory of each node in MiB.
        gpu_types: GPUs of each node: type, such as ``a100``, -> number; the type may be empty.
        features: Their features, which ``--constraint`` asks for.
    """

    names: str
    count: int
    state: str
    cpus: int
    mem: int
    gpu_types: Mapping[str, int]
    features: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether jobs can run on these nodes, now or when other jobs have ended."""
        return "*" not in self.state and self.state.rstrip("~#!%$@^-+") in _WORKS

    def gpus(self, kind: str = "") -> int:
        """Number of GPUs of each node: of this type, or of all types if it is empty."""
        return sum(number for own, number in self.gpu_types.items() if kind in ("", own))


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


def query_partitions(*, limit: float | None = None, clusters: Sequence[str] = (), all_: bool = True) -> list[Partition]:
    """Query sinfo for the partitions of this site.

    Args:
        limit: Seconds that sinfo may take; None: as any question to the queue.
        clusters: The clusters; empty: the one that commands ask by default.
        all_: Whether to list also hidden partitions, and those that are closed to the groups of this user.

    Returns:
        All partitions, in sinfo's order.

    Raises:
        SchedulerError: When sinfo fails or the controller does not answer.
    """
    which = [*["--all"] * all_, *[f"--clusters={','.join(clusters)}"] * bool(clusters)]
    return parse_partitions(slurm.printed([*_SINFO, *which], limit=limit or slurm.query_limit))


def parse_partitions(text: str) -> list[Partition]:
    """Parse the output of sinfo.

    Args:
        text: Lines such as ``gpu*|up|7-00:00:00|1-infinite|4|idle|8|16000|gpu:4|n[1-4]|ib,a100``, in the format of
            _SINFO; the star marks the default partition. Other lines are skipped.

    Returns:
        The partitions, in the order of their first lines.
    """
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) in (10, 11):
            rows.setdefault(words[0], []).append(words)
    return [
        Partition(
            name=name.removesuffix("*"),
            default=name.endswith("*"),
            up=lines[0][1],
            limit=parsed(parse_walltime, lines[0][2]),
            most_nodes=_number(lines[0][3].rpartition("-")[2]),
            nodes=tuple(
                Nodes(
                    *(names, _number(count) or 0, state, _number(cpus) or 0, _number(mem) or 0, _gpus(gres)),
                    tuple(feature for feature in "".join(features).split(",") if feature not in ("", "(null)")),
                )
                for _, _, _, _, count, state, cpus, mem, gres, names, *features in lines
                if _number(count)
            ),
        )
        for name, lines in rows.items()
    ]


def parsed(parse: Callable[[str], Parsed], text: str | None) -> Parsed | None:
    """Parse a value of sinfo's or sbatch's; None for one that cannot be parsed, such as ``infinite``."""
    try:
        return parse(text or "")
    except ValueError:
        return None


def _number(text: str) -> int | None:
    """Parse a number of sinfo's: ``8``, ``512000+``, or ``1.50K``, its short form of large ones."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)([KMGT]?)\+?", text, re.ASCII)
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else None


def _gpus(gres: str) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for kind, count in _GPUS.findall(gres):
        found[kind] += int(count)
    return +found  # without gpu:0


def chosen(names: Sequence[str], site: Sequence[Partition]) -> list[Partition]:
    """The partitions that a job may run in. names: of those that it names; without any, the default one."""
    return [each for each in site if (each.name in names if names else each.default)]


def spelled(model: str, names: Sequence[str], site: Sequence[Partition]) -> tuple[str, str]:
    """How a site calls a model of GPUs.

    Args:
        model: As the user calls it; upper and lower case are alike, and a word of the only type that has it will do,
            such as a100 of nvidia_a100-sxm4-80gb. Parts of a GPU (MIG) are not meant by the name of a whole one.
        names: The partitions that the job names.
        site: All partitions; empty where they are not known.

    Returns:
        (type of its GPUs, feature of its nodes): one of them is empty. A site that does not have it: (model, "").
    """
    for partitions in (chosen(names, site), site):
        nodes = [group for partition in partitions for group in partition.nodes if group.gpu_types]
        types = {kind for group in nodes for kind in group.gpu_types}
        features = {feature for group in nodes for feature in group.features}
        for column, found in enumerate((types, features)):
            if own := next((word for word in sorted(found) if word.lower() == model.lower()), ""):
                return ("", own) if column else (own, "")
        word = rf"(?i)(?<![a-z0-9]){re.escape(model)}(?![a-z0-9]|.*\dg\.)"
        like = [kind for kind in types if re.search(word, kind)]
        if len(like) == 1:
            return like[0], ""
    return model, ""


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


def _gpus_of_node(partition: Partition) -> list[str]:
    """The numbers of GPUs of a node, by their types: ``4``, ``2 to 4 a100``."""
    words = []
    for kind in sorted({kind for nodes in partition.nodes for kind in nodes.gpu_types}):
        numbers = {nodes.gpu_types.get(kind, 0) for nodes in partition.nodes} - {0}
        words.append(f"{' to '.join(map(str, sorted({min(numbers), max(numbers)})))} {kind}".strip())
    return words


def show_gpus(partition: Partition) -> str:
    """GPUs of a partition's nodes, for messages: ``4 each``, ``2 to 4 each``, ``4 a100 each``, ``4 each, features a100,
    ib``; empty without GPUs."""
    untyped = (nodes.features for nodes in partition.nodes if "" in nodes.gpu_types)
    features = sorted({feature for own in untyped for feature in own})
    each = " or ".join(f"{number} each" for number in _gpus_of_node(partition))
    return f"{each}, features {', '.join(features)}" if features else each


def gpus_per_node(partition: Partition) -> str:
    """GPUs of a partition's nodes as a phrase: ``4 GPUs per node``, ``1 to 4 a100 GPUs per node``; empty without."""
    each = _gpus_of_node(partition)
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
