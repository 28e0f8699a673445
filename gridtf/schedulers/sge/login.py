"""Grid Engine on the login node."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError, SpecError
from gridtf.jobspec.primitives import spell
from gridtf.schedulers.api import Estimate, JobIdentity, Place, Plan, SubmitResult
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.login import CommandLogin, check_shared
from gridtf.schedulers.sge import accounting, directives, query, submit
from gridtf.schedulers.sge.commands import qmaster, sge

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

_DELETED = " has (deleted|registered) |already in deletion|does not exist"


class GridEngineLogin(CommandLogin):
    """Submits to Grid Engine and queries it."""

    commands = sge
    directive_prefix = "#$"
    version_command = ("qstat", "-help")
    inherits_environment = False  # qsub without -V
    accounting_delay = 20.0  # accounting_flush_time in sge_conf(5) is mostly 15 s
    list_command = "qstat -u $USER"
    out_of_service = ("qmod", "-d", "*@{host}")  # which keeps no reason
    server_variables = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT")
    parse_native = staticmethod(directives.parse_native)
    array_elements = staticmethod(directives.array_elements)
    submit_command = staticmethod(directives.submit_command)
    parse_job_id = staticmethod(submit.parse_job_id)
    find_submitted = staticmethod(query.submitted)
    query_command = staticmethod(query.command)
    parse_query = staticmethod(query.statuses)
    accounting = staticmethod(accounting.ends)
    requests_hosts = False  # directives refuses GPUs that a host would have to spare
    run_dirs = staticmethod(query.run_dirs)

    def slots(self, request: Request) -> str:
        return str(directives.slots(request))

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        from gridtf.schedulers.sge.examine import examine

        return examine(self.scheduler, given)

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        slots = spec.slots
        if slots is not None and not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", str(slots), re.ASCII):
            hint = "write a number, or a range such as 2-16"
            raise SpecError("slots", f"{spell(slots)} is not a number of slots", hint=hint)
        if slots is not None and spec.pe is None and not in_job:
            raise SpecError("slots", "slots need a parallel environment", hint="name it with --pe")
        variable = spec.gpu_variable
        if variable is not None and not re.fullmatch(r"[A-Za-z_]\w*", str(variable), re.ASCII):
            hint = "write its name without $, such as SGE_GPU"
            raise SpecError("gpu_variable", f"{spell(variable)} is not the name of a variable", hint=hint)
        request = super().resolve(spec, in_job=in_job)
        directives.refuse_native(request)
        return request

    def with_site(self, plan: Plan) -> Plan:
        """With the resources of the complex, which say how GPUs are counted, and their models told from each other."""
        request = plan.request
        needed = directives.requests_gpus(request) or (request.gpus_per_task and request.components[0].gpu_model)
        if not needed or not self.scheduler.is_available(os.environ):
            return plan
        from gridtf.schedulers.sge import offers

        with contextlib.suppress(SchedulerError):  # a qmaster that does not answer is reported by qsub
            site = plan.site or directives.Site(offers.known_resources())
            how = directives.model_resource(request, site.resources)
            if how and how.is_text and not site.models:
                site = offers.known_models(how.name, site.resources)
            elif how and how.consumable != "NO":
                plan = plan.replace(request=request.replace(options={**request.options, "gpu_resource": how.name}))
            return plan.replace(site=site)
        return plan

    def directives(self, plan: Plan) -> tuple[str, ...]:
        """Pure, except that qconf is asked which parallel environments there are where one is missing."""
        try:
            return directives.directives(plan)
        except SpecError as error:
            if error.key == "pe" and plan.spec.pe is None and self.scheduler.is_available(os.environ):
                from gridtf.schedulers.sge import advice

                advice.name_pes(error, plan)
            raise

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers.sge import advice

        check_shared(plan)
        return advice.check(plan)

    def places(self) -> Sequence[Place]:
        from gridtf.schedulers.sge import offers

        return [Place(queue.name, queue) for queue in offers.known_queues()]

    def foreseen(self, plan: Plan, places: Sequence[Place]) -> Estimate | None:
        from gridtf.schedulers.sge import advice

        return advice.foreseen(plan, [place.offer for place in places])

    def estimate(self, plan: Plan, places: Sequence[Place]) -> Estimate:
        from gridtf.schedulers.sge import advice

        return advice.estimate(plan, [place.offer for place in places])

    def cluster(self, environ: Mapping[str, str]) -> str:
        return f"sge:{qmaster(environ)}"

    def room(self, plan: Plan) -> tuple[dict[str, int], int]:
        from gridtf.schedulers.sge import advice

        return advice.room(plan)

    def submit(self, plan: Plan) -> SubmitResult:
        return submit.submit(self, plan, super().submit)

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        if not force:
            super().cancel(job)
            return
        submit.cancel_by_force(job, self.cancel_command(job, force))

    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        number, _, element = job.job_id.partition(".")
        if not number.isdecimal():  # qdel takes names and patterns as well, and knows no --
            raise SchedulerError(f"{job.job_id} is not a Grid Engine job id")
        return ["qdel", *(["-f"] if force else []), number, *(["-t", element] if element else [])]

    def cancel_together_command(self, jobs: Sequence[JobIdentity], force: bool) -> Sequence[str]:
        ids = [job.job_id for job in jobs]
        # by force qdel waits for the host of each job
        return ["qdel", *ids] if not force and all(re.fullmatch(r"\d+(\.\d+)?", one, re.ASCII) for one in ids) else ()

    def not_cancelled(self, jobs: Sequence[JobIdentity], answer: Answer) -> Sequence[JobIdentity]:
        """The jobs in lines other than these; all of them where one of such lines names none, or nothing was printed.

        ``alice has deleted job 7`` · ``alice has registered the job 7 for deletion`` · ``job 7 is already in deletion``
        · ``denied: job "7" does not exist``
        """
        lines = [line for line in answer.text.splitlines() if line.strip()] or [""]
        bad = [line for line in lines if not re.search(_DELETED, line)]
        named = [[job for job in jobs if re.search(rf"\b{re.escape(job.job_id)}\b", line)] for line in bad]
        return [job for some in named for job in some] if all(named) else jobs
