"""What a site offers, from sinfo: its partitions, their limits and nodes. Parsing and wording are pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gridtf.errors import SchedulerError
from gridtf.jobspec.units import format_walltime, parse_walltime
from gridtf.schedulers.slurm import controller

_PATIENCE = 20.0
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


def ask() -> list[Partition]:
    """The partitions of this site. Raises SchedulerError when the controller does not answer."""
    answer = controller.query(_SINFO, limit=_PATIENCE)
    if answer.code:
        raise SchedulerError(f"sinfo has failed: {controller.said(answer)}")
    return partitions(answer.out)


def partitions(text: str) -> list[Partition]:
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


# --- in words --------------------------------------------------------------------------------------------------


def listed(site: Iterable[Partition], more: Callable[[Partition], str] = lambda partition: "") -> str:
    """``gpu (default), cpu``, or with what more says of each: ``gpu (4 each)``."""
    words = []
    for partition in site:
        note = more(partition) or ("default" if partition.default else "")
        words.append(f"{partition.name} ({note})" if note else partition.name)
    return ", ".join(words)


def walltime(partition: Partition) -> str:
    """Its limit, as it is written in a job file."""
    return "no limit" if partition.limit is None else format_walltime(partition.limit)


def gpus(partition: Partition) -> str:
    """``4 each``, ``2 to 4 each``, ``4 a100 each``."""
    kinds = sorted({kind for some in partition.nodes for name, kind in some.gres if name == "gpu"})
    return " or ".join(_each(partition, kind) for kind in kinds)


def _each(partition: Partition, kind: str) -> str:
    has = sorted({count for some in partition.nodes if (count := some.gpus(kind) if kind else _untyped(some))})
    number = f"{has[0]}" if len(has) == 1 else f"{has[0]} to {has[-1]}"
    return f"{number}{f' {kind}' if kind else ''} each"


def _untyped(some: Nodes) -> int:
    return some.gres.get(("gpu", ""), 0)


def not_working(chosen: Sequence[Partition]) -> str:
    """Which nodes of these partitions jobs cannot use now: ``n[1-2] down, n3 drained``; empty: none."""
    words = [
        f"{some.names} {some.state.rstrip('*')}{' (does not answer)' if '*' in some.state else ''}"
        for partition in chosen
        for some in partition.nodes
        if not some.works
    ]
    return ", ".join(dict.fromkeys(words))
