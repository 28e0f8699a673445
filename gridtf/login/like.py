"""What --like takes from a job that has run, or from the elements of an array: the advice as a layer of another job."""

from __future__ import annotations

import json
import time

from gridtf.jobspec.layers import Layer, Sourced
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job
from gridtf.report.advice import Advised
from gridtf.report.gather import gather_all
from gridtf.run import registry
from gridtf.states import JobState


class Like:
    """What a job has used.

    Args:
        job: The job.

    Attributes:
        run_dir: Its run directory.
        name: Its name and id.
        notes: What is not taken from it, and why, a line each.

    Raises:
        GridtfError: The job cannot be read.
    """

    def __init__(self, job: Job) -> None:
        registry.need_run(job.run)
        self.run_dir = job.run_dir
        self.notes: list[str] = []
        self.name = f"{job.name} ({job.id})"
        self._materials = [*gather_all(job.run, time.time())]
        self._known: dict[str, Advised] = {}  # by what it is for

    def advised(self, spec: JobSpec | None = None) -> Advised:
        """The advice for another job; None: for the same job again."""
        return Advised(self._materials, spec)

    @property
    def runtime(self) -> tuple[float, int] | None:
        """How long it, or the longest element, ran, in seconds, and on how many hosts; None where one did not complete
        in one attempt."""
        ran = []
        for one in self._materials:
            if one.view.state != JobState.COMPLETED or len(one.attempts) != 1:
                return None
            (attempt,) = one.attempts
            ran.append((attempt.end - attempt.allocated, max(1, len(attempt.hosts))))
        return max(ran, default=None)

    def layer(self, spec: JobSpec) -> Layer:
        """The values for another job.

        Args:
            spec: That job, without them. On which partition it runs, and for how long, makes no difference.
        """
        about = json.dumps({**spec.to_dict(), "partition": None, "time": None})
        advised = self._known[about] = self._known.get(about) or self.advised(spec)
        self.notes[:] = [
            f"{what} {'are' if ' and ' in what else 'is'} not taken from {self.name}: {why}"
            for what, why in advised.left.items()
        ]
        source = f"measured in {self.name}: "
        return {one.key: Sourced(one.value, source + one.why) for one in advised.found.values() if one.taken}
