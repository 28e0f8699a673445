"""Faults of jobs on a Grid Engine test bed: hand-written scripts, and Grid Engine's processes and queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gridtf.run.rundir import RunDir
from tests.support.cluster import Bed
from tests.support.clusterfaults import admin
from tests.support.clusterjobs import ClusterJob
from tests.support.sgescripts import Folder

# The lines of a hand-written script that run one task per host.
RUN = 'source "$(gridtf bootstrap-path)"\ngridtf_run --run-dir $JOB_ID --tasks-per-node 1 --kill-grace 1'


class ScriptJob(ClusterJob):
    """A hand-written script of alice's, with RUN in it, submitted with qsub."""

    def __init__(self, bed: Bed, script: str, *options: str) -> None:
        self.bed, self.user = bed, "alice"
        self._job = Folder(bed, "faults").qsub(script, *options)
        self.id = self._job.id
        self.run = RunDir(self._job.folder.path / self.id)
        self.seen_as = bed.seen(self.run.path)

    @property
    def output(self) -> str:
        return self._job.output

    def states(self) -> list[tuple[str, str]]:
        """As qstat shows them: (job id, state)."""
        return self._job.states()


def shepherd(bed: Bed, host: str) -> int:
    """The process id of Grid Engine's shepherd on a host that has one job."""
    return int(admin(bed, "pgrep", "-x", "sge_shepherd", host=host))


@contextmanager
def changed(bed: Bed, attribute: str, value: str, queue: str) -> Iterator[None]:
    """Change an attribute of a queue temporarily."""
    (line,) = (
        line for line in admin(bed, "qconf", "-sq", queue).splitlines() if line.split(maxsplit=1)[0] == attribute
    )
    admin(bed, "qconf", "-mattr", "queue", attribute, value, queue)
    try:
        yield
    finally:
        admin(bed, "qconf", "-mattr", "queue", attribute, line.split(maxsplit=1)[1], queue)
