"""What is written down of a job: job.json, submitted.json, the index. By submit, or by a launcher without one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from gridtf import __version__
from gridtf.files import user_name
from gridtf.jobspec.spec import JobSpec
from gridtf.run import registry
from gridtf.run.rundir import Record, RunDir, write_record


def write_job(run: RunDir, spec: JobSpec, sources: Mapping[str, str]) -> None:
    """Write job.json: what was asked for, and where each value came from. Private: env may hold passwords."""
    record = {"gridtf": __version__, "spec": spec.to_dict(), "sources": dict(sources)}
    write_record(run.job, record, mode=0o600)


def submitted(spec: JobSpec, scheduler: str, command: Sequence[str], identity: Record) -> Record:
    """What submitted.json holds. identity: what the scheduler gave: job_id, and the rest."""
    return {
        "scheduler": scheduler,
        "name": spec.title,
        **who(),
        "time": time.time(),
        "command": list(command),
        **identity,
    }


def index(run: RunDir, record: Record, environ: Mapping[str, str]) -> None:
    """Put a job into the index, from what its submitted.json holds. Raises RunDirError."""
    registry.add(
        run.path,
        scheduler=record["scheduler"],
        job_id=record["job_id"],
        name=record["name"],
        now=record["time"],
        environ=environ,
    )


def who() -> Record:
    """Who we are and where: ``user`` (the number where nobody knows the name, as in containers) and ``host``."""
    return {"user": user_name(os.getuid()), "host": os.uname().nodename}
