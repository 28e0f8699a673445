"""Grid Engine (Son of Grid Engine and its relatives): the seam to it. What a command does not need is not imported."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record
from gridtf.schedulers.base import MPI_PLACE, AgentCall, AgentHandle, Allocation, JobStatus, Plan, Wait

if TYPE_CHECKING:
    from gridtf.host.gpus import Claim


class GridEngine:
    """Jobs of a Grid Engine cell. A job's id is Grid Engine's own, ``4711`` or, in an array, ``4711.3``."""

    name = "sge"
    warnings: frozenset[int] = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # qsub(1), -notify: before STOP, before KILL
    last_warnings: frozenset[int] = frozenset({signal.SIGUSR2})
    place_variables = re.compile(MPI_PLACE)
    accounting_delay = 20.0  # accounting_flush_time in sge_conf(5) is mostly 15 s

    # --- on the login node

    def here(self, environ: Mapping[str, str]) -> bool:
        from gridtf.schedulers.common import on_path

        return "SGE_ROOT" in environ and on_path("qsub", environ)  # other schedulers have a qsub, too

    def directives(self, plan: Plan) -> tuple[str, ...]:
        from gridtf.schedulers.sge import directives

        try:
            return directives.directives(plan)
        except SpecError as error:
            if error.key != "pe" or plan.spec.pe is not None or not self.here(os.environ):
                raise
            from gridtf.schedulers.sge import advice

            raise advice.naming_pes(error, plan) from None

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        from gridtf.schedulers.sge import directives

        return directives.submit_command(plan)

    def elements(self, spec: JobSpec) -> Sequence[str]:
        from gridtf.schedulers.sge import directives

        return directives.array_elements(spec.native)

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers import shared
        from gridtf.schedulers.sge import advice

        shared.check(plan)
        return advice.check(plan)

    def submit(self, plan: Plan) -> Record:
        from gridtf.schedulers.sge import submit

        return submit.submit(plan, self.submit_command(plan))

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        from gridtf.schedulers.sge import query

        return query.query(submitted)

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        from gridtf.schedulers.sge import query

        return query.accounting(submitted)

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        from gridtf.schedulers.sge import query

        return query.run_dirs(job_id, limit=20.0)

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        from gridtf.schedulers.sge import submit

        submit.cancel(submitted, force=force)

    # --- inside a job

    def inside(self, environ: Mapping[str, str]) -> bool:
        if "SGE_TASK_ID" not in environ or "JOB_ID" not in environ:
            return False
        # a job of another scheduler that was submitted from one of these has its variables as well, but not its folder
        return "SGE_JOB_SPOOL_DIR" not in environ or Path(environ["SGE_JOB_SPOOL_DIR"]).is_dir()

    def untold(self) -> str:
        from gridtf.schedulers.sge import injob

        if injob.shepherd_pid() is None:
            return ""
        return (
            "this shell belongs to a job of Grid Engine, which has not told it so (qlogin): tasks run on this host "
            "alone; `qrsh -pe PE SLOTS bash` gives a shell that knows the job's hosts"
        )

    def identity(self, environ: Mapping[str, str]) -> Record:
        from gridtf.schedulers.sge import injob

        return injob.identity(environ)

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        from gridtf.host import gpus
        from gridtf.host.processes import tell
        from gridtf.schedulers.sge import injob, query

        found = injob.allocated_hosts(environ, injob.this_host(environ))
        given = injob.allocation(found, spec, lambda: query.job_requests(environ["JOB_ID"], limit=10))
        if note := injob.unused_gpus(given, spec, lambda: gpus.present(environ)):
            tell(note)
        return given

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        from gridtf.schedulers.sge import injob

        return injob.start_agents(allocation, call, environ, self.warnings)

    def grant(
        self, environ: MutableMapping[str, str], spec: JobSpec, count: int | None, owner: str, wait: Wait
    ) -> Claim:
        from gridtf.schedulers.sge import gpu_grant

        return gpu_grant.grant(environ, spec, count, owner, wait)

    def ending(self, environ: Mapping[str, str]) -> JobStatus | None:
        from gridtf.schedulers.sge import injob

        return injob.termination_reason(str(self.identity(environ)["job_id"]), environ.get("QUEUE", ""))

    def deserted(self) -> str:
        return ""  # such a job ends at once, see injob.ShepherdWatch

    def suspended(self, environ: Mapping[str, str]) -> bool | None:
        from gridtf.schedulers.sge import injob

        return injob.suspended(str(self.identity(environ)["job_id"]))


scheduler = GridEngine()
