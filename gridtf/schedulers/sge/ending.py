"""Inside a job that Grid Engine has warned of its end (qsub(1), -notify): why."""

from __future__ import annotations

from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.schedulers.base import CANCELLED, TIMEOUT, JobStatus
from gridtf.schedulers.sge import requested
from gridtf.schedulers.sge.queue import Row, own_row

_PATIENCE = 3.0  # seconds; KILL follows after the queue's notify, 60 by default
_LIMITS = ("h_rt", "s_rt")


def why_told_to_end(job_id: str, queue: str) -> JobStatus | None:
    """How this job ends; None when that is not known. job_id: with the element of a job array. queue: it runs in."""
    try:
        # all of them: a job that is ended as soon as it has begun may still be on its way to its host (``dt``)
        row = own_row(job_id, "prs", limit=_PATIENCE)
        deleted = ending(row, (), queue)
        if row is None or (deleted is not None and deleted.state == CANCELLED):
            return deleted
        return ending(row, [name for name in requested.ask(job_id, limit=_PATIENCE) if name in _LIMITS], queue)
    except SchedulerError:
        return None


def ending(row: Row | None, limits: Sequence[str], queue: str) -> JobStatus | None:
    """The same from what qstat says. limits: those on the time that the job has asked for. Pure.

    When USR2 comes (seen on Son of Grid Engine 8.1.9) the state is ``dr`` after qdel, and ``r`` after the time is over;
    a job that is started anew gets no warning.
    """
    if row is None:
        return None
    if "d" in row.state:
        return JobStatus(CANCELLED, "deleted with qdel")
    over = f"the walltime is over ({limits[0]})" if limits else f"a limit of queue {queue} is reached, such as h_rt"
    return JobStatus(TIMEOUT, over)
