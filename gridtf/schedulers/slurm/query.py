"""How jobs stand: squeue, sacct and scontrol, what they print, and Slurm's states and reasons in plain words."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import NSIG

from gridtf.errors import SchedulerError
from gridtf.files import user_name
from gridtf.host.processes import killed_by
from gridtf.run.rundir import RUN_ROOT, Record
from gridtf.schedulers.base import (
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PENDING,
    PREEMPTED,
    RUNNING,
    TIMEOUT,
    UNKNOWN,
    JobStatus,
)
from gridtf.schedulers.common import whole
from gridtf.schedulers.slurm import client
from gridtf.schedulers.slurm.hostlist import expand

_PATIENCE = 20.0  # seconds; squeue itself gives up after 14 when the controller's host is off
_ACCOUNTING_PATIENCE = 5.0  # the run directory has said most already
_TERMINATION_PATIENCE = 3.0  # seconds; KILL may follow TERM after KillWait, 30 s at most sites
_LONGEST = 100_000  # bytes of ids: Linux takes 128 KiB in one word of a command line

# squeue(1), --format. The reason is last, since it may hold any character.
_SQUEUE = "--format=%i|%A|%T|%S|%r"
# 12, 12_3, 12_[4-9%2], 12+0
_ID = re.compile(r"\d{1,18}(?:[_+].+)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
# The worst of several parts is what became of all.
_WORST_FIRST = (NODE_FAIL, OUT_OF_MEMORY, FAILED, TIMEOUT, PREEMPTED, CANCELLED, UNKNOWN, COMPLETED)
# of GRES=: gpu:2(IDX:0-1), gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3), nvme:1,gpu:2(IDX:0-1); GPUs without files gpu(CNT:4)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,(]+)??(?::(\d{1,18})(?=[(,]|$)|\(CNT:(\d{1,18})\))", re.ASCII)


@dataclass(frozen=True)
class Row:
    """What is said of one job, one or some elements of an array, or one component of a heterogeneous job.

    job_id: ``12``, ``12_3``, ``12_[4-9%2]``, ``12+0``. number: a job's own, also where it is an element or a component.
    start: when it started or is expected to, or ``N/A``. exit_code: ``code:signal``, where it was asked for.
    """

    job_id: str
    number: str
    state: str
    start: str = "N/A"
    reason: str = ""
    exit_code: str = ""


def query(submitted: Sequence[Record]) -> dict[str, JobStatus]:
    """How these jobs stand, by job id, from one squeue (one a cluster, where there are several).

    One that Slurm no longer knows is ``gone``. Raises SchedulerError when the controller does not answer.
    """
    found = {}
    for options, ids in _by_cluster(submitted):
        which = f"--jobs={','.join(ids)}"
        argv = ["squeue", "--noheader", "--all", "--states=all", *options, _SQUEUE]  # --all: in hidden partitions, too
        if len(which) < _LONGEST:
            argv.append(which)
        answer = client.run(argv, limit=_PATIENCE)
        # with several ids, those that are unknown are left out; a single one is an error
        if answer.code and "Invalid job id" not in answer.err:
            raise SchedulerError(f"squeue has failed: {client.message(answer)}")
        rows = parse_squeue(answer.out)
        found.update(statuses(ids, [replace(row, exit_code=_exit_code(row, options)) for row in rows]))
    return found


def _exit_code(row: Row, options: Sequence[str]) -> str:
    """The exit code, as code:signal, of a job that squeue gives a reason for which leaves that open; mostly empty."""
    if row.reason != LAUNCH_FAILURE or row.state == "COMPLETING":
        return ""
    with contextlib.suppress(SchedulerError):
        show = ["scontrol", "-o", *options, "show", "job", row.number]
        answer = client.run(show, limit=_PATIENCE, blame=False)
        return next(
            (parse_fields(line).get("ExitCode", "") for line in answer.out.splitlines() if _is(line, row.number)), ""
        )
    return ""


def _is(line: str, job_id: str) -> bool:
    """Whether a line of scontrol show job, which may show all components or elements, is on this one."""
    return job_id in (parse_fields(line).get("JobId"), _element(line))


def accounting(submitted: Sequence[Record]) -> dict[str, JobStatus]:
    """How these jobs stand in Slurm's accounting, by job id; nothing of those it does not have, or without one."""
    found: dict[str, JobStatus] = {}
    for options, ids in _by_cluster(submitted):
        # in pieces, since sacct has no way to name more than a command line holds
        for some in (ids[at : at + 5000] for at in range(0, len(ids), 5000)):
            argv = ["sacct", "-X", "-n", "-P", *options, f"--jobs={','.join(some)}", "--format=JobID,JobIDRaw,State"]
            try:
                answer = client.run(argv, limit=_ACCOUNTING_PATIENCE, blame=False)
            except SchedulerError:
                return found
            if answer.code:
                return found
            said = statuses(some, parse_sacct(answer.out))
            found.update({job_id: _with_user_name(status) for job_id, status in said.items() if not status.gone})
    return found


def run_dirs(job_id: str) -> list[Path]:
    """As parse_run_dirs, of the job that the controller shows. Raises SchedulerError when it does not answer."""
    answer = client.run(["scontrol", "-o", "show", "job", job_id], limit=_PATIENCE)
    return [] if answer.code else parse_run_dirs(answer.out, job_id)


def gpus_of_nodes(job_id: str) -> dict[str, int]:
    """GPUs of this job by node, 0 included. Raises SchedulerError when the controller does not say."""
    answer = client.run(["scontrol", "-d", "-o", "show", "job", job_id], limit=_PATIENCE)
    if answer.code:
        raise SchedulerError(f"scontrol does not show job {job_id}: {client.message(answer)}")
    return parse_node_gpus(answer.out, job_id)


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
    """The status of each job, out of all rows. An array or a heterogeneous job has one for all of its rows."""
    by_id: dict[str, list[Row]] = {}
    for row in rows:
        whole = re.split(r"[_+]", row.job_id)[0]
        for name in {row.job_id, row.number, whole}:
            by_id.setdefault(name, []).append(row)
    return {job_id: _status(job_id, by_id) for job_id in ids}


def _status(job_id: str, by_id: Mapping[str, list[Row]]) -> JobStatus:
    array, _, element = job_id.partition("_")
    rows = by_id.get(job_id) or [row for row in by_id.get(array, ()) if _holds(row.job_id, element)]
    if not rows:
        return JobStatus(UNKNOWN, "Slurm no longer knows it", gone=True)
    # of a heterogeneous job, the first component has the script, and decides
    leader = [row for row in rows if row.job_id in (f"{job_id}+0", job_id)]
    if len(rows) == 1 or leader:
        return _of_row((leader or rows)[0])
    return _of_array(rows)


def _of_row(row: Row) -> JobStatus:
    state, words = parse_state(row.state)
    if state == PENDING:
        return JobStatus(state, words or why_pending(row.reason, row.start))
    if row.state == "COMPLETING":
        # a script that was killed is told from one that never began by an exit code that is not there yet
        why = why_ended(row.reason) if row.reason != LAUNCH_FAILURE else ""
        return JobStatus(state, f"{words}: {why}" if why else words)
    why = why_ended(row.reason, row.exit_code)
    return JobStatus(state, (why or words) if state in ENDED else words)


def _of_array(rows: Sequence[Row]) -> JobStatus:
    """Running if one runs, waiting if one waits, else the worst that became of an element."""
    found = [(_of_row(row), _count(row.job_id)) for row in rows]
    counts: Counter[str] = Counter()
    for status, count in found:
        counts[status.state] += count
    in_order = [RUNNING, PENDING, *_WORST_FIRST]
    words = ", ".join(f"{counts[state]} {state}" for state in in_order if counts[state])
    worst = next(state for state in in_order if counts[state])
    why = next((status.reason for status, _ in found if status.state == worst and status.reason), "")
    known = "" if counts[RUNNING] or counts[PENDING] else " of those that Slurm still knows"
    return JobStatus(worst, f"elements of the array{known}: {words}" + (f" ({why})" if why else ""))


def _holds(job_id: str, element: str) -> bool:
    """Whether 12_[3-5,9-15:2%2] stands for this element."""
    return _NUMBER.fullmatch(element) is not None and any(int(element) in span for span in _spans(job_id))


def _count(job_id: str) -> int:
    return sum(len(span) for span in _spans(job_id)) or 1


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
            said = dict(re.findall(r"\s(JobName|Command|WorkDir)=(.+?)(?=\s[A-Za-z]+=|\s*$)", line))
            found += [Path(said["Command"]).parent] if "Command" in said else []
            if "JobName" in said and "WorkDir" in said:
                found.append(Path(said["WorkDir"], RUN_ROOT, f"{said['JobName']}-{job_id}"))
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


def _element(line: str) -> str:
    said = parse_fields(line)
    return f"{said.get('ArrayJobId')}_{said.get('ArrayTaskId')}"


# --- what the commands are given ---------------------------------------------------------------------------------


def _by_cluster(submitted: Sequence[Record]) -> list[tuple[list[str], list[str]]]:
    """(option for the cluster, ids of the jobs there)."""
    ids: dict[tuple[str, ...], list[str]] = {}
    for record in submitted:
        ids.setdefault(tuple(client.cluster_option(record)), []).append(record["job_id"])
    return [(list(options), list(dict.fromkeys(some))) for options, some in ids.items()]


def _with_user_name(status: JobStatus) -> JobStatus:
    """``by 1000``, as accounting says it of a cancelled job, with the user's name."""
    uid = whole(status.reason.removeprefix("by "))
    return status if uid is None else JobStatus(status.state, f"by {user_name(uid)}", status.gone)


# --- inside a job that is being ended ----------------------------------------------------------------------------


def termination_reason(job_id: str, environ: Mapping[str, str]) -> JobStatus | None:
    """How Slurm will say that this job ended; None when that is not known. environ: the job's."""
    try:
        answer = client.run(["scontrol", "-o", "show", "job", job_id], limit=_TERMINATION_PATIENCE, blame=False)
        status = parse_termination(answer.out, job_id, whole(environ.get("SLURM_RESTART_COUNT", "")) or 0)
        if status is None or status.again or status.state == NODE_FAIL:
            return _blaming_nodes(status, _down_nodes(environ.get("SLURM_JOB_NODELIST", "")))
    except SchedulerError:
        return None
    return status


def _down_nodes(nodes: str) -> list[str]:
    """Which of these nodes Slurm takes for down. nodes: a hostlist."""
    if not nodes:
        return []
    argv = ["sinfo", "-h", "-N", f"--nodes={nodes}", "--states=down", "--format=%N"]
    answer = client.run(argv, limit=_TERMINATION_PATIENCE, blame=False)
    down = {line.strip() for line in answer.out.splitlines()}  # a site may print lines of its own
    return [] if answer.code else sorted(down.intersection(expand(nodes)))


def _blaming_nodes(status: JobStatus | None, down: list[str]) -> JobStatus | None:
    """The same, with the nodes that are to blame."""
    if not down:
        return status
    again = status is not None and status.again
    reason = f"{', '.join(down)} {'has' if len(down) == 1 else 'have'} failed"
    return JobStatus(
        NODE_FAIL, f"{reason}; Slurm has put the job back into the queue" if again else reason, again=again
    )


def parse_termination(text: str, job_id: str, restarts: int) -> JobStatus | None:
    """What `scontrol -o show job` says at the moment of SIGTERM. restarts: how often this job had started anew before.

    The job is COMPLETING by then, which hides the state that it will have (seen on Slurm 22.05):
      time limit   JobState=COMPLETING Reason=TimeLimit
      scancel      JobState=COMPLETING Reason=None
      preempted    JobState=COMPLETING Reason=None … PreemptTime=2026-11-21T11:14:37
      node failed  JobState=COMPLETING Reason=NodeDown
      requeued     JobState=COMPLETING Reason=None Restarts=1   (the next start is counted already)
      a signal     JobState=RUNNING
    """
    said = next((found for line in text.splitlines() if (found := parse_fields(line)).get("JobId") == job_id), {})
    state, reason = said.get("JobState", ""), said.get("Reason", "None").replace("_", " ")
    count = said.get("Restarts", "")
    by_reason = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}
    if reason in by_reason and state != "RUNNING":
        own, words = parse_state(by_reason[reason])
        return JobStatus(own, words)
    if said.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return JobStatus(*parse_state("PREEMPTED"))
    if state in ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT") and count.isdecimal():
        if int(count) > restarts:
            return JobStatus(CANCELLED, "Slurm has put it back into the queue: it will start anew", again=True)
        if state == "COMPLETING":
            return JobStatus(CANCELLED, "cancelled with scancel")
    own, words = parse_state(state)
    return JobStatus(own, words or why_ended(reason)) if own in ENDED else None


# --- states and reasons: squeue(1), JOB STATE CODES and JOB REASON CODES; pure -----------------------------------

# Slurm's state -> ours, and what a user should know beside it.
_STATES = {
    "BOOT_FAIL": (NODE_FAIL, "its nodes did not boot"),
    "CANCELLED": (CANCELLED, ""),
    "COMPLETED": (COMPLETED, ""),
    "COMPLETING": (RUNNING, "ending"),
    "CONFIGURING": (PENDING, "its nodes are being made ready"),
    "DEADLINE": (TIMEOUT, "its deadline (--deadline) has passed"),
    "EXPEDITING": (PENDING, "it is put back to the head of the queue"),
    "FAILED": (FAILED, ""),
    "LAUNCH_FAILED": (FAILED, "Slurm could not start it on its nodes"),
    "NODE_FAIL": (NODE_FAIL, "a node of it has failed"),
    "OUT_OF_MEMORY": (OUT_OF_MEMORY, "a process of it took more memory than the job has"),
    "PENDING": (PENDING, ""),
    "POWER_UP_NODE": (PENDING, "its nodes are being powered up"),
    "PREEMPTED": (PREEMPTED, "ended for a job of higher priority"),
    "RECONFIG_FAIL": (NODE_FAIL, "its nodes could not be configured"),
    "REQUEUED": (PENDING, "it was put back into the queue"),
    "REQUEUE_FED": (PENDING, "it is put back into the queue of the federation"),
    "REQUEUE_HOLD": (PENDING, "it was put back into the queue and is held: scontrol release"),
    "RESIZING": (RUNNING, "its size is being changed"),
    "RESV_DEL_HOLD": (PENDING, "held: its reservation was deleted"),
    "REVOKED": (UNKNOWN, "it runs on another cluster of the federation"),
    "RUNNING": (RUNNING, ""),
    "SIGNALING": (RUNNING, "it is being sent a signal"),
    "SPECIAL_EXIT": (PENDING, "it was put back into the queue for its exit code and is held: scontrol release"),
    "STAGE_OUT": (RUNNING, "its files are being copied out"),
    "STOPPED": (RUNNING, "stopped by a signal; it keeps its CPUs"),
    "SUSPENDED": (RUNNING, "suspended: its CPUs are lent to other jobs"),
    "TIMEOUT": (TIMEOUT, "the walltime is over"),
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


def parse_state(state: str) -> tuple[str, str]:
    """Slurm's state, such as ``CANCELLED by 1000``, as (our state, in words what it means where that says too little).

    A state that this table does not have yet is UNKNOWN, named in the words.
    """
    name, _, more = state.strip().partition(" ")
    found, words = _STATES.get(name.rstrip("+").upper(), (UNKNOWN, f"Slurm says {state}"))
    return found, (more if found == CANCELLED else words)


def why_pending(reason: str, start: str) -> str:
    """Why a job waits, and when Slurm expects it to start.

    reason: Slurm's, such as ``Resources``; free text as well. start: ``2026-11-21T11:40:00`` or ``N/A``.
    """
    reason = reason.strip().removeprefix("(").removesuffix(")")
    word = reason.partition(",")[0]  # ReqNodeNotAvail, UnavailableNodes:n[3-4]
    words = _WAITS.get(reason) or _WAITS.get(reason.replace("_", " ")) or _WAITS.get(word)
    words = words or next((limit for names, limit in _LIMITS if names.fullmatch(word)), None)
    said = f"{words} ({reason})" if words and reason != "None" else words or reason
    when = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", start)
    return f"{said}; expected to start {when[1]} {when[2]}" if when else said


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
