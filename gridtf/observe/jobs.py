"""States of jobs: reads their run directories and queries each scheduler once for all of them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gridtf import schedulers
from gridtf.errors import DamagedError, GridtfError, RunDirError
from gridtf.observe.state import Records, decide, set_up_hint, why_set_up_failed
from gridtf.observe.views import JobView
from gridtf.run import recordtypes, reduced, registry
from gridtf.run.reading import Reading
from gridtf.run.rundir import JOINED, OPENED, Record, RunDir, listdir, read_private, read_record
from gridtf.run.tail import last_lines, last_text
from gridtf.schedulers import answers
from gridtf.schedulers.api import JobIdentity, JobStatus, Scheduler
from gridtf.states import ENDED, JobState
from gridtf.values import Value

_VERDICT = re.compile(r"^gridtf: ([A-Z_]+): (.+)$", re.MULTILINE)  # Verdict.text, in the log of a launcher
_DOUBTED = 1.0  # seconds for which an answer counts that a job waits which has begun once


def views(runs: Sequence[RunDir]) -> list[JobView]:
    """States of jobs, in the order of ``runs``.

    Each scheduler is queried once for all of its jobs, if no command of this user has done so in the last seconds. A
    job whose records cannot be read is UNKNOWN.
    """
    return [seen.view for seen in looks(runs, time.monotonic() - answers.RECENT)]


def looks(runs: Sequence[RunDir], since: float) -> list[Seen]:
    """Look at jobs, as views does.

    Args:
        runs: Their run directories.
        since: The earliest time (time.monotonic()) at which their schedulers may have been asked.
    """
    seen = _look(runs, since)
    return [seen[run] for run in runs]


class Seen(Value):
    """A look at a job.

    Attributes:
        view: Its state.
        queue: Its status in the scheduler's queue; None where there is no scheduler to query.
        asked: When the scheduler was asked (time.monotonic()).
    """

    view: JobView
    queue: JobStatus | None
    asked: float


def view(run: RunDir, since: float | None = None) -> JobView:
    """State of a job, from its run directory and its scheduler.

    Args:
        run: Its run directory.
        since: The earliest time (time.monotonic()) at which the scheduler may have been asked; None: some seconds ago.

    Raises:
        RunDirError: When its records cannot be read; DamagedError when it is not known which job it is, unless a whole
            verdict tells how that has ended.
    """
    return look(run, time.monotonic() - answers.RECENT if since is None else since).view


def look(run: RunDir, since: float, begun: float | None = None) -> Seen:
    """Look at a job, as view does.

    Args:
        run: Its run directory.
        since: As for view.
        begun: When its latest attempt was there (time.monotonic()): no earlier answer that it waits for its start
            counts. None: it may have begun a moment ago.

    Raises:
        RunDirError: As view does.
    """
    return _look([run], since, begun, strict=True)[run]


def accounting_delay(seen: JobView) -> float:
    """Seconds that the scheduler's accounting may still need to record how a job ended; 0 when that is known."""
    return schedulers.get(seen.scheduler).login.accounting_delay if seen.unexplained and seen.scheduler else 0.0


def _look(
    runs: Sequence[RunDir], since: float, begun: float | None = None, *, strict: bool = False
) -> dict[RunDir, Seen]:
    """strict: a job whose records cannot be read is an error, otherwise it is UNKNOWN."""
    records: dict[RunDir, Record | None] = {}
    nameless: dict[RunDir, DamagedError] = {}
    seen: dict[RunDir, JobView] = {}

    @contextmanager
    def reading(run: RunDir) -> Iterator[None]:
        try:
            yield
        except RunDirError as error:
            if strict:
                raise
            nothing = decide(run, Records(), None, time.time())
            seen[run] = nothing.replace(state=JobState.UNKNOWN, reason=error.what, hint=error.hint)

    def judge(run: RunDir, status: JobStatus | None) -> None:
        with reading(run):
            view = job_view(run, records[run], status, now)
            if run in nameless and not view.finished:  # only its scheduler could tell
                raise nameless[run]
            seen[run] = view

    for run in runs:
        with reading(run):
            registry.need_same(run)
            records[run] = _identified(run, nameless)
    believed = time.monotonic() - _DOUBTED if begun is None else begun
    queue, asked = _query(records, since)
    now = time.time()
    for run in records:
        judge(run, queue.get(run))
    # a job that has begun may wait for its next start, or have begun since the scheduler was asked
    doubted = [run for run in records if _waits(queue.get(run)) and seen[run].attempt]
    if doubted and asked < believed:
        again, _ = _query({run: records[run] for run in doubted}, believed)
        queue = {**queue, **again}
        for run in doubted:
            judge(run, queue.get(run))
    # accounting, if the site has it, knows jobs that have left the queue without a verdict
    lost = [run for run in records if _lost(run, seen[run], queue.get(run))]
    history, _ = _query({run: records[run] for run in lost}, since, history=True)
    for run in lost:
        if status := history.get(run):
            judge(run, status)
    return {run: Seen(seen[run], queue.get(run), asked) for run in runs}


def _identified(run: RunDir, nameless: dict[RunDir, DamagedError]) -> Record | None:
    """The record with scheduler and id of a job; None without. nameless: takes the runs where it is damaged."""
    try:
        return read_submitted(run) or read_joined(run)
    except DamagedError as error:
        nameless[run] = error
        return None


def _waits(queue: JobStatus | None) -> bool:
    return queue is not None and queue.state == JobState.PENDING


def _lost(run: RunDir, seen: JobView, queue: JobStatus | None) -> bool:
    """Whether the job has left the queue, and its run directory does not show how it ended."""
    if seen.state == JobState.CANCELLED and not seen.unexplained and run.cancelled.name in listdir(run.path):
        return False
    if seen.state in ENDED:
        return seen.ended is None
    return queue is not None and queue.purged  # its tasks called gridtf_join


def _query(
    records: Mapping[RunDir, Record | None], since: float, *, history: bool = False
) -> tuple[dict[RunDir, JobStatus], float]:
    """States of jobs in their schedulers' queues or (history) accounting, from questions after ``since``; and when the
    first of them was asked."""
    named: dict[RunDir, tuple[Scheduler, JobIdentity]] = {}
    unknown: dict[RunDir, JobStatus] = {}
    for run, record in records.items():
        try:
            if record is not None:
                named[run] = schedulers.get(record["scheduler"]), JobIdentity.from_record(record)
        except GridtfError as error:  # there is no such scheduler
            unknown[run] = JobStatus(JobState.UNKNOWN, error.what)
    found = answers.about(named, since, history=history)
    return {**unknown, **found.statuses}, found.asked


def job_view(run: RunDir, submitted: Record | None, queue: JobStatus | None, now: float) -> JobView:
    """Read the records of a job and decide its state.

    Args:
        run: Its run directory.
        submitted: Its submitted.json; None without.
        queue: Its status in the scheduler, queried before this call; None: not queried.
        now: Seconds since the epoch.

    Returns:
        Its state; for a job that ended without a verdict, with the last lines of the job script's log as ``cause``.
        One that is gone without a trace was CANCELLED, if its scheduler's accounting records all that have begun; it is
        ``unexplained`` still, since the record may come later.

    Raises:
        RunDirError: When its run directory cannot be read.
    """
    records = read(run, submitted)
    view = decide(run, records, queue, now)
    if accounting_delay(view) and not (records.has_log or records.launcher or records.elements):
        # the log is made when the script begins, and such accounting has a record of each job that did
        reason = "it left the queue without a trace in its run directory and in accounting: deleted before it began"
        return view.replace(state=JobState.CANCELLED, reason=reason, hint=f"if it was not deleted: {view.hint}")
    if view.state in ENDED and records.verdict is None and records.has_log:
        tail = last_lines(run.log)
        if not tail:
            return decide(run, records.replace(empty_log=True), queue, now)
        if view.state == JobState.FAILED and records.launcher is None and (why := why_set_up_failed(tail)):
            view = view.replace(reason=why, hint=set_up_hint(tail) or view.hint, unexplained=False)
        host = (records.launcher or {}).get("host")
        unsaid = records.launcher and not (records.cancelled or view.damaged)
        if unsaid and (said := _said(run, records)):
            view = view.replace(state=said[0], reason=said[1], unexplained=False)
        cause = {"task": None, "host": host, "exit": None, "signal": None, "log": str(run.log), "tail": tail}
        return view.replace(cause=cause)
    return view


def _said(run: RunDir, records: Records) -> tuple[str, str] | None:
    """State and reason that the launcher has printed, where it could not write them; None where it has printed none."""
    began, printed = (records.launcher or {}).get("began", 0.0), ""
    with suppress(OSError):  # setup comes before the launcher, and may show the end of another job
        printed = last_text(run.log) if run.log.stat().st_mtime >= began else ""
    told = [(state, words) for state, words in _VERDICT.findall(printed) if state in ENDED]
    state, words = told[-1] if told else ("", "")
    for attempt in run.attempts():
        if attempt.number != records.attempt and words:  # a later launcher may have been killed without a word
            before = read_record(attempt.verdict, recordtypes.Verdict) or {}
            words = "" if before.get("reason", "").startswith(words) else words
    if not words:
        return None
    kept = JobState.FAILED if state in (JobState.COMPLETED, JobState.SAVED) else state
    return kept, f"{words if kept == state else f'{state}: {words}'}; its verdict could not be written"


def read_submitted(run: RunDir, *, own: bool = False) -> Record | None:
    """Read submitted.json.

    Args:
        own: Whether gridtf will act upon it, so that it must belong to this user (rundir.open_plain).

    Returns:
        The record; None when it does not exist or this user may not read it.

    Raises:
        RunDirError: When it is damaged or, with ``own``, belongs to another user.
    """
    if own:
        return read_record(run.submitted, recordtypes.Submitted, own=True)
    return read_private(run.submitted, recordtypes.Submitted)


def read_joined(run: RunDir) -> Record | None:
    """The record of the latest attempt's gridtf_join, with scheduler and id of the job; None when no task joined.

    Raises:
        RunDirError: When it is damaged.
    """
    paths = [run.path / name / OPENED for name in listdir(run.path) if name.startswith(JOINED)]
    records = [read_record(path, recordtypes.Opened, listed=True) for path in paths]
    named = [record for record in records if record and "job_id" in record]
    return max(named, key=lambda record: int(record["attempt"]), default=None)


def read(run: RunDir, submitted: Record | None) -> Records:
    """Read the records of a job.

    Args:
        run: Its run directory.
        submitted: Its submitted.json; None without.

    Returns:
        The records. One whose nonce is not the plan's belongs to another attempt and counts as absent; so does one that
        only its owner may read, such as job.json, which may contain passwords. So does one that is damaged, but it is
        named.

    Raises:
        RunDirError: When a record is unreadable.
    """
    top, reading = listdir(run.path), Reading(run, strict=True)
    if submitted is None:
        reading.private(run.submitted, recordtypes.Submitted, names=top)
    records = Records(
        submitted=submitted,
        job=reading.private(run.job, recordtypes.Job, names=top),
        cancelled=reading.record(run.cancelled, recordtypes.Cancelled, names=top),
        has_log=run.log.name in top,
        joined=any(name.startswith(JOINED) for name in top),
        elements={name: _verdict_of(RunDir(run.elements / name)) for name in (submitted or {}).get("elements", [])},
    )
    attempt = run.latest(top)
    if attempt is None:
        return _of_packed(run, records, reading)
    plan = reading.private(attempt.plan, recordtypes.Outline)
    nonce = plan.get("nonce") if plan else None

    def record(path: Path, kind: Any, there: Sequence[str]) -> Record | None:
        return reading.record(path, kind, nonce, there)

    states = listdir(attempt.state)
    launcher = record(attempt.launcher, recordtypes.Launcher, states)
    summary = record(attempt.summary, recordtypes.Summary, states)
    hosts: list[Record | None] = list(summary["hosts"].values()) if summary else []
    if records.joined:
        ranks = listdir(attempt.ranks)
        paths = (attempt.ranks / name for name in sorted(ranks) if name.startswith("rank-"))
        hosts = [record(path, recordtypes.HostState, ranks) for path in paths]
    # of agents whose launcher was killed before their end; gridtf 0.1.0 wrote one for each host
    alone = (attempt.state / name for name in sorted(states) if name.startswith("@"))
    hosts += [record(path, recordtypes.HostState, states) for path in alone]
    stop = record(attempt.stop, recordtypes.Stop, listdir(attempt.path))
    # read last, so that it agrees with the records read before
    verdict = record(attempt.verdict, recordtypes.Verdict, listdir(attempt.path))
    if verdict is None and not listdir(attempt.path):  # it has been packed meanwhile
        return _of_packed(run, records, reading)
    return records.replace(
        attempt=attempt.number,
        plan=plan,
        launcher=launcher,
        hosts=tuple(host for host in hosts if host),
        logs=frozenset(listdir(attempt.logs)),
        stop=stop,
        verdict=verdict,
        damaged=reading.damaged,
    )


def _of_packed(run: RunDir, records: Records, reading: Reading) -> Records:
    """The records of a run without attempts, which may have been packed."""
    ended = reading.record(run.result, recordtypes.Result)
    packed = {"attempt": ended["attempt"], "verdict": ended["verdict"]} if ended else {}
    return records.replace(**packed, damaged=reading.damaged)


def _verdict_of(element: RunDir) -> Record | None:
    names = listdir(element.path)
    try:
        if latest := element.latest(names):
            return read_record(latest.verdict, recordtypes.Verdict)
        ended = reduced.result(element, names)
    except DamagedError as error:
        return {"state": str(JobState.UNKNOWN), "reason": error.what}
    return ended["verdict"] if ended else None
