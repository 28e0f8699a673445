"""Hands jobs over to Slurm: sbatch(1)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.rundir import Record
from gridtf.schedulers.base import Plan
from gridtf.schedulers.client import NoAnswerError, ask
from gridtf.schedulers.common import maybe_submitted
from gridtf.schedulers.slurm import controller

_PATIENCE = 60.0  # for a controller that is busy; sbatch itself gives up sooner when there is none
# sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
_ANSWER_LOST = re.compile(r"socket timed out|zero bytes were transmitted", re.IGNORECASE)


def submit(plan: Plan, command: Sequence[str]) -> Record:
    """Hand plan.run_dir/job.sh over; gives ``job_id``, and in a federation ``cluster``.

    command: sbatch's. Raises SchedulerError, and MaybeSubmittedError when nobody knows whether there is a job now.
    """
    try:
        answer = ask(command, limit=_PATIENCE, environ=os.environ)  # its own environment: it becomes the job's
    except NoAnswerError:
        raise _maybe_submitted(plan, f"sbatch has not answered within {_PATIENCE:g} s") from None
    job_id, _, cluster = answer.out.strip().partition(";")  # --parsable: the id, and in a federation the cluster
    if answer.code == 0 and job_id.isdigit():
        return {"job_id": job_id, **({"cluster": cluster} if cluster else {})}
    if _ANSWER_LOST.search(answer.err):
        raise _maybe_submitted(plan, controller.said(answer))
    if controller.is_silent(answer.err):
        raise controller.silent(controller.said(answer), blame=True)
    raise SchedulerError(f"Slurm has refused the job: {controller.said(answer)}")


def _maybe_submitted(plan: Plan, words: str) -> SchedulerError:
    return maybe_submitted(plan, "Slurm", words, "squeue --me")
