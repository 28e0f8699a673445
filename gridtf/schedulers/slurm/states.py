"""Slurm's job states and reasons, in our states and in words: squeue(1), JOB STATE CODES and JOB REASON CODES. Pure."""

from __future__ import annotations

import re
from signal import NSIG

from gridtf.host.processes import killed_by
from gridtf.schedulers.base import (
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PENDING,
    PREEMPTED,
    RUNNING,
    TIMEOUT,
    UNKNOWN,
)

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


def ours(state: str) -> tuple[str, str]:
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
