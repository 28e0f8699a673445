"""How jobs stand, how they have ended and what they have requested: qstat(1), qacct(1). Parsing is pure."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError
from gridtf.run.rundir import RUN_ROOT, RunDir
from gridtf.schedulers.api import JobIdentity, JobStatus, Plan
from gridtf.schedulers.batch import WORST_FIRST, Answer, array_status, indices, whole
from gridtf.schedulers.sge import scheduler
from gridtf.states import JobState

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

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


def command(jobs: Sequence[JobIdentity]) -> list[str]:
    """The qstat that lists all jobs of the users of these: there may be many thousands of others."""
    users = sorted({job.user or "*" for job in jobs})
    plain = all(re.fullmatch(r"[\w.-]+", user) for user in users)
    return ["qstat", "-xml", "-u", ",".join(users) if plain else "*", "-s", "a"]


def statuses(output: str, jobs: Iterable[JobIdentity]) -> dict[str, JobStatus]:
    """How jobs stand, by job id, from what qstat has printed, and from a second qstat for what that does not say: why a
    job waits or is in error, and whether one that is not listed is purged. Options in the files of users and sites,
    sge_qstat(5), hide jobs.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    found = by_number(rows(output))
    plain = {job.job_id: status(job.job_id, found, {}, 0.0) for job in jobs}
    unclear = [job_id for job_id, one in plain.items() if one.purged or _in_error(job_id, found)]
    waiting = [job_id for job_id, one in plain.items() if one.state == JobState.PENDING and job_id not in unclear]
    known = _details([*unclear, *(waiting if len(waiting) <= _MOST_WAITING else [])])
    now = time.time()
    return {job_id: status(job_id, found, known, now) for job_id in plain}


def _qstat(*arguments: str) -> Answer:
    answer = scheduler.run(["qstat", "-xml", *arguments], limit=scheduler.query_patience)
    if answer.code and not scheduler.unknown_job(answer):
        raise SchedulerError(f"qstat has failed: {scheduler.message(answer)}")
    return answer


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
    answer = scheduler.run(["qstat", "-xml", "-u", "*", "-s", which], limit=limit)
    return row_of(rows(answer.out), job_id)


def row_of(found: Iterable[Row], job_id: str) -> Row | None:
    """The row of a job, or of one element of an array, that runs. Pure."""
    number, _, element = job_id.partition(".")
    return next((row for row in found if row.number == number and row.tasks == element), None)


def running_script(plan: Plan) -> JobIdentity | None:
    """The latest of our jobs that runs this plan's script, whatever its state.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    ids = sorted({number for row in rows(_qstat("-s", "a").out) if (number := whole(row.number))})
    answer = _qstat("-j", ",".join(map(str, ids[-_MOST_RECENT:]))) if ids else Answer(1, "", "")
    found = scripts(answer.out).get(str(RunDir(plan.run_dir).script)) if answer.code == 0 else None
    return JobIdentity(max(found, key=int)) if found else None


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
        for job in xml_tree(text, "qstat -xml").iter("job_list")
    ]


def by_number(found: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each job."""
    numbers: dict[str, list[Row]] = {}
    for row in found:
        numbers.setdefault(row.number, []).append(row)
    return numbers


def details(text: str) -> dict[str, Detail]:
    """Read ``qstat -xml -j``, by a job's number; one that is not there is unknown. Raises SchedulerError."""
    root = xml_tree(text, "qstat -xml -j")
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
    for job in xml_tree(text, "qstat -xml -j").findall("./djob_info/*"):
        number = (job.findtext("JB_job_number") or "").strip()
        if whole(number):
            found.setdefault(job.findtext("JB_script_file") or "", []).append(number)
    return found


def _moment(text: str) -> float:
    """Seconds since the epoch, from their number, or that of microseconds, or, as Open Cluster Scheduler writes it,
    ``2026-11-21T14:10:52.123456+01:00``, mostly without the zone; 0 for anything else."""
    if (number := whole(text)) is not None:
        return number if number < 10**11 else number / 1e6
    from datetime import datetime

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
            return JobStatus(
                JobState.UNKNOWN, "qstat does not show it, but knows it: do options in ~/.sge_qstat hide it?"
            )
        return JobStatus(JobState.UNKNOWN, "Grid Engine no longer knows it", purged=True)
    detail = known.get(number, Detail())
    if len(own) == 1 and (element or not own[0].tasks):
        return _of_row(own[0], detail, element or "1", now)
    if not any(row.tasks for row in own):  # options in ~/.sge_qstat list each host of a parallel job
        return _of_row(own[0], detail, "1", now)
    return _of_array(own, detail, now)


def _of_row(row: Row, detail: Detail, element: str, now: float) -> JobStatus:
    state, words = our_state(row.state)
    if "E" in row.state and "d" not in row.state:
        why = detail.errors.get(element) or next(iter(detail.errors.values()), "")
        return JobStatus(state, f"in error ({row.state}): {why or 'see qstat -j'}; qmod -cj {row.number} clears it")
    if state == JobState.PENDING and words in ("", "held"):
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
    in_error_first = sorted(own, key=lambda row: "E" not in row.state)
    found = [(_of_row(row, detail, "", now), _count(row.tasks)) for row in in_error_first]
    in_order = (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)
    why = next((one.reason for state in in_order for one, _ in found if one.state == state and one.reason), "")
    parts = [(JobStatus(one.state, why), count) for one, count in found]
    return array_status(parts, "that have not ended", always=True)


def _in_error(job_id: str, found: Mapping[str, Sequence[Row]]) -> bool:
    return any("E" in row.state for row in found.get(job_id.partition(".")[0], ()))


def _spans(tasks: str) -> list[range]:
    return [span for part in tasks.split(",") if (span := indices(part.strip())) is not None]


def _holds(tasks: str, element: int) -> bool:
    return any(element in span for span in _spans(tasks))


def _count(tasks: str) -> int:
    return sum(len(span) for span in _spans(tasks)) or 1


# --- states, and what they mean: sge_status(5) -------------------------------------------------------------------

SUSPENDED = {
    "s": "suspended: qmod -usj lets it go on",
    "S": "suspended with its queue",
    "T": "suspended because its host is overloaded",
    "N": "suspended: some of what it holds is given to others meanwhile",  # these two are Altair's
    "P": "preempted: it goes on when what it held is free again",
}
_KNOWN = frozenset("qwhrtRdE").union(SUSPENDED)
_LIMITED, _KILLED, _AFTER_JOB, _EXIT_100, _RESCHEDULED = 37, 17, 100, 30, (24, 25)
# The shepherd or the host did not live to tell how the job ended, or nobody knows the job there.
_LOST = (19, 21, 22)
_ASKED_TIME, _ASKED_MEMORY = ("h_rt", "s_rt", "h_cpu", "s_cpu"), ("h_vmem", "s_vmem")
_DECIMAL = r"[0-9]{1,18}(?:\.[0-9]+)?"
_SIZES = {"": 1.0, "k": 1e3, "K": 1024.0, "m": 1e6, "M": 1024.0**2, "g": 1e9, "G": 1024.0**3, "T": 1024.0**4}


def our_state(state: str) -> tuple[JobState, str]:
    """Grid Engine's state, such as ``Eqw``, as (our state, in words what it means where that says too little).

    A letter that is not in the manual page makes it UNKNOWN, named in the words.
    """
    letters = set(state)
    if not letters or letters - _KNOWN:
        return JobState.UNKNOWN, f"Grid Engine says {state or 'nothing'}"
    waits = bool(letters & {"q", "w"})
    if "d" in letters:
        return JobState.PENDING if waits else JobState.RUNNING, "it is being deleted"
    if "E" in letters:
        return JobState.PENDING, "in error"
    if waits:
        return JobState.PENDING, "held" if "h" in letters else ""
    for letter, words in SUSPENDED.items():
        if letter in letters:
            return JobState.RUNNING, words
    return JobState.RUNNING, ""


def seconds(text: str) -> int | None:
    """``90``, ``1:30`` or ``:1:30``, all in seconds: sge_types(1), TIME; None for INFINITY and anything else."""
    match = re.fullmatch(r"(?:(?:([0-9]{0,18}):)?([0-9]{0,18}):)?([0-9]{0,18})", text.strip())
    if match is None or not any(match.groups()):
        return None
    return int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0)


def ended(said: Mapping[str, str]) -> JobStatus | None:
    """How a job has ended, from its record in the accounting; None when it has not, but was put back into the queue.

    said: what qacct prints of it, such as ``failed`` -> ``37  : qmaster enforced h_rt, h_cpu, or h_vmem limit``.
    """
    failed, words = _code(said.get("failed", "")), said.get("failed", "").partition(":")[2].strip()
    code = _code(said.get("exit_status", ""))
    if failed in _RESCHEDULED:
        return None
    if (by := said.get("deleted_by", "NONE")) not in ("", "NONE"):  # Univa's and Altair's
        return JobStatus(JobState.CANCELLED, f"by {by}")
    over = _over_a_limit(said, certain=failed == _LIMITED)
    if over is not None and failed in (_LIMITED, _KILLED, _AFTER_JOB):
        return over
    if failed in _LOST:
        return JobStatus(
            JobState.NODE_FAIL, f"its host {said.get('hostname', '')} has failed, or has forgotten it ({words})"
        )
    if failed in (_KILLED, _AFTER_JOB) and code == 128 + signal.SIGUSR2:
        # -notify's warning before KILL, which the script did not live through: of limits the record would say 37
        return JobStatus(JobState.CANCELLED, "deleted with qdel")
    if failed in (_KILLED, _AFTER_JOB):
        return JobStatus(JobState.FAILED, _killed(code))
    if failed and failed != _EXIT_100:
        return JobStatus(
            JobState.FAILED, f"Grid Engine could not run it on {said.get('hostname', '')}: {words} ({failed})"
        )
    if code:
        return JobStatus(JobState.FAILED, f"its script ended with exit code {code}")
    return JobStatus(JobState.COMPLETED)


def _code(text: str) -> int:
    """``100 : assumedly after job`` -> 100, ``137                  (Killed)`` -> 137."""
    match = re.match(r"[0-9]{1,9}(?![0-9])", text.strip())
    return int(match[0]) if match else 0


def _killed(code: int) -> str:
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"it was killed (exit code {code})"
    # Son of Grid Engine writes down the same for all of them
    why = ": by qdel, for a limit of its queue, or by a user on its host" if name == "SIGKILL" else ""
    return f"it was killed by {name}{why}"


def _over_a_limit(said: Mapping[str, str], *, certain: bool) -> JobStatus | None:
    """The limit that it went over. certain: Grid Engine says that it was one."""
    # -u alice -l h_rt=3600,gpu=1 -pe mpi 8
    asked = dict(re.findall(r"([a-z_]\w*)=([^\s,]+)", said.get("category", "")))
    lasted = _number(said.get("ru_wallclock", "")) or 0.0
    for name in ("h_rt", "s_rt"):
        allowed = seconds(asked.get(name, ""))
        if allowed is not None and lasted >= allowed:
            return JobStatus(JobState.TIMEOUT, f"the walltime is over ({name}={asked[name]})")
    took = _size(said.get("maxvmem", ""))
    for name in _ASKED_MEMORY:
        most = _size(asked.get(name, ""))
        if most and took >= most * (_number(said.get("slots", "")) or 1):
            return JobStatus(
                JobState.OUT_OF_MEMORY, f"it took more memory than it had asked for ({name}={asked[name]})"
            )
    if not certain:
        return None
    if any(name in asked for name in _ASKED_MEMORY) and not any(name in asked for name in _ASKED_TIME):
        return JobStatus(JobState.OUT_OF_MEMORY, "it took more memory than it may")
    return JobStatus(JobState.TIMEOUT, "the walltime, or the CPU time, of the job or of its queue is over")


def _number(text: str) -> float | None:
    match = re.match(_DECIMAL, text.strip())
    return float(match[0]) if match else None


def _size(text: str) -> float:
    """``4.773MB``, ``50M`` or ``21045248`` in bytes; 0 where it is none of them."""
    match = re.fullmatch(rf"({_DECIMAL})([kKmMgGT]?)B?", text.strip())
    return float(match[1]) * _SIZES[match[2]] if match else 0.0


# --- XML that Grid Engine's commands print -----------------------------------------------------------------------

# A job's name may hold them; XML may not.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def xml_tree(text: str, command: str) -> Element:
    """Read what a command has printed, without what a site says before and after it.

    Raises SchedulerError, which names the command, for what is no XML.
    """
    from xml.etree import ElementTree  # here: what asks no qstat starts without it

    # up to 6.2u5 elements of a list of unknown jobs have no name: <><ST_name>77</ST_name></>
    clean = _CONTROLS.sub("", text).replace("<>", "").replace("</>", "")
    try:
        if "<!DOCTYPE" in clean:
            raise ElementTree.ParseError("a document type")
        begin, end = max(0, clean.find("<?xml")), clean.rfind(">") + 1
        return ElementTree.fromstring(clean[begin:end])  # noqa: S314 - no entity is let in
    except ElementTree.ParseError as error:
        raise SchedulerError(f"{command} says something that is no XML: {error}") from None


# --- how jobs have ended that the queue no longer knows: qacct(1), accounting(5) ---------------------------------

_QACCT_LIMIT = 5.0  # seconds, for all of them: it reads the whole file each time, and the run directory has said most


def accounting(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
    """How these jobs have ended, by job id; nothing of those that it does not have, or may not be asked about."""
    found: dict[str, JobStatus] = {}
    until = time.monotonic() + _QACCT_LIMIT
    for job in jobs:
        left = until - time.monotonic()
        if left <= 0:
            break
        number, _, element = job.job_id.partition(".")
        which = ["-j", number, *(["-t", element] if element else [])]
        try:
            answer = scheduler.run(["qacct", "-m", *which], limit=left)  # -m: without records of tasks on other hosts
            if answer.code and "not found" not in answer.err:  # older ones have no -m
                answer = scheduler.run(["qacct", *which], limit=max(0.1, until - time.monotonic()))
        except SchedulerError:
            break
        status = accounted_status(blocks(answer.out), job) if answer.code == 0 else None
        if status is not None:
            found[job.job_id] = status
    return found


def blocks(text: str) -> list[dict[str, str]]:
    """What qacct -j prints, one dictionary a record; each begins with a line of ``=``, and sums may follow the last.

    ``failed       100 : assumedly after job`` · ``exit_status  137             (Killed)`` · ``category     -l h_rt=3``
    """
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("===="):
            found.append({})
        elif found:
            key, _, value = line.partition(" ")
            found[-1][key] = value.strip()
    return [block for block in found if "jobnumber" in block]


def accounted_status(records: Sequence[Mapping[str, str]], job: JobIdentity) -> JobStatus | None:
    """How a job, an element of an array or an array has ended; None where these records do not say it.

    Numbers of jobs are given out again, so a record of another user or of another name is of another job. The last
    record of a job counts, since one that was started anew has several. In a parallel job others may be of its tasks,
    and nothing tells them apart where there is no ``pe_taskid``: then all have to say the same.
    """
    number, _, element = job.job_id.partition(".")
    name = job.details.get("job_name") or job.details.get("name")  # a script by hand has a name of its own
    last: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        same = record["jobnumber"] == number and record.get("pe_taskid", "NONE") in ("", "NONE")
        named = name in (None, record.get("jobname"))
        owned = job.user in ("", record.get("owner"))
        if same and named and owned and element in ("", record.get("taskid")):
            last.setdefault(record.get("taskid", ""), []).append(record)
    ends = [_end(some) for some in last.values()]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends) or not known:
        return None
    return min(known, key=lambda end: WORST_FIRST.index(end.state))


def _end(records: Sequence[Mapping[str, str]]) -> JobStatus | None:
    final = records[-1]
    parallel = final.get("granted_pe", "NONE") not in ("", "NONE") and "pe_taskid" not in final
    start = [record for record in records if record.get("qsub_time") == final.get("qsub_time")]
    if parallel and len({(record.get("failed"), record.get("exit_status")) for record in start}) > 1:
        return None
    return ended(final)


# --- what a job has requested, and was submitted with: qstat -j --------------------------------------------------

# CE_consumable in complex(5)'s order; the last is not in Son of Grid Engine.
NO, PER_SLOT, PER_JOB, PER_HOST = "0", "1", "2", "3"


@dataclass(frozen=True)
class ResourceRequest:
    """One ``-l NAME=AMOUNT``. per: what one amount is for: NO, PER_SLOT, PER_JOB or PER_HOST."""

    amount: float
    per: str


def job_requests(job_id: str, *, limit: float = 10.0) -> Mapping[str, ResourceRequest]:
    """The hard requests of a job by the resource's name. limit: seconds. Raises SchedulerError."""
    return parse_requests(_qstat_of_job(job_id, limit))


def submitted_variables(job_id: str, *, limit: float = 10.0) -> Mapping[str, str]:
    """The variables that a job was submitted with (``-v``, ``-V``). limit: seconds. Raises SchedulerError."""
    return parse_variables(_qstat_of_job(job_id, limit))


def _qstat_of_job(job_id: str, limit: float) -> str:
    answer = scheduler.run(["qstat", "-xml", "-j", job_id.partition(".")[0]], limit=limit)
    if answer.code:
        raise SchedulerError(f"qstat -j {job_id} has failed: {scheduler.message(answer)}")
    return answer.out


def run_dirs(job_id: str) -> list[Path]:
    """As places, of the job that qstat shows. Raises SchedulerError when the qmaster does not answer."""
    answer = scheduler.run(["qstat", "-j", job_id.partition(".")[0]], limit=20.0)
    return [] if answer.code else places(answer.out, job_id)


def places(text: str, job_id: str) -> list[Path]:
    """Where the run directory of a job may be, by `qstat -j`: that of its script, or where gridtf_run makes one."""
    said = dict(re.findall(r"^(\w+): +(\S.*?) *$", text, re.MULTILINE))
    found = [Path(said["script_file"]).parent] if "script_file" in said else []
    folder = said.get("cwd") or said.get("sge_o_workdir")
    return found + ([Path(folder, RUN_ROOT, f"{said['job_name']}-{job_id}")] if folder and "job_name" in said else [])


def parse_requests(text: str) -> Mapping[str, ResourceRequest]:
    """Read ``qstat -xml -j``. Raises SchedulerError for what is no XML."""
    root = xml_tree(text, "qstat -xml -j")
    found: dict[str, ResourceRequest] = {}
    # Open Cluster Scheduler has one list for the job, and one each for the first host and the others
    for hard in (one for tag in ("JB_hard_resource_list", "JRS_hard_resource_list") for one in root.iter(tag)):
        for one in hard:
            name = one.findtext("CE_name") or ""
            try:
                amount = float(one.findtext("CE_doubleval") or one.findtext("CE_stringval") or 0)
            except ValueError:
                continue  # a string or a host name
            if math.isfinite(amount):
                found.setdefault(name, ResourceRequest(amount, one.findtext("CE_consumable") or NO))
    return found


def parse_variables(text: str) -> Mapping[str, str]:
    """The environment in ``qstat -xml -j``. Raises SchedulerError for what is no XML."""
    lists = xml_tree(text, "qstat -xml -j").iter("JB_env_list")
    return {one.findtext("VA_variable") or "": one.findtext("VA_value") or "" for own in lists for one in own}
