"""The scheduler Grid Engine: Son of Grid Engine and its relatives. Methods import what they need when called."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.errors import SchedulerError, SpecError
from gridtf.host import names
from gridtf.jobspec.options import of_scheduler
from gridtf.jobspec.spec import spell
from gridtf.schedulers import batch, commands
from gridtf.schedulers.api import (
    MPI_PLACE,
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    GpuNeed,
    JobIdentity,
    JobStatus,
    Parent,
    Plan,
    SubmitResult,
    Wait,
)
from gridtf.states import AGAIN_CODE

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.host.gpus import GpuGrant
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

# Patterns are not compiled until a command has failed: rendering has no use for them.
# unable to send message to qmaster using port 6444 on host "sge0": got send error
# commlib error: got select error (Connection refused)
# failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
_NO_QMASTER = (
    r"(?i)unable to (send message to|contact) qmaster|commlib error: (got|can't|error)|can't get connection|"
    r"can't connect to service|(failed|error) receiving gdi request|got (no|0) data from qmaster|"
    r"qmaster (is not|isn't) (running|reachable)"
)
# Please set the environment variable SGE_ROOT. · fopen("/opt/sge/default/common/bootstrap") failed: …
_NO_CELL = (
    r"(?i)environment variable SGE_ROOT|SGE_ROOT directory|SGE_CELL|cell directory|/common/(bootstrap|act_qmaster)|"
    r"SGE_QMASTER_PORT|could not get .*service"
)
_OPENING = r"(?i)^((critical )?error|fatal|warning|unable to run job): *"
_CLOSING = ("", "Exiting.", "Unable to run job.")


class GridEngine(batch.BatchScheduler):
    """Jobs of a Grid Engine cell. A job's id is Grid Engine's own, ``4711`` or, in an array, ``4711.3``."""

    name = "sge"
    title = "Grid Engine"
    directive_prefix = "#$"
    options = (
        *batch.BatchScheduler.options,
        of_scheduler("pe", "--pe", "NAME", "Grid Engine's parallel environment"),
        of_scheduler("slots", "--slots", "N[-M]", "Grid Engine's slots", kind="size"),
        of_scheduler("gpu_resource", "--gpu-resource", "NAME", "the site's name of its GPU resource (default: gpu)"),
        of_scheduler("gpu_variable", "--gpu-variable", "NAME", "the variable that lists the GPUs the site grants"),
        batch.EXCLUDE,
        batch.NOTIFY,
    )
    inherits_environment = False  # qsub without -V
    warnings = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # qsub(1), -notify: before STOP, before KILL
    last_warnings = frozenset({signal.SIGUSR2})
    announces_limits = True
    # QRSH_: how qrsh passes its remote half the command to start
    place_variables = re.compile(rf"QRSH_|{MPI_PLACE}")
    # What sge_shepherd sets on each host: its temporary folder, the queue instance, resource maps.
    host_variables = re.compile(
        r"HOSTNAME|TMPDIR|TMP|QUEUE|ARC|SGE_(ARCH|BINARY_PATH|JOB_SPOOL_DIR|STD(IN|OUT|ERR)_PATH|HGR_.*|GPU)|"
        r"PE_HOSTFILE"
    )
    start_variables = ("JOB_ID", "SGE_TASK_ID", "RESTARTED")
    name_variable = "JOB_NAME"
    accounting_delay = 20.0  # accounting_flush_time in sge_conf(5) is mostly 15 s
    list_command = "qstat -u $USER"
    server_variables = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT")
    query_patience = 10.0  # short: the run directory says most about a running job

    # --- on the login node

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
        return super().resolve(spec, in_job=in_job)

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return "SGE_ROOT" in environ and commands.on_path("qsub", environ)  # other schedulers have a qsub, too

    def out_of_order(self, environ: Mapping[str, str]) -> str:
        root = environ.get("SGE_ROOT")
        if commands.on_path("qsub", environ):
            return "" if root else "qsub is installed, but SGE_ROOT is not set (Grid Engine's settings.sh sets it)"
        lines = f"source {root}/{environ.get('SGE_CELL') or 'default'}/common/settings.sh, or load its module"
        return f"SGE_ROOT is set, but qsub is not on the PATH ({lines})" if root else ""

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        from gridtf.schedulers.sge import examine

        return examine.examine(given)

    def parse_native(self, native: Sequence[str]) -> Mapping[str, str]:
        from gridtf.schedulers.sge import directives

        return directives.parse_native(native)

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        from gridtf.schedulers.sge import directives

        return directives.array_elements(native)

    def is_exclusive(self, request: Request) -> bool:
        # complex(5): so sites call their resource of relation EXCL
        return any(request.native.get(f"l {name}", "").lower() in ("1", "true") for name in ("exclusive", "excl"))

    def slots(self, request: Request) -> str:
        from gridtf.schedulers.sge import directives

        return str(directives.slots(request))

    def directives(self, plan: Plan) -> tuple[str, ...]:
        """Pure, except that qconf is asked how GPUs are counted, and which parallel environments there are."""
        from gridtf.schedulers.sge import directives

        here, gpu = self.is_available(os.environ), None
        try:
            if here and directives.requests_gpus(plan.request) and directives.slots(plan.request).high > 1:
                from gridtf.schedulers.sge import advice

                gpu = advice.gpu_resource(plan.request)
            return directives.directives(plan, gpu)
        except SpecError as error:
            if error.key != "pe" or plan.spec.pe is not None or not here:
                raise
            from gridtf.schedulers.sge import advice

            advice.name_pes(error, plan)
            raise

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        from gridtf.schedulers.sge import directives

        return directives.submit_command(plan)

    def check(self, plan: Plan) -> Sequence[str]:
        from gridtf.schedulers.sge import advice

        batch.check_shared(plan)
        return advice.check(plan)

    def submit(self, plan: Plan) -> SubmitResult:
        from gridtf.schedulers.sge import submit

        return submit.submit(plan, super().submit)

    def parse_job_id(self, output: str) -> str:
        from gridtf.schedulers.sge import submit

        return submit.parse_job_id(output)

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        from gridtf.schedulers.sge import query

        return query.submitted(plan)

    def outcome_unknown(self, answer: commands.Answer) -> bool:
        # failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
        text = f"{answer.err}\n{answer.out}"
        return re.search(r"(fail|error)\w* receiving|receive timeout", text, re.IGNORECASE) is not None

    def query_command(self, jobs: Sequence[JobIdentity]) -> Sequence[str]:
        from gridtf.schedulers.sge import query

        return query.command(jobs)

    def parse_query(self, output: str, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        from gridtf.schedulers.sge import query

        return query.statuses(output, jobs)

    def accounting(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        from gridtf.schedulers.sge import query

        return query.accounting(jobs)

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        from gridtf.schedulers.sge import query

        return query.run_dirs(job_id)

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        if not force:
            super().cancel(job)
            return
        from gridtf.schedulers.sge import submit

        submit.cancel_by_force(job, self.cancel_command(job, force))

    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        number, _, element = job.job_id.partition(".")
        if not number.isdecimal():  # qdel takes names and patterns as well, and knows no --
            raise SchedulerError(f"{job.job_id} is not a Grid Engine job id")
        return ["qdel", *(["-f"] if force else []), number, *(["-t", element] if element else [])]

    # --- its commands

    def locate(self, command: str) -> str:
        return _locate(command, os.environ)

    def unreachable(self, answer: commands.Answer) -> bool:
        text = f"{answer.err}\n{answer.out}"
        return any(re.search(pattern, text) for pattern in (_NO_QMASTER, _NO_CELL))

    def unknown_job(self, answer: commands.Answer) -> bool:
        # denied: job "4711" does not exist · job "4711" task "7" does not exist · Following jobs do not exist:
        return re.search(r"\bjobs?\b.* do(es)? not exist", f"{answer.err}\n{answer.out}", re.IGNORECASE) is not None

    def message(self, answer: commands.Answer) -> str:
        """The most specific line of a command's error messages, without prefixes such as ``error:``."""
        lines = _lines(f"{answer.err}\n{answer.out}")
        specific = [line for line in reversed(lines) if re.search(_NO_QMASTER, line)]
        specific += [line for line in lines if re.search(_NO_CELL, line)] + _lines(answer.err or answer.out)[-1:]
        return specific[0] if specific else f"exit code {answer.code}"

    def no_answer(self, message: str) -> commands.NoAnswerError:
        """The error for a qmaster that does not answer, or a cell that the commands do not find."""
        if re.search(_NO_CELL, message) and not re.search(_NO_QMASTER, message):
            return commands.NoAnswerError(
                f"Grid Engine's commands do not find their cell: {message}",
                hint="load Grid Engine's settings: `source $SGE_ROOT/$SGE_CELL/common/settings.sh` or `module load`",
            )
        host = _qmaster(os.environ)
        what = f"Grid Engine's qmaster{f' on {host}' if host else ''} does not answer: {message}"
        return commands.NoAnswerError(what, hint=commands.TRY_LATER)

    # --- inside a job

    def is_current(self, environ: Mapping[str, str]) -> bool:
        if "SGE_TASK_ID" not in environ or "JOB_ID" not in environ:
            return False
        # a job of another scheduler that was submitted from a Grid Engine job inherits its variables, not its folder
        return "SGE_JOB_SPOOL_DIR" not in environ or files.is_folder(environ["SGE_JOB_SPOOL_DIR"])

    def unannounced(self) -> str:
        from gridtf.schedulers.sge import injob

        if injob.shepherd_pid() is None:
            return ""
        return (
            "this shell belongs to a Grid Engine job, but lacks the job's variables (qlogin): tasks run on this host "
            "only; `qrsh -pe PE SLOTS bash` starts a shell that knows the job's hosts"
        )

    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        from gridtf.schedulers.sge import injob

        return injob.identity(environ)

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        from gridtf.host import gpus
        from gridtf.host.processes import tell
        from gridtf.schedulers.sge import injob, query

        lines = injob.allocated_hosts(environ, self.this_host(environ))
        given = injob.allocation(lines, request, lambda: query.job_requests(environ["JOB_ID"]))
        for note in (
            injob.unused_gpus(given, request, lambda: gpus.present(environ)),
            injob.narrow_binding(lines),
            injob.other_layout(given, request, environ.get("PE", "")),
        ):
            if note:
                tell(note)
        return given

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """The agent of this host is forked: qrsh takes a second, and may not be allowed here (job_is_first_task)."""
        from gridtf.schedulers.sge import injob

        watch = injob.ShepherdWatch(self.this_host(environ))
        return [*super().start_agents(allocation, call, environ), watch]

    def this_host(self, environ: Mapping[str, str]) -> str:
        """What Grid Engine calls this host: HOSTNAME, unless it is another host's, as qsub -V may copy it."""
        name = os.uname().nodename
        given = environ.get("HOSTNAME", name)
        return given if names.same_host(given, name) else name

    def _instance(self, environ: Mapping[str, str]) -> str:
        """The queue instance of the job script."""
        return f"{environ.get('QUEUE', '')}@{self.this_host(environ)}"

    def agent_command(self, host: str, call: AgentCall, environ: Mapping[str, str]) -> Sequence[str]:
        from gridtf.schedulers.sge import injob

        return injob.qrsh_command(_locate("qrsh", environ), host, call)

    def agent_end(self, host: str, code: int, printed: Sequence[str]) -> AgentEnd:
        from gridtf.schedulers.sge import injob

        return injob.agent_end(host, os.environ.get("PE", ""), code, printed)

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        from gridtf.schedulers.sge import gpu_grant

        resource, variable = request.options["gpu_resource"], request.options.get("gpu_variable")
        return gpu_grant.gpu_grant(environ, resource, need, wait, variable)

    def variables_of_host(self, request: Request) -> re.Pattern[str] | None:
        variable = request.options.get("gpu_variable")
        return re.compile(f"{self.host_variables.pattern}|{variable}") if variable else self.host_variables

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        from gridtf.schedulers.sge import injob

        return injob.termination_reason(self.identity(environ).job_id, self._instance(environ))

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        from gridtf.schedulers.sge import injob

        return injob.end_of_job(environ["JOB_ID"], self._instance(environ), request.walltime, started)

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        from gridtf.schedulers.sge import injob

        return injob.why_not_again(self.identity(environ).job_id)

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        return AGAIN_CODE

    def suspended(self, environ: Mapping[str, str]) -> bool | None:
        from gridtf.schedulers.sge import injob

        return injob.suspended(self.identity(environ).job_id)


def _locate(command: str, environ: Mapping[str, str]) -> str:
    """The path of a command of Grid Engine; its bare name when it is not found.

    In a job, PATH has no commands of Grid Engine, but SGE_BINARY_PATH names their folder. On a login node, commands
    below SGE_ROOT are preferred to those on PATH, where some distributions put slow shell scripts.
    """
    folders = [Path(environ["SGE_BINARY_PATH"])] if environ.get("SGE_BINARY_PATH") else []
    if environ.get("SGE_ROOT"):
        folders += sorted(Path(environ["SGE_ROOT"], "bin").glob("*"))
    return next((str(folder / command) for folder in folders if os.access(folder / command, os.X_OK)), command)


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [plain for line in lines if line not in _CLOSING and (plain := re.sub(_OPENING, "", line))]


def _qmaster(environ: Mapping[str, str]) -> str:
    """The host in $SGE_ROOT/$SGE_CELL/common/act_qmaster; empty where it cannot be read."""
    file = Path(environ.get("SGE_ROOT") or "/", environ.get("SGE_CELL") or "default", "common/act_qmaster")
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


scheduler = GridEngine()
