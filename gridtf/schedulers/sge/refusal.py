"""Whose fault it is when qsub refuses a job, and what the cell offers instead. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from gridtf.errors import SchedulerError, SpecError, nearest
from gridtf.jobspec.units import format_walltime
from gridtf.schedulers.client import Answer
from gridtf.schedulers.sge import cell, site
from gridtf.schedulers.sge.asked import Asked
from gridtf.schedulers.sge.site import PE, Queue, Resource
from gridtf.schedulers.sge.states import seconds


@dataclass(frozen=True)
class Cell:
    """What there is; all empty where qconf may not be asked. suitable: the other parallel environments that
    would do. hosts: those that jobs may be submitted from."""

    pes: Sequence[PE] = ()
    suitable: Sequence[str] = ()
    queues: Sequence[Queue] = ()
    resources: Sequence[Resource] = ()
    projects: Sequence[str] = ()
    hosts: Sequence[str] = ()

    def carrying(self, pe: str) -> list[Queue]:
        """The queues with this parallel environment, or one that the pattern stands for."""
        return [queue for queue in self.queues if any(fnmatch.fnmatchcase(name, pe) for name in queue.pes)]


def refuse(answer: Answer, asked: Asked, gpus: str, known: Cell) -> NoReturn:
    """Raise the SpecError, or the SchedulerError, that follows from what qsub has answered.

    gpus: the resource that stands for GPUs.
    """
    said, last = answer.err or answer.out, cell.said(answer)
    _refuse_names(said, asked, gpus, known)
    _refuse_queues(asked, known)
    _refuse_amounts(said, asked, gpus, known)
    if "invalid option argument" in said or "is an invalid task id" in said or "attribute" in last:
        raise SpecError("native", last, hint="see man qsub")
    if re.search(r"is (not a|no) submit host", said):
        hosts = ", ".join(known.hosts)
        raise SchedulerError(
            f"jobs cannot be submitted from here: {last}", hint=f"submit from one of: {hosts}" if hosts else ""
        )
    raise SchedulerError(f"Grid Engine would refuse this job: {last}")


def _refuse_names(said: str, asked: Asked, gpus: str, known: Cell) -> None:
    """What is not there at all."""
    names: tuple[tuple[str, str, str, list[str]], ...] = (
        ("parallel environment", "pe", "PE", [one.name for one in known.pes]),
        ("project", "P", "project", list(known.projects)),
    )
    for noun, option, short, there in names:
        match = re.search(rf'requested {noun} "([^"]*)" does not exist', said)
        if match:
            hint = site.these("do", known.suitable, ()) if option == "pe" else ""
            raise SpecError(
                asked.key(option),
                f"{short} `{match[1]}` is not there",
                why=nearest(match[1], there),
                hint=hint or site.these("are", there, ()) or f"ask the administrators which {short}s there are",
            )
    queue = re.search(r'requests unknown queue "([^"]*)"', said)
    if queue:
        there = [one.name for one in known.queues]
        raise SpecError(
            asked.key("q"),
            f"queue `{queue[1]}` is not there",
            why=nearest(queue[1], there),
            hint=f"these are: {', '.join(there)}" if there else "qstat -g c lists them",
        )
    resource = re.search(r'unknown resource "([^"]*)"', said)
    if resource:
        name = resource[1]
        there = [one.name for one in known.resources]
        like = [one.name for one in known.resources if re.search("gpu|cuda|nvidia", one.name, re.IGNORECASE)]
        is_gpu = name == gpus and asked.key(name) != "native"
        hint = f"name it with --gpu-resource; these may be it: {', '.join(like)}" if like else ""
        raise SpecError(
            "gpu_resource" if is_gpu else asked.key(name),
            f"the cell has no resource `{name}`",
            why="" if is_gpu else nearest(name, there),
            hint=(hint or "qhost -F lists what hosts have; name yours with --gpu-resource") if is_gpu else "",
        )


def _refuse_queues(asked: Asked, known: Cell) -> None:
    """Queues that do not carry the parallel environment, or end jobs too soon."""
    chosen = [queue for queue in known.queues if _chosen(queue, asked)]
    carrying = known.carrying(asked.pe) if asked.pe else list(known.queues)
    there = [queue for queue in chosen if queue in carrying]
    if asked.pe and chosen and not there:
        named = ", ".join(asked.queues) or "any"
        what = f"no queue carries PE `{asked.pe}`"
        if carrying:
            what = f"queue {named} does not carry PE `{asked.pe}`"
        where = [f"queue {queue.name} carries it" for queue in carrying]
        hint = "; ".join([*([site.these("do", known.suitable, ())] if known.suitable else []), *where])
        raise SpecError(asked.key("pe"), what, hint=hint)
    wanted = seconds(asked.resources.get("h_rt", ""))
    limits = [queue.limit for queue in there if queue.limit is not None]
    if wanted is not None and there and len(limits) == len(there) and wanted > max(limits):
        longest = max(there, key=lambda queue: queue.limit or 0)
        longer = [queue for queue in carrying if queue.limit is None or queue.limit >= wanted]
        raise SpecError(
            asked.key("h_rt"),
            f"{format_walltime(wanted)} is more than queue {longest.name} allows ({site.walltime(longest)})",
            hint=site.these(
                "allow it", (f"{one.name} ({site.walltime(one)})" for one in longer), [one.name for one in known.queues]
            ),
        )


def _refuse_amounts(said: str, asked: Asked, gpus: str, known: Cell) -> None:
    """More than any host, or all together, have."""
    # cannot run at host "n4" because it offers only hc:gpu=2.000000
    offers: dict[str, float] = {}
    for name, amount in re.findall(r"offers only [a-z]{2}:([\w.]+)=(\d+(?:\.\d+)?)", said):
        offers[name] = max(offers.get(name, 0.0), float(amount))
    for name, most in offers.items():
        if name in asked.resources:
            noun = "GPUs" if name == gpus else f"of resource {name}"
            each = " a slot" if asked.pe else ""
            raise SpecError(
                asked.key(name),
                f"{asked.resources[name]} {noun}{each} asked for, no host has more than {most:g}",
                hint="" if name == gpus else f"qhost -F {name} shows what each has",
            )
    slots = re.search(r'cannot run in PE "([^"]*)" because it only offers (\d+) slots', said)
    if slots:
        pe = next((one for one in known.pes if one.name == slots[1]), None)
        if pe is not None and pe.users:
            raise SpecError(asked.key("pe"), f"PE `{pe.name}` is only for users in {pe.users}")
        with_gpus = f" with {asked.resources[gpus]} GPUs each" if gpus in asked.resources else ""
        one_host = ", and all on one host" if pe is not None and pe.rule == "$pe_slots" else ""
        has = f"offers {slots[2]}" if slots[2].strip("0") else "never offers so many"
        raise SpecError(
            asked.key("slots"),
            f"{asked.low} slots{with_gpus}{one_host} asked for, PE `{slots[1]}` {has}",
            hint=site.these("do", known.suitable, ()) or "qstat -g c shows the slots of each queue",
        )


def _chosen(queue: Queue, asked: Asked) -> bool:
    """Whether the job may run in a queue; ``all.q@n1`` and ``all.q@@gpu`` name some of its hosts."""
    patterns = [name.partition("@")[0] or "*" for name in asked.queues]
    return not patterns or any(fnmatch.fnmatchcase(queue.name, pattern) for pattern in patterns)
