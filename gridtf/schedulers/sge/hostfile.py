"""PE_HOSTFILE, the hosts of a parallel job: sge_pe(5), "$pe_hostfile". Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gridtf.errors import SchedulerError
from gridtf.schedulers.common import whole

# Pairs of socket and core, 0,0:0,1 or, with -binding pe of Open Cluster Scheduler, 0:0,0:1; UNDEFINED, <NULL> or NONE
# where nobody asked for a binding.
_BINDING = re.compile(r"\d+,\d+(:\d+,\d+)*|\d+:\d+(,\d+:\d+)*")


@dataclass(frozen=True)
class HostLine:
    """One host of a job. slots: on all of its queues together. cores: how many it is bound to; None: to none."""

    name: str
    slots: int
    cores: int | None = None


def short(name: str) -> str:
    """The first part of a host's name, as Grid Engine compares names when it ignores domains."""
    return name.split(".", 1)[0].lower()


def same(one: str, other: str) -> bool:
    """Whether two names mean one host: they are alike, or one of them is the other without its domain."""
    one, other = one.lower(), other.lower()
    return one == other or (("." in one) != ("." in other) and short(one) == short(other))


def parse(text: str, path: str = "PE_HOSTFILE") -> tuple[HostLine, ...]:
    """The hosts in their order, the one that runs the job script first; each once, whatever its queues.

    ``HOST SLOTS QUEUE@HOST BINDING`` a line; what is missing on the right does not matter. path: for messages. Raises
    SchedulerError, with the line, for what cannot be read.
    """
    found: list[HostLine] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        slots = whole(words[1]) if len(words) > 1 else 1
        if slots is None:
            raise SchedulerError(
                f"{path}:{number}: {words[1][:80]!r} is not a number of slots",
                why=f"the line is {line.strip()[:80]!r}",
                hint="each line is HOST SLOTS QUEUE BINDING; has a start_proc_args of the PE rewritten the file?",
            )
        binding = words[3] if len(words) > 3 else ""
        cores = len(re.findall(r"\d+[,:]\d+", binding)) if _BINDING.fullmatch(binding) else None
        place = next((place for place, host in enumerate(found) if same(host.name, words[0])), len(found))
        if place == len(found):
            found.append(HostLine(words[0], slots, cores))
            continue
        before = found[place]
        both = None if before.cores is None or cores is None else before.cores + cores
        found[place] = HostLine(before.name, before.slots + slots, both)
    if not found:
        raise SchedulerError(f"{path} names no host", hint="has a start_proc_args of the PE emptied the file?")
    return tuple(found)
