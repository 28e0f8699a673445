"""Slurm's srun starts the ranks, and serves them PMI or PMIx: `mpi` is a type of ``srun --mpi``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.starters.mpi.world import SHIM, World


class Starter(World):
    """This host's part: what srun is given, slurmstepd makes on each host."""

    def command(self, hosts: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        rank_starter, kind = self.view.scheduler.injob.rank_starter, self.plan.request.mpi
        argv, environ = rank_starter(kind, hosts, self.file_of(hosts), self.environ)
        return [*argv, *SHIM, "rank"], environ
