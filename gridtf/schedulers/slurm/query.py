"""How jobs stand: squeue, sacct and scontrol, what they print, and Slurm's states and reasons in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import NSIG
from typing import TYPE_CHECKING

from gridtf.files import user_name
from gridtf.host.processes import killed_by
from gridtf.run.rundir import RUN_ROOT
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.schedulers.batch import array_status, whole
from gridtf.schedulers.slurm.hostlist import expand
from gridtf.states import JobState

if TYPE_CHECKING:
    from gridtf.schedulers.slurm import Slurm

_ACCOUNTING_PATIENCE = 5.0  # the run directory has most of it already
_TERMINATION_PATIENCE = 3.0  # seconds; KILL may follow TERM after KillWait, 30 s at most sites
_LONGEST = 100_000  # bytes of ids: Linux takes 128 KiB in one word of a command line

# squeue(1), --format. The reason is last, since it may hold any character.
_SQUEUE = "--format=%i|%A|%T|%S|%r"
# 12, 12_3, 12_[4-9%2], 12+0
_ID = re.compile(r"\d{1,18}(?:[_+].+)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
# of GRES=: gpu:2(IDX:0-1), gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3), nvme:1,gpu:2(IDX:0-1); GPUs without files gpu(CNT:4)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,(]+)??(?::(\d{1,18})(?=[(,]|$)|\(CNT:(\d{1,18})\))", re.ASCII)


@dataclass(frozen=True)
class Row:
    """A line on one job, one or some elements of an array, or one component of a heterogeneous job.

    Attributes:
        job_id: ``12``, ``12_3``, ``12_[4-9%2]``, ``12+0``.
        number: The job's own, also where it is an element or a component.
        state: Slurm's, such as ``RUNNING`` or ``CANCELLED by 1000``.
        start: When it started or is expected to, or ``N/A``.
        reason: Slurm's, such as ``Resources``.
        exit_code: ``code:signal``; empty where it is not known.
    """

    job_id: str
    number: str
    state: str
    start: str = "N/A"
    reason: str = ""
    exit_code: str = ""


# --- what the commands are given ---------------------------------------------------------------------------------


def by_cluster(jobs: Sequence[JobIdentity]) -> list[list[JobIdentity]]:
    """The jobs, each once, grouped by the cluster that they were submitted to."""
    found: dict[str, dict[str, JobIdentity]] = {}
    for job in jobs:
        found.setdefault(job.details.get("cluster", ""), {})[job.job_id] = job
    return [list(group.values()) for group in found.values()]


def cluster_option(job: JobIdentity) -> list[str]:
    """The option that names the cluster of a job, where it was submitted to one of several."""
    return [f"--clusters={job.details['cluster']}"] if job.details.get("cluster") else []


def query_command(jobs: Sequence[JobIdentity]) -> list[str]:
    """squeue for these jobs, which are of one cluster."""
    which = f"--jobs={','.join(job.job_id for job in jobs)}"
    # --all: in hidden partitions, too
    argv = ["squeue", "--noheader", "--all", "--states=all", *cluster_option(jobs[0]), _SQUEUE]
    return [*argv, which] if len(which) < _LONGEST else argv


def add_exit_codes(slurm: Slurm, rows: Sequence[Row], job: JobIdentity) -> list[Row]:
    """The same, with the exit codes of jobs for which squeue prints a reason that leaves open how they ended.

    Args:
        slurm: The scheduler.
        rows: Of squeue.
        job: A job of the cluster that the rows are of.
    """
    return [
        replace(row, exit_code=_exit_code(slurm, row.number, cluster_option(job)))
        if row.reason == LAUNCH_FAILURE and row.state != "COMPLETING"
        else row
        for row in rows
    ]


def _exit_code(slurm: Slurm, number: str, options: Sequence[str]) -> str:
    """The exit code of a job, as code:signal; mostly empty."""
    output = slurm.try_run(["scontrol", "-o", *options, "show", "job", number], limit=slurm.query_patience) or ""
    return next((parse_fields(line).get("ExitCode", "") for line in output.splitlines() if _is(line, number)), "")


def accounting(slurm: Slurm, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
    """How these jobs stand in Slurm's accounting, by job id; without those that it does not have."""
    found: dict[str, JobStatus] = {}
    for group in by_cluster(jobs):
        ids = [job.job_id for job in group]
        # in pieces, since sacct has no way to name more than a command line holds
        for some in (ids[at : at + 5000] for at in range(0, len(ids), 5000)):
            options = [*cluster_option(group[0]), f"--jobs={','.join(some)}", "--format=JobID,JobIDRaw,State"]
            output = slurm.try_run(["sacct", "-X", "-n", "-P", *options], limit=_ACCOUNTING_PATIENCE)
            if output is None:
                return found
            listed = statuses(some, parse_sacct(output))
            found.update({job_id: _with_user_name(status) for job_id, status in listed.items()})
    return found


def _with_user_name(status: JobStatus) -> JobStatus:
    """``by 1000``, as accounting has it of a cancelled job, with the user's name."""
    uid = whole(status.reason.removeprefix("by "))
    return status if uid is None else status._replace(reason=f"by {user_name(uid)}")


# --- what the commands print -------------------------------------------------------------------------------------


def parse_squeue(text: str) -> list[Row]:
    """What squeue prints: ``53_[3-5%2]|53|PENDING|N/A|JobArrayTaskLimit``. Other lines (CLUSTER: …) are left out."""
    return _rows(text, 5)


def parse_sacct(text: str) -> list[Row]:
    """What sacct prints: ``53_1|61|CANCELLED by 1000`` (sacct(1), --parsable2)."""
    return _rows(text, 3)


def _rows(text: str, width: int) -> list[Row]:
    fields = (line.split("|", width - 1) for line in text.splitlines())
    return [Row(*map(str.strip, some)) for some in fields if len(some) == width and _ID.fullmatch(some[0].strip())]


def statuses(ids: Sequence[str], rows: Sequence[Row]) -> dict[str, JobStatus]:
    """The status of each job that the rows know. An array or a heterogeneous job has one for all of its rows."""
    by_id: dict[str, list[Row]] = {}
    for row in rows:
        for name in {row.job_id, row.number, re.split(r"[_+]", row.job_id)[0]}:
            by_id.setdefault(name, []).append(row)
    found = {job_id: _status(job_id, by_id) for job_id in ids}
    return {job_id: status for job_id, status in found.items() if status is not None}


def _status(job_id: str, by_id: Mapping[str, list[Row]]) -> JobStatus | None:
    array, _, element = job_id.partition("_")
    rows = by_id.get(job_id) or [row for row in by_id.get(array, ()) if _holds(row.job_id, element)]
    # of a heterogeneous job, the first component has the script, and decides
    leader = [row for row in rows if row.job_id in (f"{job_id}+0", job_id)]
    if len(rows) == 1 or leader:
        return _of_row((leader or rows)[0])
    parts = [(_of_row(row), sum(map(len, _spans(row.job_id))) or 1) for row in rows]
    return array_status(parts, "that Slurm still knows") if rows else None


def _of_row(row: Row) -> JobStatus:
    state, words = parse_state(row.state)
    if state == JobState.PENDING:
        return JobStatus(state, words or why_pending(row.reason, row.start))
    if row.state == "COMPLETING":
        # a script that was killed is told from one that never began by an exit code that is not there yet
        why = why_ended(row.reason) if row.reason != LAUNCH_FAILURE else ""
        return JobStatus(state, f"{words}: {why}" if why else words)
    why = why_ended(row.reason, row.exit_code)
    return JobStatus(state, (why or words) if state.ended else words)


def _holds(job_id: str, element: str) -> bool:
    """Whether 12_[3-5,9-15:2%2] stands for this element."""
    return _NUMBER.fullmatch(element) is not None and any(int(element) in span for span in _spans(job_id))


def _spans(job_id: str) -> list[range]:
    # Slurm cuts long lists short: 12_[1,3,5,7,...]
    found = re.findall(r"[\[,](\d{1,18})(?:-(\d{1,18}))?(?::(\d{1,18}))?(?=[\],%])", job_id, re.ASCII)
    return [range(int(low), int(high or low) + 1, int(step or 1) or 1) for low, high, step in found]


def parse_run_dirs(text: str, job_id: str) -> list[Path]:
    """Where the run directory of a job may be, by `scontrol -o show job`: that of its script, or where gridtf_run makes
    one. Nothing of a job that is not there."""
    found: list[Path] = []
    for line in text.splitlines():
        if _is(line, job_id):
            shown = dict(re.findall(r"\s(JobName|Command|WorkDir)=(.+?)(?=\s[A-Za-z]+=|\s*$)", line))
            found += [Path(shown["Command"]).parent] if "Command" in shown else []
            if "JobName" in shown and "WorkDir" in shown:
                found.append(Path(shown["WorkDir"], RUN_ROOT, f"{shown['JobName']}-{job_id}"))
    return found


def parse_node_gpus(text: str, job_id: str) -> dict[str, int]:
    """GPUs by node from `scontrol -d -o show job`.

    ``Nodes=n1 CPU_IDs=0 Mem=500 GRES=gpu:3(IDX:0-2)   Nodes=n[2-3] CPU_IDs=0 Mem=500 GRES=gpu:a100:1(IDX:0)``
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        if not _is(line, job_id):
            continue
        for hosts, gres in re.findall(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", _without_user_text(line)):
            count = sum(int(number or counted) for number, counted in _GPUS.findall(gres))
            for host in expand(hosts):
                found[host] = found.get(host, 0) + count
    return found


def parse_fields(line: str) -> dict[str, str]:
    """JobId=88 JobState=x … of one line; of a name that is there twice, such as Nodes=, the last."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", _without_user_text(line)))


def _without_user_text(line: str) -> str:
    """One line of scontrol show job without what the user has chosen, which may look like fields: the job's name, and
    from the command on, after which there are only paths and comments."""
    return re.sub(r"\sJobName=(?:.*?(?=\sUserId=\S+\(\d+\)\s)|\S*)", "", line).partition(" Command=")[0]


def _is(line: str, job_id: str) -> bool:
    """Whether a line of scontrol show job, which may show all components or elements, is on this one."""
    shown = parse_fields(line)
    return job_id in (shown.get("JobId"), f"{shown.get('ArrayJobId')}_{shown.get('ArrayTaskId')}")


# --- inside a job that is being ended ----------------------------------------------------------------------------


def termination_reason(slurm: Slurm, environ: Mapping[str, str]) -> JobStatus | None:
    """The final status that Slurm will report for this job; None when that is not known. environ: the job's."""
    job_id, restarts = environ["SLURM_JOB_ID"], whole(environ.get("SLURM_RESTART_COUNT", "")) or 0
    output = slurm.try_run(["scontrol", "-o", "show", "job", job_id], limit=_TERMINATION_PATIENCE)
    if output is None:
        return None
    status = parse_termination(output, job_id, restarts)
    if status is None or status.requeued or status.state == JobState.NODE_FAIL:
        return _blaming_nodes(status, _down_nodes(slurm, environ.get("SLURM_JOB_NODELIST", "")))
    return status


def _down_nodes(slurm: Slurm, nodes: str) -> list[str]:
    """Those of these nodes that Slurm has marked as down. nodes: a hostlist."""
    if not nodes:
        return []
    argv = ["sinfo", "-h", "-N", f"--nodes={nodes}", "--states=down", "--format=%N"]
    output = slurm.try_run(argv, limit=_TERMINATION_PATIENCE) or ""
    # a site may print lines of its own
    return sorted({line.strip() for line in output.splitlines()}.intersection(expand(nodes)))


def _blaming_nodes(status: JobStatus | None, down: list[str]) -> JobStatus | None:
    """The same, with the nodes that are to blame."""
    if not down:
        return status
    requeued = status is not None and status.requeued
    reason = f"{', '.join(down)} {'has' if len(down) == 1 else 'have'} failed"
    words = f"{reason}; Slurm has put the job back into the queue" if requeued else reason
    return JobStatus(JobState.NODE_FAIL, words, requeued=requeued)


def parse_termination(text: str, job_id: str, restarts: int) -> JobStatus | None:
    """What `scontrol -o show job` prints at the moment of SIGTERM. restarts: how often this job had been requeued.

    The job is COMPLETING by then, which hides the state that it will have (seen on Slurm 22.05):
      time limit   JobState=COMPLETING Reason=TimeLimit
      scancel      JobState=COMPLETING Reason=None
      preempted    JobState=COMPLETING Reason=None … PreemptTime=2026-11-21T11:14:37
      node failed  JobState=COMPLETING Reason=NodeDown
      requeued     JobState=COMPLETING Reason=None Restarts=1   (the next start is counted already)
      a signal     JobState=RUNNING
    """
    shown = next((found for line in text.splitlines() if (found := parse_fields(line)).get("JobId") == job_id), {})
    state, reason = shown.get("JobState", ""), shown.get("Reason", "None").replace("_", " ")
    count = shown.get("Restarts", "")
    by_reason = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}
    if reason in by_reason and state != "RUNNING":
        own, words = parse_state(by_reason[reason])
        return JobStatus(own, words)
    if shown.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return JobStatus(*parse_state("PREEMPTED"))
    if state in ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT") and count.isdecimal():
        if int(count) > restarts:
            words = "Slurm has put it back into the queue: it will start again"
            return JobStatus(JobState.CANCELLED, words, requeued=True)
        if state == "COMPLETING":
            return JobStatus(JobState.CANCELLED, "cancelled with scancel")
    own, words = parse_state(state)
    return JobStatus(own, words or why_ended(reason)) if own.ended else None


# --- states and reasons: squeue(1), JOB STATE CODES and JOB REASON CODES; pure -----------------------------------

# Slurm's state -> ours, and what a user should know beside it.
_STATES = {
    "BOOT_FAIL": (JobState.NODE_FAIL, "its nodes did not boot"),
    "CANCELLED": (JobState.CANCELLED, ""),
    "COMPLETED": (JobState.COMPLETED, ""),
    "COMPLETING": (JobState.RUNNING, "ending"),
    "CONFIGURING": (JobState.PENDING, "its nodes are being made ready"),
    "DEADLINE": (JobState.TIMEOUT, "its deadline (--deadline) has passed"),
    "EXPEDITING": (JobState.PENDING, "it is put back to the head of the queue"),
    "FAILED": (JobState.FAILED, ""),
    "LAUNCH_FAILED": (JobState.FAILED, "Slurm could not start it on its nodes"),
    "NODE_FAIL": (JobState.NODE_FAIL, "a node of it has failed"),
    "OUT_OF_MEMORY": (JobState.OUT_OF_MEMORY, "a process of it took more memory than the job has"),
    "PENDING": (JobState.PENDING, ""),
    "POWER_UP_NODE": (JobState.PENDING, "its nodes are being powered up"),
    "PREEMPTED": (JobState.PREEMPTED, "ended for a job of higher priority"),
    "RECONFIG_FAIL": (JobState.NODE_FAIL, "its nodes could not be configured"),
    "REQUEUED": (JobState.PENDING, "it was put back into the queue"),
    "REQUEUE_FED": (JobState.PENDING, "it is put back into the queue of the federation"),
    "REQUEUE_HOLD": (JobState.PENDING, "it was put back into the queue and is held: scontrol release"),
    "RESIZING": (JobState.RUNNING, "its size is being changed"),
    "RESV_DEL_HOLD": (JobState.PENDING, "held: its reservation was deleted"),
    "REVOKED": (JobState.UNKNOWN, "it runs on another cluster of the federation"),
    "RUNNING": (JobState.RUNNING, ""),
    "SIGNALING": (JobState.RUNNING, "it is being sent a signal"),
    "SPECIAL_EXIT": (
        JobState.PENDING,
        "it was put back into the queue for its exit code and is held: scontrol release",
    ),
    "STAGE_OUT": (JobState.RUNNING, "its files are being copied out"),
    "STOPPED": (JobState.RUNNING, "stopped by a signal; it keeps its CPUs"),
    "SUSPENDED": (JobState.RUNNING, "suspended: its CPUs are lent to other jobs"),
    "TIMEOUT": (JobState.TIMEOUT, "the walltime is over"),
}

# Why a job waits; Slurm's own word is added in parentheses.
_WAITS = {
    "AssociationJobLimit": "your account may run no more jobs at the same time",
    "AssociationResourceLimit": "your account has all that it may use at the same time",
    "AssociationTimeLimit": "your account has used up its time",
    "BadConstraints": "no node can ever give what it asks for",
    "BeginTime": "it may not begin yet",
    "BurstBufferResources": "the burst buffer is full",
    "BurstBufferStageIn": "its files are being copied in",
    "Cleaning": "an earlier run of it is still being cleaned up",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job it waits for did not end as it should: it will never start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobArrayTaskLimit": "so many elements of the array as may run at the same time do",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held: scontrol release",
    "Licenses": "it waits for a licence",
    "MaxMemPerLimit": "it asks for more memory a CPU or node than is allowed",
    "MaxPoweredUpNodes": "as many nodes are powered up as may be",
    "None": "not looked at yet",
    "PartitionConfig": "the partition does not take such a job",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it asks for more or fewer nodes than the partition has or allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "Priority": "other jobs are before it",
    "Prolog": "the prolog of its nodes runs",
    "QOSJobLimit": "its QOS may run no more jobs at the same time",
    "QOSNotAllowed": "the partition does not take its QOS",
    "QOSResourceLimit": "its QOS has all that it may use at the same time",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSUsageThreshold": "your share of the cluster is used up further than its QOS allows",
    "ReqNodeNotAvail": "a node that it asks for is down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "the nodes are busy",
    "SchedDefer": "it is left for the next round of scheduling",
    "launch failed requeued held": "it could not be started, and is held: scontrol release",
    "job requeued in held state": "it was put back into the queue and is held: scontrol release",
}
# Limits of associations and QOS, which there are for every kind of resource (sacctmgr(1)): the first that fits.
# GrpRunMinutes are those of the jobs that run, GrpMinutes and GrpWall what was used until now.
_LIMITS = (
    (re.compile(r"(QOS|Assoc)Max\w+Per(Job|Node)\w*"), "it asks for more than one job may have"),
    (re.compile(r"QOSMin\w+"), "it asks for less than its QOS demands of a job"),
    (re.compile(r"(QOS|Assoc)Grp\w+RunMinutes\w*"), "jobs that run have all that is allowed at the same time"),
    (re.compile(r"(QOS|Assoc)Grp(Wall|Billing|Energy|\w+Minutes)\w*"), "your account or QOS has used up its budget"),
    (re.compile(r"(QOS|Assoc|Max)\w*"), "you, your account or the QOS have all that is allowed at the same time"),
)

# Slurm's word for a script that was killed, and for one that never began, which has exit code 0:53 (seen on 22.05).
LAUNCH_FAILURE = "JobLaunchFailure"
_NOT_LAUNCHED = 53

# Why one has ended.
_ENDED = {
    "NodeDown": "a node of it is down",
    "NonZeroExitCode": "its script ended with an exit code other than 0",
    "OutOfMemory": "a process of it took more memory than the job has",
    "SystemFailure": "Slurm itself has failed",
    "TimeLimit": "the walltime is over",
}


def parse_state(state: str) -> tuple[JobState, str]:
    """Slurm's state, such as ``CANCELLED by 1000``, as (state, in words what it means where that says too little).

    A state that the table does not have yet is UNKNOWN, and named in the words.
    """
    name, _, more = state.strip().partition(" ")
    found, words = _STATES.get(name.rstrip("+").upper(), (JobState.UNKNOWN, f"Slurm says {state}"))
    return found, (more if found == JobState.CANCELLED else words)


def why_pending(reason: str, start: str) -> str:
    """Why a job waits, and when Slurm expects it to start.

    reason: Slurm's, such as ``Resources``; free text as well. start: ``2026-11-21T11:40:00`` or ``N/A``.
    """
    reason = reason.strip().removeprefix("(").removesuffix(")")
    word = reason.partition(",")[0]  # ReqNodeNotAvail, UnavailableNodes:n[3-4]
    words = _WAITS.get(reason) or _WAITS.get(reason.replace("_", " ")) or _WAITS.get(word)
    words = words or next((limit for names, limit in _LIMITS if names.fullmatch(word)), None)
    why = f"{words} ({reason})" if words and reason != "None" else words or reason
    when = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", start)
    return f"{why}; expected to start {when[1]} {when[2]}" if when else why


def why_ended(reason: str, exit_code: str = "") -> str:
    """Why a job has ended, in words; empty where Slurm's reason says nothing. exit_code: ``code:signal``."""
    if reason in ("", "None"):
        return ""
    signal = re.fullmatch(r"RaisedSignal:(\d{1,3})(?:\(.+\))?", reason, re.ASCII)
    if signal:
        return f"its script was {killed_by(int(signal[1]))}"
    if reason == LAUNCH_FAILURE:
        number = re.fullmatch(r"\d+:(\d{1,3})", exit_code, re.ASCII)
        if number and 0 < int(number[1]) < NSIG and int(number[1]) != _NOT_LAUNCHED:
            return f"its script was {killed_by(int(number[1]))}"
        return "Slurm could not start its script: a working directory or a log file that its node lacks?"
    if reason in _WAITS:
        return f"while it waited ({reason})"
    return _ENDED.get(reason, reason)
