"""Cancelling jobs: one request for as many as a command of their scheduler takes, then one wait for all of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gridtf import files, schedulers
from gridtf.errors import GridtfError, NotFoundError, ReplacedError, RunDirError, SchedulerError
from gridtf.host import users
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job
from gridtf.observe import jobs as observe
from gridtf.observe.views import JobView
from gridtf.observe.watch import removed
from gridtf.run import recordtypes, registry
from gridtf.run.reading import known
from gridtf.run.rundir import Record, RunDir, allowed, cannot, is_ours, may_pass, owner, write_record
from gridtf.schedulers import answers
from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.login import Login
from gridtf.states import JobState

_MARGIN = 15.0  # seconds that a job has to end in, after its kill_grace, and after it was killed
_FIRST, _FIRST_HERE, _LONGEST = 0.5, 0.1, 1.0  # seconds between two looks at the jobs, and questions to schedulers
_ACCOUNTED = 4.0  # the same where accounting alone may still explain an end

# Called with the jobs that are waited for, the seconds until they are killed, and whether that was done: then they are
# given up.
Say = Callable[[Sequence[Job], float, bool], None]
# Jobs, each with the reason why its scheduler was not asked to end it; None: it was.
_Asked = Iterable[tuple[Job, "GridtfError | None"]]


class Cancellation:
    """The cancellation of jobs, of all at once.

    Args:
        jobs: The jobs, each of them once.

    Attributes:
        jobs: The jobs.
        names: Job -> its id or, where that is not known, the name of its run directory.
        views: Job -> its state when it was last looked at.
        over: Jobs that had ended before, and were left alone.
        asked: Jobs that their schedulers were asked to end.
        errors: Job -> why its scheduler was not asked to end or to kill it, or why its end cannot be seen.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = list(jobs)
        self.names = {job: (job.run.mine or (job.run_dir.name,))[-1] for job in self.jobs}
        self.views: dict[Job, JobView] = {}
        self.over: list[Job] = []
        self.asked: list[Job] = []
        self.errors: dict[Job, GridtfError] = {}
        self._by = registry.who()  # for cancelled.json, where root cancels as the owner
        self._replaced: dict[Job, GridtfError] = {}  # jobs of this user's index that have lost their run directories

    def request(self) -> None:
        """Ask the schedulers to end the jobs; as root, as the owner of each.

        Jobs that wait for their start come first: they might start on the hosts of others.
        """
        self._look(self.jobs, time.monotonic())
        self.names.update({job: view.job_id for job, view in self.views.items() if view.job_id})
        self.over = [job for job in self.jobs if (view := self.views[job]).finished and not view.in_queue]
        left = [job for job in self.jobs if job not in self.over]
        left.sort(key=lambda job: self.views[job].state != JobState.PENDING)
        for job in self._ask(left):
            self.asked.append(job)

    def ends(self, wait: float | None = None, say: Say = lambda jobs, seconds, killed: None) -> Iterator[Job]:
        """Wait until the jobs that were asked to end have ended; kill those that do not.

        Args:
            wait: Seconds until a job is killed; None: its kill_grace and 15 s.
            say: Told what is waited for, at the beginning and when jobs were killed.

        Yields:
            Each job that is no longer waited for: it is in ``errors``, or has ended, or has not 15 s after it was
            killed, as ``views`` shows.
        """
        fresh = time.monotonic()
        until = {job: fresh + (_grace(job.run) + _MARGIN if wait is None else wait) for job in self.asked}
        pause = _FIRST_HERE if all(self.views[job].scheduler == "local" for job in until) else _FIRST
        ended, killed, said = set[Job](), set[Job](), False
        while until:
            begin = time.monotonic()
            self._look(until, fresh)
            now, late = time.monotonic(), list[Job]()
            for job in [*until]:
                view = self.views[job]
                if view.finished and job not in ended:
                    ended.add(job)
                    until[job] = now + observe.accounting_delay(view)
                elif not view.finished and (error := _unseen(job.run, self.names[job], view)):
                    self.errors[job] = error
                if job in self.errors or (now >= until[job] and (view.finished or job in killed)):
                    del until[job]
                    yield job
                elif now >= until[job]:
                    late.append(job)
            for job in self._ask(late, force=True):
                killed.add(job)
                until[job] = time.monotonic() + _MARGIN
            for job in self.errors.keys() & until.keys():
                del until[job]
                yield job
            fresh = time.monotonic()  # an answer that another command gets during the pause is as good
            going = [job for job in until if job not in ended]
            if going and (late or not said):
                say(going, max(until[job] for job in going) - fresh, bool(killed))
                said = True
            if until:
                rest = max(pause, now - begin) if going else _ACCOUNTED
                time.sleep(max(0.0, min(rest, min(until.values()) - fresh)))
                pause = min(pause * 1.3, _LONGEST)

    def _look(self, jobs: Iterable[Job], since: float) -> None:
        jobs = list(jobs)
        seen = observe.looks([job.run for job in jobs], since)
        self.views.update(zip(jobs, (one.view for one in seen), strict=True))

    def _ask(self, jobs: Sequence[Job], *, force: bool = False) -> Iterator[Job]:
        """Ask for the end of jobs; yield those that were asked to end. ``errors`` gets why others were not."""
        owners: dict[tuple[int, int] | None, list[Job]] = {}
        for job in jobs:
            try:
                owners.setdefault(self._owner(job), []).append(job)
            except GridtfError as error:
                self.errors[job] = error
        for one, theirs in owners.items():
            asked = self._ask_servers(theirs, force=force)
            for job, refused in asked if one is None else _as_owner(one, theirs, asked):
                if refused is None:
                    yield job
                else:
                    self.errors[job] = refused

    def _owner(self, job: Job) -> tuple[int, int] | None:
        """User and group as which to cancel a job; None: this user."""
        try:
            registry.need_run(job.run)
        except (ReplacedError, NotFoundError) as error:
            if job.run.mine is None:
                raise
            self._replaced[job] = error
            return None
        if job.named or os.geteuid() != 0 or is_ours(job.run_dir):
            return None
        try:
            return users.owner_of(job.run_dir)
        except OSError as error:
            raise cannot("read", job.run_dir, error) from None

    def _ask_servers(self, jobs: Iterable[Job], *, force: bool) -> _Asked:
        """Ask for the end of jobs as this user, each server for all of its jobs."""
        servers: dict[tuple[str, str], tuple[Login, dict[Job, JobIdentity]]] = {}
        for job in jobs:
            try:
                record = self._record(job)
                login, identity = schedulers.get(record["scheduler"]).login, JobIdentity.from_record(record)
            except GridtfError as error:
                yield job, error
            else:
                key = record["scheduler"], login.server(identity, os.environ)
                servers.setdefault(key, (login, {}))[1][job] = identity
        for login, theirs in servers.values():
            noted = {job for job in theirs if not force and self._note(job)}
            try:
                answered = login.cancel_all([*theirs.values()], force=force)
                for job, refused in zip(theirs, answered, strict=True):
                    if refused is None:
                        noted.discard(job)
                    yield job, self._of_replaced(job, refused)
            finally:
                for job in noted:  # it was not cancelled
                    with contextlib.suppress(OSError):
                        job.run.cancelled.unlink()
                # one that does not answer may have done it
                answers.outdate(login.scheduler, next(iter(theirs.values())))

    def _record(self, job: Job) -> Record:
        """What identifies a job to its scheduler: another user's record must not decide which job is cancelled."""
        if job in self._replaced and job.run.mine:
            return dict(zip(("scheduler", "job_id"), job.run.mine, strict=True))
        if job.named:
            return job.named
        if not is_ours(job.run_dir):
            user = owner(job.run_dir)
            hint = f"only {allowed(user)} can cancel it"
            raise RunDirError(f"the job in {job.run_dir} belongs to user {user}", hint=hint)
        submitted = observe.read_submitted(job.run, own=True)
        if submitted is None:
            hint = "cancel it with the scheduler's own command"
            raise GridtfError(f"the job in {job.run_dir} was not submitted by gridtf", hint=hint)
        return submitted

    def _note(self, job: Job) -> bool:
        """Write cancelled.json before the job gets its signal. Whether that was done: another command may have."""
        if job in self._replaced or job.named or self.views[job].state == JobState.COMPLETED:
            return False
        if files.exists(job.run.cancelled):
            return False
        with contextlib.suppress(RunDirError):  # a full disk must not prevent cancelling
            write_record(job.run.cancelled, {**self._by, "time": time.time()})
        return True

    def _of_replaced(self, job: Job, refused: SchedulerError | None) -> GridtfError | None:
        """What to say of a job that was cancelled by its id, since nothing more can be seen of it; else ``refused``."""
        if job not in self._replaced:
            return refused
        why = self._replaced[job].what
        if refused:
            return SchedulerError(refused.what, why=why, hint=refused.hint)
        hint = "only the scheduler's own commands can show what happens to the job"
        return ReplacedError(f"requested cancellation of {' job '.join(job.run.mine or ())}", why=why, hint=hint)


def _as_owner(one: tuple[int, int], jobs: Sequence[Job], asked: _Asked) -> _Asked:
    """Ask in a process that has become the owner of run directories, whose records can then end no other user's job."""

    def ask() -> list[tuple[str, str, str] | None]:
        told = dict(asked)
        return [(error.what, error.why, error.hint) if (error := told[job]) else None for job in jobs]

    try:
        told = users.run_as_user(*one, ask)
    except GridtfError as error:
        return [(job, error) for job in jobs]
    return [
        (job, said and GridtfError(said[0], why=said[1], hint=said[2])) for job, said in zip(jobs, told, strict=True)
    ]


def _unseen(run: RunDir, name: str, view: JobView) -> GridtfError | None:
    """Why the end of a job cannot be seen, by its run directory; None: it may be, or that may pass."""
    if view.state != JobState.UNKNOWN:
        return None
    try:
        registry.need_run(run)
        observe.read(run, observe.read_submitted(run))
    except NotFoundError:
        return removed(run, name)
    except RunDirError as error:
        error.why = error.why or "its cancellation was requested, but its end cannot be seen"
        return None if may_pass(error) else error
    return None


def _grace(run: RunDir) -> float:
    return float(known(run.job, recordtypes.Job).get("spec", {}).get("kill_grace", JobSpec.kill_grace))
