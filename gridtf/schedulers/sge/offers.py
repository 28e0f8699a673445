"""What a cell offers: its parallel environments, queues and resources, from qconf(1), and how messages list them.

Where qconf is refused (many cells answer it on administrative hosts only) the cell is unknown, and that is no error.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from gridtf.jobspec.units import format_walltime
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import Resource, Site
from gridtf.schedulers.sge.query import seconds
from gridtf.text import whole
from gridtf.values import Value

QUERY_LIMIT = 20.0  # seconds, for a question to the qmaster before a submission
_AMOUNTS = {"MEMORY": "4G", "TIME": "1:00:00", "BOOL": "TRUE"}  # of a resource that every job must request
_MOST_PES = 60  # parallel environments: each takes a qconf of its own


class PE(Value):
    """A parallel environment: sge_pe(5).

    Attributes:
        name: Its name.
        slots: The most slots that all of its jobs together may have.
        control_slaves: Whether qrsh -inherit may start tasks on other hosts of a job.
        rule: Its allocation_rule: ``$fill_up``, ``$round_robin``, ``$pe_slots``, or the number of slots per host.
        users: Its user_lists, the users that it is limited to; empty: all users.
        summary: Whether the accounting has one record for a job (accounting_summary), and not one for each qrsh.
    """

    name: str
    slots: int
    control_slaves: bool
    rule: str
    users: str = ""
    summary: bool = False

    @property
    def fixed(self) -> int | None:
        """The slots that it allocates on every host; None where the rule fixes no number."""
        return whole(self.rule)

    @property
    def rank(self) -> tuple[bool, int]:
        """The lower, the better for jobs of any number of tasks on any number of hosts."""
        rules = ("$round_robin", "$fill_up")
        order = rules.index(self.rule) if self.rule in rules else len(rules) + (self.fixed is None)
        return (not self.control_slaves and self.rule != "$pe_slots", order)

    def hosts(self, slots: int) -> int:
        """The most hosts over which it may spread this number of slots."""
        if self.rule == "$pe_slots":
            return 1
        return -(-slots // (self.fixed or 1))


class Queue(Value):
    """A cluster queue: queue_conf(5).

    Attributes:
        name: Its name.
        pes: The parallel environments in its pe_list, on any of its hosts.
        limit: The longest h_rt on any of its hosts, in seconds; None: unlimited.
    """

    name: str
    pes: frozenset[str]
    limit: int | None


class Cell(Value):
    """What qconf lists of a cell; all empty when qconf is refused.

    Attributes:
        pes: The parallel environments.
        queues: The cluster queues.
        resources: The resources of the complex.
        projects: Names of the projects.
        submit_hosts: Names of the submit hosts.
        suitable: Names of the parallel environments that a job could run in, less the one that it requests.
    """

    pes: Sequence[PE] = ()
    queues: Sequence[Queue] = ()
    resources: Sequence[Resource] = ()
    projects: Sequence[str] = ()
    submit_hosts: Sequence[str] = ()
    suitable: Sequence[str] = ()


# --- asking qconf


def known_pe(name: str) -> PE | None:
    """Look up one parallel environment; None when it does not exist, or qconf is refused."""
    return parse_pe(qconf("-sp", name))


def known_pes() -> list[PE]:
    """The parallel environments of the cell, 60 at most; none when qconf is refused."""
    return [pe for name in known_names("-spl")[:_MOST_PES] if (pe := known_pe(name))]


def known_queues() -> list[Queue]:
    """All cluster queues; none when qconf is refused."""
    names = known_names("-sql")
    return parse_queues(qconf("-sq", ",".join(names))) if names else []


def known_cell() -> Cell:
    """All that qconf lists."""
    return Cell(known_pes(), known_queues(), known_resources(), known_names("-sprjl"), known_names("-ss"))


def known_resources() -> list[Resource]:
    """All resources of the complex; none when qconf is refused."""
    return parse_resources(qconf("-sc"))


def known_models(name: str, resources: Sequence[Resource]) -> Site:
    """The site with the values that hosts have of the resource which tells GPU models; none where qhost is refused."""
    answer = sge.run(["qhost", "-F", name], limit=QUERY_LIMIT)
    found = re.findall(rf"\bh([a-z]):{re.escape(name)}=(\S+)", "" if answer.code else answer.out)
    fixed = name if found and all(kind == "f" for kind, _ in found) else ""
    return Site(resources, dict(Counter(value for _, value in found)), fixed)


def known_names(option: str) -> list[str]:
    """The names that qconf lists.

    Args:
        option: qconf's: ``-spl`` parallel environments, ``-sql`` queues, ``-sprjl`` projects, ``-ss`` submit hosts.
    """
    lines = (line.strip() for line in qconf(option).splitlines())
    return [line for line in lines if re.fullmatch(r"[\w.@+-]+", line)]  # a banner of the site has several words


def qconf(*arguments: str) -> str:
    """The output of qconf; empty when it is refused, or what it is to show does not exist."""
    answer = sge.run(["qconf", *arguments], limit=QUERY_LIMIT)
    return "" if answer.code else answer.out


def parse_pe(text: str) -> PE | None:
    """Parse the output of ``qconf -sp``: ``pe_name rr``, ``slots 999``, ``allocation_rule $round_robin``, … one a line.

    Returns:
        The parallel environment; None when the output describes none.
    """
    values = dict(pairs(text))
    if "pe_name" not in values:
        return None
    users = values.get("user_lists", "NONE")
    return PE(
        name=values["pe_name"],
        slots=whole(values.get("slots", "")) or 0,
        control_slaves=values.get("control_slaves", "").upper() == "TRUE",
        rule=values.get("allocation_rule", ""),
        users="" if users.upper() == "NONE" else users,
        summary=values.get("accounting_summary", "").upper() == "TRUE",
    )


def parse_queues(text: str) -> list[Queue]:
    """Parse the output of ``qconf -sq``: ``qname all.q``, ``pe_list make smp,[@gpu=mpi rr]``, ``h_rt 1:00:00``, …"""
    queues: list[dict[str, str]] = []
    for key, value in pairs(text):
        if key == "qname":
            queues.append({})
        if queues:
            queues[-1][key] = value
    return [
        Queue(
            queue["qname"],
            frozenset(re.sub(r"\[[^=\]]*=|[\],]", " ", queue.get("pe_list", "")).split()) - {"NONE"},
            _longest(queue.get("h_rt", "INFINITY")),
        )
        for queue in queues
    ]


def parse_usable(text: str) -> dict[str, bool]:
    """Parse the output of ``qstat -g c``: queue -> whether it has slots that are not in error, disabled or unknown.

    ``all.q    1.11      0      0     16     16      0      0``: TOTAL, aoACDS and cdsuE are the last three columns.
    """
    rows = (line.split() for line in text.splitlines())
    numbers = {row[0]: [whole(word) for word in row[-3:]] for row in rows if len(row) >= 7}
    return {name: total > bad for name, (total, _, bad) in numbers.items() if total is not None and bad is not None}


def parse_free(text: str) -> dict[str, tuple[int, int]]:
    """Parse the output of ``qstat -g c``: queue -> how many of its slots are free now, and how many it has."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: (int(row[-4]), int(row[-3])) for row in rows if len(row) >= 7 and "".join(row[-4:-2]).isdecimal()}


def parse_slots(text: str) -> dict[str, int]:
    """Parse the output of ``qstat -f -xml``: host -> the most slots of a queue on it, 0 where none is in service."""
    found: dict[str, int] = {}
    for instance in text.split("<Queue-List>")[1:]:
        rows = re.findall(r"<(name|slots_total|state)>([^<]*)<", instance.partition("<job_list")[0])
        name, slots, state = (dict(rows).get(key, "") for key in ("name", "slots_total", "state"))
        host, number = name.partition("@")[2], 0 if {*"uEd"} & {*state} else whole(slots) or 0
        found[host] = max(found.get(host, 0), number)
    return found


def parse_resources(text: str) -> list[Resource]:
    """Parse the output of ``qconf -sc``: name, shortcut, type, relation, requestable, consumable, … one row a line."""
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return [
        Resource(row[0], row[1], row[5].upper(), row[2].upper(), row[4].upper() == "FORCED")
        for row in rows
        if len(row) >= 7
    ]


def like_gpus(resources: Iterable[Resource]) -> list[str]:
    """The names of resources that may stand for GPUs."""
    names = (resource.name for resource in resources)
    return [name for name in names if re.search("gpu|cuda|nvidia", name, re.IGNORECASE)]


def pairs(text: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(key, value.strip()) for key, _, value in (line.strip().partition(" ") for line in lines)]


def _longest(text: str) -> int | None:
    """The longest of a queue's times, in seconds: ``0:10:0,[n1=INFINITY]``; None: unlimited."""
    times = [seconds(value) for value in re.findall(r"(?:^|=)([^,\[\]=]+)", text)]
    return None if None in times else max((time for time in times if time is not None), default=None)


def walltime(queue: Queue) -> str:
    """The time limit of a queue, written as in a job file."""
    return "no limit" if queue.limit is None else format_walltime(queue.limit)


def with_walltimes(queues: Iterable[Queue]) -> list[str]:
    """The names of queues with their time limits, for messages: ``short.q (0:30:00)``."""
    return [f"{queue.name} ({walltime(queue)})" for queue in queues]


def forced_line(name: str, kind: str) -> str:
    """The raw option for a resource that every job must request, with an amount to be adapted."""
    return f"-l {name}={_AMOUNTS.get(kind, '1')}"


def matching_queues(queues: Iterable[Queue], names: Sequence[str]) -> list[Queue]:
    """The queues that a job may start in.

    Args:
        queues: The cluster queues.
        names: What the job requests: names or patterns of queues; ``all.q@n1`` and ``all.q@@gpu`` name some hosts of
            one. Empty: any queue.
    """
    patterns = [name.partition("@")[0] or "*" for name in names] or ["*"]
    return [queue for queue in queues if any(fnmatch.fnmatchcase(queue.name, pattern) for pattern in patterns)]


def carrying(queues: Iterable[Queue], pe: str) -> list[Queue]:
    """The queues that offer a parallel environment, or one that matches a pattern; all where none is named."""
    return [queue for queue in queues if not pe or fnmatch.filter(queue.pes, pe)]


def alternatives(label: str, suitable: Iterable[str], existing: Sequence[str] = ()) -> str:
    """A hint that names what the cell offers instead.

    Args:
        label: What the suitable names are, such as ``suitable PEs``.
        suitable: Their names.
        existing: All names, to be listed when none is suitable.

    Returns:
        One line; empty when there are no names at all, as when qconf is refused.
    """
    if names := ", ".join(suitable):
        return f"{label}: {names}"
    return f"{label}: none; existing: {', '.join(existing)}" if existing else ""
