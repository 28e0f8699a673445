"""Submitted jobs in Python: state, logs, waiting, cancelling."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gridtf import schedulers
from gridtf.errors import GridtfError, NotBegunError, NotFoundError, SchedulerError
from gridtf.login.page import Page
from gridtf.observe import addresses, history, jobs, logs, rows
from gridtf.observe.jobs import read_submitted
from gridtf.observe.views import JobView
from gridtf.observe.watch import Watch
from gridtf.run import recordtypes, reduced, registry
from gridtf.run.following import output_dir
from gridtf.run.reading import known
from gridtf.run.rundir import Record, RunDir, read_record
from gridtf.schedulers.api import JobIdentity
from gridtf.states import JobState


class Job:
    """A submitted job, identified by its run directory. The constructor does no I/O.

    All methods raise RunDirError when the run directory cannot be read, and its subclass ReplacedError when it now
    belongs to another job; all but status raise NotFoundError when it is not a run directory.

    Args:
        run_dir: Path of the run directory, of any user's job; or a RunDir from this user's index of jobs, as submit and
            find pass it.
        notes: See the attribute.

    Attributes:
        notes: Notes on the submission for the user, one line each; mostly empty.
        named: Scheduler and id of the job to cancel, where the scheduler itself named the run directory, which may be
            another user's; else None.
    """

    def __init__(self, run_dir: str | Path | RunDir, notes: Sequence[str] = ()) -> None:
        given = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
        self.run = RunDir(given.path.absolute(), given.mine)
        self.notes = tuple(notes)
        self.named: Record | None = None

    def __repr__(self) -> str:
        return f"Job({str(self.run_dir)!r})"

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.run.path

    @property
    def id(self) -> str:
        """The scheduler's id of the job; empty when not known."""
        return self.run.mine[1] if self.run.mine else str(self._record().get("job_id", ""))

    @property
    def scheduler(self) -> str:
        """The name of its scheduler; empty when not known."""
        return self.run.mine[0] if self.run.mine else str(self._record().get("scheduler", ""))

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self._record().get("name", self.run_dir.name))

    @property
    def output_dir(self) -> Path:
        """The folder that its tasks have as OUTPUT_DIR."""
        return output_dir(self.run, known(self.run.job, recordtypes.Job))

    @property
    def cluster(self) -> addresses.Addresses:
        """Task type -> ``host:port`` of its tasks, in index order, as in TF_CONFIG: what a client needs to connect.

        Raises:
            GridtfError: When the job is not running, or its tasks have not started yet.
        """
        return self._addresses()[0]

    def address(self, task: str) -> str:
        """Where a task of the running job is, be it in the cluster or not.

        A session of TensorFlow 1 that connects to it should see that task only; otherwise it waits for the others::

            only = tf.compat.v1.ConfigProto(device_filters=["/job:worker/task:0"])
            session = tf.compat.v1.Session(f"grpc://{job.address('worker:0')}", config=only)

        Args:
            task: Such as ``worker:0``.

        Returns:
            ``host:port``.

        Raises:
            NotFoundError: When there is no such task.
            GridtfError: When the job is not running, or its tasks have not started yet.
        """
        cluster, outside = self._addresses()
        return addresses.choose({**cluster, **outside}, task)

    def status(self) -> JobView:
        """The state of the job, from its run directory and its scheduler; the latter may be unreachable."""
        return jobs.view(self.run)

    def wait(self, timeout: float | None = None, poll: float | None = None) -> JobView:
        """Wait until the job has ended.

        Args:
            timeout: Seconds to wait at most; None: no limit.
            poll: The longest time between two queries of the scheduler, in seconds. None: on a cluster 10 s, and up to
                60 s while the job waits for its start or its records show that it lives; 2 s with the local scheduler.
                Answers to other commands of this user count.

        Returns:
            The last view; its ``finished`` is False after the timeout.

        Raises:
            RunDirError: Also when the run directory is removed meanwhile.
        """
        for view in self.watch(timeout, poll):
            last = view
        return last

    def watch(self, timeout: float | None = None, poll: float | None = None) -> Iterator[JobView]:
        """Wait until the job has ended, and yield its state after every query and when its records have news.

        Args:
            timeout: Seconds to wait at most, as for wait.
            poll: The longest time between two queries of the scheduler, as for wait.

        Yields:
            Views; ``finished`` of the last one is False after the timeout.
        """
        until = None if timeout is None else time.monotonic() + timeout
        registry.need_run(self.run)
        watch = Watch(self.run, poll)
        while True:
            view = watch.look()
            left = None if until is None else until - time.monotonic()
            over = left is not None and left <= 0
            if view is None and over:
                view = watch.latest
            if view is not None:
                yield view
            if over or (view is not None and view.finished):
                return
            time.sleep(watch.rest() if left is None else min(watch.rest(), left))

    def cancel(self, wait: float | None = None) -> JobView:
        """Cancel the job, and wait until it has ended. Nothing is done if it has ended and has left the queue.

        Root can cancel the job of any user: that is done as the user who owns the run directory.

        Args:
            wait: Seconds to wait before the job is killed; None: its kill_grace and 15 s.

        Returns:
            The last view; its ``finished`` is False when the job has still not ended.

        Raises:
            SchedulerError: When the scheduler refuses.
            RunDirError: When the records belong to another user, and this one is not root.
            ReplacedError: When the run directory now belongs to another job, or was removed; cancellation was requested
                by job id.
            GridtfError: When gridtf did not submit the job.
        """
        from gridtf.login.cancelling import Cancellation

        cancellation = Cancellation([self])
        cancellation.request()
        for _ in cancellation.ends(wait):
            pass
        if self in cancellation.errors:
            raise cancellation.errors[self]
        return cancellation.views[self]

    def logs(self, task: str | None = None, tail: int | None = None) -> str:
        """The output of the tasks so far.

        Args:
            task: Such as ``worker:0``, or ``job`` for the job script. None: all tasks.
            tail: Number of lines from the end of each log; None: all.

        Returns:
            The text of the latest attempt's logs, one after the other; bytes that are not UTF-8 become U+FFFD. Lines
            begin with the name of their task if there can be several.

        Raises:
            NotFoundError: For a task that the job does not have, and for a job array, whose elements have their own
                logs.
        """
        registry.need_one_job(self.run, "logs")
        with reduced.unpacked(self.run) as run:
            return _valid("".join(logs.read(run, [task] if task else None, tail)))

    def follow(self, task: str | None = None, tail: int | None = None) -> Iterator[str]:
        """The output of the tasks, and what they add to it, until the job has ended.

        Args:
            task: As for logs.
            tail: Number of lines from the end of each log to begin with; None: all.

        Yields:
            Lines as logs returns them, without line breaks.

        Raises:
            NotFoundError: As logs does.
        """
        registry.need_one_job(self.run, "logs")
        ended = Watch(self.run).ended
        for line in logs.follow(self.run, [task] if task else None, ended, time.sleep, tail):
            yield _valid(line.removesuffix("\n"))

    def events(self) -> list[Record]:
        """What has happened in the job, oldest first: the records of events.jsonl that docs/seeing.md describes, each
        with the number of its ``attempt``."""
        registry.need_run(self.run)
        return list(history.events(self.run).more())

    def samples(self) -> list[rows.Row]:
        """What the tasks have used: a dict for each task and time, which ``pandas.DataFrame(job.samples())`` takes as a
        row. docs/seeing.md lists the columns."""
        registry.need_run(self.run)
        return rows.rows(self.run)

    def report(self) -> Page:
        """What happened in the job and what it used: the page of `gridtf report`, which a notebook shows."""
        from gridtf.report import page

        registry.need_one_job(self.run, "report")
        return Page(page.of_job(self.run, time.time()))

    def _repr_html_(self) -> str | None:
        """A table, for notebooks; None where the job cannot be looked at."""
        from html import escape

        try:
            view = self.status()
        except GridtfError:
            return None
        why = f"{view.state}: {view.reason}" if view.reason else view.state
        cells = {"name": view.name, "job": view.job_id, "scheduler": view.scheduler, "state": why}
        lines = {**cells, "run directory": str(view.run_dir)}.items()
        body = "".join(f"<tr><th>{name}</th><td>{escape(_valid(text))}</td></tr>" for name, text in lines)
        return f"<table>{body}</table>"

    def _addresses(self) -> tuple[addresses.Addresses, addresses.Addresses]:
        registry.need_one_job(self.run, "address")
        return addresses.read(self.run, self.status())

    def _record(self) -> Record:
        submitted = read_submitted(self.run)
        if submitted is not None:
            return submitted
        latest = self.run.latest()
        job = known(latest.plan, recordtypes.Outline).get("job", {}) if latest else {}
        return {"job_id": job.get("id", ""), "name": job.get("name", self.run_dir.name)}


def find(job: str, *, even_gone: bool = False, index: Sequence[registry.Entry] | None = None) -> Job:
    """Find a job by what the command line accepts as JOB.

    Args:
        job: A run directory, a job id (even one that only the scheduler knows) or a name (the newest job of that name).
        even_gone: Whether its run directory may have been removed, so that it can only be cancelled.
        index: This user's index of jobs, for one of many jobs; None: it is read.

    Raises:
        NotFoundError: When there is no such job.
        RunDirError: When its run directory cannot be read.
    """
    try:
        # Path(), not Path.cwd(): the current folder may have been removed
        return Job(registry.find(job, os.environ, Path(), even_gone=even_gone, index=index))
    except NotFoundError as error:
        return _known_to_the_scheduler(job, error)


def _known_to_the_scheduler(job: str, error: NotFoundError) -> Job:
    """The job with an id that is not in this user's index, looked up in this machine's scheduler. Raises ``error``, or
    a more precise one."""
    if not re.fullmatch(r"\d[\w.]*", job, re.ASCII):
        raise error
    name = schedulers.available_here(os.environ)
    places: Sequence[Path] = ()
    with contextlib.suppress(SchedulerError):
        places = schedulers.get(name).login.run_dirs(job)
    for place in places:
        if registry.is_run(place) and _is_of(place, job):
            found = Job(place)
            found.named = {"scheduler": name, "job_id": job}
            return found
    if places:
        why, hint = f"{name} knows it, but it has no run directory", "use the scheduler's own commands"
        with contextlib.suppress(SchedulerError):
            status = schedulers.get(name).login.query([JobIdentity(job)])[job]
            if status.state in (JobState.PENDING, JobState.RUNNING):
                what = f"job {job} was not started by gridtf, or its script has not come to gridtf_run"
                raise NotBegunError(what, why=f"it is {status.state}, and has no run directory", hint=hint) from None
        raise NotFoundError(f"job {job} was not started by gridtf", why=why, hint=hint) from None
    raise error


def _is_of(place: Path, job_id: str) -> bool:
    """Whether a run directory is that of a job, or of its array: any job may have its log there."""
    record = read_record(RunDir(place).submitted, recordtypes.Submitted) or {}
    return re.fullmatch(rf"{re.escape(str(record.get('job_id', job_id)))}([._].*)?", job_id) is not None


def _valid(text: str) -> str:
    """Text with U+FFFD in place of bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
