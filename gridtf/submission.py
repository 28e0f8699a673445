"""The login side in Python: from a JobSpec to a submitted job, and what can be asked of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import config, jobrecords, layout, precheck, resources, schedulers, validation
from gridtf.errors import GridtfError, MaybeSubmittedError, RunDirError, SchedulerError, SpecError
from gridtf.rundir import Record, RunDir, make_folder, new_folder, read_record, write_record, write_text
from gridtf.schedulers.base import ENDED, UNKNOWN, JobStatus, Plan
from gridtf.spec import JobSpec

if TYPE_CHECKING:
    from gridtf.observe.state import JobView

RUN_ROOT = "gridtf-runs"
_FIRST_POLL = 0.1
_CANCEL_MARGIN = 15.0


class Job:
    """A submitted job, known by its run directory. Making one touches nothing.

    notes: what the submitter should know beside it; mostly empty.
    """

    def __init__(self, run_dir: str | Path, notes: Sequence[str] = ()) -> None:
        self.run = RunDir(Path(run_dir).absolute())
        self.notes = tuple(notes)

    def __repr__(self) -> str:
        return f"Job({str(self.run_dir)!r})"

    @property
    def run_dir(self) -> Path:
        return self.run.path

    @property
    def id(self) -> str:
        """The scheduler's id of the job."""
        return str(self._record().get("job_id", ""))

    @property
    def name(self) -> str:
        return str(self._record().get("name", self.run_dir.name))

    def status(self) -> JobView:
        """How the job stands, from its run directory and its scheduler's queue."""
        return views([self])[0]

    def wait(self, timeout: float | None = None, poll: float = 2.0) -> JobView:
        """Wait for the end of the job, or for timeout seconds, whichever comes first; its state tells them apart.

        poll: the longest time between two looks, in seconds; the first ones follow each other faster.
        """
        for view in self.watch(timeout, poll):
            last = view
        return last

    def watch(self, timeout: float | None = None, poll: float = 2.0) -> Iterator[JobView]:
        """The job's view at every look, until it has ended or timeout seconds have passed."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = min(_FIRST_POLL, poll)
        while True:
            view = self.status()
            yield view
            left = None if until is None else until - time.monotonic()
            if view.state in ENDED or (left is not None and left <= 0):
                return
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.3, poll)

    def cancel(self, wait: float | None = None) -> JobView:
        """End the job. Waits until it has ended, at most wait seconds (None: a little more than its kill_grace); one
        that does not heed it is then ended by force.

        One that has ended already is left as it is. Raises SchedulerError when the scheduler refuses.
        """
        view = self.status()
        if view.state in ENDED:
            return view
        submitted = read_record(self.run.submitted)
        if submitted is None:
            raise GridtfError(
                f"{self.run_dir} was not submitted by gridtf", hint="cancel it with the scheduler's own command"
            )
        with contextlib.suppress(RunDirError):  # a full disk must not keep a job alive
            write_record(self.run.cancelled, {**jobrecords.who(), "time": time.time()})
        try:
            schedulers.get(submitted["scheduler"]).cancel(submitted)
        except BaseException:
            self.run.cancelled.unlink(missing_ok=True)  # it was not, and must not be called so when it ends
            raise
        view = self.wait(_grace(self.run) + _CANCEL_MARGIN if wait is None else wait, poll=0.5)
        if view.state in ENDED:
            return view
        schedulers.get(submitted["scheduler"]).cancel(submitted, force=True)
        return self.wait(_CANCEL_MARGIN, poll=0.5)

    def logs(self, task: str | None = None, tail: int | None = None) -> str:
        """What the tasks have printed so far, each line with its task's name, or what one task has.

        task: such as ``worker:0``, or ``job`` for the job script's own log. tail: the last lines of each log.
        """
        from gridtf.observe import logs

        return "".join(logs.read(self.run, [task] if task else None, tail))

    def _record(self) -> Record:
        submitted = read_record(self.run.submitted)
        if submitted is not None:
            return submitted
        latest = self.run.latest()
        plan = read_record(latest.plan) if latest else None
        job = plan["job"] if plan else {}
        return {"job_id": job.get("id", ""), "name": job.get("name", self.run_dir.name)}


def views(jobs: Sequence[Job]) -> list[JobView]:
    """How these jobs stand, asking each scheduler once however many there are."""
    from gridtf.observe.state import job_view

    records = [read_record(job.run.submitted) for job in jobs]
    queue = _ask("query", [record for record in records if record is not None])
    now = time.time()

    def view(job: Job, record: Record | None, said: Statuses) -> JobView:
        return job_view(job.run, record, said.get((record["scheduler"], record["job_id"])) if record else None, now)

    found = [view(job, record, queue) for job, record in zip(jobs, records, strict=True)]
    # of those that have left the queue without a verdict, a site with accounting still knows more
    lost = [number for number, one in enumerate(found) if one.state in ENDED and one.ended is None]
    history = _ask("accounting", [record for record in (records[number] for number in lost) if record is not None])
    for number in lost:
        record = records[number]
        if record is not None and (record["scheduler"], record["job_id"]) in history:
            found[number] = view(jobs[number], record, history)
    return found


def submit(spec: JobSpec, sources: Mapping[str, str] | None = None) -> Job:
    """Make the run directory, render the script and hand it to the scheduler.

    sources: where the spec's values came from, for messages. Raises UsageError for what cannot be, RunDirError and
    SchedulerError; after an error nothing is left behind, unless it is MaybeSubmittedError.
    """
    plan = _make_run_dir(prepare(spec, sources))
    try:
        submitted, notes = _hand_over(plan, script(plan))
    except MaybeSubmittedError:
        raise
    except BaseException:
        _remove(plan.run_dir)
        raise
    try:
        jobrecords.index(RunDir(plan.run_dir), submitted, os.environ)
    except RunDirError as error:  # the job runs all the same
        notes = (*notes, f"{error.what}: name this job by its run directory")
    return Job(plan.run_dir, notes)


def prepare(spec: JobSpec, sources: Mapping[str, str] | None = None) -> Plan:
    """The submission as a value; touches nothing. Raises UsageError for what can be known to fail.

    Relative paths are meant from the present folder, the run directory's default from the job's working folder.
    """
    sources = dict(sources or {})
    scheduler = spec.scheduler
    if scheduler is None:
        scheduler = schedulers.on_this_machine(os.environ)
        sources["scheduler"] = "none other is here" if scheduler == "local" else "found on this machine"
    here = Path.cwd()
    if spec.chdir is None:
        sources["chdir"] = "the present folder"
    spec = dataclasses.replace(
        spec,
        chdir=str(here / (spec.chdir or "")),
        template=str(here / spec.template) if spec.template else None,
    )
    try:
        validation.need_program(spec)
        layout.request(spec)
        precheck.check(spec)
    except SpecError as error:
        raise config.located(error, sources) from None
    if spec.run_dir:
        run_dir = here / spec.run_dir
    else:
        root = here / spec.run_root if spec.run_root else Path(str(spec.chdir), RUN_ROOT)
        run_dir = root / f"{spec.title}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Plan(
        spec=spec,
        scheduler=scheduler,
        run_dir=run_dir,
        python=sys.executable,
        bootstrap=resources.bootstrap_script(),
        sources=sources,
    )


def script(plan: Plan) -> str:
    """The job script of a plan. Raises UsageError for values that it or the scheduler cannot take."""
    from gridtf import render

    try:
        return render.script(plan)
    except SpecError as error:
        raise config.located(error, plan.sources) from None


def _make_run_dir(plan: Plan) -> Plan:
    """Make the run directory; mkdir is exclusive, so of two submissions one takes the next free name."""
    if not plan.spec.run_dir:
        make_folder(plan.run_dir.parent)
    for number in itertools.count(1):
        path = plan.run_dir if number == 1 else plan.run_dir.with_name(f"{plan.run_dir.name}-{number}")
        if new_folder(path):
            break
        if plan.spec.run_dir:
            raise RunDirError(f"{path} is there already", hint="every run has a directory of its own")
    return dataclasses.replace(plan, run_dir=path)


def _hand_over(plan: Plan, text: str) -> tuple[Record, tuple[str, ...]]:
    """Write what belongs into the run directory, submit, and write down what came of it; gives that, and notes."""
    run = RunDir(plan.run_dir)
    scheduler = schedulers.get(plan.scheduler)
    jobrecords.write_job(run, plan.spec, plan.sources)
    write_text(run.script, text, mode=0o777)
    try:
        notes = tuple(scheduler.check(plan))
        elements = list(scheduler.elements(plan.spec))
    except SpecError as error:
        raise config.located(error, plan.sources) from None
    for element in elements:
        make_folder(run.elements / element, parents=True)
    make_folder(run.output)
    command = scheduler.submit_command(plan)
    identity = {**scheduler.submit(plan), **({"elements": elements} if elements else {})}
    notes += tuple(identity.pop("notes", ()))
    record = jobrecords.submitted(plan.spec, plan.scheduler, command, identity)
    try:
        write_record(run.submitted, record)
    except BaseException:
        scheduler.cancel(record)
        raise
    return record, notes


def _remove(run_dir: Path) -> None:
    """Take back a run directory that no job uses, and the folder above it when it holds nothing else."""
    import shutil

    shutil.rmtree(run_dir, ignore_errors=True)
    if run_dir.parent.name == RUN_ROOT:
        with contextlib.suppress(OSError):
            run_dir.parent.rmdir()


Statuses = Mapping[tuple[str, str], JobStatus]


def _ask(what: str, submitted: Iterable[Record]) -> Statuses:
    """What the schedulers say, by (scheduler, job id); one that does not answer is no error: the files say most.

    what: query or accounting.
    """
    by_scheduler: dict[str, list[Record]] = {}
    for record in submitted:
        by_scheduler.setdefault(record["scheduler"], []).append(record)
    found = {}
    for name, records in by_scheduler.items():
        try:
            answers = getattr(schedulers.get(name), what)(records)
        except SchedulerError as error:
            answers = {record["job_id"]: JobStatus(UNKNOWN, error.what) for record in records}
        found.update({(name, job_id): status for job_id, status in answers.items()})
    return found


def _grace(run: RunDir) -> float:
    job = read_record(run.job) or {}
    return JobSpec.from_dict(job.get("spec", {})).kill_grace
