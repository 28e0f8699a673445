"""Slurm. What a command does not need is not imported, and rendering runs no command."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files, text
from gridtf.errors import PlacementError, SchedulerError, SpecError
from gridtf.jobspec.request import Request
from gridtf.run.rundir import RunDir
from gridtf.schedulers import arrays, batch, commands
from gridtf.schedulers.api import (
    MPI_PLACE,
    AgentCall,
    AgentHandle,
    Allocation,
    JobIdentity,
    JobStatus,
    Parent,
    Plan,
    RankVariables,
    SubmitResult,
    Wait,
)
from gridtf.schedulers.commands import TRY_LATER, NoAnswerError
from gridtf.schedulers.slurm import submit

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.jobspec.config import Configured

_STEPD = "slurmstepd"
_LONGEST_PATH = 4096  # bytes: PATH_MAX of Linux
# What the commands read from the environment: SQUEUE_USERS=bob, handy in a shell, would hide the jobs of other users,
# and a job that is hidden looks like one that is purged.
_FILTERS = ("SQUEUE_", "SINFO_", "SACCT_")

# Since this version, steps of a job share its GPUs if they overlap (srun(1), --overlap); before, only its CPUs.
_SHARES_GPUS = (22, 5)

# Patterns are compiled only after a command has failed: rendering does not need them.
# slurm_load_jobs error: Unable to contact slurm controller (connect failure)
_UNREACHABLE = (
    r"(?i)unable to contact slurm controller|socket timed out|zero bytes were transmitted|"
    r"connection (refused|timed out)|no route to host|standby mode|transport endpoint|"
    r"batch job submission failed: i/o error"
)
# sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
_ANSWER_LOST = (
    r"(?i)socket timed out|zero bytes were transmitted|(receive|shutdown) failure|timed out reading|"
    r"quiesce timeout|delayed socket error"
)
# sbatch: error: s_p_parse_file: cannot stat file /nope: No such file or directory, retrying in 1sec up to 60sec
# Slurm 20.11: unable to status file /nope: …
_NO_FILE = r"(?:cannot stat|unable to status) file (\S*): ([^,\n]+)"
# scontrol: error while loading shared libraries: /opt/lib/libreadline.so.8: file too short
_NO_LIBRARY = r"error while loading shared libraries: .*\S|symbol lookup error: .*\S|version `\S+' not found.*\S"
# Slurmctld(primary) at ctl1 is DOWN        (scontrol(1), ping)
_PING = r"Slurmctld\(\S+\) at (\S+) is (?:UP|DOWN)"


class Slurm(batch.CommandScheduler):
    """Jobs of a Slurm cluster. A job's id is Slurm's own, ``4711`` or, in an array, ``4711_3``."""

    name = "slurm"
    title = "Slurm"
    directive_prefix = "#SBATCH"
    list_command = "squeue --me"
    server_variables = ("SLURM_CONF", "SLURM_CLUSTERS")
    # srun(1), OUTPUT ENVIRONMENT VARIABLES: an agent's own rank, and the layout of the tasks of its step
    place_variables = re.compile(
        r"SLURM_(PROCID|LOCALID|GTIDS|TASK_PID|NPROCS|NTASKS\w*|STEP_NUM_TASKS|(STEP_)?TASKS_PER_NODE\w*|"
        rf"(CPUS|TRES)_PER_TASK\w*|CPU_BIND\w*|DISTRIBUTION)$|{MPI_PLACE}"
    )
    # A batch script has SLURM_PROCID, too, but only a step has SLURM_STEP_NUM_TASKS.
    rank_variables = RankVariables(
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID"), reused=True
    )
    restart_variable = "SLURM_RESTART_COUNT"
    name_variable = "SLURM_JOB_NAME"
    options = (*batch.CommandScheduler.options, batch.EXCLUDE, batch.NOTIFY)

    # --- its commands

    def command_environment(self) -> dict[str, str]:
        environ = super().command_environment()
        kept = {name: text for name, text in environ.items() if not name.startswith(_FILTERS)}
        if self.is_current(environ):  # it names where the job was to be submitted, not where it runs
            kept.pop("SLURM_CLUSTERS", None)
        return {**kept, "SLURM_TIME_FORMAT": "%s"}  # the user's own format may be one that cannot be read back

    def message(self, answer: commands.Answer) -> str:
        return submit.complaint(f"{answer.err}\n{answer.out}") or answer.last_line

    def unreachable(self, answer: commands.Answer) -> bool:
        return re.search(_UNREACHABLE, answer.err) is not None

    def unknown_job(self, answer: commands.Answer) -> bool:
        return "Invalid job id" in answer.err

    def outcome_unknown(self, answer: commands.Answer) -> bool:
        return re.search(_ANSWER_LOST, answer.err) is not None

    def need_set_up(self, command: str, answer: commands.Answer) -> None:
        if answer.code and (missing := re.search(_NO_FILE, answer.err)):
            own = " (SLURM_CONF)" if os.environ.get("SLURM_CONF") == missing[1] else ""
            hint = "unset SLURM_CONF, or set it to the site's slurm.conf" if own else "ask the administrators"
            raise SchedulerError(f"cannot read {missing[1] or 'a file without a name'}{own}: {missing[2]}", hint=hint)
        if answer.code and (wrong := re.search(_NO_LIBRARY, answer.err)):
            hint = "unset LD_LIBRARY_PATH, or load its modules after Slurm's"
            raise SchedulerError(f"{command} does not start: {wrong[0]}", hint=hint)

    def no_answer(self, message: str) -> NoAnswerError:
        try:
            ping = commands.run_command(["scontrol", "ping"], limit=5.0).out  # whatever its exit code
        except SchedulerError:
            ping = ""
        hosts = " and ".join(re.findall(_PING, ping))
        where = f" on {hosts}" if hosts else ""
        if "is UP" in ping and "has not answered" in message:
            return NoAnswerError(f"{message}, although Slurm's controller{where} does", hint=TRY_LATER)
        return NoAnswerError(f"Slurm's controller{where} does not answer: {message}", hint=TRY_LATER)

    def try_run(self, argv: Sequence[str], *, limit: float) -> str | None:
        """Run a command whose output is useful but not necessary.

        Args:
            argv: The command.
            limit: Seconds that it may take.

        Returns:
            Its standard output; None when it fails.
        """
        try:
            answer = commands.run_command(argv, limit=limit, environ=self.command_environment())
        except SchedulerError:
            return None
        return None if answer.code else answer.out

    def without_shared_gpus(self) -> str:
        """Slurm's version, such as ``Slurm 20.11``, if steps of a job cannot share its GPUs; else empty."""
        found = re.search(r"(\d+)\.(\d+)", self.try_run(["srun", "--version"], limit=self.query_patience) or "")
        return f"Slurm {found[0]}" if found and (int(found[1]), int(found[2])) < _SHARES_GPUS else ""

    # --- on the login node

    def is_available(self, environ: Mapping[str, str]) -> bool:
        if not commands.on_path("sbatch", environ):
            return False
        if "SLURM_CONF" in environ or files.exists("/etc/slurm/slurm.conf"):
            return True
        # Installed, but without a configuration of its own: sbatch knows whether the network has one.
        return self.try_run(["sbatch", "--version"], limit=5.0) is not None

    def out_of_order(self, environ: Mapping[str, str]) -> str:
        found = commands.on_path("sbatch", environ)
        return "Slurm's sbatch is installed, but finds no configuration (see `sbatch --version`)" if found else ""

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        from gridtf.schedulers.slurm import examine

        return examine.examine(self, given)

    parse_native = staticmethod(submit.parse_native)
    directives = staticmethod(submit.directives)
    submit_command = staticmethod(submit.submit_command)

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        def complaint(part: str) -> SpecError:
            what = f"--array={native['array']}: {part!r} is not an array index"
            return SpecError("native", what, hint="write it as in --array=0-15%4")

        if "array" not in native:
            return ()
        return arrays.array_elements(native["array"].partition("%")[0], complaint)  # %4: at most 4 at a time

    def is_exclusive(self, request: Request) -> bool:
        return request.native.get("exclusive") in ("", "user", "topo")  # =mcs shares them with a group of users

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers.slurm import advice

        try:
            batch.check_shared(plan)
        except SpecError:
            show_node = ["scontrol", "show", "node", os.uname().nodename]
            if self.run(show_node, limit=self.submit_patience).code != 0:  # else a cluster of one machine
                raise
        if plan.spec.spare_nodes and plan.request.gpus_per_node and (old := self.without_shared_gpus()):
            from gridtf.schedulers.slurm import injob

            what = f"with {old} a job with GPUs does not go on after it has lost a host"
            raise SpecError("spare_nodes", what, hint=injob.NO_SPARES)
        output, log = plan.request.native.get("output"), RunDir(plan.run_dir).log
        note = f"native --output={output} has no effect: the output of the script goes to {log}"
        return (*([] if output is None else [note]), *advice.check(self, plan))

    def submit(self, plan: Plan) -> SubmitResult:
        from gridtf.schedulers.slurm import query

        result = super().submit(plan)
        details = {"local_cluster": query.local_cluster(os.environ), **result.job.details}
        return result.replace(job=result.job.replace(details={name: text for name, text in details.items() if text}))

    def parse_job_id(self, output: str) -> str:
        return submit.parse_submitted(output)[0]

    def parse_job_details(self, output: str) -> Mapping[str, str]:
        cluster = submit.parse_submitted(output)[1]  # in a federation
        return {"cluster": cluster} if cluster else {}

    def remarks(self, answer: commands.Answer) -> Sequence[str]:
        said = submit.remarks(answer.err)
        return [f"sbatch says: {said}"] if said else []

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        options = ("--noheader", "--all", "--states=all", f"--user={os.getuid()}")
        named = ",".join(submit.clusters(plan, os.environ))  # which may be all
        several, column = ([f"--clusters={named}"], "Cluster:100,") if named else ([], "")
        shown = f"--Format=ArrayJobID:20,{column}STDOUT:{_LONGEST_PATH}"
        answer = self.run(["squeue", *options, *several, shown], limit=self.query_patience)
        return submit.parse_logs(answer.out, plan.run_dir, len(plan.request.components))

    def server(self, job: JobIdentity, environ: Mapping[str, str]) -> str:
        from gridtf.schedulers.slurm import query

        return "\n".join((super().server(job, environ), *query.cluster_option(job)))

    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        from gridtf.schedulers.slurm import query

        found: dict[str, JobStatus] = {}
        for group in query.by_cluster(jobs):  # one squeue for each cluster
            found.update(super().query(group))
        return found

    def query_command(self, jobs: Sequence[JobIdentity]) -> Sequence[str]:
        from gridtf.schedulers.slurm import query

        return query.query_command(jobs, os.getuid())

    def parse_query(self, output: str, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        from gridtf.schedulers.slurm import query

        rows = query.add_details(self, query.parse_squeue(output), jobs[0])
        return query.statuses([job.job_id for job in jobs], rows)

    def accounting(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        from gridtf.schedulers.slurm import query

        return query.accounting(self, jobs)

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        from gridtf.schedulers.slurm import query

        answer = self.run(["scontrol", "-o", "show", "job", job_id], limit=self.query_patience)
        return [] if answer.code else query.parse_run_dirs(answer.out, job_id)

    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        from gridtf.schedulers.slurm import query

        kill = ["--signal=KILL", "--full"] if force else []  # --full: to the batch script as well
        return ["scancel", *query.cluster_option(job), *kill, "--", job.job_id]

    # --- inside a job

    def is_current(self, environ: Mapping[str, str]) -> bool:
        return "SLURM_JOB_ID" in environ

    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        restarts = environ.get("SLURM_RESTART_COUNT", "0")  # not set in a job that was never requeued
        details = {"local_cluster": environ["SLURM_CLUSTER_NAME"].lower()} if "SLURM_CLUSTER_NAME" in environ else {}
        array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
        if array and element:
            return JobIdentity(f"{array}_{element}", details, element=element, restarts=restarts)
        return JobIdentity(environ["SLURM_JOB_ID"], details, restarts=restarts)

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        from gridtf.schedulers.slurm import injob

        return injob.allocation(environ, request, self._gpus_of_nodes)

    def _gpus_of_nodes(self, job_id: str) -> Mapping[str, int]:
        """Query scontrol for the GPUs of a job by node. Raises SchedulerError when it does not show the job."""
        from gridtf.schedulers.slurm import query

        answer = self.run(["scontrol", "-d", "-o", "show", "job", job_id], limit=self.query_patience)
        if answer.code:
            raise SchedulerError(f"scontrol does not show job {job_id}: {self.message(answer)}")
        return query.parse_node_gpus(answer.out, job_id)

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """One srun starts all agents."""
        from gridtf.schedulers.agents import StartedAgents
        from gridtf.schedulers.slurm import injob

        held = injob.held_gpus(allocation.hosts, call, environ)
        if held and (old := self.without_shared_gpus()):
            what = f"{old} does not share GPUs between steps, and {held[0]} has those of this job"
            raise PlacementError(what, hint=held[1])
        argv = injob.srun_command(allocation.hosts, call, environ)
        parse_end = partial(injob.parse_failure, restarts=text.whole(environ.get("SLURM_RESTART_COUNT", "")) or 0)
        return [StartedAgents(argv, injob.srun_environment(environ), call.log, parse_end)]

    def this_host(self, environ: Mapping[str, str]) -> str:
        return environ.get("SLURMD_NODENAME") or super().this_host(environ)

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        from gridtf.schedulers.slurm import query

        return query.termination_reason(self, environ)

    def give_back(self, environ: Mapping[str, str]) -> bool:
        from gridtf.schedulers.slurm import query

        return query.give_back(self, environ)

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        from gridtf.schedulers.slurm import query

        end = query.end_time(self, environ)
        return super().end_of_job(environ, request, started) if end is None else end

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        from gridtf.schedulers.slurm import query

        return query.why_not_again(self, environ)

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        answer = self.run(["scontrol", "requeue", self.identity(environ).job_id], limit=self.query_patience)
        if answer.code:
            raise SchedulerError(f"Slurm does not requeue it: {self.message(answer)}")
        return None

    def parent_lost(self, parent: Parent) -> str:
        if parent.name != _STEPD:
            return ""
        return f"{_STEPD}, which had started the job script on {os.uname().nodename}, was killed"


scheduler = Slurm()
