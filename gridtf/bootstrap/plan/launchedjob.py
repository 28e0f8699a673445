"""The job that a launcher runs, as it is the same for all attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridtf.bootstrap.system import System
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler


class LaunchedJob(Value):
    """A job in its allocation.

    Attributes:
        run: The run directory.
        spec: The specification of the job.
        request: What the job requests of its scheduler, resolved from the specification.
        scheduler: The scheduler whose job this is.
        job_id: The scheduler's id of the job.
        system: The launcher's host; the agents inherit its environ.
    """

    run: RunDir
    spec: JobSpec
    request: Request
    scheduler: Scheduler
    job_id: str
    system: System

    @property
    def here(self) -> str:
        """The scheduler's name of the launcher's host."""
        return self.scheduler.injob.this_host(self.system.environ)
