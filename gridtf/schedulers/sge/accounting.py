"""How jobs ended that Grid Engine no longer lists: qacct(1), accounting(5). Parsing is pure."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence

from gridtf.errors import SchedulerError
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.schedulers.arrays import WORST_FIRST
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import parse_native
from gridtf.schedulers.sge.query import DECIMAL, seconds, size
from gridtf.states import JobState

_QACCT_LIMIT = 5.0  # seconds for all jobs: qacct reads the whole file each time, and the run directory says most
_KILLED, _AFTER_JOB, _EXIT_100, _RESCHEDULED, _LIMIT = 17, 100, 30, (24, 25), 37
# The shepherd or the host failed before it could report the job's end, or the host no longer knows the job.
_LOST = (19, 21, 22)
_TIME_LIMITS, _MEMORY_LIMITS = ("h_rt", "s_rt", "h_cpu", "s_cpu"), ("h_vmem", "s_vmem")


def ends(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
    """How jobs ended, by qacct.

    Returns:
        Job id -> final status; without jobs that the accounting does not have, or that this user may not see.
    """
    known: dict[str, JobStatus] = {}
    until = time.monotonic() + _QACCT_LIMIT
    for job in jobs:
        remaining = until - time.monotonic()
        if remaining <= 0:
            break
        number, _, element = job.job_id.partition(".")
        which = ["-j", number, *(["-t", element] if element else [])]
        try:
            answer = sge.run(["qacct", "-m", *which], limit=remaining)  # -m: no records of tasks on other hosts
            if answer.code and "not found" not in answer.err:  # older versions have no -m
                answer = sge.run(["qacct", *which], limit=max(0.1, until - time.monotonic()))
        except SchedulerError:
            break
        status = accounted_status(blocks(answer.out), job) if answer.code == 0 else None
        if status is not None:
            known[job.job_id] = status
    return known


def blocks(text: str) -> list[dict[str, str]]:
    """Parse the output of ``qacct -j`` into records; a line of ``=`` begins each, and sums may follow the last.

    ``failed       100 : assumedly after job`` · ``exit_status  137             (Killed)`` · ``category     -l h_rt=3``
    """
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("===="):
            records.append({})
        elif records:
            key, _, value = line.partition(" ")
            records[-1][key] = value.strip()
    return [record for record in records if "jobnumber" in record]


def accounted_status(records: Sequence[Mapping[str, str]], job: JobIdentity) -> JobStatus | None:
    """How a job, an element of a job array or a whole array ended; None where the records leave it open.

    Grid Engine reuses job numbers, so a record of another user or with another job name is of another job. A job that
    was started again has several records, of which the last one counts. Without ``pe_taskid``, records of a parallel
    job and of its tasks on other hosts look alike: then all of them must agree.
    """
    number, _, element = job.job_id.partition(".")
    name = job.details.get("job_name") or job.details.get("name")  # hand-written scripts have names of their own
    last: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        same = record["jobnumber"] == number and record.get("pe_taskid", "NONE") in ("", "NONE")
        named = name in (None, record.get("jobname"))
        owned = job.user in ("", record.get("owner"))
        if same and named and owned and element in ("", record.get("taskid")):
            last.setdefault(record.get("taskid", ""), []).append(record)
    of_each = [_end(starts) for starts in last.values()]
    known = [end for end in of_each if end is not None]
    if len(known) < len(of_each) or not known:
        return None
    return min(known, key=lambda end: WORST_FIRST.index(end.state))


def _end(records: Sequence[Mapping[str, str]]) -> JobStatus | None:
    final = records[-1]
    parallel = final.get("granted_pe", "NONE") not in ("", "NONE") and "pe_taskid" not in final
    start = [record for record in records if record.get("qsub_time") == final.get("qsub_time")]
    if parallel and len({(record.get("failed"), record.get("exit_status")) for record in start}) > 1:
        return None
    return ended(final)


def ended(record: Mapping[str, str]) -> JobStatus | None:
    """How a job ended, from its record in the accounting: accounting(5).

    Args:
        record: What qacct prints, such as ``failed`` -> ``37  : qmaster enforced h_rt, h_cpu, or h_vmem limit``.

    Returns:
        Its final status; None when the job did not end, but was put back into the queue.
    """
    failed, words = _code(record.get("failed", "")), record.get("failed", "").partition(":")[2].strip()
    code, host = _code(record.get("exit_status", "")), record.get("hostname", "")
    if failed in _RESCHEDULED:
        return None
    by = record.get("deleted_by", "NONE")  # Univa's and Altair's; Open Cluster Scheduler's from 9.1.2
    daemon = by.startswith(("execd@", "qmaster@"))  # Open Cluster Scheduler: it has enforced a limit
    if by not in ("", "NONE") and not daemon:
        return JobStatus(JobState.CANCELLED, f"by {by}", by=by)
    killed = failed in (_KILLED, _AFTER_JOB) or (daemon and not failed)
    # 37: qmaster enforced h_rt, h_cpu, or h_vmem limit; Univa's 44: execd enforced h_rt limit
    limits = words.partition("enforced")[2] or ("any" if (daemon and killed) or failed == _LIMIT else "")
    if (limits or killed) and (over := _over_a_limit(record, limits)):
        return over
    if failed in _LOST:
        return JobStatus(JobState.NODE_FAIL, f"its host {host} has failed, or has lost track of it ({words})")
    if failed in (_KILLED, _AFTER_JOB) and code == 128 + signal.SIGUSR2:
        # -notify's warning before KILL has ended the script; for a limit, failed would be 37
        return JobStatus(JobState.CANCELLED, "deleted with qdel")
    if failed in (_KILLED, _AFTER_JOB):
        return _killed(code)
    if failed and failed != _EXIT_100:
        return JobStatus(JobState.FAILED, f"Grid Engine could not run it on {host}: {words} ({failed})")
    if code:
        return JobStatus(JobState.FAILED, f"its script ended with exit code {code}")
    return JobStatus(JobState.COMPLETED)


def _code(text: str) -> int:
    """``100 : assumedly after job`` -> 100, ``137                  (Killed)`` -> 137."""
    match = re.match(r"[0-9]{1,9}(?![0-9])", text.strip())
    return int(match[0]) if match else 0


def _killed(code: int) -> JobStatus:
    try:
        name = signal.Signals(code - 128).name
    except ValueError:  # Open Cluster Scheduler has 0 there
        return JobStatus(JobState.FAILED, "it was killed" + (f" (exit code {code})" if code else ""))
    # Son of Grid Engine records the same for all of these causes
    why = ": by qdel, for a limit of its queue, or by a user on its host" if name == "SIGKILL" else ""
    killed = f"killed by {name}{why}"
    return JobStatus(JobState.FAILED, f"it was {killed}", killed=killed)


def _over_a_limit(record: Mapping[str, str], limits: str) -> JobStatus | None:
    """The status of a job that exceeded a limit; None if it exceeded none.

    Args:
        record: Its record.
        limits: The limits of which Grid Engine reports that the job exceeded one; empty when it reports none.
    """
    # -u alice -l h_rt=3600,gpu=1 -pe mpi 8; Open Cluster Scheduler has the command line instead
    options = parse_native([record.get("category") or record.get("submit_cmd_line", "")])
    requested = {name.removeprefix("l "): amount for name, amount in options.items()}
    elapsed = _number(record.get("ru_wallclock", ""))
    for name in ("h_rt", "s_rt"):
        allowed = seconds(requested.get(name, ""))
        if allowed is not None and elapsed >= allowed:
            return JobStatus(JobState.TIMEOUT, f"the walltime is over ({name}={requested[name]})")
    used = size(record.get("maxvmem", ""))
    for name in _MEMORY_LIMITS:
        most = size(requested.get(name, ""))
        if most and used >= most * (_number(record.get("slots", "")) or 1):
            return JobStatus(JobState.OUT_OF_MEMORY, f"it used more memory than requested ({name}={requested[name]})")
    if not limits:
        return None
    no_time = limits != " h_rt limit" and not any(name in requested for name in _TIME_LIMITS)
    if no_time and any(name in requested for name in _MEMORY_LIMITS):
        return JobStatus(JobState.OUT_OF_MEMORY, "it used more memory than allowed")
    return JobStatus(JobState.TIMEOUT, "the walltime or the CPU time of the job or of its queue is over")


def _number(text: str) -> float:
    match = re.match(DECIMAL, text.strip())
    return float(match[0]) if match else 0.0
