"""How jobs stand: what squeue, sacct and scontrol say of them."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.files import user_name
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
from gridtf.schedulers.slurm import controller, states
from gridtf.schedulers.slurm.hostlist import expand

_PATIENCE = 20.0  # seconds; squeue itself gives up after 14 when the controller's host is off
_ACCOUNTING_PATIENCE = 5.0  # the run directory has said most already
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
        answer = controller.query(argv, limit=_PATIENCE)
        # with several ids, those that are unknown are left out; a single one is an error
        if answer.code and "Invalid job id" not in answer.err:
            raise SchedulerError(f"squeue has failed: {controller.said(answer)}")
        rows = squeue_rows(answer.out)
        found.update(statuses(ids, [replace(row, exit_code=_exit_code(row, options)) for row in rows]))
    return found


def _exit_code(row: Row, options: Sequence[str]) -> str:
    """The exit code, as code:signal, of a job that squeue gives a reason for which leaves that open; mostly empty."""
    if row.reason != states.LAUNCH_FAILURE or row.state == "COMPLETING":
        return ""
    with contextlib.suppress(SchedulerError):
        show = ["scontrol", "-o", *options, "show", "job", row.number]
        answer = controller.query(show, limit=_PATIENCE, blame=False)
        return next((fields(line).get("ExitCode", "") for line in answer.out.splitlines() if _is(line, row.number)), "")
    return ""


def _is(line: str, job_id: str) -> bool:
    """Whether a line of scontrol show job, which may show all components or elements, is on this one."""
    return job_id in (fields(line).get("JobId"), _element(line))


def accounting(submitted: Sequence[Record]) -> dict[str, JobStatus]:
    """How these jobs stand in Slurm's accounting, by job id; nothing of those it does not have, or without one."""
    found: dict[str, JobStatus] = {}
    for options, ids in _by_cluster(submitted):
        # in pieces, since sacct has no way to name more than a command line holds
        for some in (ids[at : at + 5000] for at in range(0, len(ids), 5000)):
            argv = ["sacct", "-X", "-n", "-P", *options, f"--jobs={','.join(some)}", "--format=JobID,JobIDRaw,State"]
            try:
                answer = controller.query(argv, limit=_ACCOUNTING_PATIENCE, blame=False)
            except SchedulerError:
                return found
            if answer.code:
                return found
            said = statuses(some, sacct_rows(answer.out))
            found.update({job_id: _named(status) for job_id, status in said.items() if not status.gone})
    return found


def cluster(submitted: Record) -> list[str]:
    """The option that names the cluster of a job, where it was submitted to one of several."""
    return [f"--clusters={submitted['cluster']}"] if submitted.get("cluster") else []


def run_dirs(job_id: str) -> list[Path]:
    """As places, of the job that the controller shows. Raises SchedulerError when it does not answer."""
    answer = controller.query(["scontrol", "-o", "show", "job", job_id], limit=_PATIENCE)
    return [] if answer.code else places(answer.out, job_id)


def gpus_of_nodes(job_id: str) -> dict[str, int]:
    """GPUs of this job by node, 0 included. Raises SchedulerError when the controller does not say."""
    answer = controller.query(["scontrol", "-d", "-o", "show", "job", job_id], limit=_PATIENCE)
    if answer.code:
        raise SchedulerError(f"scontrol does not show job {job_id}: {controller.said(answer)}")
    return node_gpus(answer.out, job_id)


# --- what the commands print -----------------------------------------------------------------------------------


def squeue_rows(text: str) -> list[Row]:
    """What squeue prints: ``53_[3-5%2]|53|PENDING|N/A|JobArrayTaskLimit``. Other lines (CLUSTER: …) are left out."""
    return _rows(text, 5)


def sacct_rows(text: str) -> list[Row]:
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
    state, words = states.ours(row.state)
    if state == PENDING:
        return JobStatus(state, words or states.why_pending(row.reason, row.start))
    if row.state == "COMPLETING":
        # a script that was killed is told from one that never began by an exit code that is not there yet
        why = states.why_ended(row.reason) if row.reason != states.LAUNCH_FAILURE else ""
        return JobStatus(state, f"{words}: {why}" if why else words)
    why = states.why_ended(row.reason, row.exit_code)
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


def places(text: str, job_id: str) -> list[Path]:
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


def node_gpus(text: str, job_id: str) -> dict[str, int]:
    """GPUs by node from `scontrol -d -o show job`.

    ``Nodes=n1 CPU_IDs=0 Mem=500 GRES=gpu:3(IDX:0-2)   Nodes=n[2-3] CPU_IDs=0 Mem=500 GRES=gpu:a100:1(IDX:0)``
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        if not _is(line, job_id):
            continue
        for hosts, gres in re.findall(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", _said_by_slurm(line)):
            count = sum(int(number or counted) for number, counted in _GPUS.findall(gres))
            for host in expand(hosts):
                found[host] = found.get(host, 0) + count
    return found


def fields(line: str) -> dict[str, str]:
    """JobId=88 JobState=x … of one line; of a name that is there twice, such as Nodes=, the last."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", _said_by_slurm(line)))


def _said_by_slurm(line: str) -> str:
    """One line of scontrol show job without what the user has chosen, which may look like fields: the job's name, and
    from the command on, after which there are only paths and comments."""
    return re.sub(r"\sJobName=(?:.*?(?=\sUserId=\S+\(\d+\)\s)|\S*)", "", line).partition(" Command=")[0]


def _element(line: str) -> str:
    said = fields(line)
    return f"{said.get('ArrayJobId')}_{said.get('ArrayTaskId')}"


# --- what they are asked ---------------------------------------------------------------------------------------


def _by_cluster(submitted: Sequence[Record]) -> list[tuple[list[str], list[str]]]:
    """(option for the cluster, ids of the jobs there)."""
    ids: dict[tuple[str, ...], list[str]] = {}
    for record in submitted:
        ids.setdefault(tuple(cluster(record)), []).append(record["job_id"])
    return [(list(options), list(dict.fromkeys(some))) for options, some in ids.items()]


def _named(status: JobStatus) -> JobStatus:
    """``by 1000``, as accounting says it of a cancelled job, with the user's name."""
    uid = whole(status.reason.removeprefix("by "))
    return status if uid is None else JobStatus(status.state, f"by {user_name(uid)}", status.gone)
