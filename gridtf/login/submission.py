"""From a JobSpec to a submitted job."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf import files, resources, schedulers
from gridtf.errors import MaybeSubmittedError, RunDirError, SpecError
from gridtf.jobspec import merging, precheck
from gridtf.jobspec.checks import need_parameters, need_program, need_walltime
from gridtf.jobspec.spec import JobSpec, container_path
from gridtf.login import code
from gridtf.run import registry
from gridtf.run.following import CONDITIONS
from gridtf.run.rundir import (
    RUN_ROOT,
    Record,
    RunDir,
    cannot,
    here,
    make_folder,
    need_safe,
    new_folder,
    write_record,
    write_text,
)
from gridtf.schedulers import answers
from gridtf.schedulers.api import JobIdentity, Plan
from gridtf.starters import choose
from gridtf.values import as_dict

if TYPE_CHECKING:
    from gridtf.jobspec.sweep import Sweep
    from gridtf.login.job import Job
    from gridtf.login.snapshot import Known, Snapshot


def submit(
    spec: JobSpec,
    sources: Mapping[str, str] | None = None,
    trusted: frozenset[int] | None = None,
    claim: Callable[[Path], None] = lambda _: None,
    origin: Mapping[str, Any] | None = None,
    sweep: Sweep | None = None,
) -> Job:
    """Make the run directory, render the script and submit it.

    After an error nothing remains on disk or in the queue, except after MaybeSubmittedError.

    Args:
        spec: The job.
        sources: Where each value of spec came from, such as ``nodes`` -> ``gridtf.toml:3``, for messages.
        trusted: Ids of users besides this one and root who may own the template; None: any user may.
        claim: Called with the run directory once it is made; an error of it is one of the submission.
        origin: What the job comes from, as in Plan.
        sweep: The elements of a sweep, as in Plan.

    Returns:
        The submitted job, with notes of the scheduler.

    Raises:
        UsageError: For values that gridtf or the scheduler cannot accept, such as a run directory that exists already.
        RunDirError: When the run directory cannot be written.
        SchedulerError: When the scheduler refuses the job.
        MaybeSubmittedError: When it is unknown whether the scheduler accepted the job.
    """
    with contextlib.ExitStack() as stack:
        folder = None if origin and "snapshot" in origin else here() / (spec.chdir or "")
        about = stack.enter_context(code.asked(folder))  # git works meanwhile
        plan = _make_run_dir(prepare(spec, sources, trusted, origin, sweep))
        stack.enter_context(_guarded(plan.run_dir))
        stack.enter_context(_located(plan.sources))
        known, snapshot = stack.enter_context(_code_of(plan, about))
        claim(plan.run_dir)
        inside = in_snapshot(plan, snapshot)
        ready = inside.replace(script=script(inside)), command(inside)
        code.write(RunDir(plan.run_dir), *known())
        registry.write_job(RunDir(plan.run_dir), plan.spec, plan.sources, dict(inside.origin))
        if snapshot is not None:
            snapshot.publish()
        submitted, notes = _hand_over(*ready)
    try:
        registry.add(plan.run_dir, submitted, os.environ)
    except RunDirError as error:  # the job itself runs
        notes = (*notes, f"{error.what}: refer to this job by its run directory")
    from gridtf.login import job  # here, since `gridtf render` does not need it

    return job.Job(RunDir(plan.run_dir, (submitted["scheduler"], submitted["job_id"])), notes)


def _code_of(plan: Plan, about: Known) -> contextlib.AbstractContextManager[tuple[Known, Snapshot | None]]:
    """What is known of a job's code, and its snapshot: the given one, a new one, or none."""
    if not (plan.origin.get("snapshot") or plan.spec.snapshot):
        return contextlib.nullcontext((about, None))
    from gridtf.login import snapshot

    return snapshot.of(plan, about)


def in_snapshot(plan: Plan, snapshot: Snapshot | None) -> Plan:
    """The plan of a job that runs in a snapshot; None: in its working folder."""
    if snapshot is None:
        return plan
    paths = str(snapshot.top), str(snapshot.path)
    return plan.replace(spec=snapshot.inside(plan.spec), moved=paths, origin={**plan.origin, "snapshot": paths[1]})


def prepare(
    spec: JobSpec,
    sources: Mapping[str, str] | None = None,
    trusted: frozenset[int] | None = None,
    origin: Mapping[str, Any] | None = None,
    sweep: Sweep | None = None,
    shared: Mapping[str, Any] = {},
) -> Plan:
    """Resolve a job into a plan, without side effects.

    Relative paths are resolved against the current folder; the default run root is in the job's working folder.

    Args:
        spec: The job; without a scheduler, the one available on this machine is taken.
        sources: Where each value of spec came from, as for submit.
        trusted: Ids of users besides this one and root who may own the template, as for submit.
        origin: What the job comes from, as for submit.
        sweep: The elements of a sweep, as for submit.
        shared: ``site``, ``places`` and ``history`` of plans for the same site, which are not asked for again then.

    Returns:
        The plan: what ``gridtf render`` shows and submit submits.

    Raises:
        UsageError: For values that gridtf or the scheduler cannot accept.
        SchedulerError: When none is named, and the one of this machine is not set up.
        RunDirError: When the current folder has been removed.
    """
    sources = dict(sources or {})
    name = spec.scheduler
    if name is None:
        name = schedulers.to_submit_to(os.environ)
        sources["scheduler"] = "default: no other scheduler found" if name == "local" else "found on this machine"
    cwd = here()
    if spec.chdir is None:
        sources["chdir"] = "the current folder"
    spec = spec.replace(
        chdir=str(cwd / (spec.chdir or "")),
        template=str(cwd / spec.template) if spec.template else None,
        container=str(cwd / path) if (path := container_path(spec.container)) else spec.container,
    )
    with _located(sources):
        need_program(spec)
        need_walltime(spec)
        longest = max(sweep.rows, key=lambda row: len(str(row))) if sweep else {}
        need_parameters(spec.replace(params={**spec.params, **longest}))
        scheduler = schedulers.get(name)
        request = scheduler.login.resolve(spec)
        request = request.replace(mpi=choose(spec, scheduler, os.environ)[0])
        if sweep is not None:
            request = request.of_sweep(sweep.elements, sweep.at_once, sweep.pack)
        if origin and "snapshot" in origin:
            from gridtf.login import snapshot

            precheck.check(snapshot.existing(Path(origin["snapshot"])).inside(spec), sources)
        else:
            precheck.check(spec, sources)
    if spec.run_dir:
        run_dir = cwd / spec.run_dir
    else:
        root = cwd / spec.run_root if spec.run_root else Path(str(spec.chdir), RUN_ROOT)
        run_dir = root / f"{spec.title}-{time.strftime('%Y%m%d-%H%M%S')}"
    plan = Plan(
        spec=spec,
        scheduler=scheduler,
        request=request,
        run_dir=run_dir,
        python=sys.executable,
        bootstrap=resources.bootstrap_script(),
        sources=sources,
        trusted=trusted,
        origin=origin or {},
        sweep=sweep,
        **shared,
    )
    if any(getattr(spec, key) for key in CONDITIONS):
        from gridtf.login import chains

        with _located(sources):
            plan = chains.with_conditions(plan)
    plan = scheduler.login.with_site(plan)
    if scheduler.login.cluster(os.environ):
        from gridtf.login import badhosts

        return badhosts.considered(plan)
    return plan


def script(plan: Plan) -> str:
    """The job script of a plan; that of a plan with a snapshot in its origin runs in that one.

    Raises:
        UsageError: For values that the script or the scheduler cannot accept.
        GridtfError: For errors in the user's template.
    """
    from gridtf.login import render

    with _located(plan.sources):
        if "snapshot" in plan.origin and not plan.moved:
            from gridtf.login import snapshot

            plan = in_snapshot(plan, snapshot.existing(Path(plan.origin["snapshot"])))
        return render.script(plan)


def command(plan: Plan) -> tuple[str, ...]:
    """The command line that submits the script of a plan.

    Raises:
        UsageError: For values that the scheduler cannot accept.
    """
    with _located(plan.sources):
        return plan.scheduler.login.submit_command(plan)


@contextlib.contextmanager
def _located(sources: Mapping[str, str]) -> Iterator[None]:
    """Add the place that an invalid value came from to its error message."""
    try:
        yield
    except SpecError as error:
        raise merging.located(error, sources) from None


def _make_run_dir(plan: Plan) -> Plan:
    """Make the run directory; mkdir is exclusive, so that the second of two submissions takes the next free name."""
    need_safe(plan.run_dir.parent)
    if plan.spec.run_dir:
        if not new_folder(plan.run_dir):
            hint = "every run needs a directory of its own; --run-root DIR makes one in DIR for each"
            with _located(plan.sources):
                raise SpecError("run_dir", f"{plan.run_dir} already exists", hint=hint)
        return plan
    for number in itertools.count(1):
        path = plan.run_dir if number == 1 else plan.run_dir.with_name(f"{plan.run_dir.name}-{number}")
        if _new_below(path):
            break
    return plan.replace(run_dir=path)


def notes_of(plan: Plan) -> tuple[str, ...]:
    """What users may not expect of a job, one line each, as far as no scheduler is asked."""
    of_job = (*precheck.notes(plan.spec), *plan.bad_hosts)
    if plan.sweep is None or plan.sweep.numbers:  # those of a sweep have been told at its first submission
        return of_job
    from gridtf.jobspec import sweep

    return (*sweep.notes(plan.spec, plan.sweep.rows), *of_job)


def _new_below(path: Path) -> bool:
    """Make a folder and its parent; whether the folder is new."""
    make_folder(path.parent)
    try:
        return new_folder(path)
    except RunDirError:  # a refused submission may have removed the parent in between
        make_folder(path.parent)
        return new_folder(path)


def _hand_over(plan: Plan, command: tuple[str, ...]) -> tuple[Record, tuple[str, ...]]:
    """Write job.sh, submit, and write submitted.json. Returns that record and notes for the user."""
    run = RunDir(plan.run_dir)
    scheduler = plan.scheduler
    # to be read: what is submitted is the text. Its env may contain a password, as in job.json
    write_text(run.script, plan.script, mode=0o700)
    with _located(plan.sources):
        told = (*notes_of(plan), *schedulers.unused(plan.spec, scheduler), *scheduler.login.check(plan))
    elements = plan.request.elements
    for folder in (run.elements, *(run.elements / element for element in elements)) if elements else ():
        make_folder(folder)
    if plan.sweep is None:
        make_folder(run.output)
    else:
        write_record(run.sweep, as_dict(plan.sweep), indent=None, mode=0o600)
    begin = time.time()
    try:
        result = scheduler.login.submit(plan)
    except KeyboardInterrupt:
        raise _interrupted(plan) from None
    answers.outdate(scheduler, result.job)
    identity = {**result.job.to_record(), **({"elements": list(elements)} if elements else {})}
    record = registry.submitted(plan.spec, scheduler.name, command, identity, begin)
    try:
        write_record(run.submitted, record)
    except BaseException:
        scheduler.login.cancel(JobIdentity.from_record(record))
        raise
    return record, (*told, *result.notes)


def _interrupted(plan: Plan) -> MaybeSubmittedError:
    error = MaybeSubmittedError(
        f"interrupted while {plan.scheduler.name} was accepting the job: it may or may not be submitted",
        why=f"its run directory is kept: {plan.run_dir}",
        hint=f"look for {plan.spec.title} in the queue, or run `gridtf status` there, before you submit it again",
    )
    error.exit_code = 130
    return error


@contextlib.contextmanager
def _guarded(run_dir: Path) -> Iterator[None]:
    """Remove a new run directory after an error of its submission: itself, and not what another user, who may rename
    folders above it, has put in its place."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(files.opened(run_dir))
        except OSError as error:
            raise cannot("open", run_dir, error) from None
        if os.listdir(descriptor):
            raise RunDirError(f"{run_dir} is new, and not empty: another user has exchanged a folder above it")
        try:
            yield
        except MaybeSubmittedError:
            raise
        except BaseException:
            with contextlib.suppress(OSError):
                files.empty(descriptor)
                run_dir.rmdir()
            remove_default_root(run_dir.parent)
            raise


def remove(run_dir: Path) -> None:
    """Remove a run directory that no job uses, and its run root if that is the default one and empty then.

    Args:
        run_dir: The run directory.
    """
    import shutil

    shutil.rmtree(run_dir, ignore_errors=True)
    remove_default_root(run_dir.parent)


def remove_default_root(root: Path) -> None:
    """Remove a folder for run directories, if it is the default one and empty."""
    if root.name == RUN_ROOT:
        with contextlib.suppress(OSError):
            root.rmdir()
