"""Slurm: the seam to it."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import on_path
from gridtf.schedulers.rendered import RenderedOnly
from gridtf.schedulers.slurm import directives


class Slurm(RenderedOnly):
    name = "slurm"
    title = "Slurm"

    def here(self, environ: Mapping[str, str]) -> bool:
        return on_path("sbatch", environ)

    def inside(self, environ: Mapping[str, str]) -> bool:
        return "SLURM_JOB_ID" in environ

    def directives(self, plan: Plan) -> tuple[str, ...]:
        return directives.directives(plan)

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        return directives.submit_command(plan)


scheduler = Slurm()
