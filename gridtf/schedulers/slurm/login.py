"""Slurm on the login node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError, SpecError
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import Estimate, JobIdentity, JobStatus, Place, Plan, SubmitResult
from gridtf.schedulers.arrays import array_elements
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.login import CommandLogin, check_shared
from gridtf.schedulers.slurm import query, submit
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.hostlist import expand
from gridtf.text import some

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

_SSHARE = ("sshare", "--noheader", "--parsable2", "--format=Account,User,GrpTRESMins,GrpTRESRaw")
_BALANCE_LIMIT = 2.0  # seconds
_LONGEST_PATH = 4096  # bytes: PATH_MAX of Linux


class SlurmLogin(CommandLogin):
    """Submits to Slurm and queries it."""

    commands = slurm
    directive_prefix = "#SBATCH"
    version_command = ("sbatch", "--version")
    list_command = "squeue --me"
    out_of_service = ("scontrol", "update", "nodename={host}", "state=drain", "reason={reason}")
    server_variables = ("SLURM_CONF", "SLURM_CLUSTERS")
    parse_native = staticmethod(submit.parse_native)
    directives = staticmethod(submit.directives)
    submit_command = staticmethod(submit.submit_command)
    accounting = staticmethod(query.accounting)

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        from gridtf.schedulers.slurm.examine import examine

        return examine(self.scheduler, given)

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        request = super().resolve(spec, in_job=in_job)
        listed = {*expand(",".join(spec.nodelist))}
        if both := listed and listed & {*expand(",".join(spec.exclude))}:
            raise SpecError("exclude", f"nodelist has {some(sorted(both))} as well", hint="leave out one of them")
        hosts = len(listed)
        if hosts > request.allocated_nodes[1]:
            if spec.nodes is not None:
                what = f"the job must use {hosts} hosts, but nodes is {spec.nodes}"
                raise SpecError("nodelist", what, hint=f"write nodes = {hosts}, or leave some out")
            return self.resolve(spec.replace(nodes=hosts - spec.spare_nodes), in_job=in_job)
        submit.refuse_native(request)
        return request

    def with_site(self, plan: Plan) -> Plan:
        """With the partitions, whose nodes say how the site tells models of GPUs from each other."""
        models = any(component.gpu_model for component in plan.request.components)
        if models and plan.site is None and self.scheduler.is_available(os.environ):
            from gridtf.schedulers.slurm import offers

            with contextlib.suppress(SchedulerError):  # such as with PrivateData=partitions
                return plan.replace(site=offers.query_partitions(clusters=submit.clusters(plan, os.environ)))
        return plan

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        if (text := native.get("array")) is None:
            return ()
        # %4: at most 4 at a time
        return array_elements(text.partition("%")[0], f"--array={text}", "write it as in --array=0-15%4")

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers.slurm import advice

        try:
            check_shared(plan)
        except SpecError:
            show_node = ["scontrol", "show", "node", os.uname().nodename]
            if slurm.run(show_node, limit=slurm.submit_limit).code != 0:  # else a cluster of one machine
                raise
        if plan.spec.spare_nodes and plan.request.gpus_per_node and (old := slurm.without_shared_gpus()):
            from gridtf.schedulers.slurm.injob import NO_SPARES

            what = f"with {old} a job with GPUs does not go on after it has lost a host"
            raise SpecError("spare_nodes", what, hint=NO_SPARES)
        if plan.request.at_once:
            advice.check_array(plan.request)
        output, log = plan.request.native.get("output"), RunDir(plan.run_dir).log
        note = f"native --output={output} has no effect: the output of the script goes to {log}"
        return (*([] if output is None else [note]), *advice.check(plan))

    def places(self) -> Sequence[Place]:
        from gridtf.schedulers.slurm import offers

        shown = {one.name for one in offers.query_partitions(all_=False)}
        each = sorted(offers.query_partitions(), key=lambda one: not one.default)
        return [Place(p.name, p, p.name not in shown) for p in each]

    def foreseen(self, plan: Plan, places: Sequence[Place]) -> Estimate | None:
        from gridtf.schedulers.slurm import advice

        return advice.foreseen(plan, [place.offer for place in places])

    def estimate(self, plan: Plan, places: Sequence[Place]) -> Estimate:
        from gridtf.schedulers.slurm import advice

        server = self.server(JobIdentity(""), os.environ)
        return advice.estimate(
            plan, [place.offer for place in places], [one.name for one in places if one.asked], server
        )

    def balance(self, plan: Plan) -> str:
        account = plan.request.options.get("account") or ""
        chosen = [f"--accounts={account}"] if account else []
        answer = slurm.try_run([*_SSHARE, *chosen], limit=_BALANCE_LIMIT)
        return query.parse_balance(answer or "", account, plan.request.hours, plan.spec.continuations + 1)

    def submit(self, plan: Plan) -> SubmitResult:
        result = super().submit(plan)
        details = {"local_cluster": query.local_cluster(os.environ), **result.job.details}
        return result.replace(job=result.job.replace(details={name: text for name, text in details.items() if text}))

    def parse_job_id(self, output: str) -> str:
        return submit.parse_submitted(output)[0]

    def parse_job_details(self, output: str) -> Mapping[str, str]:
        cluster = submit.parse_submitted(output)[1]  # in a federation
        return {"cluster": cluster} if cluster else {}

    def remarks(self, answer: Answer) -> Sequence[str]:
        said = submit.remarks(answer.err)
        return [f"sbatch says: {said}"] if said else []

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        options = ("--noheader", "--all", "--states=all", f"--user={os.getuid()}")
        named = ",".join(submit.clusters(plan, os.environ))  # which may be all
        several, column = ([f"--clusters={named}"], "Cluster:100,") if named else ([], "")
        shown = f"--Format=ArrayJobID:20,{column}STDOUT:{_LONGEST_PATH}"
        answer = slurm.run(["squeue", *options, *several, shown], limit=slurm.query_limit)
        return submit.parse_logs(answer.out, plan.run_dir, len(plan.request.components))

    def cluster(self, environ: Mapping[str, str]) -> str:
        return f"slurm:{environ.get('SLURM_CLUSTER_NAME', '').lower() or query.local_cluster(environ)}"

    def room(self, plan: Plan) -> tuple[dict[str, int], int]:
        from gridtf.schedulers.slurm import advice

        return advice.room(plan)

    def server(self, job: JobIdentity, environ: Mapping[str, str]) -> str:
        return "\n".join((super().server(job, environ), *query.cluster_option(job)))

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        found: dict[str, JobStatus] = {}
        for group in query.by_cluster(jobs):  # one squeue for each cluster
            found.update(super().query(group))
        return found

    def query_command(self, jobs: Sequence[JobIdentity]) -> Sequence[str]:
        return query.query_command(jobs, os.getuid())

    def parse_query(self, output: str, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        rows = query.add_details(query.parse_squeue(output), jobs[0])
        return query.statuses([job.job_id for job in jobs], rows)

    def beside(self, job: JobIdentity, host: str) -> Sequence[str]:
        # The agents' step has all resources. Unless it is told so, Slurm passes on what is printed in lines.
        shared = "--overlap --overcommit --gres=none --mem=0 --mpi=none"
        one = f"--nodes=1 --ntasks=1 --nodelist={host} --job-name=gridtf-exec --export=ALL --quiet --unbuffered"
        return ("srun", f"--jobid={job.job_id}", *f"{one} {shared}".split())

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        answer = slurm.run(["scontrol", "-o", "show", "job", job_id], limit=slurm.query_limit)
        return [] if answer.code else query.parse_run_dirs(answer.out, job_id)

    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        return self.cancel_together_command([job], force)

    def cancel_together_command(self, jobs: Sequence[JobIdentity], force: bool) -> Sequence[str]:
        kill = ["--signal=KILL", "--full"] if force else []  # --full: to the batch script as well
        return ["scancel", *query.cluster_option(jobs[0]), *kill, "--", *(job.job_id for job in jobs)]
