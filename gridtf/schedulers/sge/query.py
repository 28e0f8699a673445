"""State of jobs, and what they requested: qstat(1). Parsing is pure."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError
from gridtf.files import user_name
from gridtf.run.rundir import RUN_ROOT, run_dirs_of
from gridtf.schedulers.api import JobIdentity, JobStatus, Plan
from gridtf.schedulers.arrays import array_status, indices
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge.commands import sge
from gridtf.states import JobState
from gridtf.text import some, whole
from gridtf.values import Value

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# Why a job does not start, the most specific first. A value that a host always has is a reason only where no host is
# just in use: the job may wait for that one. A reason that fits no phrase comes second.
_NONE, _CLOSED = "only offers 0 slots", "hard queue list|dropped because"
_FULL = r"offers only \w+:slots=|dropped because"
FIXED = r"offers only (?!qf:hostname)[a-z]f:([\w.]+)=(\S+)"
_REASONS = (
    r'in PE "[^"]*" because it only offers [1-9]',
    r"offers only [a-z][cl]:(?!slots=)[\w.]+=-?[\d.]+[KMGTkmgt]?$|exceeds limit|already in use",
    _FULL,
    rf"{FIXED}|offers only [a-z]l:",
    rf"unknown resource|{_NONE}",
    "cannot run(?!.*hard queue list)",
    "hard queue list|turned off",
)
_MOST_WAITING = 50  # with more waiting jobs than that, qstat -j is not called for their reasons
_MOST_RECENT = 1000  # of the user's jobs are looked up by their log
# Jobs, their tasks and logs in qstat -xml -j: how the elements around them are called depends on the Grid Engine, and
# Univa's 8.6.6 leaves them out.
_JOBS, _TASKS, _LOG = ".//JB_job_number/..", ".//JAT_task_number/..", "JB_stdout_path_list//PN_path"
# What qstat -xml has around jobs; options in ~/.sge_qstat add queues.
_LISTS = {"queue_info", "job_info", "job_list", "Queue-List", "cluster_queue_summary"}
_LONGEST_ARGUMENT = 100_000  # bytes of job ids: Linux allows 128 KiB in one argument of a command line
# 11/21/2026 14:10:52 [7001:11]: error: can't chdir to /nowhere: No such file or directory
_STAMP = re.compile(r"^[\d/.-]+[ T][\d:.]+ \[[^]]*\]: (error: )?")


class Row(Value):
    """A job, or some elements of a job array, as qstat lists them.

    Attributes:
        number: The number of the job.
        state: Letters of Grid Engine, such as ``Eqw``: sge_status(5).
        tasks: The elements, such as ``3-9:2`` or ``7,9``; empty for a single job.
        queue: The queue instance of the job script, such as ``all.q@n1``; empty while it waits, and where not known.
    """

    number: str
    state: str
    tasks: str = ""
    queue: str = ""


class Detail(Value):
    """What ``qstat -j`` adds about a job.

    Attributes:
        errors: Element (``1`` for a single job) -> why it is in error.
        after: Jobs that must end before it starts (``-hold_jid``).
        start: Its earliest start (``-a``) in seconds since the epoch; 0: at any time.
        waits: The scheduler's messages about why it has not started.
        dropped: Those about queue instances in which no job can start now, such as disabled ones.
    """

    errors: Mapping[str, str] = {}
    after: tuple[str, ...] = ()
    start: float = 0.0
    waits: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def command(jobs: Sequence[JobIdentity]) -> list[str]:
    """The qstat command that lists all jobs of these jobs' users; there may be thousands of other users' jobs."""
    users = sorted({job.user or "*" for job in jobs})
    plain = all(re.fullmatch(r"[\w.-]+", user) for user in users)
    return ["qstat", "-xml", "-u", ",".join(users) if plain else "*", "-s", "a"]


def statuses(output: str, jobs: Iterable[JobIdentity]) -> dict[str, JobStatus]:
    """The status of jobs from the output of qstat.

    A second qstat (``-j``) finds why a job waits or is in error, and whether a job that is not listed is purged: files
    of users and sites, sge_qstat(5), may hide jobs.

    Returns:
        Job id -> status.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    listed = by_number(rows(output))
    plain = {job.job_id: status(job.job_id, listed, {}, 0.0) for job in jobs}
    unclear = [job_id for job_id, one in plain.items() if one.purged or _in_error(job_id, listed)]
    waiting = [job_id for job_id, one in plain.items() if one.state == JobState.PENDING and job_id not in unclear]
    known = _details([*unclear, *(waiting if len(waiting) <= _MOST_WAITING else [])])
    now = time.time()
    return {job_id: status(job_id, listed, known, now) for job_id in plain}


def _qstat(*arguments: str, limit: float | None = None) -> Answer:
    answer = sge.run(["qstat", "-xml", *arguments], limit=limit or sge.query_limit)
    if answer.code and not sge.unknown_job(answer):
        raise SchedulerError(f"qstat has failed: {sge.message(answer)}")
    return answer


def _details(ids: Sequence[str]) -> dict[str, Detail]:
    numbers = list(dict.fromkeys(job_id.partition(".")[0] for job_id in ids))
    known: dict[str, Detail] = {}
    most = _LONGEST_ARGUMENT // 12
    for first in range(0, len(numbers), most):
        answer = _qstat("-j", ",".join(numbers[first : first + most]))
        if answer.code == 0:
            known.update(details(answer.out))
    return known


def own_row(job_id: str, which: str, *, limit: float) -> Row | None:
    """The row of the job that this process runs in.

    Args:
        job_id: Its id; in a job array with the element.
        which: States to list, as for qstat's ``-s``.
        limit: Seconds that qstat may take.

    Returns:
        The row; None when the job is in none of these states.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    number, _, element = job_id.partition(".")
    listed = rows(_qstat("-u", "*", "-s", which, limit=limit).out)
    return next((row for row in listed if row.number == number and row.tasks == element), None)


def submitted(plan: Plan) -> JobIdentity | None:
    """The latest job of this user that has its log in a plan's run directory, in any state; None when there is none.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    listed = rows(_qstat("-u", user_name(os.getuid()), "-s", "a").out)  # a sge_qstat file may list all users' jobs
    ids = sorted({number for row in listed if (number := whole(row.number))})
    answer = _qstat("-j", ",".join(map(str, ids[-_MOST_RECENT:]))) if ids else Answer(1, "", "")
    if answer.code:
        return None
    jobs = xml_tree(answer.out, "qstat -xml -j").findall(_JOBS)
    ours = [job for job in jobs if plan.run_dir in run_dirs_of(Path(job.findtext(_LOG, "")))]
    latest = max(filter(None, (whole(job.findtext("JB_job_number", "").strip()) for job in ours)), default=None)
    return JobIdentity(str(latest)) if latest else None


# --- output of qstat -------------------------------------------------------------------------------------------


def rows(text: str) -> list[Row]:
    """Parse the output of ``qstat -xml``, wherever it lists jobs: running jobs may stand inside their queue's element.

    ``<job_list state="pending"><JB_job_number>1</JB_job_number> … <state>qw</state> … <tasks>7,9</tasks></job_list>``

    Raises:
        SchedulerError: When the output is not XML, or does not list jobs in a known form: no job is known then.
    """
    root = xml_tree(text, "qstat -xml")
    listed = [
        Row(*(job.findtext(tag, "").strip() for tag in ("JB_job_number", "state", "tasks", "queue_name")))
        for job in root.iter("job_list")
    ]
    parts = (root, *root.iterfind("queue_info"), *root.iterfind("job_info"))
    strange = {child.tag for part in parts for child in part} - _LISTS
    if root.tag != "job_info" or not all(row.number for row in listed) or (strange and not listed):
        elements = some([root.tag, *sorted(strange)])
        raise _not_understood("qstat -xml", "does not list jobs in a known form", f"its elements are {elements}")
    return listed


def by_number(listed: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by the number of their job."""
    numbers: dict[str, list[Row]] = {}
    for row in listed:
        numbers.setdefault(row.number, []).append(row)
    return numbers


def details(text: str) -> dict[str, Detail]:
    """Parse the output of ``qstat -xml -j``.

    Returns:
        Number of a job -> its details; without jobs that Grid Engine does not know.

    Raises:
        SchedulerError: When the output is not XML.
    """
    root = xml_tree(text, "qstat -xml -j")
    own: dict[str, list[str]] = {}
    for message in root.findall(".//SME_message_list/*"):
        for one in message.findall(".//MES_job_number_list//ULNG_value"):
            own.setdefault(one.text or "", []).append(message.findtext("MES_message", ""))
    of_all = [message.text or "" for message in root.findall(".//SME_global_message_list//MES_message")]
    known = {}
    for job in root.findall(_JOBS):
        number = job.findtext("JB_job_number", "").strip()
        errors = {
            task.findtext("JAT_task_number", ""): _STAMP.sub("", message.text or "")
            for task in job.findall(_TASKS)
            for message in task.findall("./JAT_message_list//QIM_message")
        }
        after = tuple(one.text or "" for one in job.findall("./JB_jid_predecessor_list//JRE_job_number"))
        start = _moment(job.findtext("JB_execution_time", ""))
        waits = tuple(own.get(number) or of_all)
        known[number] = Detail(errors, after, start, waits, tuple(of_all))
    if not known and root.tag != "unknown_jobs":
        raise _not_understood("qstat -xml -j", "names no job", f"its element is {root.tag}")
    return known


def _moment(text: str) -> float:
    """Seconds since the epoch; 0 for a text that is no time.

    Grid Engines write seconds, Univa's milliseconds, others microseconds; Open Cluster Scheduler
    ``2026-11-21T14:10:52.123456+01:00``, mostly without the zone.
    """
    if (number := whole(text)) is not None:
        return number / (1 if number < 10**11 else 1e3 if number < 10**14 else 1e6)
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


# --- the status of jobs ----------------------------------------------------------------------------------------


def status(job_id: str, listed: Mapping[str, Sequence[Row]], known: Mapping[str, Detail], now: float) -> JobStatus:
    """The status of a job, of a job array or of an element of one.

    Args:
        job_id: Its id.
        listed: The rows of each job, by number.
        known: The details of jobs, by number.
        now: Seconds since the epoch.
    """
    number, _, element = job_id.partition(".")
    own = [
        row
        for row in listed.get(number, ())
        if not element or not row.tasks or any(int(element) in span for span in _spans(row.tasks))
    ]
    if not own:
        if number in known and number not in listed:
            why = "qstat -j knows the job, but qstat does not list it: do options in ~/.sge_qstat hide it?"
            return JobStatus(JobState.UNKNOWN, why)
        return JobStatus(JobState.UNKNOWN, "Grid Engine no longer knows it", purged=True)
    detail = known.get(number, Detail())
    if element or not any(row.tasks for row in own):  # options in ~/.sge_qstat list each host of a parallel job
        return _of_row(own[0], detail, element or "1", now)
    return _of_array(own, detail, now)


def _of_row(row: Row, detail: Detail, element: str, now: float) -> JobStatus:
    state, words = job_state(row.state)
    if "E" in row.state and "d" not in row.state:
        why = detail.errors.get(element) or next(iter(detail.errors.values()), "")
        return JobStatus(state, f"in error ({row.state}): {why or 'see qstat -j'}; qmod -cj {row.number} clears it")
    if state == JobState.PENDING and words in ("", "held"):
        words = why_pending(row, detail, now)
    waits = state == JobState.PENDING and bool(detail.after)
    suspended = state == JobState.RUNNING and not SUSPENDED.keys().isdisjoint(row.state)
    return JobStatus(state, words, starting="t" in row.state, waits=waits, suspended=suspended)


def why_pending(row: Row, detail: Detail, now: float) -> str:
    """Explain why a job waits.

    Args:
        row: The job's row.
        detail: Its details.
        now: Seconds since the epoch.

    Returns:
        One line; empty where Grid Engine does not report reasons (schedd_job_info in sched_conf(5)).
    """
    if detail.after:
        return f"it waits for job {', '.join(detail.after)}"
    if "h" in row.state:
        return f"held: qrls {row.number} releases it"
    if detail.start > now:
        return f"it may not start before {time.strftime('%Y-%m-%d %H:%M', time.localtime(detail.start))}"
    again = "it was put back into the queue" if "R" in row.state else ""
    best = decisive(detail.waits)
    dropped = re.findall(r'"(\S+)" dropped because it is (.+)', "\n".join((*detail.dropped, *detail.waits)))
    closed = [name for name, why in dropped if why == "disabled"]
    if closed and len(closed) == len(dropped) and re.search(rf"{_NONE}|{_CLOSED}", best):
        best = f"its queues are disabled: {some(sorted(set(closed)))}"
    elif full := re.search(r"dropped because it is (full|overloaded|disabled|temporarily not available)", best):
        best = f"its queues are {full[1]}"
    return "; ".join(filter(None, (again, best)))


def decisive(reasons: Sequence[str]) -> str:
    """The one of Grid Engine's reasons, of qstat -j or qsub -w, that keeps a job from starting; empty without any.

    It prints a line for each queue or host, and at the end one for the parallel environment, which only counts them.
    """
    best = min(reasons, key=_telling, default="")
    # where it is full, the line that is not about one host
    return next((reason for reason in reasons if _NONE in reason), best) if re.search(_FULL, best) else best


def _telling(reason: str) -> int:
    """Rank of a reason; 0 is the most specific."""
    return next((rank for rank, phrase in enumerate(_REASONS) if re.search(phrase, reason)), 1)


def _of_array(own: Sequence[Row], detail: Detail, now: float) -> JobStatus:
    in_error_first = sorted(own, key=lambda row: "E" not in row.state)
    parts = [(_of_row(row, detail, "", now), sum(map(len, _spans(row.tasks))) or 1) for row in in_error_first]
    in_order = (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)
    why = next((part.reason for state in in_order for part, _ in parts if part.state == state and part.reason), "")
    same_reason = [(JobStatus(part.state, why), count) for part, count in parts]
    return array_status(same_reason, "that have not ended", always=True)


def _in_error(job_id: str, listed: Mapping[str, Sequence[Row]]) -> bool:
    return any("E" in row.state for row in listed.get(job_id.partition(".")[0], ()))


def _spans(tasks: str) -> list[range]:
    return [span for part in tasks.split(",") if (span := indices(part.strip())) is not None]


# --- states, and what they mean: sge_status(5) -------------------------------------------------------------------

SUSPENDED = {
    "s": "suspended: qmod -usj resumes it",
    "S": "suspended with its queue",
    "T": "suspended because its host is overloaded",
    "N": "suspended: other jobs may use some of its resources meanwhile",  # N and P are Altair's
    "P": "preempted: it resumes when its resources are free again",
}
_KNOWN = frozenset("qwhrtRdE").union(SUSPENDED)


def job_state(state: str) -> tuple[JobState, str]:
    """Translate a state of Grid Engine: sge_status(5).

    Args:
        state: Its letters, such as ``Eqw``.

    Returns:
        (state, reason). The reason is empty where the state says all. Letters that are not in the manual page are
        UNKNOWN, with the letters in the reason.
    """
    letters = set(state)
    if not letters or letters - _KNOWN:
        return JobState.UNKNOWN, f"Grid Engine reports an unknown state: {state or 'none'}"
    waits = bool(letters & {"q", "w"})
    if "d" in letters:
        return JobState.PENDING if waits else JobState.RUNNING, "it is being deleted"
    if "E" in letters:
        return JobState.PENDING, "in error"
    if waits:
        return JobState.PENDING, "held" if "h" in letters else ""
    words = {**SUSPENDED, "t": "its host has not confirmed the start yet"}
    return JobState.RUNNING, next((reason for letter, reason in words.items() if letter in letters), "")


def seconds(text: str) -> int | None:
    """Parse a time of Grid Engine into seconds: sge_types(1), TIME.

    Args:
        text: Such as ``90``, ``1:30`` or ``:1:30``, which are all 90 seconds.

    Returns:
        Seconds; None for INFINITY, and for a text that is no time.
    """
    match = re.fullmatch(r"(?:(?:([0-9]{0,18}):)?([0-9]{0,18}):)?([0-9]{0,18})", text.strip())
    if match is None or not any(match.groups()):
        return None
    return int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0)


DECIMAL = r"[0-9]{1,18}(?:\.[0-9]+)?"
_SIZES = {"": 1.0, "k": 1e3, "K": 1024.0, "m": 1e6, "M": 1024.0**2, "g": 1e9, "G": 1024.0**3, "T": 1024.0**4}


def size(text: str) -> float:
    """Bytes, from ``4.773MB``, ``50M`` or ``21045248``; 0 for any other text."""
    match = re.fullmatch(rf"({DECIMAL})([kKmMgGT]?)B?", text.strip())
    return float(match[1]) * _SIZES[match[2]] if match else 0.0


# --- XML that Grid Engine's commands print -----------------------------------------------------------------------

# The name of a job may contain control characters; XML may not.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def xml_tree(text: str, command: str) -> Element:
    """Parse the XML in a command's output; a site's banner before or after it is ignored.

    Args:
        text: The output.
        command: The command, for messages.

    Raises:
        SchedulerError: When the output contains no XML.
    """
    from xml.etree import ElementTree  # here: only commands that call qstat need it

    # up to 6.2u5 elements of a list of unknown jobs have no name: <><ST_name>77</ST_name></>
    clean = _CONTROLS.sub("", text).replace("<>", "").replace("</>", "")
    try:
        if "<!DOCTYPE" in clean:
            raise ElementTree.ParseError("a document type")
        begin, end = max(0, clean.find("<?xml")), clean.rfind(">") + 1
        return ElementTree.fromstring(clean[begin:end])  # noqa: S314 - a document type, and so any entity, is refused
    except ElementTree.ParseError as error:
        first = text.strip().partition("\n")[0][:80]
        why = f"it begins with {first!r}" if first else "it is empty"
        raise _not_understood(command, f"is not XML: {error}", why) from None


def _not_understood(command: str, what: str, why: str) -> SchedulerError:
    return SchedulerError(f"the output of {command} {what}", why=why, hint=f"what does `{command}` print in a shell?")


# --- what a job requested, and was submitted with: qstat -j ------------------------------------------------------

# Values of CE_consumable, in the order of complex(5); Son of Grid Engine has no PER_HOST.
NO, PER_SLOT, PER_JOB, PER_HOST = "0", "1", "2", "3"


class ResourceRequest(Value):
    """One ``-l NAME=AMOUNT``.

    Attributes:
        amount: The amount.
        per: What one amount is for: PER_SLOT, PER_JOB, PER_HOST, or NO for a resource that is not counted.
    """

    amount: float
    per: str


def job_requests(job_id: str, *, limit: float | None = None) -> Mapping[str, ResourceRequest]:
    """The hard resources that a job requested.

    Args:
        job_id: Its id.
        limit: Seconds that qstat may take; None: as for any query.

    Returns:
        Name of the resource -> request.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    return parse_requests(_qstat("-j", job_id.partition(".")[0], limit=limit).out)


def queue_limits(instance: str, names: Sequence[str], *, limit: float) -> Mapping[str, float]:
    """The time limits of a queue instance.

    Args:
        instance: Such as ``all.q@n1``.
        names: Such as ``h_rt``.
        limit: Seconds that qstat may take.

    Returns:
        Name -> seconds; without limits that are infinite.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    shown = _qstat("-F", ",".join(names), "-q", instance, limit=limit).out
    # <resource name="h_rt" type="qf">00:10:00</resource>
    times = [
        (one.get("name", ""), seconds(one.text or "")) for one in xml_tree(shown, "qstat -xml -F").iter("resource")
    ]
    return {name: time for name, time in times if time is not None}


def not_rerunnable(job_id: str, *, limit: float) -> bool:
    """Whether a job was submitted with ``-r n``.

    Args:
        job_id: Its id.
        limit: Seconds that qstat may take.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    return parse_not_rerunnable(_qstat("-j", job_id.partition(".")[0], limit=limit).out)


def parse_not_rerunnable(text: str) -> bool:
    """Whether the output of ``qstat -xml -j`` has ``-r n``: 0 stands for neither, 1 for y, 2 for n.

    Raises:
        SchedulerError: When the output is not XML.
    """
    return xml_tree(text, "qstat -xml -j").findtext(".//JB_restart") == "2"


def forbids_reschedule(*, limit: float) -> bool:
    """Whether the site does not start jobs again that ask for it by exit code 99: sge_conf(5), qmaster_params.

    Args:
        limit: Seconds that qconf may take.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    shown = sge.run(["qconf", "-sconf"], limit=limit).out
    return re.search(r"(?i)\bFORBID_RESCHEDULE=(true|1)\b", shown) is not None


def submitted_variables(job_id: str) -> Mapping[str, str]:
    """The environment variables that a job was submitted with (``-v``, ``-V``).

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    return parse_variables(_qstat("-j", job_id.partition(".")[0]).out)


def run_dirs(job_id: str) -> list[Path]:
    """Where the run directory of a job may be: the one that its log lies in, or the one that gridtf_run makes.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    answer = sge.run(["qstat", "-j", job_id.partition(".")[0]], limit=20.0)
    values = {} if answer.code else dict(re.findall(r"^(\w+): +(\S.*?) *$", answer.out, re.MULTILINE))
    log = values.get("stdout_path_list", "").rpartition(":")[2]  # NONE:NONE:/runs/x/job.log
    folders = run_dirs_of(Path(log)) if log else []
    cwd = values.get("cwd") or values.get("sge_o_workdir")
    if cwd and "job_name" in values:
        folders.append(Path(cwd, RUN_ROOT, f"{values['job_name']}-{job_id}"))
    return folders


def parse_requests(text: str) -> Mapping[str, ResourceRequest]:
    """Parse the hard resource requests in the output of ``qstat -xml -j``.

    Returns:
        Name of the resource -> request; without resources whose amount is not a number, such as ``arch``.

    Raises:
        SchedulerError: When the output is not XML.
    """
    requests: dict[str, ResourceRequest] = {}
    # Open Cluster Scheduler has one list for the job, and one each for the first host and the others
    for entry in _entries(text, ("JB_hard_resource_list", "JRS_hard_resource_list"), "CE_name"):
        try:
            amount = float(entry.get("CE_doubleval") or entry.get("CE_stringval") or 0)
        except ValueError:
            continue  # a string or a host name
        if math.isfinite(amount):
            requests.setdefault(entry["CE_name"], ResourceRequest(amount, entry.get("CE_consumable") or NO))
    return requests


def parse_variables(text: str) -> Mapping[str, str]:
    """Parse the environment variables in the output of ``qstat -xml -j``.

    Raises:
        SchedulerError: When the output is not XML.
    """
    entries = _entries(text, ("JB_env_list",), "VA_variable")
    return {entry["VA_variable"]: entry.get("VA_value", "") for entry in entries}


def _entries(text: str, lists: Sequence[str], first: str) -> list[dict[str, str]]:
    """The entries of lists in the output of ``qstat -xml -j``, as tag -> text.

    Args:
        text: The output.
        lists: The tags of the lists.
        first: The tag with which an entry begins; it may have no element of its own.
    """
    entries: list[dict[str, str]] = []
    root = xml_tree(text, "qstat -xml -j")
    for child in (child for tag in lists for one in root.iter(tag) for child in one.iter()):
        if child.tag == first:
            entries.append({})
        if entries:
            entries[-1][child.tag] = child.text or ""
    return entries
