"""What a job has asked Grid Engine for, and whether it is being deleted: ``qstat -j``. Parsing is pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gridtf.errors import SchedulerError
from gridtf.schedulers.sge import cell, reply

# CE_consumable in complex(5)'s order; the last is not in Son of Grid Engine.
NO, PER_SLOT, PER_JOB, PER_HOST = "0", "1", "2", "3"


@dataclass(frozen=True)
class Resource:
    """One ``-l NAME=AMOUNT``. per: what one amount is for: NO, PER_SLOT, PER_JOB or PER_HOST."""

    amount: float
    per: str


def ask(job_id: str, *, limit: float) -> Mapping[str, Resource]:
    """The hard requests of a job by the resource's name. limit: seconds. Raises SchedulerError."""
    answer = cell.query(["qstat", "-xml", "-j", job_id.partition(".")[0]], limit=limit)
    if answer.code:
        raise SchedulerError(f"qstat -j {job_id} has failed: {cell.said(answer)}")
    return resources(answer.out)


def resources(text: str) -> Mapping[str, Resource]:
    """Read ``qstat -xml -j``. Raises SchedulerError for what is no XML."""
    found = {}
    for hard in reply.tree(text, "qstat -xml -j").iter("JB_hard_resource_list"):
        for one in hard:
            name = one.findtext("CE_name") or ""
            try:
                amount = float(one.findtext("CE_doubleval") or one.findtext("CE_stringval") or 0)
            except ValueError:
                continue  # a string or a host name
            found[name] = Resource(amount, one.findtext("CE_consumable") or NO)
    return found
