"""The login side in Python: from a JobSpec to a submitted job."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import resources, schedulers
from gridtf.errors import MaybeSubmittedError, RunDirError, SpecError
from gridtf.jobspec import config, precheck
from gridtf.jobspec.spec import JobSpec, need_program
from gridtf.run import registry
from gridtf.run.rundir import (
    RUN_ROOT,
    Record,
    RunDir,
    here,
    make_folder,
    need_safe,
    new_folder,
    write_record,
    write_text,
)
from gridtf.schedulers.api import JobIdentity, Plan

if TYPE_CHECKING:
    from gridtf.login.job import Job


def submit(spec: JobSpec, sources: Mapping[str, str] | None = None, trusted: frozenset[int] | None = None) -> Job:
    """Make the run directory, render the script and hand it to the scheduler.

    sources: where the spec's values came from, for messages. trusted: the users, by id, whose template it may be beside
    this user and root; None: anybody's. Raises UsageError for what cannot be, RunDirError and
    SchedulerError; after an error nothing is left behind, unless it is MaybeSubmittedError.
    """
    plan = _make_run_dir(prepare(spec, sources, trusted))
    try:
        submitted, notes = _hand_over(plan, script(plan), command(plan))
    except MaybeSubmittedError:
        raise
    except BaseException:
        _remove(plan.run_dir)
        raise
    try:
        registry.add(plan.run_dir, submitted, os.environ)
    except RunDirError as error:  # the job runs all the same
        notes = (*notes, f"{error.what}: name this job by its run directory")
    from gridtf.login import job  # `gridtf render` needs none of it

    return job.Job(RunDir(plan.run_dir, (submitted["scheduler"], submitted["job_id"])), notes)


def prepare(spec: JobSpec, sources: Mapping[str, str] | None = None, trusted: frozenset[int] | None = None) -> Plan:
    """The submission as a value; touches nothing. Raises UsageError for what can be known to fail, RunDirError where
    the present folder has been removed.

    Relative paths are meant from the present folder, the run directory's default from the job's working folder.
    """
    sources = dict(sources or {})
    name = spec.scheduler
    if name is None:
        name = schedulers.available_here(os.environ)
        sources["scheduler"] = "default: no other scheduler found" if name == "local" else "found on this machine"
    cwd = here()
    if spec.chdir is None:
        sources["chdir"] = "the present folder"
    spec = dataclasses.replace(
        spec,
        chdir=str(cwd / (spec.chdir or "")),
        template=str(cwd / spec.template) if spec.template else None,
    )
    with _located(sources):
        need_program(spec)
        request = schedulers.get(name).resolve(spec)
        precheck.check(spec)
    if spec.run_dir:
        run_dir = cwd / spec.run_dir
    else:
        root = cwd / spec.run_root if spec.run_root else Path(str(spec.chdir), RUN_ROOT)
        run_dir = root / f"{spec.title}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Plan(
        spec=spec,
        request=request,
        run_dir=run_dir,
        python=sys.executable,
        bootstrap=resources.bootstrap_script(),
        sources=sources,
        trusted=trusted,
    )


def script(plan: Plan) -> str:
    """The job script of a plan. Raises UsageError for values that it or the scheduler cannot take."""
    from gridtf.login import render

    with _located(plan.sources):
        return render.script(plan)


def command(plan: Plan) -> tuple[str, ...]:
    """The command that hands the script of a plan over. Raises UsageError for values that the scheduler cannot take."""
    with _located(plan.sources):
        return schedulers.get(plan.scheduler).submit_command(plan)


@contextlib.contextmanager
def _located(sources: Mapping[str, str]) -> Iterator[None]:
    """What is wrong with a value is told with the place that it came from."""
    try:
        yield
    except SpecError as error:
        raise config.located(error, sources) from None


def _make_run_dir(plan: Plan) -> Plan:
    """Make the run directory; mkdir is exclusive, so of two submissions one takes the next free name."""
    need_safe(plan.run_dir.parent)
    if plan.spec.run_dir:
        if not new_folder(plan.run_dir):
            raise RunDirError(f"{plan.run_dir} is there already", hint="every run has a directory of its own")
        return plan
    for number in itertools.count(1):
        path = plan.run_dir if number == 1 else plan.run_dir.with_name(f"{plan.run_dir.name}-{number}")
        if _new_below(path):
            break
    return dataclasses.replace(plan, run_dir=path)


def _new_below(path: Path) -> bool:
    """As new_folder, with the folder above it."""
    make_folder(path.parent)
    try:
        return new_folder(path)
    except RunDirError:  # a submission that was refused may have taken it away again in between
        make_folder(path.parent)
        return new_folder(path)


def _hand_over(plan: Plan, text: str, command: tuple[str, ...]) -> tuple[Record, tuple[str, ...]]:
    """Write what belongs into the run directory, submit, and write down what came of it; gives that, and notes."""
    run = RunDir(plan.run_dir)
    scheduler = schedulers.get(plan.scheduler)
    registry.write_job(run, plan.spec, plan.sources)
    write_text(run.script, text, mode=0o700)  # like job.json, it may hold a password of env's
    with _located(plan.sources):
        notes = (*schedulers.unused(plan.spec, scheduler), *scheduler.check(plan))
    elements = plan.request.elements
    for element in elements:
        make_folder(run.elements / element, parents=True)
    make_folder(run.output)
    try:
        taken = scheduler.submit(plan)
    except KeyboardInterrupt:
        raise _interrupted(plan) from None
    identity = {**taken.job.to_record(), **({"elements": list(elements)} if elements else {})}
    record = registry.submitted(plan.spec, plan.scheduler, command, identity)
    try:
        write_record(run.submitted, record)
    except BaseException:
        scheduler.cancel(JobIdentity.from_record(record))
        raise
    return record, (*notes, *taken.notes)


def _interrupted(plan: Plan) -> MaybeSubmittedError:
    error = MaybeSubmittedError(
        f"interrupted while the scheduler, {plan.scheduler}, was taking the job: it has it now, or has not",
        why=f"its run directory is kept: {plan.run_dir}",
        hint=f"look for {plan.spec.title} in its queue, or with `gridtf status` there, before you submit it again",
    )
    error.exit_code = 130
    return error


def _remove(run_dir: Path) -> None:
    """Take back a run directory that no job uses, and the folder above it when it holds nothing else."""
    import shutil

    shutil.rmtree(run_dir, ignore_errors=True)
    if run_dir.parent.name == RUN_ROOT:
        with contextlib.suppress(OSError):
            run_dir.parent.rmdir()
