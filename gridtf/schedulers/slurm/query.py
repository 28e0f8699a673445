"""The status of jobs: squeue, sacct and scontrol, their output, and Slurm's states and reasons in plain words."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from signal import NSIG

from gridtf.errors import SchedulerError
from gridtf.files import user_name
from gridtf.host.processes import killed_by
from gridtf.run.rundir import RUN_ROOT, run_dirs_of
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.schedulers.arrays import array_status
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.hostlist import expand
from gridtf.states import JobState
from gridtf.text import some, whole
from gridtf.values import Value

_SACCT_LIMIT = 5.0  # seconds; the run directory has most of the answer already
_LONGEST_ARGUMENT = 100_000  # bytes of ids; Linux accepts 128 KiB in one argument of a command

_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")  # the latter: of "configless" Slurm
# squeue(1), --format. The reason comes last, since it may contain any character.
_SQUEUE = "--format=%i|%A|%T|%S|%r"
# 12, 12_3, 12_[4-9%2], 12+0
_ID = re.compile(r"\d{1,18}(?:[_+].+)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
# of GRES=: gpu:2(IDX:0-1), gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3), nvme:1,gpu:2(IDX:0-1); GPUs without files gpu(CNT:4)
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,(]+))??(?::(\d{1,18})(?=[(,]|$)|\(CNT:(\d{1,18})\))", re.ASCII)


class Row(Value):
    """One line of squeue or sacct: a job, one or several elements of an array, or a component of a heterogeneous job.

    Attributes:
        job_id: ``12``, ``12_3``, ``12_[4-9%2]`` or ``12+0``, as squeue's %i prints it.
        number: The job's raw id, which an element or a component has as well (squeue's %A).
        state: Slurm's state, such as ``RUNNING`` or ``CANCELLED by 1000``.
        start: Actual or expected start, such as ``2026-11-21T11:40:00``, or ``N/A``.
        reason: Slurm's reason, such as ``Resources``.
        exit_code: ``code:signal``; empty where it is not known.
        nodes: The nodes of a job that has lost one, such as ``n[1-2]``; empty where they are not known.
    """

    job_id: str
    number: str
    state: str
    start: str = "N/A"
    reason: str = ""
    exit_code: str = ""
    nodes: str = ""


# --- running the commands ----------------------------------------------------------------------------------------


def by_cluster(jobs: Sequence[JobIdentity]) -> list[list[JobIdentity]]:
    """Group jobs by the cluster that they were submitted to; a job that is named twice is returned once."""
    groups: dict[str, dict[str, JobIdentity]] = {}
    for job in jobs:
        groups.setdefault(_cluster(job), {})[job.job_id] = job
    return [list(group.values()) for group in groups.values()]


def cluster_option(job: JobIdentity) -> list[str]:
    """The option --clusters for a job of another cluster than the one that commands without it ask; else no option."""
    return [f"--clusters={cluster}"] if (cluster := _cluster(job)) else []


def _cluster(job: JobIdentity) -> str:
    own = str(job.details.get("local_cluster", ""))
    # the same id may be another job's on the cluster that this host, or the user's SLURM_CONF, belongs to
    elsewhere = own and ("SLURM_CLUSTERS" in os.environ or local_cluster(os.environ) not in ("", own))
    return str(job.details.get("cluster", "")) or (own if elsewhere else "")


def local_cluster(environ: Mapping[str, str]) -> str:
    """The cluster of the configuration that Slurm's commands read (slurm.conf(5)); empty where that is not found.

    Args:
        environ: The environment of the commands.
    """
    named = environ.get("SLURM_CONF")
    return next(filter(None, map(_cluster_of, (named,) if named else _CONFIGURATIONS)), "")


@cache
def _cluster_of(configuration: str) -> str:
    try:
        text = Path(configuration).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "".join(re.findall(r'(?mi)^\s*ClusterName\s*=\s*"?([^\s#"]+)', text)[-1:]).lower()


def query_command(jobs: Sequence[JobIdentity], uid: int = 0) -> list[str]:
    """Build the squeue command that lists these jobs of one cluster; it lists all jobs if their ids are too many.

    Args:
        jobs: The jobs.
        uid: Id of the user who asks. 0 in a container that does not map users: then jobs belong to another id.
    """
    which = f"--jobs={','.join(job.job_id for job in jobs)}"
    # squeue has the controller pick one job, or one user's jobs; for several ids it fetches all jobs of the cluster
    mine = uid != 0 and len(jobs) > 1 and {job.user for job in jobs} == {user_name(uid)}
    # --all: also in hidden partitions
    argv = ["squeue", "--noheader", "--all", "--states=all", *cluster_option(jobs[0]), _SQUEUE]
    return [*argv, *[f"--user={uid}"] * mine, *[which] * (len(which) < _LONGEST_ARGUMENT)]


def add_details(rows: Sequence[Row], job: JobIdentity) -> list[Row]:
    """Add the exit codes of jobs that ended with JobLaunchFailure, which leaves open whether the script was killed, and
    the nodes of jobs that have lost one.

    Args:
        rows: Rows of squeue.
        job: Any job of the cluster that the rows come from.

    Returns:
        All rows, in the same order.
    """
    return [
        _detailed(row, cluster_option(job))
        if (row.reason == LAUNCH_FAILURE and row.state != "COMPLETING") or row.state == "NODE_FAIL"
        else row
        for row in rows
    ]


def _detailed(row: Row, options: Sequence[str]) -> Row:
    """A row with what scontrol prints of its job."""
    output = slurm.try_run(["scontrol", "-o", *options, "show", "job", row.number], limit=slurm.query_limit) or ""
    shown = fields_of(output, row.number)
    nodes = shown.get("NodeList", "").replace("(null)", "")
    with suppress(SchedulerError):  # a text of more hosts than can be
        nodes = some(expand(nodes))
    return row.replace(exit_code=shown.get("ExitCode", ""), nodes=nodes)


def accounting(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
    """Query sacct for jobs.

    Args:
        jobs: The jobs, also of several clusters.

    Returns:
        Job id -> status; jobs that the accounting does not have are missing. Empty where a site has no accounting.
    """
    found: dict[str, JobStatus] = {}
    for group in by_cluster(jobs):
        ids = [job.job_id for job in group]
        # in pieces: a command line holds only so many ids, and sacct takes them in no other way
        for piece in (ids[at : at + 5000] for at in range(0, len(ids), 5000)):
            options = [*cluster_option(group[0]), f"--jobs={','.join(piece)}", "--format=JobID,JobIDRaw,State"]
            output = slurm.try_run(["sacct", "-X", "-n", "-P", *options], limit=_SACCT_LIMIT)
            if output is None:
                return found
            listed = statuses(piece, parse_sacct(output))
            found.update({job_id: _with_user_name(status) for job_id, status in listed.items()})
    return found


def _with_user_name(status: JobStatus) -> JobStatus:
    """Replace the user id in ``by 1000``, sacct's reason of a cancelled job, with the user's name."""
    uid = whole(status.reason.removeprefix("by "))
    return status if uid is None else status.replace(reason=f"by {user_name(uid)}", by=user_name(uid))


# --- parsing their output ----------------------------------------------------------------------------------------


def parse_squeue(text: str) -> list[Row]:
    """Parse lines of squeue such as ``53_[3-5%2]|53|PENDING|N/A|JobArrayTaskLimit``; skip others (CLUSTER: …)."""
    return _rows(text, 5)


def parse_sacct(text: str) -> list[Row]:
    """Parse lines of sacct such as ``53_1|61|CANCELLED by 1000`` (sacct(1), --parsable2); skip others."""
    return _rows(text, 3)


def _rows(text: str, width: int) -> list[Row]:
    lines = ([field.strip() for field in line.split("|", width - 1)] for line in text.splitlines())
    return [Row(*fields) for fields in lines if len(fields) == width and _ID.fullmatch(fields[0])]


def statuses(ids: Sequence[str], rows: Sequence[Row]) -> dict[str, JobStatus]:
    """Find the status of each job in the rows of squeue or sacct.

    Args:
        ids: Ids of jobs, arrays, elements (``12_3``) or components.
        rows: Rows of one cluster.

    Returns:
        Job id -> status; jobs without a row are missing. An array has one status for all of its elements, a
        heterogeneous job that of its first component, which runs the script.
    """
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
    parts = [(_of_row(row), count_elements(row.job_id)) for row in rows]
    return array_status(parts, "that Slurm still knows") if rows else None


def _of_row(row: Row) -> JobStatus:
    state, words = parse_state(row.state)
    if state == JobState.PENDING:
        waits = row.reason.strip("() ").startswith("Dependency")
        return JobStatus(state, words or why_pending(row.reason), expected=parse_moment(row.start), waits=waits)
    if row.state == "COMPLETING":
        # without the exit code, which comes later, a killed script looks like one that was never started
        why = why_ended(row.reason) if row.reason != LAUNCH_FAILURE else ""
        return JobStatus(state, f"{words}: {why}" if why else words)
    why = why_ended(row.reason, row.exit_code)
    if state == JobState.NODE_FAIL and row.nodes:  # Slurm does not say which
        why = f"{why or words} ({row.nodes})"
    killed = _killed(row.reason, row.exit_code) if state.ended else ""
    suspended = row.state in ("STOPPED", "SUSPENDED")
    return JobStatus(state, (why or words) if state.ended else words, killed=killed, suspended=suspended)


def _holds(job_id: str, element: str) -> bool:
    """Whether a row's id such as 12_[3-5,9-15:2%2] includes this element."""
    return _NUMBER.fullmatch(element) is not None and any(int(element) in span for span in _spans(job_id))


def count_elements(job_id: str) -> int:
    """How many elements of an array an id such as 12_[3-5,9-15:2%2] names; 1 for that of another job."""
    return sum(map(len, _spans(job_id))) or 1


def _spans(job_id: str) -> list[range]:
    # Slurm abbreviates long lists: 12_[1,3,5,7,...]
    found = re.findall(r"[\[,](\d{1,18})(?:-(\d{1,18}))?(?::(\d{1,18}))?(?=[\],%])", job_id, re.ASCII)
    return [range(int(low), int(high or low) + 1, int(step or 1) or 1) for low, high, step in found]


def parse_run_dirs(text: str, job_id: str) -> list[Path]:
    """Find where the run directory of a job may be.

    Args:
        text: Output of ``scontrol -o show job``.
        job_id: The job, or an array's element such as ``12_3``.

    Returns:
        The one that its log lies in, and the one that gridtf_run creates below the job's working folder; more where
        texts of the user look like fields, such as SubmitLine and Comment; empty if the output does not show the job.
    """
    found: list[Path] = []
    for line in jobs_of(text):
        if _is(line, job_id):
            values: dict[str, list[str]] = {"JobName": [], "StdOut": [], "WorkDir": []}
            for name, value in re.findall(r"\s(JobName|StdOut|WorkDir)=(.+?)(?=\s[A-Za-z]+=|\s*$)", line):
                values[name].append(value)
            found += [place for log in values["StdOut"] for place in run_dirs_of(Path(log))]
            names = values["JobName"][:1]
            found += [Path(folder, RUN_ROOT, f"{name}-{job_id}") for folder in values["WorkDir"] for name in names]
    return list(dict.fromkeys(found))


def parse_node_gpus(text: str, job_id: str) -> dict[str, tuple[int, str]]:
    """Read the GPUs that a job has on each of its nodes.

    Args:
        text: Output of ``scontrol -d -o show job``, which has parts such as
            ``Nodes=n1 CPU_IDs=0 Mem=500 GRES=gpu:3(IDX:0-2)   Nodes=n[2-3] CPU_IDs=0 Mem=500 GRES=gpu:a100:1(IDX:0)``.
        job_id: The job; of a heterogeneous job, the component.

    Returns:
        Node -> (number of GPUs, their types such as ``a100``), including nodes with none.

    Raises:
        SchedulerError: When the nodes are not a hostlist.
    """
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in jobs_of(text):
        if not _is(line, job_id):
            continue
        for hosts, gres in re.findall(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", _without_user_text(line)):
            for host in expand(hosts):
                found.setdefault(host, []).extend(_GPUS.findall(gres))
    return {
        host: (
            sum(int(number or counted) for _, number, counted in gpus),
            ",".join(sorted({kind for kind, *_ in gpus})),
        )
        for host, gpus in found.items()
    }


def parse_fields(line: str) -> dict[str, str]:
    """Parse a line of scontrol, ``JobId=88 JobState=RUNNING …``; of repeated names such as Nodes, the last value."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", _without_user_text(line)))


def fields_of(text: str, job_id: str) -> dict[str, str]:
    """The fields of a job in the output of ``scontrol -o show job``; empty if it does not show the job."""
    return next((parse_fields(line) for line in jobs_of(text) if _is(line, job_id)), {})


def jobs_of(text: str) -> list[str]:
    """Split the output of ``scontrol -o show job`` by job: a line each, unless a text of the user has line breaks."""
    return re.split(r"\n(?=JobId=\d)", text)


def _without_user_text(line: str) -> str:
    """Remove texts that the user chooses, which may look like fields, from a line of ``scontrol show job``: the job's
    name, and everything from the command on, where only paths, comments and the line of the submission follow."""
    return re.sub(r"(?s)\sJobName=(?:.*?(?=\sUserId=\S+\(\d+\)\s)|\S*)", "", line).partition(" Command=")[0]


def _is(line: str, job_id: str) -> bool:
    """Whether a line of ``scontrol show job``, which prints all components and elements of a job, is about this one."""
    shown = parse_fields(line)
    return job_id in (shown.get("JobId"), f"{shown.get('ArrayJobId')}_{shown.get('ArrayTaskId')}")


def parse_moment(text: str) -> float | None:
    """Parse a time as Slurm's commands print it.

    Args:
        text: Seconds since the epoch (SLURM_TIME_FORMAT=%s), ``2026-11-21T11:14:37`` in the time zone of this host,
            where a version does not know that variable, or ``Unknown``.

    Returns:
        Seconds since the epoch; None when it is not a time.
    """
    if re.fullmatch(r"\d{9,}", text, re.ASCII):
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_balance(output: str, account: str, hours: tuple[float, str] | None = None, runs: int = 1) -> str:
    """What an account has left of what it may use in all, from the output of sshare. Pure.

    Args:
        output: Lines such as ``ml||cpu=100000,gres/gpu=6000|cpu=0,gres/gpu=60``: the account, indented by its place in
            the tree, the user, the limits and the use, both in minutes.
        account: The one to look for; empty: the user's own, if there is only one.
        hours: What a run of the job may use, as Request.hours.
        runs: How many runs it may have.

    Returns:
        Such as ``account ml has 99 of 100 GPU-hours left, 71 GPU-hours after that``; empty without limits.
    """
    rows = [row for line in output.splitlines() if len(row := line.strip().split("|")) == 4]
    mine = {account} if account else {row[0] for row in rows if row[1]}
    for name, user, *minutes in rows if len(mine) == 1 else ():
        limits, used = (dict(re.findall(r"(?a)([\w/:]+)=(\d+)", text)) for text in minutes)
        left = {
            unit: (max(0, int(limits[tres]) - int(used.get(tres, 0))) // 60, int(limits[tres]) // 60)
            for tres, unit in (("gres/gpu", "GPU"), ("cpu", "core"))
            if tres in limits
        }
        if left and not user and name in mine:
            told = " and ".join(f"{rest:,} of {most:,} {unit}-hours" for unit, (rest, most) in left.items())
            amount, unit = hours or (0.0, "")
            if unit not in left:
                return f"account {name} has {told} left" + (f"; its {unit}-hours are not known" if unit else "")
            after = left[unit][0] - math.ceil(amount * runs)
            then = f"{after:,} {unit}-hours after that" if after >= 0 else f"too few {unit}-hours for that"
            return f"account {name} has {told} left, {then}"
    return ""


# --- states and reasons: squeue(1), JOB STATE CODES and JOB REASON CODES; pure -----------------------------------

# Slurm's state -> (gridtf's state, what a user should know in addition).
_STATES = {
    "BOOT_FAIL": (JobState.NODE_FAIL, "its nodes did not boot"),
    "CANCELLED": (JobState.CANCELLED, ""),
    "COMPLETED": (JobState.COMPLETED, ""),
    "COMPLETING": (JobState.RUNNING, "ending"),
    "CONFIGURING": (JobState.PENDING, "its nodes are being prepared"),
    "DEADLINE": (JobState.TIMEOUT, "its deadline (--deadline) has passed"),
    "EXPEDITING": (JobState.PENDING, "requeued at the head of the queue"),
    "FAILED": (JobState.FAILED, ""),
    "LAUNCH_FAILED": (JobState.FAILED, "Slurm could not start it on its nodes"),
    "NODE_FAIL": (JobState.NODE_FAIL, "one of its nodes has failed"),
    "OUT_OF_MEMORY": (JobState.OUT_OF_MEMORY, "one of its processes used more memory than the job has"),
    "PENDING": (JobState.PENDING, ""),
    "POWER_UP_NODE": (JobState.PENDING, "its nodes are being powered up"),
    "PREEMPTED": (JobState.PREEMPTED, "ended to make room for a job of higher priority"),
    "RECONFIG_FAIL": (JobState.NODE_FAIL, "its nodes could not be configured"),
    "REQUEUED": (JobState.PENDING, "it was requeued"),
    "REQUEUE_FED": (JobState.PENDING, "it is being requeued in the federation"),
    "REQUEUE_HOLD": (JobState.PENDING, "it was requeued and is held: scontrol release"),
    "RESIZING": (JobState.RUNNING, "its size is being changed"),
    "RESV_DEL_HOLD": (JobState.PENDING, "held: its reservation was deleted"),
    "REVOKED": (JobState.UNKNOWN, "it runs on another cluster of the federation"),
    "RUNNING": (JobState.RUNNING, ""),
    "SIGNALING": (JobState.RUNNING, "Slurm is sending it a signal"),
    "SPECIAL_EXIT": (JobState.PENDING, "it was requeued for its exit code and is held: scontrol release"),
    "STAGE_OUT": (JobState.RUNNING, "its files are being copied out"),
    "STOPPED": (JobState.RUNNING, "stopped by a signal; it keeps its CPUs"),
    "SUSPENDED": (JobState.RUNNING, "suspended: other jobs use its CPUs"),
    "TIMEOUT": (JobState.TIMEOUT, "the walltime is over"),
}

# Why a job is pending; messages add Slurm's own reason in parentheses.
_WAITS = {
    "AssociationJobLimit": "your account has reached its limit of running jobs",
    "AssociationResourceLimit": "your account has reached its limit of resources in use",
    "AssociationTimeLimit": "your account has used up its time",
    "BadConstraints": "no node can satisfy its request",
    "BeginTime": "its begin time has not come",
    "BurstBufferResources": "the burst buffer is full",
    "BurstBufferStageIn": "its files are being copied in",
    "Cleaning": "an earlier run of it is still being cleaned up",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job it depends on did not end as required: it will never start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobArrayTaskLimit": "the array already runs as many tasks as its limit allows",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held: scontrol release",
    "Licenses": "it waits for a licence",
    "MaxMemPerLimit": "it requests more memory per CPU or node than is allowed",
    "MaxPoweredUpNodes": "the limit of powered-up nodes is reached",
    "None": "Slurm has not considered it yet",
    "PartitionConfig": "the partition does not accept such a job",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it requests more or fewer nodes than the partition has or allows",
    "PartitionTimeLimit": "it requests more time than the partition allows",
    "Priority": "jobs of higher priority come first",
    "Prolog": "the prolog is running on its nodes",
    "QOSJobLimit": "its QOS has reached its limit of running jobs",
    "QOSNotAllowed": "the partition does not accept its QOS",
    "QOSResourceLimit": "its QOS has reached its limit of resources in use",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSUsageThreshold": "you have used more of your share of the cluster than its QOS allows",
    "ReqNodeNotAvail": "a node that it requests is down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "the nodes are busy",
    "SchedDefer": "deferred to the next scheduling cycle",
    "launch failed requeued held": "it could not be started and is held: scontrol release",
    "job requeued in held state": "it was requeued and is held: scontrol release",
}
# Limits of associations and QOS, which exist for every kind of resource (sacctmgr(1)); the first match counts.
# GrpRunMinutes limits the running jobs, GrpMinutes and GrpWall all use so far.
_LIMITS = (
    (re.compile(r"(QOS|Assoc)Max\w+Per(Job|Node)\w*"), "it requests more than one job may have"),
    (re.compile(r"QOSMin\w+"), "it requests less than its QOS requires of a job"),
    (re.compile(r"(QOS|Assoc)Grp\w+RunMinutes\w*"), "running jobs already use all that is allowed"),
    (re.compile(r"(QOS|Assoc)Grp(Wall|\w+Minutes)\w*"), "your account or QOS has used up its budget"),
    (re.compile(r"(QOS|Assoc|Max)\w*"), "you, your account or the QOS already use all that is allowed"),
)

# Slurm's reason for a script that was killed, and for one that never began, which has exit code 0:53 (seen on 22.05).
LAUNCH_FAILURE = "JobLaunchFailure"
_NOT_LAUNCHED = 53

# Why a job has ended.
_ENDED = {
    "NodeDown": "one of its nodes is down",
    "NonZeroExitCode": "its script ended with an exit code other than 0",
    "OutOfMemory": "one of its processes used more memory than the job has",
    "SystemFailure": "Slurm itself has failed",
    "TimeLimit": "the walltime is over",
}


def parse_state(state: str) -> tuple[JobState, str]:
    """Translate a state of Slurm's.

    Args:
        state: Such as ``RUNNING`` or ``CANCELLED by 1000`` (squeue(1), JOB STATE CODES).

    Returns:
        (state, explanation): the explanation is empty where the state says enough. A state that this version does not
        know is UNKNOWN, and its explanation names it.
    """
    name, _, more = state.strip().partition(" ")
    ours, words = _STATES.get(name.rstrip("+").upper(), (JobState.UNKNOWN, f"Slurm reports the state {state}"))
    return ours, (more if ours == JobState.CANCELLED else words)


def why_pending(reason: str) -> str:
    """Explain why a job is pending.

    Args:
        reason: Slurm's reason, such as ``Resources`` (squeue(1), JOB REASON CODES), or free text.

    Returns:
        One line, with Slurm's reason in parentheses.
    """
    reason = reason.strip().removeprefix("(").removesuffix(")")
    word = reason.partition(",")[0]  # ReqNodeNotAvail, UnavailableNodes:n[3-4]
    words = _WAITS.get(reason) or _WAITS.get(reason.replace("_", " ")) or _WAITS.get(word)
    words = words or next((limit for names, limit in _LIMITS if names.fullmatch(word)), None)
    return f"{words} ({reason})" if words and reason != "None" else words or reason


def why_ended(reason: str, exit_code: str = "") -> str:
    """Explain why a job has ended.

    Args:
        reason: Slurm's reason, such as ``NonZeroExitCode`` or ``None``.
        exit_code: ``code:signal``; empty where it is not known.

    Returns:
        One line; empty where Slurm has no reason.
    """
    if reason in ("", "None"):
        return ""
    if killed := _killed(reason, exit_code):
        return f"its script was {killed}"
    if reason == LAUNCH_FAILURE:
        return "Slurm could not start its script: does its node lack the working directory or the log's folder?"
    if reason in _WAITS:
        return f"while it was pending ({reason})"
    return _ENDED.get(reason, reason)


def _killed(reason: str, exit_code: str) -> str:
    """``killed by SIGTERM`` for a script that a signal has ended; else empty."""
    if signal := re.fullmatch(r"RaisedSignal:(\d{1,3})(?:\(.+\))?", reason, re.ASCII):
        return killed_by(int(signal[1]))
    number = re.fullmatch(r"\d+:(\d{1,3})", exit_code, re.ASCII) if reason == LAUNCH_FAILURE else None
    if number and 0 < int(number[1]) < NSIG and int(number[1]) != _NOT_LAUNCHED:
        return killed_by(int(number[1]))
    return ""
