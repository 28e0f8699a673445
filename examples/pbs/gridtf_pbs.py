"""PBS Professional and OpenPBS as a scheduler of gridtf.

Each raw format is shown at the code that parses it. They come from the manual pages qsub(1B), qstat(1B), qdel(1B) and
pbs_tmrsh(8B), and from the PBS Professional User's Guide.
"""

from __future__ import annotations

import getopt
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from gridtf.errors import PlacementError, SchedulerError, SpecError
from gridtf.host import gpus
from gridtf.jobspec.request import Request
from gridtf.run.rundir import RunDir
from gridtf.schedulers import arrays, words
from gridtf.schedulers.agents import NEEDS_ENVIRONMENT
from gridtf.schedulers.api import (
    AgentCall,
    AgentEnd,
    Allocation,
    GpuNeed,
    Host,
    JobIdentity,
    JobStatus,
    Plan,
    Scheduler,
    Wait,
)
from gridtf.schedulers.commands import Answer, Commands, on_path
from gridtf.schedulers.injob import BatchInJob
from gridtf.schedulers.login import CommandLogin, check_shared
from gridtf.states import JobState

Environ = Mapping[str, str]

# qstat(1B), "Job states": B (array that has begun), E (exiting), S (suspended) and U (suspended because a user works at
# the host) count as running.
_STATES = {**dict.fromkeys("QHWT", JobState.PENDING), **dict.fromkeys("RBESU", JobState.RUNNING)}
_DELETED = "91"  # the substate of a job that qdel has ended
# Exit statuses below zero are set by PBS. These mean that a job exceeded its vmem, mem or walltime.
_OVER = {"-26": JobState.OUT_OF_MEMORY, "-27": JobState.OUT_OF_MEMORY, "-29": JobState.TIMEOUT}

# qsub's options for getopt(3): a colon follows those with a value.
_OPTIONS = "a:A:c:C:e:fGhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"


class PBS(Scheduler):
    """Jobs of a PBS server.

    Job ids are ``1234.server``, for a job array ``1234[].server``, for an element of one ``1234[3].server``.
    """

    name = "pbs"
    title = "PBS"
    options = words.PLACE

    def is_available(self, environ: Environ) -> bool:
        return on_path("qsub", environ) and on_path("pbs_rstat", environ)  # Torque lacks the latter

    def is_current(self, environ: Environ) -> bool:
        return "PBS_JOBID" in environ and environ.get("PBS_ENVIRONMENT") in ("PBS_BATCH", "PBS_INTERACTIVE")

    @cached_property
    def login(self) -> PBSLogin:
        return PBSLogin(self)

    @cached_property
    def injob(self) -> PBSInJob:
        return PBSInJob(self)


class PBSCommands(Commands):
    """Runs PBS's commands."""

    title = "PBS"

    def run(self, argv: Sequence[str], *, limit: float, text: str = "") -> Answer:
        answer = super().run(argv, limit=limit, text=text)
        # qstat then shows no job at all, and ends with 0
        if "-x" in argv and "not configured to maintain job history" in answer.err:
            return super().run([word for word in argv if word != "-x"], limit=limit)
        return answer

    def unreachable(self, answer: Answer) -> bool:
        return bool(re.search(r"cannot connect to server|Couldn't connect to cluster|Connection refused", answer.err))

    def unknown_job(self, answer: Answer) -> bool:
        return bool(re.search(r"Unknown Job Id|Job has finished|invalid for state of job", answer.err))

    def outcome_unknown(self, answer: Answer) -> bool:
        return bool(re.search(r"End of File|Premature end of message|protocol error", answer.err))


class PBSLogin(CommandLogin):
    """Submits to a PBS server and queries it."""

    commands = PBSCommands()
    directive_prefix = "#PBS"
    list_command = "qstat -u $USER"

    def parse_native(self, native: Sequence[str]) -> Mapping[str, str]:
        """``-q gpu -l walltime=1:0:0`` -> {"-q": "gpu", "-l": "walltime=1:0:0", "-l walltime": "1:0:0"}"""
        parsed: dict[str, str] = {}
        for line in native:
            try:
                options, _ = getopt.getopt(shlex.split(line), _OPTIONS)
            except (getopt.GetoptError, ValueError) as error:
                raise SpecError("native", f"qsub does not understand {line!r}: {error}") from None
            for option, value in options:
                for part in value.split(",") if option == "-l" else ():
                    name, _, text = part.partition("=")
                    parsed[f"-l {name}"] = text
                parsed[option] = value
        return parsed

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        if "-J" not in native:
            return ()
        text = native["-J"].partition("%")[0]  # %5: no more than five at a time
        hint = "write -J FIRST-LAST or -J FIRST-LAST:STEP, such as -J 0-15:2"
        return arrays.array_elements(text, f"-J {text}", hint)

    def directives(self, plan: Plan) -> tuple[str, ...]:
        request = plan.request
        if request.components[1:]:
            key = f"tasks.{request.components[1].types[0]}.partition"
            raise SpecError(key, "all tasks of a PBS job run in one queue", hint="leave it out")
        if request.nodes[0] != request.nodes[1]:
            raise SpecError("nodes", "PBS takes a number of hosts, no range", hint=f"write {request.nodes[0]}")
        own = {"-N": words.word("name", request.name), "-l select": _select(request), "-l place": "scatter"}
        if request.walltime is not None:
            own["-l walltime"] = str(request.walltime)  # in seconds
        named = (("-q", "partition"), ("-A", "account"))
        own |= {option: words.word(key, request.options[key]) for option, key in named if key in request.options}
        own |= {"-S": "/bin/bash", "-j": "oe", "-r": "y"}
        # qsub refuses two selects, so the user's options replace gridtf's
        lines = [f"{key}{'=' if ' ' in key else ' '}{text}" for key, text in own.items() if key not in request.native]
        return (*lines, *words.native(plan.spec))

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        run = RunDir(plan.run_dir)
        if not re.fullmatch(r"[^\s,:'\"\\^]+", str(run.path)):
            key = "run_dir" if plan.spec.run_dir else "run_root"
            raise SpecError(key, f"qsub -o would misread {run.path}", hint="leave out spaces, quotes, , : ^ and \\")
        # qsub replaces ^array_index^ by the element
        log = RunDir(run.elements / "^array_index^").log if plan.request.elements else run.log
        return ("qsub", "-o", str(log))

    def check(self, plan: Plan) -> Sequence[str]:
        check_shared(plan)
        return ()

    def parse_job_id(self, output: str) -> str:
        return next(iter(re.findall(r"^\d+(?:\[\])?\.\S+$", output, re.MULTILINE)[::-1]), "")

    def find_submitted(self, plan: Plan) -> JobIdentity | None:
        name = plan.request.native.get("-N", plan.request.name)
        ids = self.commands.run(["qselect", "-N", name], limit=self.commands.query_limit).out.split()
        output = self.commands.run(["qstat", "-x", "-f", *ids], limit=self.commands.query_limit).out if ids else ""
        # Output_Path is ``login1.site:/home/ann/runs/digits-1/job.log``
        ours = [job_id for job_id, values in _jobs(output) if f":{plan.run_dir}/" in values.get("Output_Path", "")]
        return JobIdentity(ours[-1]) if ours else None

    def query_command(self, jobs: Sequence[JobIdentity]) -> Sequence[str]:
        return ["qstat", "-x", "-f", *(job.job_id for job in jobs)]

    def parse_query(self, output: str, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        return {job_id: _status(values) for job_id, values in _jobs(output)}

    def cancel_command(self, job: JobIdentity, force: bool) -> Sequence[str]:
        return ["qdel", *(["-W", "force"] if force else []), job.job_id]


class PBSInJob(BatchInJob):
    """Reads the hosts of a PBS job, and starts its agents."""

    # tm(3): each host's own pbs_mom identifies a process by these
    host_variables = re.compile(r"PBS_(NODENUM|TASKNUM|MOMPORT)")
    start_variables = ("PBS_JOBID",)

    def identity(self, environ: Environ) -> JobIdentity:
        # the cookie differs between starts; it is a password for pbs_mom, so only its hash may be written to files
        start = hashlib.sha256(environ.get("PBS_JOBCOOKIE", "").encode()).hexdigest()[:12]
        return JobIdentity(environ["PBS_JOBID"], element=environ.get("PBS_ARRAY_INDEX", ""), restarts=start)

    def allocation(self, environ: Environ, request: Request, wait: Wait) -> Allocation:
        """Read PBS_NODEFILE, which has one line for each mpiproc: the name of its host."""
        try:
            names = Path(environ.get("PBS_NODEFILE", "")).read_text().split()
        except OSError as error:
            hint = "only the first host of a job has the file"
            raise SchedulerError(f"cannot read PBS_NODEFILE: {error.strerror}", hint=hint) from None
        per_node, there = request.chosen("tasks_per_node"), request.chosen("gpus_per_node")
        if there is None:
            there = len(gpus.granted(environ)) if gpus.VISIBLE in environ else request.gpus_per_node
        cpus = _cpus(request) if request.task_cpus else None
        slots = {name: per_node or names.count(name) for name in names}
        return Allocation(tuple(Host(name, count, there, cpus) for name, count in slots.items()))

    def agent_command(self, host: str, call: AgentCall, environ: Environ) -> Sequence[str]:
        # it starts the program without a shell, and with pbs_mom's environment
        return ["pbs_tmrsh", host, "env", f"{NEEDS_ENVIRONMENT}=1", *call.command, host, *call.arguments]

    def agent_end(self, host: str, code: int, printed: Sequence[str]) -> AgentEnd:
        return AgentEnd(code, host, tuple(printed[-3:]))  # 255: pbs_tmrsh's own failure

    def gpu_grant(self, environ: Environ, request: Request, need: GpuNeed, wait: Wait) -> gpus.GpuGrant:
        """The GPUs that PBS's cgroup hook shows; without it, GPUs that no other job of gridtf has claimed."""
        if gpus.VISIBLE in environ or not need.count:
            return gpus.GpuGrant(gpus.granted(environ))
        claim = gpus.claim(need.count, gpus.idle_first(gpus.present(environ)), need.owner, environ)
        if isinstance(claim, gpus.GpuGrant):
            return claim
        raise PlacementError(f"{need.count} GPUs are needed, {claim.free} are free; {'; '.join(claim.holders)}")


def _cpus(request: Request) -> int:
    """CPUs per host."""
    return (request.task_cpus or 1) * request.tasks_per_node + request.host_non_training_cpus


def _select(request: Request) -> str:
    """``2:ncpus=8:mpiprocs=4:ompthreads=2:ngpus=4:mem=16384mb``, a chunk a host."""
    chunk = f"ncpus={_cpus(request)}:mpiprocs={request.tasks_per_node}:ompthreads={request.task_cpus or 1}"
    chunk += f":ngpus={request.gpus_per_node}" if request.gpus_per_node else ""
    chunk += f":mem={request.host_mem}mb" if request.host_mem is not None else ""
    return f"{request.nodes[0]}:{chunk}"


def _jobs(output: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Parse qstat's long format: (job id, attributes) of each job.

    Job Id: 1234.server
        Job_Name = digits
        job_state = R
        Variable_List = PBS_O_HOME=/home/ann,PBS_O_LANG=C.UTF-8,
    <tab>PBS_O_LOGNAME=ann
    """
    for block in re.split(r"^Job Id: ", output.replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        job_id, _, rest = block.partition("\n")
        yield job_id.strip(), dict(re.findall(r"^ {4}(\S+) = (.*)$", rest, re.MULTILINE))


def _status(values: Mapping[str, str]) -> JobStatus:
    state, code, comment = (values.get(name, "") for name in ("job_state", "Exit_status", "comment"))
    if state not in ("F", "X"):  # F: finished; X: finished, of an array's element
        return JobStatus(_STATES.get(state, JobState.UNKNOWN), "" if state in ("R", "E") else comment)
    if values.get("substate") == _DELETED:
        return JobStatus(JobState.CANCELLED, "deleted with qdel")
    if code == "0":
        return JobStatus(JobState.COMPLETED)
    return JobStatus(_OVER.get(code, JobState.FAILED), f"exit status {code}" if code.isdecimal() else comment)
