"""How jobs stand: what qstat says of them. Parsing is pure."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gridtf.errors import SchedulerError
from gridtf.run.rundir import Record
from gridtf.schedulers.base import PENDING, RUNNING, UNKNOWN, JobStatus
from gridtf.schedulers.client import Answer
from gridtf.schedulers.common import indices, whole
from gridtf.schedulers.sge import cell, reply, states

_PATIENCE = 10.0  # seconds; what runs goes on without it, and its run directory says most
_MOST_WAITING = 50  # the reasons of more jobs than that are not asked for
_MOST_RECENT = 1000  # of our jobs are asked for their script
_LONGEST = 100_000  # bytes of ids: Linux takes 128 KiB in one word of a command line
# 11/21/2026 14:10:52 [7001:11]: error: can't chdir to /nowhere: No such file or directory
_STAMP = re.compile(r"^[\d/.-]+[ T][\d:.]+ \[[^]]*\]: (error: )?")


@dataclass(frozen=True)
class Row:
    """What qstat says of a job, or of some elements of an array. tasks: ``3-9:2`` or ``7,9``; empty for a job."""

    number: str
    state: str
    tasks: str = ""


@dataclass(frozen=True)
class Detail:
    """What ``qstat -j`` says of a job beside that.

    errors: why, by element (``1`` for a job). after: jobs that it waits for. start: not before then, in seconds since
    the epoch; 0: at any time. waits: why it was not started yet, in the scheduler's words.
    """

    errors: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    start: float = 0.0
    waits: tuple[str, ...] = ()


def query(submitted: Sequence[Record]) -> dict[str, JobStatus]:
    """How these jobs stand, by job id, from one qstat, and a second for what that does not say.

    That is why a job waits or is in error, and whether one that is not listed is gone: options in the files of users
    and sites, sge_qstat(5), hide jobs. Raises SchedulerError when the qmaster does not answer.
    """
    if not submitted:
        return {}
    found = by_number(rows(_qstat("-u", _users(submitted), "-s", "a").out))
    ids = dict.fromkeys(record["job_id"] for record in submitted)
    plain = {job_id: status(job_id, found, {}, 0.0) for job_id in ids}
    unclear = [job_id for job_id, one in plain.items() if one.gone or _in_error(job_id, found)]
    waiting = [job_id for job_id, one in plain.items() if one.state == PENDING and job_id not in unclear]
    known = _details([*unclear, *(waiting if len(waiting) <= _MOST_WAITING else [])])
    now = time.time()
    return {job_id: status(job_id, found, known, now) for job_id in ids}


def _qstat(*arguments: str) -> Answer:
    answer = cell.query(["qstat", "-xml", *arguments], limit=_PATIENCE)
    if answer.code and "do not exist" not in answer.err:
        raise SchedulerError(f"qstat has failed: {cell.said(answer)}")
    return answer


def _users(submitted: Iterable[Record]) -> str:
    """Whose jobs to ask for: there may be many thousands of others."""
    users = sorted({str(record.get("user", "*")) for record in submitted})
    return ",".join(users) if all(re.fullmatch(r"[\w.-]+", user) for user in users) else "*"


def _details(ids: Sequence[str]) -> dict[str, Detail]:
    numbers = list(dict.fromkeys(job_id.partition(".")[0] for job_id in ids))
    found: dict[str, Detail] = {}
    some = _LONGEST // 12
    for at in range(0, len(numbers), some):
        answer = _qstat("-j", ",".join(numbers[at : at + some]))
        if answer.code == 0:
            found.update(details(answer.out))
    return found


def own_row(job_id: str, which: str, *, limit: float) -> Row | None:
    """What qstat shows of the job that we are in; None when it does not show it among these. which: as in its ``-s``.
    limit: seconds. Raises SchedulerError."""
    answer = cell.query(["qstat", "-xml", "-u", "*", "-s", which], limit=limit)
    return row_of(rows(answer.out), job_id)


def row_of(found: Iterable[Row], job_id: str) -> Row | None:
    """The row of a job, or of one element of an array, that runs. Pure."""
    number, _, element = job_id.partition(".")
    return next((row for row in found if row.number == number and row.tasks == element), None)


def running_script(script: str) -> str:
    """The number of the job of ours, the latest one, that has this script, whatever its state; empty without one.

    script: its path as it was handed over. Raises SchedulerError when the qmaster does not answer.
    """
    ids = sorted({number for row in rows(_qstat("-s", "a").out) if (number := whole(row.number))})
    answer = _qstat("-j", ",".join(map(str, ids[-_MOST_RECENT:]))) if ids else Answer(1, "", "")
    return max(scripts(answer.out).get(script, []), key=int, default="") if answer.code == 0 else ""


# --- what qstat prints -----------------------------------------------------------------------------------------


def rows(text: str) -> list[Row]:
    """Read ``qstat -xml``: running jobs are listed below their queue or beside it, pending ones in a list of their own.

    ``<job_list state="pending"><JB_job_number>1</JB_job_number> … <state>qw</state> … <tasks>7,9</tasks></job_list>``
    Raises SchedulerError for what is no XML.
    """
    return [
        Row(
            (job.findtext("JB_job_number") or "").strip(),
            (job.findtext("state") or "").strip(),
            (job.findtext("tasks") or "").strip(),
        )
        for job in reply.tree(text, "qstat -xml").iter("job_list")
    ]


def by_number(found: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each job."""
    numbers: dict[str, list[Row]] = {}
    for row in found:
        numbers.setdefault(row.number, []).append(row)
    return numbers


def details(text: str) -> dict[str, Detail]:
    """Read ``qstat -xml -j``, by a job's number; one that is not there is unknown. Raises SchedulerError."""
    root = reply.tree(text, "qstat -xml -j")
    own: dict[str, list[str]] = {}
    for message in root.findall(".//SME_message_list/*"):
        for one in message.findall(".//MES_job_number_list//ULNG_value"):
            own.setdefault(one.text or "", []).append(message.findtext("MES_message") or "")
    of_all = [message.text or "" for message in root.findall(".//SME_global_message_list//MES_message")]
    found = {}
    for job in root.findall("./djob_info/*"):
        number = (job.findtext("JB_job_number") or "").strip()
        errors = {
            task.findtext("JAT_task_number") or "": _STAMP.sub("", message.text or "")
            for task in job.findall("./JB_ja_tasks/*")
            for message in task.findall("./JAT_message_list//QIM_message")
        }
        after = tuple(one.text or "" for one in job.findall("./JB_jid_predecessor_list//JRE_job_number"))
        start = _moment(job.findtext("JB_execution_time") or "")
        waits = tuple(own.get(number) or of_all)
        found[number] = Detail(errors, after, start, waits)
    return found


def scripts(text: str) -> dict[str, list[str]]:
    """Read ``qstat -xml -j``: the numbers of the jobs of each script. Raises SchedulerError."""
    found: dict[str, list[str]] = {}
    for job in reply.tree(text, "qstat -xml -j").findall("./djob_info/*"):
        number = (job.findtext("JB_job_number") or "").strip()
        if whole(number):
            found.setdefault(job.findtext("JB_script_file") or "", []).append(number)
    return found


def _moment(text: str) -> float:
    """Seconds since the epoch, from their number, or that of microseconds, or, as Open Cluster Scheduler writes it,
    ``2026-11-21T14:10:52.123456+01:00``, mostly without the zone; 0 for anything else."""
    if (number := whole(text)) is not None:
        return number if number < 10**11 else number / 1e6
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


# --- what that means -------------------------------------------------------------------------------------------


def status(job_id: str, found: Mapping[str, Sequence[Row]], known: Mapping[str, Detail], now: float) -> JobStatus:
    """How a job, an array or an element of one stands. now: seconds since the epoch."""
    number, _, element = job_id.partition(".")
    own = [row for row in found.get(number, ()) if not element or not row.tasks or _holds(row.tasks, int(element))]
    if not own:
        if number in known and number not in found:
            return JobStatus(UNKNOWN, "qstat does not show it, but knows it: do options in ~/.sge_qstat hide it?")
        return JobStatus(UNKNOWN, "Grid Engine no longer knows it", gone=True)
    detail = known.get(number, Detail())
    if len(own) == 1 and (element or not own[0].tasks):
        return _of_row(own[0], detail, element or "1", now)
    if not any(row.tasks for row in own):  # options in ~/.sge_qstat list each host of a parallel job
        return _of_row(own[0], detail, "1", now)
    return _of_array(own, detail, now)


def _of_row(row: Row, detail: Detail, element: str, now: float) -> JobStatus:
    state, words = states.ours(row.state)
    if "E" in row.state and "d" not in row.state:
        why = detail.errors.get(element) or next(iter(detail.errors.values()), "")
        return JobStatus(state, f"in error ({row.state}): {why or 'see qstat -j'}; qmod -cj {row.number} clears it")
    if state == PENDING and words in ("", "held"):
        words = why_pending(row, detail, now)
    return JobStatus(state, words)


def why_pending(row: Row, detail: Detail, now: float) -> str:
    """Why a job waits, in words; empty where Grid Engine does not say it (schedd_job_info in sched_conf(5))."""
    if detail.after:
        return f"it waits for job {', '.join(detail.after)}"
    if "h" in row.state:
        return f"held: qrls {row.number} releases it"
    if detail.start > now:
        return f"it may not begin before {time.strftime('%Y-%m-%d %H:%M', time.localtime(detail.start))}"
    again = "it was put back into the queue" if "R" in row.state else ""
    best = min(detail.waits, key=_telling, default="")
    full = re.search(r"dropped because it is (full|overloaded|disabled|temporarily not available)", best)
    return "; ".join(words for words in (again, f"its queues are {full[1]}" if full else best) if words)


def _telling(message: str) -> int:
    """0 for the message that says most."""
    for rank, phrase in enumerate(("cannot run in PE", "offers only", "cannot run", "dropped because")):
        if phrase in message:
            return rank
    return 9 if "turned off" in message else 2


def _of_array(own: Sequence[Row], detail: Detail, now: float) -> JobStatus:
    """Running if one runs, else waiting; those that have ended are not listed any more."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for row in own:
        one = _of_row(row, detail, "", now)
        counts[one.state] += _count(row.tasks)
        if one.reason and (one.state not in reasons or "E" in row.state):
            reasons[one.state] = one.reason
    in_order = [state for state in (RUNNING, PENDING, UNKNOWN) if counts[state]]
    words = ", ".join(f"{counts[state]} {state}" for state in in_order)
    why = reasons.get(PENDING) or reasons.get(in_order[0], "")
    return JobStatus(in_order[0], f"elements of the array that have not ended: {words}" + (f" ({why})" if why else ""))


def _in_error(job_id: str, found: Mapping[str, Sequence[Row]]) -> bool:
    return any("E" in row.state for row in found.get(job_id.partition(".")[0], ()))


def _spans(tasks: str) -> list[range]:
    return [span for part in tasks.split(",") if (span := indices(part.strip())) is not None]


def _holds(tasks: str, element: int) -> bool:
    return any(element in span for span in _spans(tasks))


def _count(tasks: str) -> int:
    return sum(len(span) for span in _spans(tasks)) or 1
