"""Inside a job: whether Grid Engine has stopped it for a while, as ``qmod -sj`` does.

Its script's host is stopped with all that runs there; agents on the others may go on, and hear nothing meanwhile.
"""

from __future__ import annotations

from gridtf.errors import SchedulerError
from gridtf.schedulers.sge import states
from gridtf.schedulers.sge.queue import Row, own_row

_PATIENCE = 3.0  # seconds


def suspended(job_id: str) -> bool | None:
    """Ask qstat; None when nobody answers. job_id: with the element of a job array."""
    try:
        return is_suspended(own_row(job_id, "s", limit=_PATIENCE))
    except SchedulerError:
        return None


def is_suspended(row: Row | None) -> bool:
    """The same from what qstat says. Pure."""
    return row is not None and not states.SUSPENDED.keys().isdisjoint(row.state)
