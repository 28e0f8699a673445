"""The commands of gridtf-bootstrap.sh: ``run`` (a launcher from options), ``exec`` (one from GRIDTF_SPEC), ``join``."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import contract, files, schedulers
from gridtf.bootstrap import elements, unsubmitted
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError, RunDirError, SpecError, UsageError
from gridtf.host.processes import tell
from gridtf.jobspec.checks import need_parameters, need_program
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.following import CONDITIONS
from gridtf.run.rundir import (
    BY_HAND,
    RUN_ROOT,
    RunDir,
    make_folder,
    need_ours,
    need_safe,
    read_record,
    write_record,
)
from gridtf.schedulers.api import JobIdentity, Scheduler
from gridtf.starters import choose

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured

SPEC = "GRIDTF_SPEC"
REQUEST = "GRIDTF_REQUEST"
NEVER = 75  # exit code of ``after``


def main(argv: Sequence[str]) -> int:
    """Run one of gridtf-bootstrap.sh's functions.

    Args:
        argv: ``run``, ``exec``, ``after`` or ``join``, and its arguments.

    Returns:
        The exit code.
    """
    verb, *rest = argv
    try:
        if verb == "join":
            from gridtf.starters.joined import join

            return join.main(rest, os.environ)
        if verb == "exec":
            spec, run_dir, request = _rendered(os.environ)
            return launch(spec, {}, run_dir, os.environ, request)
        if verb == "after":
            return 0 if _may_start(os.environ) else NEVER
        if verb == "run":
            from gridtf.jobspec import config

            configured = schedulers.with_options(
                lambda table, complete: config.from_arguments(
                    rest, os.environ, Path.cwd(), table, complete=complete, use=config.Use.HERE
                )
            )
            for note in configured.notes:
                tell(note)
            return run(configured, os.environ)
        raise UsageError(f"unknown verb {verb!r}")
    except GridtfError as error:
        tell(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _may_start(environ: MutableMapping[str, str]) -> bool:
    """Whether the job of a rendered script may start, or will, by the ends of the jobs that it is to start after."""
    from time import monotonic, sleep

    from gridtf.bootstrap.judge.conditions import Conditions

    spec, run_dir, _ = _rendered(environ)
    name = spec.scheduler or schedulers.around_this_process(environ)
    if run_dir is None:
        return True
    conditions = Conditions(RunDir(run_dir), spec, schedulers.get(name), monotonic, waited=name == "local")
    while (now := conditions.look()).why and not now.ids:
        sleep(conditions.pause)
    return now.never is None


def _rendered(environ: MutableMapping[str, str]) -> tuple[JobSpec, Path | None, Request | None]:
    """Specification, run directory and request of a rendered script. Specification and request are removed from the
    environment, since tasks do not need them. A template of the user may leave the request out."""
    text, resolved = environ.pop(SPEC, None), environ.pop(REQUEST, None)
    if text is None:
        raise UsageError(f"{SPEC} is not set", hint="gridtf_exec is for rendered scripts; call gridtf_run instead")
    run_dir = environ.get(contract.RUN_DIR)
    try:
        spec = JobSpec.from_dict(json.loads(text))
        need_program(spec)
    except (ValueError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{SPEC} cannot be read: {error}", hint="render the script again") from None
    try:
        request = recordtypes.read(Request, json.loads(resolved)) if resolved else None
    except ValueError as error:
        raise UsageError(f"{REQUEST} cannot be read: {error}", hint="render the script again") from None
    return spec, Path(run_dir) if run_dir else None, request


def run(
    configured: Configured, environ: MutableMapping[str, str], begun: Callable[[RunDir], None] | None = None
) -> int:
    """Run one attempt of a job that options describe: gridtf_run and `gridtf run`.

    Args:
        configured: The options, as parsed.
        environ: The environment of this process.
        begun: Called with the run directory before the launcher begins.

    Returns:
        The exit code of the job script.

    Raises:
        GridtfError: The job cannot be run.
    """
    from gridtf.jobspec import merging, precheck

    spec = configured.spec
    here = Path.cwd()
    spec = spec.replace(chdir=str(here / (spec.chdir or "")))
    try:
        need_program(spec)
        need_parameters(spec)
        precheck.check(spec, configured.sources)
        if spec.setup:
            hint = "run them first, in the shell or the script, and add --no-setup"
            raise SpecError("setup.1", "set-up lines are for jobs that gridtf submits", hint=hint)
        if key := next((key for key in CONDITIONS if getattr(spec, key)), ""):
            hint = "submit it with gridtf submit, or wait first: gridtf wait JOB"
            raise SpecError(key, "a job that runs here does not wait for others", hint=hint)
        if spec.snapshot and configured.sources.get("snapshot", "").startswith("-"):
            raise SpecError("snapshot", "a job that runs here runs the folder as it is", hint="leave it out")
    except SpecError as error:
        raise merging.located(error, configured.sources) from None
    for note in precheck.notes(spec):
        tell(note)
    spec = unsubmitted.named(spec, environ)
    run_dir = here / spec.run_dir if spec.run_dir else None
    os.chdir(spec.chdir or here)
    return launch(spec, configured.sources, run_dir, environ, begun=begun)


def launch(
    spec: JobSpec,
    sources: Mapping[str, str],
    run_dir: Path | None,
    environ: MutableMapping[str, str],
    request: Request | None = None,
    begun: Callable[[RunDir], None] | None = None,
) -> int:
    """Prepare the run directory, then run one attempt.

    Args:
        sources: Key of the specification -> where its value came from, for messages.
        run_dir: The run directory; None: a new one below run_root.
        environ: The environment of this process.
        request: What the job requests of its scheduler, resolved at submission; None: a script written by hand, for
            which it is resolved here.
        begun: As for run.

    Returns:
        The exit code of the job script.
    """
    name = spec.scheduler or schedulers.around_this_process(environ)
    if not spec.scheduler and name == "local" and (note := schedulers.unannounced()):
        tell(note)
    scheduler = schedulers.get(name)
    _refuse_copies(environ, scheduler)
    if request is None or request.scheduler != name:
        request = _resolve(scheduler, spec, sources, environ)
    identity = scheduler.injob.identity(environ)
    run = _run_of(identity, spec, run_dir)
    need_ours(run.path)
    sweep = elements.sweep_of(run) if identity.element else None
    if sweep is not None:
        spec = elements.of(spec, sweep, identity.element)
    if goes_with_the_job(run.path, identity.job_id, environ):
        tell(
            f"the run directory {run.path} lies in TMPDIR, which is removed when the job ends, together with logs, "
            "verdict and output: choose another folder with --run-root, which all hosts must see"
        )
    job = LaunchedJob(run, spec, request, scheduler, identity.job_id, System(environ))
    _describe(job, sources, identity, listed=sweep is None)
    if begun is not None:
        begun(run)
        tell(f"job {identity.job_id}; its run directory: {run.path}")
    elif run_dir is None or sys.stderr.isatty():  # otherwise the script names it
        tell(f"job {identity.job_id}; to see what its tasks print: gridtf logs -f {run.path}")
    from gridtf.bootstrap.launcher import launcher

    if sweep is None:
        return launcher.launch(job)
    if sweep.pack == 1:
        code = launcher.launch(job)
        elements.ended(run, spec)
        return code

    def describe(own: LaunchedJob, element: str) -> None:
        _describe(own, sources, identity.replace(element=element), listed=False)

    return elements.together(sweep, job, identity, describe)


def _resolve(scheduler: Scheduler, spec: JobSpec, sources: Mapping[str, str], environ: Mapping[str, str]) -> Request:
    try:
        return scheduler.login.resolve(spec, in_job=True).replace(mpi=choose(spec, scheduler, environ)[0])
    except SpecError as error:
        from gridtf.jobspec import merging

        raise merging.located(error, sources) from None


def goes_with_the_job(folder: Path, job_id: str, environ: Mapping[str, str]) -> bool:
    """Whether a folder is in a TMPDIR that the scheduler removes with this job, such as ``/tmp/4711.1.all.q``. Pure.

    Args:
        folder: The folder.
        job_id: The scheduler's id of the job.
        environ: The environment of the job script.
    """
    temporary = environ.get("TMPDIR", "")
    return job_id.partition(".")[0] in re.split(r"[^0-9]+", temporary) and folder.is_relative_to(temporary)


def _refuse_copies(environ: Mapping[str, str], scheduler: Scheduler) -> None:
    """Refuse to run as one of several launchers of a job, one in each task of srun or mpirun."""
    sizes = (environ.get(names.size, "") for names in scheduler.injob.starters if names.rank in environ)
    copies = max((int(size) for size in sizes if re.fullmatch("[0-9]{1,18}", size)), default=1)
    if copies > 1:
        raise UsageError(
            f"a job's launcher was started {copies} times, by srun or mpirun",
            hint="start gridtf_run once, in the script itself; or call gridtf_join in each of these processes",
        )


def _run_of(identity: JobIdentity, spec: JobSpec, run_dir: Path | None) -> RunDir:
    """The run directory of this start of the job; a requeued job keeps the one it had."""
    job_id = identity.job_id
    if run_dir is None:
        return _next_run(Path(spec.run_root or RUN_ROOT).absolute() / f"{spec.title}-{job_id}", identity)
    run, element = RunDir(run_dir), identity.element
    if element and files.is_folder(run.elements):
        return RunDir(run.elements / element)
    _make(run)
    if run.claim(job_id):
        return run
    # it belongs to another job: a rendered script can be submitted twice
    other = RunDir(run.path.with_name(f"{run.path.name}.{job_id}"))
    make_folder(other.path)
    other.claim(job_id)
    return other


def _next_run(path: Path, identity: JobIdentity) -> RunDir:
    """The next run directory of a script that may call gridtf_run several times, and again when it is requeued."""
    for number in itertools.count(1):
        run = RunDir(path if number == 1 else path.with_name(f"{path.name}-{number}"))
        _make(run)
        if run.claim(identity.job_id) and run.mark_started(identity.restarts):
            return run
    raise AssertionError("numbers do not end")


def _make(run: RunDir) -> None:
    above = run.path.parent
    if not files.is_folder(above) and not files.is_folder(above.parent):
        raise RunDirError(
            f"the run directory {run.path} does not exist on host {os.uname().nodename}",
            hint="it must be on a file system that all hosts share: choose it with --run-dir or --run-root",
        )
    need_safe(above)
    make_folder(above)
    make_folder(run.path)


def _describe(job: LaunchedJob, sources: Mapping[str, str], identity: JobIdentity, *, listed: bool) -> None:
    """Write the records that `gridtf submit` writes, for a job that it did not submit. listed: put it into the index,
    where the sweep of an element is already."""
    run = job.run
    if read_record(run.job, recordtypes.Job, own=True) is not None:
        return
    from gridtf.run import registry

    # without the command line, which job.json has: other users may read this record, and --env may hold passwords
    record = registry.submitted(job.spec, job.scheduler.name, [BY_HAND], identity.to_record(), time.time())
    if identity.element:  # the array as a whole has the name
        record["name"] += f"_{identity.element}"
    registry.write_job(run, job.spec, sources)
    write_record(run.submitted, record)
    if listed:
        unsubmitted.add_to_index(run, record, job.system.environ)
