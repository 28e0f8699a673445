"""Answers of a scheduler, kept for some seconds and shared by all commands of a user on this host.

Controllers serve all users, and a user may have many commands that wait. So one of them asks about all jobs that were
asked about of late, and the others read its answer. The answers lie in a folder of the user's own on this host, and
nothing in it is needed: where it cannot be used, each command asks for itself.

``NAME.notes``  a line of JSON for each job that commands want to know about, and for each answer: commands add lines,
                and the one that asks writes the file anew; a line that is lost meanwhile costs a question
``NAME.void``   when this user last submitted or cancelled a job: answers to earlier questions no longer count
``NAME.lock``   locked (flock(2)) by the command that asks, and so free when that has died; with its process id, so that
                one that is stopped, such as by Ctrl-Z, is passed over

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
from typing import Any, Generic, TypeVar

from gridtf.errors import GridtfError, RunDirError
from gridtf.host.procfs import boot_id, stopped
from gridtf.run.rundir import write_text
from gridtf.schedulers.api import JobIdentity, JobStatus, Scheduler
from gridtf.states import JobState
from gridtf.values import Value, as_dict

RECENT = 3.0  # seconds for which an answer serves `gridtf status` and `gridtf list`
_WANTED = 150.0  # seconds for which questions cover a job: commands that wait ask once a minute, or more often
_RENEWED = 60.0  # seconds after which a command that waits says again that it wants to know about its job
_AT_ONCE = 5.0  # the same for accounting, where each job may cost a search of the whole file
_LONGEST_WAIT = 30.0  # seconds to wait for another command's question; the commands of schedulers are given less
_SHARED = 60.0  # seconds for which what is asked for estimates serves other commands
_MOST = 1000  # jobs that a question covers, and that a command can make others ask about

Query = Callable[[Sequence[JobIdentity]], Mapping[str, JobStatus]]
Key = TypeVar("Key")
Answer = TypeVar("Answer")


class Answers(Value, Generic[Key]):
    """What schedulers have answered.

    Attributes:
        statuses: What names a job -> its status. Jobs that its scheduler says nothing about are missing; if it does not
            answer, all jobs are UNKNOWN, with the error as the reason.
        asked: When it was asked (time.monotonic()); for answers to several questions, the first of them.
        refused: Whether it has answered with an error: not about these jobs, in this way.
    """

    statuses: Mapping[Key, JobStatus]
    asked: float
    refused: bool = False


def about(jobs: Mapping[Key, tuple[Scheduler, JobIdentity]], since: float, *, history: bool = False) -> Answers[Key]:
    """The status of jobs in their schedulers' queues, from questions of any command of this user on this host.

    Args:
        jobs: The jobs, each with its scheduler; jobs of two clusters may have the same id.
        since: The earliest time (time.monotonic()) at which a scheduler may have been asked.
        history: Whether to ask about accounting instead of the queue.
    """
    servers: dict[tuple[str, str], list[Key]] = {}
    for key, (scheduler, job) in jobs.items():
        servers.setdefault((scheduler.name, scheduler.login.server(job, os.environ)), []).append(key)
    statuses: dict[Key, JobStatus] = {}
    asked = time.monotonic()
    for (_, server), keys in servers.items():
        login, group = jobs[keys[0]][0].login, [jobs[key][1] for key in keys]
        store = _store(jobs[keys[0]][0], server, history=history)
        query = login.accounting if history else login.query
        answers = store.ask(group, since, query) if store else ask_directly(group, query)
        found = zip(keys, (answers.statuses.get(job.job_id) for job in group), strict=True)
        statuses.update({key: status for key, status in found if status is not None})
        asked = min(asked, answers.asked)
    return Answers(statuses, asked)


def outdate(scheduler: Scheduler, job: JobIdentity) -> None:
    """Make earlier answers void, since this user has just submitted or cancelled a job.

    Args:
        scheduler: Its scheduler.
    """
    if estimates := _estimates():
        with contextlib.suppress(OSError):
            estimates.unlink(missing_ok=True)
    for history in (False, True):
        if store := _store(scheduler, scheduler.login.server(job, os.environ), history=history):
            store.outdate()


def shared(question: str, ask: Callable[[], Answer], read: Callable[[Any], Answer]) -> Answer:
    """What a command of this user on this host was told less than 60 s ago, or what is answered now.

    Args:
        question: All that it depends on: the server, and what the scheduler reads of the script.
        ask: Asks the scheduler.
        read: Makes an answer of its JSON; TypeError, ValueError or KeyError: it is damaged.
    """
    path, now = _estimates(), time.monotonic()
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):  # a damaged file is none
        if path:
            rows = json.loads(path.read_text())
            known = {asked: row for asked, row in rows.items() if 0 <= now - row["asked"] < _SHARED}
            if row := known.get(question):
                return read(row["answer"])
    made = ask()
    if path:
        with contextlib.suppress(GridtfError):
            write_text(path, json.dumps({**known, question: {"answer": as_dict(made), "asked": now}}), mode=0o600)
    return made


def _estimates() -> Path | None:
    place = folder(os.environ)
    return place and place / f"estimates-{os.uname().nodename}-{boot_id()}"


def ask_directly(jobs: Sequence[JobIdentity], query: Query, clock: Callable[[], float] | None = None) -> Answers[str]:
    """Ask a scheduler. An error is its answer: most of what users want to know is in the files of the run.

    Args:
        jobs: The jobs.
        query: Asks the scheduler.
        clock: Like time.monotonic, which None stands for.

    Returns:
        The answers by job id.
    """
    asked = (clock or time.monotonic)()
    try:
        return Answers(query(jobs), asked)
    except GridtfError as error:
        from gridtf.schedulers.commands import NoAnswerError

        statuses = {job.job_id: JobStatus(JobState.UNKNOWN, error.what) for job in jobs}
        return Answers(statuses, asked, refused=not isinstance(error, NoAnswerError))


def _store(scheduler: Scheduler, server: str, *, history: bool) -> Store | None:
    """Where answers of this server are shared; None where they are not."""
    place = folder(os.environ) if server else None
    if place is None:
        return None
    import binascii  # not needed by `gridtf list` without jobs; hashlib takes milliseconds, and no secret is here

    # a folder for temporary files may be on a file system that several hosts share
    words = "\0".join((os.uname().nodename, boot_id(), server))
    kind = "accounting" if history else "queue"
    name = f"{scheduler.name}-{kind}-{binascii.crc32(words.encode(errors='replace')):08x}"
    return Store(place / name, covers=_AT_ONCE if history else _WANTED)


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
        self._notes = path.with_name(f"{path.name}.notes")
        self._void = path.with_name(f"{path.name}.void")
        self._lock = path.with_name(f"{path.name}.lock")
        self._covers = covers
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep

    def ask(self, jobs: Sequence[JobIdentity], since: float, query: Query) -> Answers[str]:
        """The status of jobs: from a recent answer, from one that another command is waiting for, or by asking.

        Args:
            jobs: The jobs.
            since: The earliest time at which the scheduler may have been asked.
            query: Asks the scheduler.

        Returns:
            The answers by job id.
        """
        begin, pause = self._clock(), 0.02
        with contextlib.suppress(OSError):  # such as a full disk
            since = max(since, self._outdated(begin))
            if found := self._recent(jobs, since):
                return found
            self._want(jobs)
            while self._clock() - begin < _LONGEST_WAIT:
                with self._turn() as mine:  # the command before this one may have asked about these jobs as well
                    if found := self._recent(jobs, since):
                        return found
                    if mine:
                        return self._put(jobs, query)
                self._sleep(pause)
                pause = min(pause * 1.5, 0.5)
            self._lock.unlink(missing_ok=True)  # the command that asks hangs: the next one takes a new file
            return self._put(jobs, query)
        return ask_directly(jobs, query, self._clock)

    def outdate(self) -> None:
        """Make the answers to all earlier questions void, including those that are still to come."""
        with contextlib.suppress(RunDirError):  # answers are kept for seconds only
            write_text(self._void, repr(self._clock()), mode=0o600)

    def _outdated(self, now: float) -> float:
        """The time before which answers are void; 0 where that is not known, or is one of another boot."""
        try:
            at = float(_text_of(self._void))
        except ValueError:
            return 0.0
        return at if at <= now else 0.0

    def _recent(self, jobs: Sequence[JobIdentity], since: float) -> Answers[str] | None:
        """The answers about these jobs; None unless there is one for each that is not older than ``since``."""
        now = self._clock()
        known, wanted = self._read(now)
        found = {job.job_id: known[job.job_id] for job in jobs if job.job_id in known}
        if len(found) < len({job.job_id for job in jobs}) or any(at < since for at, _ in found.values()):
            return None
        renewed = {name for name, (at, _) in wanted.items() if now - at <= _RENEWED}
        self._want([job for job in jobs if job.job_id not in renewed])
        statuses = {name: status for name, (_, status) in found.items() if status is not None}
        return Answers(statuses, min((at for at, _ in found.values()), default=now))

    def _put(self, jobs: Sequence[JobIdentity], query: Query) -> Answers[str]:
        """Ask about these jobs and those that other commands want to know about, and keep the answer for all."""
        now, own = self._clock(), {job.job_id for job in jobs}
        known, wanted = self._read(now)
        # commands need not wait for a job that has ended; one that still wants to know asks for itself
        over = {name for name, (_, status) in known.items() if status and (status.purged or status.state.ended)}
        late = [job for at, job in wanted.values() if now - at < self._covers]
        also = [job for job in late if job.job_id not in own | over][-_MOST:]
        answers = ask_directly([*jobs, *also], query, self._clock)
        if also and answers.refused:  # maybe for one of the others
            answers, also = ask_directly(jobs, query, self._clock), []
        known, wanted = self._read(self._clock())
        known.update({job.job_id: (answers.asked, answers.statuses.get(job.job_id)) for job in (*jobs, *also)})
        lines = [
            *(_wish(at, job) for at, job in wanted.values()),
            *(json.dumps({"at": at, "id": name, "status": as_dict(status)}) for name, (at, status) in known.items()),
        ]
        with contextlib.suppress(RunDirError):
            write_text(self._notes, "\n".join([*lines, ""]), mode=0o600)
        return Answers({name: one for name, one in answers.statuses.items() if name in own}, answers.asked)

    def _want(self, jobs: Sequence[JobIdentity]) -> None:
        """Let the next question cover these jobs."""
        if 0 < len(jobs) <= _MOST:
            lines = "".join(f"{_wish(self._clock(), job)}\n" for job in jobs)
            with os.fdopen(os.open(self._notes, _FLAGS | os.O_APPEND, 0o600), "wb", buffering=0) as file:
                file.write(f"\n{lines}".encode())  # in one call, which O_APPEND makes atomic; after half a line, if any

    def _read(self, now: float) -> tuple[_Known, _Wanted]:
        """The answers, and what commands want to know about, in the order of these times; none of another boot."""
        known: _Known = {}
        wanted: _Wanted = {}
        for line in _text_of(self._notes).splitlines():
            with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
                note = json.loads(line)
                at = float(note["at"])
                if not now - _WANTED < at <= now:
                    continue
                if "job" in note:
                    job = JobIdentity.from_record(note["job"])
                    wanted.pop(job.job_id, None)
                    wanted[job.job_id] = at, job
                else:
                    status = note["status"]
                    known[note["id"]] = at, status and JobStatus(**{**status, "state": JobState(status["state"])})
        return known, wanted

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Try to become the command that asks, for the time of the block; yields whether this one is."""
        with os.fdopen(os.open(self._lock, _FLAGS, 0o600), "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = file.read(_PID).strip()
                if holder.isdigit() and stopped(int(holder)):
                    self._lock.unlink(missing_ok=True)  # the next one takes a new file
                yield False
            else:
                file.write(f"{os.getpid():{_PID}}".encode())
                yield True


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PID = 20  # characters of the process id in a lock
_Known = dict[str, tuple[float, "JobStatus | None"]]  # job id -> when its scheduler was asked, and what it said
_Wanted = dict[str, tuple[float, JobIdentity]]  # job id -> when a command last wanted to know about it, and the job


def _wish(at: float, job: JobIdentity) -> str:
    return json.dumps({"at": at, "job": {**job.to_record(), "user": job.user, "host": job.host}})


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
