"""What gridtf-bootstrap.sh calls: ``run`` (a launcher from options), ``exec`` (one from GRIDTF_SPEC), agent, join."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from gridtf import contract, schedulers
from gridtf.errors import GridtfError, RunDirError, UsageError
from gridtf.processes import tell
from gridtf.rundir import Record, RunDir, make_folder, read_record, write_record
from gridtf.spec import JobSpec
from gridtf.validation import need_program

SPEC = "GRIDTF_SPEC"


def main(argv: Sequence[str]) -> int:
    """Do what argv[0] says; gives the exit code."""
    verb, *rest = argv
    try:
        if verb == "agent":
            from gridtf.bootstrap import agent

            return agent.main(rest)
        if verb == "join":
            from gridtf.bootstrap import join

            return join.main(rest, os.environ)
        if verb == "exec":
            return launch(*_rendered(os.environ), os.environ)
        if verb == "run":
            return launch(*_from_options(rest, os.environ), os.environ)
        raise UsageError(f"unknown verb {verb!r}")
    except GridtfError as error:
        tell(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _rendered(environ: MutableMapping[str, str]) -> tuple[JobSpec, Mapping[str, str], Path | None]:
    """Spec, sources and run directory of a rendered script. Taken out of the environment: tasks have no use for it."""
    text = environ.pop(SPEC, None)
    if text is None:
        raise UsageError(f"{SPEC} is not set", hint="gridtf_exec is for rendered scripts; call gridtf_run instead")
    run_dir = environ.get(contract.RUN_DIR)
    try:
        spec = JobSpec.from_dict(json.loads(text))
        need_program(spec)
        return spec, {}, Path(run_dir) if run_dir else None
    except (ValueError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{SPEC} cannot be read: {error}", hint="render the script again") from None


def _from_options(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[JobSpec, Mapping[str, str], Path | None]:
    from gridtf import config

    configured = config.from_arguments(argv, environ, Path.cwd())
    spec = configured.spec
    return spec, configured.sources, Path(spec.run_dir).absolute() if spec.run_dir else None


def launch(spec: JobSpec, sources: Mapping[str, str], run_dir: Path | None, environ: MutableMapping[str, str]) -> int:
    """Make sure of the run directory, then run one attempt; gives the exit code of the job script."""
    name = spec.scheduler or schedulers.around_this_process(environ)
    scheduler = schedulers.get(name)
    identity = scheduler.identity(environ)
    if run_dir is None:
        root = Path(spec.run_root or "gridtf-runs").absolute()
        run_dir = root / f"{spec.title}-{identity['job_id']}"
    run = _own_run_dir(RunDir(run_dir), identity["job_id"])
    _describe(run, spec, sources, {"scheduler": name, **identity}, environ)
    from gridtf.bootstrap import launcher

    return launcher.launch(run, spec, scheduler, identity["job_id"], environ)


def _own_run_dir(run: RunDir, job_id: str) -> RunDir:
    """This run directory, or one beside it when it is another job's: a rendered script can be submitted twice."""
    above = run.path.parent
    if not above.is_dir():
        if not above.parent.is_dir():
            raise RunDirError(
                f"the run directory {run.path} is not there on host {os.uname().nodename}",
                hint="it must lie on a file system that all hosts share: choose it with --run-dir or --run-root",
            )
        make_folder(above)
    make_folder(run.path)
    if run.own(job_id):
        return run
    beside = RunDir(run.path.with_name(f"{run.path.name}.{job_id}"))
    make_folder(beside.path)
    beside.own(job_id)
    return beside


def _describe(
    run: RunDir, spec: JobSpec, sources: Mapping[str, str], identity: Record, environ: Mapping[str, str]
) -> None:
    """For a job that `gridtf submit` did not make: what submit would have written."""
    if read_record(run.job) is not None:
        return
    from gridtf import jobrecords

    record = jobrecords.submitted(spec, identity["scheduler"], sys.argv, identity)
    jobrecords.write_job(run, spec, sources)
    write_record(run.submitted, record)
    try:
        jobrecords.index(run, record, environ)
    except RunDirError as error:  # the index only helps to find the job by name
        tell(error.what)
