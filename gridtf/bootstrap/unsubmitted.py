"""The name, and the place in the user's index, of jobs that gridtf has not submitted: gridtf_run and gridtf_join."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf import schedulers
from gridtf.errors import RunDirError
from gridtf.host.processes import tell
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record, RunDir


def named(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """The specification of a hand-written script's job, with the name that its scheduler knows it by."""
    if spec.name:
        return spec
    scheduler = schedulers.get(spec.scheduler or schedulers.around_this_process(environ))
    return spec.replace(name=scheduler.injob.given_name(environ))


def add_to_index(run: RunDir, record: Record, environ: Mapping[str, str]) -> None:
    """Add a run that gridtf has not submitted to the index of its user. record: as registry.add takes it."""
    from gridtf.run import registry

    try:
        registry.add(run.path, record, environ)
    except RunDirError as error:  # the index is only needed to find the job by name
        tell(error.what)
