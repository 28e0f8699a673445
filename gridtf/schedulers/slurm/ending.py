"""Inside a job that has just been told to end: why, as far as Slurm says."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf.errors import SchedulerError
from gridtf.schedulers.base import CANCELLED, ENDED, NODE_FAIL, JobStatus
from gridtf.schedulers.common import whole
from gridtf.schedulers.slurm import controller, queue, states
from gridtf.schedulers.slurm.hostlist import expand

_PATIENCE = 3.0  # seconds; KILL may follow TERM after KillWait, 30 s at most sites


def why_told_to_end(job_id: str, environ: Mapping[str, str]) -> JobStatus | None:
    """How Slurm will say that this job ended; None when that is not known. environ: the job's."""
    try:
        answer = controller.query(["scontrol", "-o", "show", "job", job_id], limit=_PATIENCE, blame=False)
        status = ending(answer.out, job_id, whole(environ.get("SLURM_RESTART_COUNT", "")) or 0)
        if status is None or status.again or status.state == NODE_FAIL:
            return _named(status, _down(environ.get("SLURM_JOB_NODELIST", "")))
    except SchedulerError:
        return None
    return status


def _down(nodes: str) -> list[str]:
    """Which of these nodes Slurm takes for down. nodes: a hostlist."""
    if not nodes:
        return []
    argv = ["sinfo", "-h", "-N", f"--nodes={nodes}", "--states=down", "--format=%N"]
    answer = controller.query(argv, limit=_PATIENCE, blame=False)
    down = {line.strip() for line in answer.out.splitlines()}  # a site may print lines of its own
    return [] if answer.code else sorted(down.intersection(expand(nodes)))


def _named(status: JobStatus | None, down: list[str]) -> JobStatus | None:
    """The same, with the nodes that are to blame."""
    if not down:
        return status
    again = status is not None and status.again
    reason = f"{', '.join(down)} {'has' if len(down) == 1 else 'have'} failed"
    return JobStatus(
        NODE_FAIL, f"{reason}; Slurm has put the job back into the queue" if again else reason, again=again
    )


def ending(text: str, job_id: str, restarts: int) -> JobStatus | None:
    """What `scontrol -o show job` says at the moment of SIGTERM. restarts: how often this job had started anew before.

    The job is COMPLETING by then, which hides the state that it will have (seen on Slurm 22.05):
      time limit   JobState=COMPLETING Reason=TimeLimit
      scancel      JobState=COMPLETING Reason=None
      preempted    JobState=COMPLETING Reason=None … PreemptTime=2026-11-21T11:14:37
      node failed  JobState=COMPLETING Reason=NodeDown
      requeued     JobState=COMPLETING Reason=None Restarts=1   (the next start is counted already)
      a signal     JobState=RUNNING
    """
    said = next((found for line in text.splitlines() if (found := queue.fields(line)).get("JobId") == job_id), {})
    state, reason = said.get("JobState", ""), said.get("Reason", "None").replace("_", " ")
    count = said.get("Restarts", "")
    by_reason = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}
    if reason in by_reason and state != "RUNNING":
        ours, words = states.ours(by_reason[reason])
        return JobStatus(ours, words)
    if said.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return JobStatus(*states.ours("PREEMPTED"))
    if state in ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT") and count.isdecimal():
        if int(count) > restarts:
            return JobStatus(CANCELLED, "Slurm has put it back into the queue: it will start anew", again=True)
        if state == "COMPLETING":
            return JobStatus(CANCELLED, "cancelled with scancel")
    ours, words = states.ours(state)
    return JobStatus(ours, words or states.why_ended(reason)) if ours in ENDED else None
