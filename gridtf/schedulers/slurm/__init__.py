"""Slurm. Each half is imported when it is first used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.jobspec.options import of_scheduler
from gridtf.schedulers.api import MPI_PLACE, Scheduler
from gridtf.schedulers.commands import on_path
from gridtf.schedulers.words import EXCLUDE, GPU_MODEL, NEEDS, NODELIST, NOTIFY, PLACE

if TYPE_CHECKING:
    from gridtf.schedulers.slurm.injob import SlurmInJob
    from gridtf.schedulers.slurm.login import SlurmLogin


class Slurm(Scheduler):
    """Jobs of a Slurm cluster. A job's id is Slurm's own, ``4711`` or, in an array, ``4711_3``."""

    name = "slurm"
    title = "Slurm"
    options = (
        *PLACE,
        of_scheduler("qos", "--qos", "NAME", "Slurm's quality of service"),
        of_scheduler(
            "time_min", "--time-min", "TIME", "least walltime, where Slurm can start the job sooner", kind="size"
        ),
        GPU_MODEL,
        *NEEDS,
        NODELIST,
        EXCLUDE,
        NOTIFY,
    )
    # srun(1), OUTPUT ENVIRONMENT VARIABLES: an agent's own rank, and the layout of the tasks of its step
    place_variables = re.compile(
        r"SLURM_(PROCID|LOCALID|GTIDS|TASK_PID|NPROCS|NTASKS\w*|STEP_NUM_TASKS|(STEP_)?TASKS_PER_NODE\w*|"
        rf"(CPUS|TRES)_PER_TASK\w*|CPU_BIND\w*|DISTRIBUTION)$|{MPI_PLACE}"
    )

    @cached_property
    def login(self) -> SlurmLogin:
        from gridtf.schedulers.slurm.login import SlurmLogin

        return SlurmLogin(self)

    @cached_property
    def injob(self) -> SlurmInJob:
        from gridtf.schedulers.slurm.injob import SlurmInJob

        return SlurmInJob(self)

    def is_available(self, environ: Mapping[str, str]) -> bool:
        if not on_path("sbatch", environ):
            return False
        if "SLURM_CONF" in environ or files.exists("/etc/slurm/slurm.conf"):
            return True
        # Installed, but without a configuration of its own: sbatch knows whether the network has one.
        from gridtf.schedulers.slurm.commands import slurm

        return slurm.try_run(["sbatch", "--version"], limit=5.0) is not None

    def out_of_order(self, environ: Mapping[str, str]) -> tuple[str, str]:
        if not on_path("sbatch", environ):
            return "", ""
        cure = "`sbatch --version` says what it looks for: set SLURM_CONF, or load Slurm's module"
        return "Slurm's sbatch is installed, but finds no configuration", cure

    def is_current(self, environ: Mapping[str, str]) -> bool:
        return "SLURM_JOB_ID" in environ


scheduler = Slurm()
