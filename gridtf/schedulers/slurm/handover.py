"""Hands jobs over to Slurm: sbatch(1)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.run.rundir import Record, RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.client import NoAnswerError, ask
from gridtf.schedulers.common import looked_for
from gridtf.schedulers.slurm import controller

_PATIENCE = 60.0  # for a controller that is busy; sbatch itself gives up sooner when there is none
_QUEUE_PATIENCE = 20.0
# sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
_ANSWER_LOST = re.compile(r"socket timed out|zero bytes were transmitted", re.IGNORECASE)
# --parsable: the id, and in a federation the cluster; a wrapper of the site's may drop that option
_PARSABLE = re.compile(r"(\d+)(?:;(\S+))?", re.ASCII)
_PLAIN = re.compile(r"Submitted batch job (\d+)(?: on cluster (\S+))?", re.ASCII)


def submit(plan: Plan, command: Sequence[str]) -> Record:
    """Hand plan.run_dir/job.sh over; gives ``job_id``, and in a federation ``cluster``.

    command: sbatch's. Raises SchedulerError, and MaybeSubmittedError when nobody knows whether there is a job now.
    """
    try:
        answer = ask(command, limit=_PATIENCE, environ=os.environ)  # its own environment: it becomes the job's
    except NoAnswerError:
        return _looked_for(plan, f"sbatch has not answered within {_PATIENCE:g} s")
    job = printed(answer.out)
    if answer.code == 0:
        return job or _looked_for(plan, f"sbatch ended with 0 and printed no job id, but: {answer.last_word}")
    # sbatch --wait prints the id, and ends as the job does
    if job is not None or _ANSWER_LOST.search(answer.err):
        return _looked_for(plan, controller.said(answer))
    if controller.is_silent(answer.err):
        raise controller.silent(controller.said(answer), blame=True)
    raise SchedulerError(f"Slurm has refused the job: {controller.said(answer)}")


def printed(out: str) -> Record | None:
    """The job that sbatch has printed, in its last line or in words; a site may print lines of its own beside it."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    last = _PARSABLE.fullmatch(lines[-1]) if lines else None
    match = last or next((found for line in reversed(lines) if (found := _PLAIN.search(line))), None)
    return _job(*match.groups()) if match else None


def _job(job_id: str, cluster: str | None = None) -> Record:
    return {"job_id": job_id, **({"cluster": cluster} if cluster else {})}


def _looked_for(plan: Plan, words: str) -> Record:
    return looked_for(plan, "Slurm", words, "squeue --me", lambda: _in_queue(str(RunDir(plan.run_dir).script)))


def _in_queue(script: str) -> Record | None:
    """The job of ours that runs this script. Raises SchedulerError when the controller does not answer."""
    options = ("--noheader", "--all", "--states=all", f"--user={os.getuid()}", "--format=%F|%o")
    answer = controller.query(["squeue", *options], limit=_QUEUE_PATIENCE)
    rows = (line.strip().partition("|") for line in answer.out.splitlines())
    ids = [int(number) for number, _, command in rows if command == script and number.isdecimal()]
    return _job(str(min(ids))) if ids else None  # of a heterogeneous job, the first component has the script
