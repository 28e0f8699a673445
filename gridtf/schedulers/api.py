"""The seam between gridtf and a scheduler: the base class, and the values that cross it.

A scheduler has two halves. On the login node it returns the directives of a job script, submits the script and reports
the status of jobs. Inside a job it returns the hosts of the job and starts an agent on each of them. The life of a job,
in the order in which gridtf calls a scheduler:

1. ``is_available`` (unless the user names a scheduler), ``resolve``, ``directives`` and ``submit_command``: what
   `gridtf render` prints. None of them needs the run directory to exist.
2. ``check`` and ``submit``, with the script in its run directory; ``query``, ``accounting`` and ``cancel``, any number
   of times, from any host where the scheduler's commands work.
3. In the job: ``is_current`` (in hand-written scripts), ``identity``, ``allocation``, ``start_agents``; on every host
   ``gpu_grant``; ``suspended`` when the heartbeat of another process stops, ``termination_reason`` after a signal that
   ends the job; ``end_of_job`` before a checkpoint is requested, ``why_not_again`` and ``start_again`` when a job has
   saved one.

A plugin derives from Scheduler, or from batch.BatchScheduler, which has everything that schedulers with a submit
command, a queue command and a cancel command share; docs/schedulers.md shows how.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gridtf.errors import GridtfError, SpecError
from gridtf.states import JobState
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.findings import Examination
    from gridtf.host.gpus import GpuGrant
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.options import Option
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec
    from gridtf.run.rundir import Record

# The version of this seam. A plugin that was written for another version is skipped with a warning.
API_VERSION = 1


class Plan(Value):
    """A submission as a value, from which both `gridtf render` and `gridtf submit` start.

    Attributes:
        spec: The user's specification.
        request: The resources to request from this scheduler, worked out from the specification.
        run_dir: Absolute path of the run directory.
        python: Absolute path of the interpreter that gridtf runs under, also in the job.
        bootstrap: Absolute path of gridtf-bootstrap.sh.
        sources: Where each value of the specification comes from, such as ``nodes`` -> ``gridtf.toml:3``.
        trusted: Ids of users who may own the template, besides this user and root; None: any user.
        script: Text of the job script, once it is rendered.
    """

    spec: JobSpec
    request: Request
    run_dir: Path
    python: str
    bootstrap: Path
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None
    script: str = ""

    @property
    def scheduler(self) -> str:
        """The scheduler's name."""
        return self.request.scheduler


class JobIdentity(Value):
    """What identifies a job to its scheduler.

    Attributes:
        job_id: The scheduler's id of the job; for an element of an array, with the element.
        details: What the scheduler's query and cancel need besides the id, kept in submitted.json: plain JSON values.
        user: Name of the user who submitted the job; empty where it is not known.
        host: The host that the job was submitted from, or that a local job runs on.
        element: Inside a job: the element of the job array; empty for a single job.
        restarts: Inside a job: differs between the starts of a job that the scheduler may start several times.
    """

    job_id: str
    details: Mapping[str, Any] = {}
    user: str = ""
    host: str = ""
    element: str = ""
    restarts: str = "0"

    def to_record(self) -> Record:
        """The entries of submitted.json that identify the job."""
        element = {"element": self.element} if self.element else {}
        return {"job_id": self.job_id, **element, **self.details}

    @classmethod
    def from_record(cls, record: Record) -> JobIdentity:
        """Read the identity from a submitted.json, also from one of an earlier version of gridtf."""
        fields = ("job_id", "user", "host", "element", "restarts")
        known = {name: str(record[name]) for name in fields if name in record}
        return cls(details={name: value for name, value in record.items() if name not in known}, **known)


class SubmitResult(Value):
    """A job that the scheduler has accepted.

    Attributes:
        job: Its identity.
        notes: Notes for the user, one line each.
    """

    job: JobIdentity
    notes: tuple[str, ...] = ()


class JobStatus(Value):
    """The status of a job, as its scheduler reports it.

    Attributes:
        state: The state of the job.
        reason: Why it is in this state, in one line; often empty.
        purged: The scheduler no longer knows the job; how it ended is unknown.
        requeued: This start of the job has ended, and it will be started again.
        expected: When the scheduler expects a job that is PENDING to start, in seconds since the epoch; None where it
            does not say so.
        starting: A job that is RUNNING was handed to its host, which has not confirmed the start: it may be lost.
    """

    state: JobState
    reason: str = ""
    purged: bool = False
    requeued: bool = False
    expected: float | None = None
    starting: bool = False


LOOPBACK = "127.0.0.1"  # the address of a host that is this machine


class Host(Value):
    """One host of an allocation.

    Attributes:
        name: The scheduler's name for the host.
        slots: Most training tasks on the host if they use no GPUs, or if tasks_per_node sets the limit.
        gpus: Number of GPUs of the job on the host; None where it is not known.
        cpus: Number of CPUs of the job on the host; None where it is not known.
        address: Address at which other hosts reach the host; None: its name.
        component: Index of the component of the job (jobspec.request.Component) that the host belongs to.
    """

    name: str
    slots: int
    gpus: int | None = None
    cpus: int | None = None
    address: str | None = None
    component: int = 0


class Allocation(Value):
    """The hosts that the scheduler has allocated to this job.

    Attributes:
        hosts: The hosts in the order in which tasks are numbered, those of component 0 first.
        gpus: GPUs of this host, if the launcher had to claim them for the agent that it starts here.
    """

    hosts: tuple[Host, ...]
    gpus: GpuGrant | None = None


class GpuNeed(Value):
    """The GPUs that a process needs on its host.

    Attributes:
        count: Number of GPUs; None for a process of gridtf_join without a number: its own share, or what the processes
            of the host share.
        owner: One line that names the job to others that wait for these GPUs.
        patience: Seconds to wait for GPUs that are in use.
    """

    count: int | None
    owner: str
    patience: float


# wait(reason, seconds): waits, shows the user why, and raises an error if the job receives a signal that ends it.
Wait = Callable[[str, float], None]


class AgentMain(Protocol):
    """The agent's main function, for a scheduler that can fork an agent."""

    def __call__(self, arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
        """Run the agent. Returns its exit code."""


class AgentCall(Value):
    """How to start agents: the agent of HOST has the command line ``*command HOST *arguments``.

    Attributes:
        arguments: Arguments after HOST.
        main: The agent's main function, to be called in a forked process with HOST and arguments.
        command: Command before HOST, for an agent that is not forked. As HOST it accepts ``@NAME``, the value of the
            variable NAME on the agent's host.
        log: The file that agents, and the program that starts them, print to.
        outlives: Whether the job may go on with another attempt when a host is lost, so that the program that starts
            agents must not end the job then.
        restarted: Whether agents of an earlier attempt were started on these hosts. They have ended, but the scheduler
            may not have noticed yet.
    """

    arguments: tuple[str, ...]
    main: AgentMain
    command: tuple[str, ...]
    log: Path
    outlives: bool = False
    restarted: bool = False


class AgentEnd(Value):
    """How an agent has ended.

    Attributes:
        code: Its exit code, or minus the number of the signal that ended it.
        host: Its host; None where it is not known.
        messages: Lines about its end from the program that started it; often empty.
        error: The error to report, if the scheduler knows a better one than the exit code.
        again: Whether it was never started, and another attempt may succeed.
    """

    code: int
    host: str | None
    messages: tuple[str, ...] = ()
    error: GridtfError | None = None
    again: bool = False


class AgentHandle(Protocol):
    """One or more agents that were started together."""

    def poll(self) -> AgentEnd | None:
        """Return how the first agent that ended has ended; None while all run."""

    def terminate(self) -> None:
        """Make the agents end their tasks, and then themselves."""

    def kill(self) -> None:
        """End the agents at once."""


class Parent(Value):
    """The process that started this one, as it was at the start.

    Attributes:
        pid: Its process id.
        name: Its command name, such as ``slurmstepd``.
    """

    pid: int
    name: str


class RankVariables(Value):
    """The variables in which a program that starts several processes, such as srun, passes each process its rank.

    Attributes:
        rank: The variable with the process's rank, from 0 on.
        size: The variable with the number of processes.
        step: The variables that together identify this start: equal in all of its processes and in no others.
        reused: Whether their values repeat when the job is started again.
    """

    rank: str
    size: str
    step: tuple[str, ...] = ()
    reused: bool = False


# Rank and size in Open MPI, and in programs that speak PMI.
MPI_RANKS = (
    RankVariables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    RankVariables("PMI_RANK", "PMI_SIZE", ("PMI_JOBID",), reused=True),
)

# Variables by which Open MPI, MPICH, PMI and PMIx pass a process its rank among those started together.
# What sbatch, salloc, srun, qsub and qrsh call a job whose user has given it no name.
_NOT_GIVEN = r"|wrap|sbatch|interactive|STDIN|Q(R?LOGIN|RSH)|(ba)?sh|.*\.(sh|bash|sbatch|slurm|qsub|sge|job|batch)"
MPI_PLACE = r"OMPI_COMM_WORLD_|OMPI_MCA_(orte|ess|pmix)_|OMPI_UNIVERSE_SIZE$|PMIX?_|MPI_LOCAL(RANKID|NRANKS)$|MV2_COMM_"


class Scheduler(ABC):
    """One kind of scheduler, both halves: on the login node, and inside a job.

    Attributes:
        api_version: The version of this seam that the scheduler was written for.
        name: The scheduler's name for users: ``--scheduler NAME``.
        title: The scheduler's name in messages.
        directive_prefix: Beginning of the lines in a script's head that the scheduler reads, such as ``#SBATCH``.
        template: Path of the scheduler's own template of the job script; None: job.sh.j2.
        options: Options that only some schedulers have: keys of the job file and flags of the command line, with their
            help. Texts are checked to be one line, anything else by resolve. If the user sets an option that the
            scheduler does not have, a note says so.
        requests_memory: Whether memory is requested from the scheduler.
        takes_native: Whether the scheduler accepts the user's raw options.
        inherits_environment: Whether a job inherits the environment of the shell that submits it.
        warnings: Signals that the scheduler sends to all processes of a job, including tasks, as a warning.
        last_warnings: Those warnings that announce the end of the job.
        announces_limits: Whether one of the last warnings announces every time limit, so that another signal is none,
            even where termination_reason infers one.
        place_variables: Variables that pass a process its rank among those started together, matched from the beginning
            of a name. An agent's rank is not that of its tasks, so these variables are removed for tasks.
        host_variables: Variables, matched in full, that every host sets for itself: where the job's environment reaches
            other hosts through a file, each host keeps its own values.
        rank_variables: The variables in which the scheduler's own starter of processes passes rank and size, for
            gridtf_join; None without such a starter.
        restart_variable: The variable that counts how often a job was restarted; it may be unset in a job that was not.
            Empty: there is none.
        name_variable: The variable that has the job's name in a job script. Empty: there is none.
        start_variables: Variables that together identify this start of a job, for gridtf_join where the user sets RANK
            and WORLD_SIZE.
        accounting_delay: Seconds after the end of a job until the accounting has it; 0: at once, or no accounting.
    """

    api_version: ClassVar[int] = API_VERSION
    name: ClassVar[str]
    title: ClassVar[str]
    directive_prefix: ClassVar[str] = ""
    template: ClassVar[Path | None] = None
    options: ClassVar[tuple[Option, ...]] = ()
    requests_memory: ClassVar[bool] = True
    takes_native: ClassVar[bool] = True
    inherits_environment: ClassVar[bool] = True
    warnings: ClassVar[frozenset[int]] = frozenset()
    last_warnings: ClassVar[frozenset[int]] = frozenset()
    announces_limits: ClassVar[bool] = False
    place_variables: ClassVar[re.Pattern[str]] = re.compile(MPI_PLACE)
    host_variables: ClassVar[re.Pattern[str] | None] = None
    rank_variables: ClassVar[RankVariables | None] = None
    restart_variable: ClassVar[str] = ""
    name_variable: ClassVar[str] = ""
    start_variables: ClassVar[tuple[str, ...]] = ()
    accounting_delay: float = 0.0

    # --- on the login node

    @abstractmethod
    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Whether jobs can be submitted to this scheduler from this machine."""

    def out_of_order(self, environ: Mapping[str, str]) -> str:
        """Why a scheduler that is not available has commands on this machine all the same.

        A job that nobody has sent to this machine must not run there because the scheduler is not set up. Only
        gridtf's own schedulers are asked.

        Args:
            environ: The environment; is_available is false in it.

        Returns:
            One line; empty where the scheduler has no commands.
        """
        return ""

    def given_name(self, environ: Mapping[str, str]) -> str | None:
        """The name that a user has given the job of a hand-written script, such as by ``#SBATCH --job-name``. Pure.

        Args:
            environ: The environment of the script, or of a process that it has started.

        Returns:
            As a name of gridtf's; None where the scheduler has called the job after the script or the command.
        """
        from gridtf.jobspec.spec import as_name

        name = environ.get(self.name_variable, "") if self.name_variable else ""
        # ENVIRONMENT is BATCH in scripts of Slurm (sbatch(1)) and of Grid Engine (qsub(1))
        if environ.get("ENVIRONMENT") != "BATCH" or re.fullmatch(_NOT_GIVEN, name):
            return None
        return as_name(name) or None

    @abstractmethod
    def directives(self, plan: Plan) -> tuple[str, ...]:
        """The options in the head of the job script. Pure.

        Returns:
            One option per line, without the prefix.

        Raises:
            SpecError: For a request that the scheduler does not support.
        """

    def slots(self, request: Request) -> str:
        """The number of slots that a job requests of a scheduler that chooses hosts for slots: ``8``, ``4-8``. Pure.

        Args:
            request: What the job requests.

        Returns:
            The number or range; empty where the job requests hosts.

        Raises:
            SpecError: For a request that the scheduler does not support.
        """
        return ""

    @abstractmethod
    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        """The command that submits the job script, which it reads from standard input. Pure.

        Raises:
            SpecError: For a run directory that the command would misread.
        """

    @abstractmethod
    def submit(self, plan: Plan) -> SubmitResult:
        """Submit plan.script: its text, since another user may exchange a folder above job.sh.

        Returns:
            The job, and notes for the user.

        Raises:
            SchedulerError: When the scheduler refuses the job, or does not answer.
            MaybeSubmittedError: When it is not known whether the job was submitted.
        """

    @abstractmethod
    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """Query the status of jobs, all in one call.

        Returns:
            Job id -> status. A job that the scheduler no longer knows is ``purged``.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """

    @abstractmethod
    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        """End a job. It is no error if the job has already ended.

        Args:
            job: The job.
            force: The job did not end after a first call.

        Raises:
            SchedulerError: When the scheduler refuses, or does not answer.
        """

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        """Work out the resources to request from this scheduler. Pure.

        Args:
            spec: The user's specification.
            in_job: Whether this runs inside the job: then memory, raw options and array elements are left out.

        Returns:
            The request: hosts, tasks, GPUs, CPUs, memory and walltime.

        Raises:
            SpecError: When the specification contradicts itself, or the scheduler cannot provide it.
        """
        from gridtf.jobspec import request  # `gridtf list` and `status` need none of it

        memory = self.requests_memory and not in_job
        made = request.resolve(spec, self.name, options=self.options, memory=memory)
        if in_job:
            return made
        if made.spare_nodes and made.nodes[1] == 1:
            what = "a job of one host cannot go on without the host, which its launcher is on"
            raise SpecError("spare_nodes", what, hint="leave it out, or request more nodes or workers")
        native = self.parse_native(spec.native)
        return made.replace(native=native, elements=self.array_elements(native))

    def parse_native(self, native: Sequence[str]) -> Mapping[str, str]:
        """Parse the user's raw options. Pure.

        Args:
            native: Raw options as the user wrote them, one or several a string.

        Returns:
            Option -> value, in a form of the scheduler's own; it becomes Request.native.

        Raises:
            SpecError: For text that is not an option.
        """
        return {}

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        """The elements of the job array that the raw options request. Pure.

        Args:
            native: As parse_native returned it.

        Returns:
            The elements in order; empty for a single job.

        Raises:
            SpecError: When the list of elements cannot be parsed.
        """
        return ()

    def check(self, plan: Plan) -> Sequence[str]:
        """Check, before the submission, whether the site can run plan.script.

        Returns:
            Notes for the user, one line each.

        Raises:
            SpecError: For a request that the site can never fulfil, with what it offers instead.
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    def server(self, job: JobIdentity, environ: Mapping[str, str]) -> str:
        """What tells the server that query and accounting ask about a job from others that the same commands may ask.

        Commands of a user share the answers of a server (answers.py), since it serves all users. Pure.

        Args:
            job: The job.
            environ: The environment of the commands.

        Returns:
            Any text; empty where they ask no server, as on this machine: then each command asks for itself.
        """
        return ""

    def accounting(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """Query the accounting for the status of jobs that query no longer knows, all in one call.

        Returns:
            Job id -> status; jobs that the accounting does not have are missing.
        """
        return {}

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        """Find where the run directory of a job may be that is not in this user's index of runs.

        Returns:
            Possible paths, the most likely one first; empty for an unknown job.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    def examine(self, environ: Mapping[str, str], given: Configured) -> Examination:
        """Examine, for `gridtf doctor`, the site's scheduler as far as this machine shows it.

        Args:
            environ: The environment.
            given: What the site's file, the user's file and variables set: that needs no other setting.

        Returns:
            Findings, and the settings that jobs need here. `gridtf doctor` gives it eight seconds.

        Raises:
            SchedulerError: When the scheduler does not answer. It becomes a finding.
        """
        from gridtf.findings import Examination

        return Examination()

    # --- inside a job

    @property
    def starters(self) -> tuple[RankVariables, ...]:
        """The rank variables of all programs that may start the processes of a job, the innermost program first."""
        return (*MPI_RANKS, self.rank_variables) if self.rank_variables else MPI_RANKS

    @abstractmethod
    def is_current(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with this environment runs inside a job of this scheduler."""

    @abstractmethod
    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        """The job that a process with this environment runs in."""

    @abstractmethod
    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        """The hosts of this job.

        Args:
            environ: The job's environment.
            request: What the job requests.
            wait: To be called again and again, with a reason and seconds, while the allocation has to be waited for.

        Raises:
            PlacementError: When the job has less than the request.
            SchedulerError: When the allocation cannot be read.
        """

    @abstractmethod
    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """Start an agent on every host.

        Args:
            allocation: The hosts, as allocation returned them.
            call: How to start an agent.
            environ: The environment of agents and tasks.

        Returns:
            Handles that together stand for all agents.

        Raises:
            SchedulerError: When a program that starts agents cannot be run.
        """

    def is_exclusive(self, request: Request) -> bool:
        """Whether a request keeps other users' jobs off the hosts of the job. Pure.

        Args:
            request: What the job requests.
        """
        return False

    def this_host(self, environ: Mapping[str, str]) -> str:
        """The scheduler's name for the host of this process, which has this environment."""
        return os.uname().nodename

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        """The GPUs that this process may use on its host.

        Args:
            environ: The environment of this process.
            request: What the job requests.
            need: The GPUs that the process needs.
            wait: To be called again and again, with a reason and seconds, while GPUs have to be waited for.

        Returns:
            The GPUs, by the ids that CUDA_VISIBLE_DEVICES has on this host.

        Raises:
            PlacementError: When there are too few.
        """
        from gridtf.host.gpus import GpuGrant, granted

        return GpuGrant(granted(environ))

    def variables_of_host(self, request: Request) -> re.Pattern[str] | None:
        """host_variables, and those that a request names. Pure.

        Args:
            request: What the job requests.
        """
        return self.host_variables

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        """Find out, after a signal that ends the job, the final status that the scheduler will report.

        Args:
            environ: The job's environment.
            parent: The process that started the launcher.

        Returns:
            The status; None if it is unknown.
        """
        return None

    def give_back(self, environ: Mapping[str, str]) -> bool:
        """Called by an agent that has lost its launcher, now and then, in a job that outlives lost hosts.

        A scheduler that does not end a job when the launcher's host is lost has to be told: to start it again where
        that is allowed, else to end it. As long as that host may live on, nothing is to be done.

        Args:
            environ: The agent's environment.

        Returns:
            Whether nothing is left to do.
        """
        return True

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        """When the scheduler will end this job. Asked several times, since an administrator may change it.

        Args:
            environ: The job's environment.
            request: What the job requests.
            started: When the job script started, in seconds since the epoch.

        Returns:
            Seconds since the epoch; None where the job has no limit, or it is not known.
        """
        return None if request.walltime is None else started + request.walltime

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        """Why this job cannot be started again as the same job, once its script has ended.

        Args:
            environ: The job's environment.

        Returns:
            One line; empty where start_again can be called.
        """
        return f"{self.title} does not start jobs again"

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        """Have this job started again, as the same job: the script that runs is about to end.

        Args:
            environ: The job's environment.

        Returns:
            The exit code with which the script has to end; None: any.

        Raises:
            SchedulerError: When the scheduler refuses, or does not answer.
        """
        return None

    def parent_lost(self, parent: Parent) -> str:
        """Whether the scheduler cannot learn of the job's end any more, since the process that would report it is gone.

        Args:
            parent: The process that started the launcher, and has ended.

        Returns:
            What happened, in one line; empty if the scheduler will learn of the end.
        """
        return ""

    def suspended(self, environ: Mapping[str, str]) -> bool | None:
        """Whether the job is suspended on some hosts while others go on, so that a missing heartbeat is no failure.

        Returns:
            None when the scheduler does not answer.
        """
        return False

    def unannounced(self) -> str:
        """A note for a process that runs inside a job although its environment does not show it; usually empty."""
        return ""
