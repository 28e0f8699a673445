"""Slurm: the seam to it. What a command does not need is not imported: rendering asks no controller."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError, SpecError
from gridtf.host import procfs
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record
from gridtf.schedulers.base import MPI_PLACE, AgentCall, AgentHandle, Allocation, JobStatus, Plan, Wait

if TYPE_CHECKING:
    from gridtf.host.gpus import Claim

_STEPD = "slurmstepd"
_PATIENCE = 60.0  # for a controller that is busy; sbatch itself gives up sooner when there is none


class Slurm:
    """Jobs of a Slurm cluster. A job's id is Slurm's own, ``4711`` or, in an array, ``4711_3``."""

    name = "slurm"
    warnings: frozenset[int] = frozenset()
    last_warnings: frozenset[int] = frozenset()
    accounting_delay = 0.0  # its controller itself remembers a job for MinJobAge
    # srun(1), OUTPUT ENVIRONMENT VARIABLES: of the task that an agent is, and of how the tasks of its step are laid out
    place_variables = re.compile(
        r"SLURM_(PROCID|LOCALID|GTIDS|TASK_PID|NPROCS|NTASKS\w*|STEP_NUM_TASKS|(STEP_)?TASKS_PER_NODE\w*|"
        rf"CPUS_PER_TASK\w*|CPU_BIND\w*|DISTRIBUTION)$|{MPI_PLACE}"
    )

    def __init__(self) -> None:
        self._stepd: int | None = None  # inside a job: the pid of what has started us, where it is Slurm's own

    # --- on the login node

    def here(self, environ: Mapping[str, str]) -> bool:
        from gridtf.schedulers.common import on_path

        if not on_path("sbatch", environ):
            return False
        if "SLURM_CONF" in environ or Path("/etc/slurm/slurm.conf").exists():
            return True
        from gridtf.schedulers.client import ask

        # Installed, but without a configuration of its own: sbatch knows whether the network gives it one.
        try:
            return ask(["sbatch", "--version"], limit=5.0).code == 0
        except SchedulerError:
            return False

    def directives(self, plan: Plan) -> tuple[str, ...]:
        from gridtf.schedulers.slurm import submit

        return submit.directives(plan)

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        from gridtf.schedulers.slurm import submit

        return submit.submit_command(plan)

    def elements(self, spec: JobSpec) -> Sequence[str]:
        from gridtf.schedulers.slurm import submit

        return submit.elements(spec.native)

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers import shared
        from gridtf.schedulers.common import unused
        from gridtf.schedulers.slurm import advice, client, submit

        try:
            shared.check(plan)
        except SpecError:
            this = ["scontrol", "show", "node", os.uname().nodename]
            if client.run(this, limit=_PATIENCE).code != 0:  # else a cluster of one machine
                raise
        notes = (*unused(plan.spec, ("pe", "slots"), "Slurm"), *submit.overridden(plan))
        return (*notes, *advice.check(plan))

    def submit(self, plan: Plan) -> Record:
        from gridtf.schedulers.slurm import submit

        return submit.submit(plan, self.submit_command(plan))

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        from gridtf.schedulers.slurm import query

        return query.query(submitted)

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        from gridtf.schedulers.slurm import query

        return query.accounting(submitted)

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        from gridtf.schedulers.slurm import query

        return query.run_dirs(job_id)

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        from gridtf.schedulers.slurm import submit

        submit.cancel(submitted, force=force)

    # --- inside a job

    def inside(self, environ: Mapping[str, str]) -> bool:
        return "SLURM_JOB_ID" in environ

    def untold(self) -> str:
        return ""

    def identity(self, environ: Mapping[str, str]) -> Record:
        parent = os.getppid()
        self._stepd = parent if procfs.name(parent) == _STEPD else None
        restarts = environ.get("SLURM_RESTART_COUNT", "0")  # not set in a job that was never requeued
        array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
        if array and element:
            return {"job_id": f"{array}_{element}", "element": element, "restarts": restarts}
        return {"job_id": environ["SLURM_JOB_ID"], "restarts": restarts}

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        from gridtf.schedulers.slurm import injob

        def gpus_of_nodes(job_id: str) -> Mapping[str, int]:
            from gridtf.schedulers.slurm import query

            return query.gpus_of_nodes(job_id)

        return injob.allocation(environ, spec, gpus_of_nodes)

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        from gridtf.schedulers.agents import StartedAgents
        from gridtf.schedulers.common import whole
        from gridtf.schedulers.slurm import injob

        argv = injob.srun_command(allocation.hosts, call, environ)
        blame = partial(injob.parse_failure, restarts=whole(environ.get("SLURM_RESTART_COUNT", "")) or 0)
        return [StartedAgents(argv, injob.srun_environment(environ), call.log, blame)]

    def grant(
        self, environ: MutableMapping[str, str], spec: JobSpec, count: int | None, owner: str, wait: Wait
    ) -> Claim:
        from gridtf.host import gpus

        return gpus.Claim(gpus.granted(environ), ())

    def ending(self, environ: Mapping[str, str]) -> JobStatus | None:
        from gridtf.schedulers.slurm import query

        return query.termination_reason(environ["SLURM_JOB_ID"], environ)

    def deserted(self) -> str:
        if self._stepd in (None, os.getppid()):
            return ""
        return f"{_STEPD}, which had started the job script on {os.uname().nodename}, was killed"

    def suspended(self, environ: Mapping[str, str]) -> bool:
        return False  # it stops the job on all hosts at once


scheduler = Slurm()
