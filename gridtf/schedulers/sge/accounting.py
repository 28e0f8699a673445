"""How jobs have ended that the queue no longer knows: qacct(1), accounting(5)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gridtf.errors import SchedulerError
from gridtf.run.rundir import Record
from gridtf.schedulers.base import (
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    TIMEOUT,
    JobStatus,
)
from gridtf.schedulers.sge import cell, states

_PATIENCE = 5.0  # seconds, for all of them: it reads the whole file each time, and the run directory has said most
# The worst of several elements is what became of an array.
_WORST_FIRST = (NODE_FAIL, OUT_OF_MEMORY, FAILED, TIMEOUT, CANCELLED, COMPLETED)


def accounting(submitted: Sequence[Record]) -> dict[str, JobStatus]:
    """How these jobs have ended, by job id; nothing of those that it does not have, or may not be asked about."""
    found: dict[str, JobStatus] = {}
    until = time.monotonic() + _PATIENCE
    for record in submitted:
        left = until - time.monotonic()
        if left <= 0:
            break
        number, _, element = record["job_id"].partition(".")
        which = ["-j", number, *(["-t", element] if element else [])]
        try:
            answer = cell.query(["qacct", "-m", *which], limit=left)  # -m: without records of tasks on other hosts
            if answer.code and "not found" not in answer.err:  # older ones have no -m
                answer = cell.query(["qacct", *which], limit=max(0.1, until - time.monotonic()))
        except SchedulerError:
            break
        status = status_of(blocks(answer.out), record) if answer.code == 0 else None
        if status is not None:
            found[record["job_id"]] = status
    return found


def blocks(text: str) -> list[dict[str, str]]:
    """What qacct -j prints, one dictionary a record; each begins with a line of ``=``, and sums may follow the last.

    ``failed       100 : assumedly after job`` · ``exit_status  137             (Killed)`` · ``category     -l h_rt=3``
    """
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("===="):
            found.append({})
        elif found:
            key, _, value = line.partition(" ")
            found[-1][key] = value.strip()
    return [block for block in found if "jobnumber" in block]


def status_of(records: Sequence[Mapping[str, str]], submitted: Record) -> JobStatus | None:
    """How a job, an element of an array or an array has ended; None where these records do not say it.

    Numbers of jobs are given out again, so a record of somebody else or of another name is of another job. The last
    record of a job counts, since one that was started anew has several. In a parallel job others may be of its tasks,
    and nothing tells them apart where there is no ``pe_taskid``: then all have to say the same.
    """
    number, _, element = submitted["job_id"].partition(".")
    last: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        same = record["jobnumber"] == number and record.get("pe_taskid", "NONE") in ("", "NONE")
        name = submitted.get("job_name") or submitted.get("name")  # a script by hand has a name of its own
        named = name in (None, record.get("jobname"))
        owned = record.get("owner") == submitted.get("user", record.get("owner"))
        if same and named and owned and element in ("", record.get("taskid")):
            last.setdefault(record.get("taskid", ""), []).append(record)
    ends = [_end(some) for some in last.values()]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends) or not known:
        return None
    return min(known, key=lambda end: _WORST_FIRST.index(end.state))


def _end(records: Sequence[Mapping[str, str]]) -> JobStatus | None:
    final = records[-1]
    parallel = final.get("granted_pe", "NONE") not in ("", "NONE") and "pe_taskid" not in final
    start = [record for record in records if record.get("qsub_time") == final.get("qsub_time")]
    if parallel and len({(record.get("failed"), record.get("exit_status")) for record in start}) > 1:
        return None
    return states.ended(final)
