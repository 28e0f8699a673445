"""Sweeps."""

from __future__ import annotations

from gridtf.errors import NotFoundError
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job


def element_spec(job: Job) -> JobSpec:
    """The specification of one element of a sweep, as a job of its own.

    Raises:
        NotFoundError: When the job is no element of a sweep.
    """
    raise NotFoundError(f"{job.run_dir} is no element of a sweep")


def rerun_failed(job: Job) -> Job:
    """Submit once more those elements of a sweep that have ended and did not complete, and those that never ran.

    Raises:
        NotFoundError: When the job is no sweep.
    """
    raise NotFoundError(f"{job.run_dir} is no sweep")
