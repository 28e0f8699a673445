"""Slurm inside a job: why and when it ends this job, and whether it starts it again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gridtf.schedulers.api import JobStatus
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.hostlist import expand
from gridtf.schedulers.slurm.query import fields_of, parse_moment, parse_state, why_ended
from gridtf.states import JobState
from gridtf.text import whole

if TYPE_CHECKING:
    from gridtf.schedulers.api import Parent

_TERMINATION_LIMIT = 3.0  # seconds; KILL may follow TERM after KillWait, 30 s at most sites


def termination_reason(environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
    """Find out, after SIGTERM, the final status that Slurm will report for this job.

    Args:
        environ: The job's environment.
        parent: As the scheduler's method takes it.

    Returns:
        The status, with the nodes that have failed, if any; None when Slurm does not answer or nothing ends the job.
    """
    job_id, restarts = environ["SLURM_JOB_ID"], whole(environ.get("SLURM_RESTART_COUNT", "")) or 0
    output = slurm.try_run(["scontrol", "-o", "show", "job", job_id], limit=_TERMINATION_LIMIT)
    if output is None:
        return None
    status = parse_termination(output, job_id, restarts)
    if status is None or status.requeued or status.state == JobState.NODE_FAIL:
        return _with_down_nodes(status, _down_nodes(environ.get("SLURM_JOB_NODELIST", "")))
    return status


def give_back(environ: Mapping[str, str]) -> bool:
    """Requeue or cancel this job if the node of its script is down: with --no-kill, Slurm leaves it RUNNING then.

    Args:
        environ: The job's environment.

    Returns:
        Whether nothing is left to do.
    """
    job_id, shown = environ["SLURM_JOB_ID"], _own_fields(environ)
    if shown is None:
        return False
    if shown.get("JobState") != "RUNNING":
        return True
    if not _down_nodes(shown.get("BatchHost", "")):
        return False
    if shown.get("Requeue") == "1":
        if slurm.try_run(["scontrol", "requeue", job_id], limit=_TERMINATION_LIMIT) is not None:
            return True
        # Slurm also refuses what the agent of another host has done a moment before; a cancelled job would be lost
        now = _own_fields(environ)
        if now is None or any(now.get(key) != shown.get(key) for key in ("JobState", "Restarts")):
            return now is not None
    return slurm.try_run(["scancel", "--state=RUNNING", "--", job_id], limit=_TERMINATION_LIMIT) is not None


def end_time(environ: Mapping[str, str]) -> float | None:
    """When Slurm will end this job, which an administrator may change while it runs.

    Args:
        environ: The job's environment.

    Returns:
        Seconds since the epoch; None without a limit, and when it is not known.
    """
    return parse_moment((_own_fields(environ) or {}).get("EndTime", ""))


def why_not_again(environ: Mapping[str, str]) -> str:
    """Why Slurm does not requeue this job; empty where it does.

    Args:
        environ: The job's environment.
    """
    shown = _own_fields(environ)
    if shown is None:
        return f"scontrol, which could requeue it, does not work on {os.uname().nodename}"
    if shown.get("BatchFlag", "1") == "0":
        return "Slurm requeues batch jobs only"
    if shown.get("JobState") in ("COMPLETING", "CANCELLED") and shown.get("Reason") != "TimeLimit":
        return "Slurm is ending it, as after scancel"
    return "Slurm must not requeue it (--no-requeue, or the site's JobRequeue=0)" if shown.get("Requeue") == "0" else ""


def _own_fields(environ: Mapping[str, str]) -> dict[str, str] | None:
    """What scontrol shows of this job; None where it shows nothing."""
    job_id = environ["SLURM_JOB_ID"]
    output = slurm.try_run(["scontrol", "-o", "show", "job", job_id], limit=_TERMINATION_LIMIT) or ""
    return fields_of(output, job_id) or None


def _down_nodes(nodes: str) -> list[str]:
    """The nodes of a hostlist that Slurm has marked as down."""
    if not nodes:
        return []
    argv = ["sinfo", "-h", "-N", f"--nodes={nodes}", "--states=down", "--format=%N"]
    output = slurm.try_run(argv, limit=_TERMINATION_LIMIT) or ""
    # a site may print lines of its own
    return sorted({line.strip() for line in output.splitlines()}.intersection(expand(nodes)))


def host_fault(host: str) -> str:
    """What sinfo says against a node: that it is down, drained, failing, or does not answer (``*``); may be empty.

    Args:
        host: The node.
    """
    output = slurm.try_run(["sinfo", "-h", "-N", f"--nodes={host}", "--format=%T"], limit=_TERMINATION_LIMIT) or ""
    states = re.findall(r"(?m)^(?:(?:down|drain|fail|error|unk)\w*[^\w\s]*|\w+\*)$", output)
    return f"Slurm says {states[0]}" if states else ""


def _with_down_nodes(status: JobStatus | None, down: list[str]) -> JobStatus | None:
    """Change a status to NODE_FAIL, naming the nodes that are down, if there are any."""
    if not down:
        return status
    requeued = status is not None and status.requeued
    reason = f"{', '.join(down)} {'has' if len(down) == 1 else 'have'} failed"
    words = f"{reason}; Slurm has requeued the job" if requeued else reason
    return JobStatus(JobState.NODE_FAIL, words, requeued=requeued)


def parse_termination(text: str, job_id: str, restarts: int) -> JobStatus | None:
    """Find out why a job is being ended from what scontrol prints at the moment of SIGTERM.

    The job is COMPLETING by then, which hides the state that it will have (seen on Slurm 22.05):
      time limit   JobState=COMPLETING Reason=TimeLimit
      scancel      JobState=COMPLETING Reason=None
      preempted    JobState=COMPLETING Reason=None … PreemptTime=2026-11-21T11:14:37
      node failed  JobState=COMPLETING Reason=NodeDown
      requeued     JobState=COMPLETING Reason=None Restarts=1   (the next start is counted already)
      a signal     JobState=RUNNING

    Args:
        text: Output of ``scontrol -o show job``.
        job_id: The job.
        restarts: How often the job had been requeued when this start began (SLURM_RESTART_COUNT).

    Returns:
        The final status; ``requeued`` if the job will start again. None when Slurm is not ending the job.
    """
    shown = fields_of(text, job_id)
    state, reason = shown.get("JobState", ""), shown.get("Reason", "None").replace("_", " ")
    count = shown.get("Restarts", "")
    by_reason = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}
    if reason in by_reason and state != "RUNNING":
        return JobStatus(*parse_state(by_reason[reason]))
    if shown.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return JobStatus(*parse_state("PREEMPTED"))
    if state in ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT") and count.isdecimal():
        if int(count) > restarts:
            words = "Slurm has requeued it: it will start again"
            return JobStatus(JobState.CANCELLED, words, requeued=True)
        if state == "COMPLETING":
            return JobStatus(JobState.CANCELLED, "cancelled with scancel")
    ours, words = parse_state(state)
    return JobStatus(ours, words or why_ended(reason)) if ours.ended else None
