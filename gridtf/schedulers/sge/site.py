"""What a cell offers, from qconf: parallel environments, queues, resources. Parsing and wording are pure.

Where qconf is not permitted (many cells let only administrative hosts ask) nothing is known, and that is no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gridtf.jobspec.units import format_walltime
from gridtf.schedulers.common import whole
from gridtf.schedulers.sge import cell
from gridtf.schedulers.sge.states import seconds

_PATIENCE = 20.0  # seconds
_MOST = 60  # parallel environments: each is a question of its own


@dataclass(frozen=True)
class PE:
    """A parallel environment: sge_pe(5). slots: of all its jobs together. rule: ``$fill_up``, …, or the slots a host.
    users: whom it is for; empty: everybody."""

    name: str
    slots: int
    control_slaves: bool
    rule: str
    users: str = ""

    @property
    def fixed(self) -> int | None:
        """Slots that it gives on every host, where that is fixed."""
        return whole(self.rule)

    def hosts(self, slots: int) -> int:
        """The most hosts that so many slots may lie on."""
        if self.rule == "$pe_slots":
            return 1
        return -(-slots // (self.fixed or 1))


@dataclass(frozen=True)
class Queue:
    """A cluster queue: queue_conf(5). pes: the parallel environments that it carries on some host. limit: seconds, the
    longest walltime on any of its hosts; None: without end."""

    name: str
    pes: frozenset[str]
    limit: int | None


@dataclass(frozen=True)
class Resource:
    """A row of the complex: complex(5). kind: ``INT``, ``RSMAP``. consumable: ``NO``, ``YES``, ``JOB`` or ``HOST``."""

    name: str
    shortcut: str
    kind: str
    consumable: str


# --- asking ----------------------------------------------------------------------------------------------------


def pe(name: str) -> PE | None:
    """One parallel environment; None where it is not there or qconf may not be asked."""
    return parse_pe(_qconf("-sp", name))


def pes() -> list[PE]:
    """All of them."""
    return [found for name in names("-spl")[:_MOST] if (found := pe(name)) is not None]


def queues() -> list[Queue]:
    """All cluster queues."""
    known = names("-sql")
    return parse_queues(_qconf("-sq", ",".join(known))) if known else []


def resources() -> list[Resource]:
    """All resources that the complex has."""
    return parse_resources(_qconf("-sc"))


def names(option: str) -> list[str]:
    """What there is, by name: ``-spl`` parallel environments, ``-sql`` queues, ``-sprjl`` projects, ``-ss`` submit
    hosts."""
    lines = (line.strip() for line in _qconf(option).splitlines())
    return [line for line in lines if re.fullmatch(r"[\w.@+-]+", line)]  # a site's own words are more than one


def _qconf(*arguments: str) -> str:
    answer = cell.query(["qconf", *arguments], limit=_PATIENCE)
    return "" if answer.code else answer.out


# --- what qconf prints -----------------------------------------------------------------------------------------


def parse_pe(text: str) -> PE | None:
    """``pe_name rr``, ``slots 999``, ``allocation_rule $round_robin``, ``control_slaves TRUE``, … one a line."""
    said = dict(_pairs(text))
    if "pe_name" not in said:
        return None
    users = said.get("user_lists", "NONE")
    return PE(
        name=said["pe_name"],
        slots=whole(said.get("slots", "")) or 0,
        control_slaves=said.get("control_slaves", "").upper() == "TRUE",
        rule=said.get("allocation_rule", ""),
        users="" if users.upper() == "NONE" else users,
    )


def parse_queues(text: str) -> list[Queue]:
    """``qname all.q``, ``pe_list make smp,[@gpu=mpi rr]``, ``h_rt INFINITY,[n1=1:00:00]``, … queue after queue."""
    found: list[dict[str, str]] = []
    for key, value in _pairs(text):
        if key == "qname":
            found.append({})
        if found:
            found[-1][key] = value
    return [
        Queue(
            one["qname"],
            frozenset(re.split(r"[\s,]+", re.sub(r"\[[^=\]]*=|\]", " ", one.get("pe_list", "")).strip()))
            - {"NONE", ""},
            _longest(one.get("h_rt", "INFINITY")),
        )
        for one in found
    ]


def parse_resources(text: str) -> list[Resource]:
    """``gpu  gpu  INT  <=  YES  YES  0  0``: name, shortcut, type, relation, requestable, consumable, …"""
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return [Resource(row[0], row[1], row[2].upper(), row[5].upper()) for row in rows if len(row) >= 7]


def _pairs(text: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(key, value.strip()) for key, _, value in (line.strip().partition(" ") for line in lines)]


def _longest(text: str) -> int | None:
    """The longest of a queue's values: ``0:10:0,[n1=INFINITY]``."""
    values = re.findall(r"(?:^|=)([^,\[\]=]+)", text)
    found = [seconds(value) for value in values]
    return None if None in found else max((one for one in found if one is not None), default=None)


# --- in words --------------------------------------------------------------------------------------------------


def walltime(queue: Queue) -> str:
    """Its limit, as it is written in a job file."""
    return "no limit" if queue.limit is None else format_walltime(queue.limit)


def these(what: str, fitting: Iterable[str], known: Sequence[str]) -> str:
    """What the cell offers instead: those that fit, else what there is; empty where nobody knows it."""
    some = list(fitting)
    if some:
        return f"these {what}: {', '.join(some)}"
    return f"none does; there are: {', '.join(known)}" if known else ""
