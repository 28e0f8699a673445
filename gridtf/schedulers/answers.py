"""Answers of a scheduler, kept for some seconds and shared by all commands of a user on this host.

Controllers serve all users, and a user may have hundreds of commands that wait. So one of them asks about all jobs that
were asked about of late, and the others read its answer. The answers lie in a folder of the user's own on this host,
and nothing in it is needed: where it cannot be used, each command asks for itself.

``NAME.json``    job id -> its status, and when that was asked: written to a temporary file and renamed
``NAME.wanted``  the jobs that commands want to know about, a line for each question: what the next one covers
``NAME.void``    when this user last submitted or cancelled a job: answers to earlier questions no longer count
``NAME.lock``    locked (flock(2)) by the command that asks, and so free when that has died; with its process id and the
                 time it began, so that one that is stopped, such as by Ctrl-Z, or hangs is passed over

All times are those of the monotonic clock, which all processes of a host share; NAME differs between boots.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import GridtfError, RunDirError
from gridtf.host.procfs import boot_id, stopped
from gridtf.run.rundir import Record, write_text
from gridtf.schedulers.api import JobIdentity, JobStatus, Scheduler
from gridtf.states import JobState
from gridtf.values import Value, as_dict

if TYPE_CHECKING:
    from typing import Any

RECENT = 3.0  # seconds for which an answer serves `gridtf status` and `gridtf list`
_WANTED = 150.0  # seconds for which questions cover a job: commands that wait ask once a minute, or more often
_RENEWED = 60.0  # seconds after which a command that waits says again that it wants to know about its job
_AT_ONCE = 5.0  # the same for accounting, where each job may cost a search of the whole file
_HANGS = 30.0  # seconds after which a command that asks is passed over; the commands of schedulers are given less
_LONGEST_WAIT = 2 * _HANGS  # seconds to wait for the answers to other commands' questions
_MOST = 1000  # jobs that a question covers, and that a command can make others ask about
_LONG = 1 << 18  # bytes of NAME.wanted after which old lines are removed
_GRIDTF_S_OWN = frozenset({"command", "elements", "scheduler", "time"})  # in submitted.json, of no use to a scheduler

Query = Callable[[Sequence[JobIdentity]], Mapping[str, JobStatus]]


class Entry(Value):
    """What is known about a job.

    Attributes:
        asked: When the scheduler was asked.
        wanted: When a command last said that it wants to know about the job.
        status: The answer; None where the scheduler said nothing about the job, as accounting may.
    """

    asked: float
    wanted: float
    status: JobStatus | None


class Answers(Value):
    """What a scheduler has answered.

    Attributes:
        statuses: Job id -> status. Jobs that it says nothing about are missing; if it does not answer, all jobs are
            UNKNOWN, with the error as the reason.
        asked: When it was asked (time.monotonic()); for answers from several questions, the first of them.
        refused: Whether it has answered with an error: not about these jobs, in this way.
    """

    statuses: Mapping[str, JobStatus]
    asked: float
    refused: bool = False


def queue(scheduler: Scheduler, jobs: Sequence[JobIdentity], since: float) -> Answers:
    """The status of jobs in their scheduler's queue, from a question of any command of this user on this host.

    Args:
        scheduler: Their scheduler.
        jobs: The jobs.
        since: The earliest time (time.monotonic()) at which the scheduler may have been asked.
    """
    return _ask(scheduler, jobs, since, scheduler.login.query, "queue")


def accounting(scheduler: Scheduler, jobs: Sequence[JobIdentity], since: float) -> Answers:
    """The status of jobs in their scheduler's accounting; as queue."""
    return _ask(scheduler, jobs, since, scheduler.login.accounting, "accounting")


def outdate(scheduler: Scheduler, job: JobIdentity) -> None:
    """Make earlier answers void, since this user has just submitted or cancelled a job.

    Args:
        scheduler: Its scheduler.
        job: The job.
    """
    for kind in ("queue", "accounting"):
        if (store := _store(scheduler, job, kind)) is not None:
            store.outdate()


def _ask(scheduler: Scheduler, jobs: Sequence[JobIdentity], since: float, query: Query, kind: str) -> Answers:
    by_server: dict[str, list[JobIdentity]] = {}
    for job in jobs:
        by_server.setdefault(scheduler.login.server(job, os.environ), []).append(job)
    statuses: dict[str, JobStatus] = {}
    asked = time.monotonic()
    for group in by_server.values():
        store = _store(scheduler, group[0], kind)
        answers = ask_directly(group, query) if store is None else store.ask(group, since, query)
        statuses.update(answers.statuses)
        asked = min(asked, answers.asked)
    return Answers(statuses, asked)


def ask_directly(jobs: Sequence[JobIdentity], query: Query, clock: Callable[[], float] | None = None) -> Answers:
    """Ask a scheduler. An error is its answer: most of what users want to know is in the files of the run.

    Args:
        jobs: The jobs.
        query: Asks the scheduler.
        clock: Like time.monotonic, which None stands for.
    """
    asked = (clock or time.monotonic)()
    try:
        return Answers(query(jobs), asked)
    except GridtfError as error:
        from gridtf.schedulers.commands import NoAnswerError

        statuses = {job.job_id: JobStatus(JobState.UNKNOWN, error.what) for job in jobs}
        return Answers(statuses, asked, refused=not isinstance(error, NoAnswerError))


def _store(scheduler: Scheduler, job: JobIdentity, kind: str) -> Store | None:
    """Where answers about this job are shared; None where they are not."""
    server = scheduler.login.server(job, os.environ)
    place = folder(os.environ) if server else None
    if place is None:
        return None
    import binascii  # not needed by `gridtf list` without jobs; hashlib takes milliseconds, and no secret is here

    # a folder for temporary files may be on a file system that several hosts share
    words = "\0".join((os.uname().nodename, boot_id(), server))
    name = f"{scheduler.name}-{kind}-{binascii.crc32(words.encode(errors='replace')):08x}"
    return Store(place / name, covers=_WANTED if kind == "queue" else _AT_ONCE)


def folder(environ: Mapping[str, str]) -> Path | None:
    """The user's folder for shared answers, which is made if it does not exist.

    Args:
        environ: The environment, for XDG_RUNTIME_DIR and TMPDIR.

    Returns:
        A folder that only this user can read and write; None where none can be made.
    """
    common = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - owner and mode of the folder are checked
    places = ((environ.get("XDG_RUNTIME_DIR") or "", "gridtf"), (common, f"gridtf-{os.geteuid()}"))
    for parent, name in places:
        path = Path(parent, name)
        if not path.is_absolute():
            continue
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return path
    return None


class Store:
    """The answers of one server, in files of the user's own.

    Args:
        path: Path of the files, without their suffixes.
        clock: Like time.monotonic, which None stands for.
        sleep: Like time.sleep, which None stands for.
        covers: Seconds for which questions cover a job that a command wanted to know about.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
        *,
        covers: float = _WANTED,
    ) -> None:
        self._answers = path.with_name(f"{path.name}.json")
        self._journal = path.with_name(f"{path.name}.wanted")
        self._void = path.with_name(f"{path.name}.void")
        self._lock = path.with_name(f"{path.name}.lock")
        self._covers = covers
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep

    def ask(self, jobs: Sequence[JobIdentity], since: float, query: Query) -> Answers:
        """The status of jobs: from a recent answer, from one that another command is waiting for, or by asking.

        Args:
            jobs: The jobs.
            since: The earliest time at which the scheduler may have been asked.
            query: Asks the scheduler.
        """
        begin, pause, wanted = self._clock(), 0.02, False
        with contextlib.suppress(OSError):  # such as a full disk
            since = max(since, _time_in(_text_of(self._void), begin))
            while (now := self._clock()) - begin < _LONGEST_WAIT:
                if (found := self._recent(jobs, since, now)) is not None:
                    return found
                if not wanted:
                    self._want(jobs, now)
                    wanted = True
                with self._turn(now) as mine:
                    if mine:  # the command before this one may have asked about these jobs as well
                        return self._recent(jobs, since, self._clock()) or self._put(jobs, query)
                self._sleep(pause)
                pause = min(pause * 1.5, 0.5)
        return ask_directly(jobs, query, self._clock)

    def outdate(self) -> None:
        """Make the answers to all earlier questions void, including those that are still to come."""
        with contextlib.suppress(RunDirError):  # answers are kept for seconds only
            write_text(self._void, repr(self._clock()), mode=0o600)

    def _recent(self, jobs: Sequence[JobIdentity], since: float, now: float) -> Answers | None:
        """The answers about these jobs; None unless there is one for each that is not older than ``since``."""
        known = self._known(now)
        found = {job.job_id: known[job.job_id] for job in jobs if job.job_id in known}
        if len(found) < len({job.job_id for job in jobs}) or any(entry.asked < since for entry in found.values()):
            return None
        self._want([job for job in jobs if now - found[job.job_id].wanted > _RENEWED], now)
        statuses = {name: entry.status for name, entry in found.items() if entry.status is not None}
        return Answers(statuses, min((entry.asked for entry in found.values()), default=now))

    def _put(self, jobs: Sequence[JobIdentity], query: Query) -> Answers:
        """Ask about these jobs and those that other commands want to know about, and keep the answer for all."""
        now = self._clock()
        own, known, wanted = {job.job_id for job in jobs}, self._known(now), self._wanted(now)
        over = {name for name, entry in known.items() if entry.status is not None and _ended(entry.status)}
        also = [job for name, (_, job) in wanted.items() if name not in own | over][-_MOST:]
        answers = ask_directly([*jobs, *also], query, self._clock)
        if also and answers.refused:  # maybe for one of the others
            answers, also = ask_directly(jobs, query, self._clock), []
        for job in (*jobs, *also):
            at, _ = wanted.get(job.job_id, (now, job))
            known[job.job_id] = Entry(answers.asked, at, answers.statuses.get(job.job_id))
        self._keep(known, now)
        return Answers({name: one for name, one in answers.statuses.items() if name in own}, answers.asked)

    def _keep(self, known: Mapping[str, Entry], now: float) -> None:
        newest = dict(known)
        for name, entry in self._known(self._clock()).items():  # of a command that took this one for one that hangs
            if name not in newest or newest[name].asked < entry.asked:
                newest[name] = entry
        kept = {name: _as_json(entry) for name, entry in newest.items() if now - entry.asked < _WANTED}
        with contextlib.suppress(RunDirError):
            write_text(self._answers, json.dumps(kept), mode=0o600)

    def _known(self, now: float) -> dict[str, Entry]:
        """Job id -> what the file of answers has about it; without entries of the future, which are another boot's."""
        try:
            entries = {name: _from_json(entry) for name, entry in json.loads(_text_of(self._answers) or "{}").items()}
        except (AttributeError, LookupError, TypeError, ValueError):
            return {}
        return {name: entry for name, entry in entries.items() if entry.asked <= now}

    # --- what commands want to know about

    def _want(self, jobs: Sequence[JobIdentity], now: float) -> None:
        """Let the next question cover these jobs."""
        if 0 < len(jobs) <= _MOST:
            self._append(json.dumps({"at": now, "jobs": [_as_record(job) for job in jobs]}))

    def _append(self, line: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._journal, flags, 0o600), "wb", buffering=0) as file:
            file.write(f"\n{line}\n".encode())  # in one call, which O_APPEND makes atomic; after half a line, if any

    def _wanted(self, now: float) -> dict[str, tuple[float, JobIdentity]]:
        """Job id -> (when a command last wanted to know about it, the job), in the order of these times."""
        found: dict[str, tuple[float, JobIdentity]] = {}
        lines = _text_of(self._journal)
        for line in lines.splitlines():
            with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
                entry = json.loads(line)
                for record in entry["jobs"] if now - self._covers < entry["at"] <= now else ():
                    job = JobIdentity.from_record(record)
                    found.pop(job.job_id, None)
                    found[job.job_id] = (entry["at"], job)
        if len(lines) > _LONG:  # a line that another command adds just now is lost: then it asks for itself
            kept = (json.dumps({"at": at, "jobs": [_as_record(job)]}) for at, job in found.values())
            with contextlib.suppress(RunDirError):
                write_text(self._journal, "\n".join([*kept, ""]), mode=0o600)
        return found

    # --- one asks at a time

    @contextlib.contextmanager
    def _turn(self, now: float) -> Iterator[bool]:
        """Try to become the command that asks, for the time of the block; yields whether this one is."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _hangs(os.pread(descriptor, 80, 0), now) and self._is_lock(descriptor):
                    self._lock.unlink(missing_ok=True)  # the next one takes a new file
                yield False
                return
            if not self._is_lock(descriptor):
                yield False
                return
            os.pwrite(descriptor, f"{now!r} {os.getpid()}".encode(), 0)
            try:
                yield True
            finally:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def _is_lock(self, descriptor: int) -> bool:
        """Whether this open file is still the one that others find."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock.lstat())
        except FileNotFoundError:
            return False


def _ended(status: JobStatus) -> bool:
    """Whether commands need not wait for this job any more; one that still wants to know asks for itself."""
    return status.purged or status.state.ended


def _hangs(lock: bytes, now: float) -> bool:
    """Whether the command that wrote this into the lock does not go on. One that has not yet written anything does."""
    begun, _, pid = lock.decode(errors="replace").partition(" ")
    at = _time_in(begun, now)
    return bool(at) and (now - at > _HANGS or (pid.isdecimal() and stopped(int(pid))))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _time_in(text: str, now: float) -> float:
    """The time that a text consists of; 0 if it is none, or one of the future, which is another boot's."""
    try:
        at = float(text)
    except ValueError:
        return 0.0
    return at if at <= now else 0.0


def _as_json(entry: Entry) -> list[object]:
    status = entry.status
    words = None if status is None else list(as_dict(status).values())
    return [entry.asked, entry.wanted, words]


def _from_json(entry: list[Any]) -> Entry:
    asked, wanted, words = entry
    if words is None:
        return Entry(float(asked), float(wanted), None)
    state, reason, purged, requeued, expected, starting = words
    expected = None if expected is None else float(expected)
    status = JobStatus(JobState(state), str(reason), bool(purged), bool(requeued), expected, bool(starting))
    return Entry(float(asked), float(wanted), status)


def _as_record(job: JobIdentity) -> Record:
    """A job as in submitted.json, without what no scheduler needs to be asked about it."""
    more = {name: value for name, value in (("user", job.user), ("host", job.host)) if value}
    return {name: value for name, value in job.to_record().items() if name not in _GRIDTF_S_OWN} | more
