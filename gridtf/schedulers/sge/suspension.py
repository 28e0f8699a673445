"""Inside a job: whether Grid Engine has stopped it for a while, as ``qmod -sj`` does.

Its script's host is stopped with all that runs there; agents on the others may go on, and hear nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.schedulers.sge import cell
from gridtf.schedulers.sge.queue import Row, rows

_PATIENCE = 3.0  # seconds


def suspended(job_id: str) -> bool:
    """Ask qstat; False as well when nobody answers. job_id: with the element of a job array."""
    try:
        answer = cell.query(["qstat", "-xml", "-u", "*", "-s", "s"], limit=_PATIENCE)
        return is_suspended(rows(answer.out), job_id)
    except SchedulerError:
        return False


def is_suspended(found: Sequence[Row], job_id: str) -> bool:
    """The same from what qstat says: s for the job, S for its queue, T for the load of its host. Pure."""
    number, _, element = job_id.partition(".")
    return any(row.number == number and row.tasks == element and set(row.state) & set("sST") for row in found)
