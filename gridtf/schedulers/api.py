"""The seam between gridtf and a scheduler: the base class, and the values that cross it.

A scheduler has two halves. On the login node it says which lines the head of a job script needs, hands the script over
and tells how jobs stand. Inside a job it says which hosts the job was given and starts an agent on each of them. The
life of a job, in the order in which gridtf calls a scheduler:

1. ``is_available`` (unless the user names a scheduler), ``resolve``, ``directives`` and ``submit_command``: what
   `gridtf render` prints. None of them needs the run directory to exist.
2. ``check`` and ``submit``, with the script in its run directory; ``query``, ``accounting`` and ``cancel``, any number
   of times, from any host where the scheduler's commands work.
3. In the job: ``is_current`` (in hand-written scripts), ``identity``, ``allocation``, ``start_agents``; on every host
   ``gpu_grant``; ``suspended`` when another process falls silent, ``termination_reason`` after a signal that ends the
   job.

A plugin derives from Scheduler, or from batch.BatchScheduler, which has all that schedulers with a submit command, a
queue command and a cancel command share; docs/schedulers.md shows how.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from gridtf.states import JobState

if TYPE_CHECKING:
    from gridtf.errors import GridtfError
    from gridtf.host.gpus import GpuGrant
    from gridtf.jobspec.options import Option
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec
    from gridtf.run.rundir import Record

# The version of this seam. A plugin that was written for another one is named and left out.
API_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """A submission as a value: rendering it and submitting it start from the same thing.

    Attributes:
        spec: What the user asked for.
        request: What that comes to on this scheduler.
        run_dir: Absolute path of the run directory; the script is job.sh in it.
        python: The interpreter that gridtf runs under, also in the job.
        bootstrap: Absolute path of gridtf-bootstrap.sh.
        sources: Where each value came from, such as ``nodes`` -> ``gridtf.toml:3``.
        trusted: Users, by id, whose template it may be beside this user and root; None: anybody's.
    """

    spec: JobSpec
    request: Request
    run_dir: Path
    python: str
    bootstrap: Path
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None

    @property
    def scheduler(self) -> str:
        """The scheduler's name."""
        return self.request.scheduler


@dataclass(frozen=True)
class JobIdentity:
    """How a scheduler knows a job again.

    Attributes:
        job_id: The scheduler's id of the job; of an array's element, with the element.
        details: What else the scheduler's query and cancel need, kept in submitted.json: plain JSON values.
        user: Who submitted the job; empty where that is not known.
        host: The host that it was submitted from, or that a local job runs on.
        element: Inside a job: the element of the job array; empty for a single job.
        restarts: Inside a job: names this start of it, where a job may be started several times.
    """

    job_id: str
    details: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    host: str = ""
    element: str = ""
    restarts: str = "0"

    def to_record(self) -> Record:
        """The entries of submitted.json that say which job it is."""
        element = {"element": self.element} if self.element else {}
        return {"job_id": self.job_id, **element, **self.details}

    @classmethod
    def from_record(cls, record: Record) -> JobIdentity:
        """From a submitted.json, also one of an earlier version."""
        own = ("job_id", "user", "host", "element", "restarts")
        known = {name: str(record[name]) for name in own if name in record}
        return cls(details={name: value for name, value in record.items() if name not in known}, **known)


class SubmitResult(NamedTuple):
    """A job that the scheduler has taken; notes are for the user, one line each."""

    job: JobIdentity
    notes: tuple[str, ...] = ()


class JobStatus(NamedTuple):
    """What a scheduler says of a job.

    Attributes:
        state: The state of the job.
        reason: Why it is in this state, in one line; mostly empty.
        purged: The scheduler no longer knows the job, which says nothing about how it ended.
        requeued: This start of the job has ended, and it will be started again.
    """

    state: JobState
    reason: str = ""
    purged: bool = False
    requeued: bool = False


LOOPBACK = "127.0.0.1"  # the address of a host that is this machine


class Host(NamedTuple):
    """One host of an allocation.

    Attributes:
        name: What the scheduler calls it.
        slots: Training tasks that it has room for without GPUs, and with them where tasks_per_node sets a limit.
        gpus: GPUs of the job there; None where that is not known.
        cpus: CPUs of the job there; None where that is not known.
        address: What the other hosts reach it by; None: its name.
        component: Index of the component of the job (jobspec.request.Component) that it belongs to.
    """

    name: str
    slots: int
    gpus: int | None = None
    cpus: int | None = None
    address: str | None = None
    component: int = 0


class Allocation(NamedTuple):
    """What the scheduler gave this job.

    Attributes:
        hosts: In the order in which tasks are numbered, those of component 0 first.
        gpus: The GPUs of this very host, where the launcher has had to claim them for the agent that it starts here.
    """

    hosts: tuple[Host, ...]
    gpus: GpuGrant | None = None


@dataclass(frozen=True)
class GpuNeed:
    """The GPUs that a process needs on its host.

    Attributes:
        count: How many; None for a process that joins and has not said how many: its own share, or what all of them
            share.
        owner: One line that tells others who has them.
        patience: Seconds that they may be waited for.
    """

    count: int | None
    owner: str
    patience: float


# wait(reason, seconds): waits, shows the user why, and raises when the job is told to end meanwhile.
Wait = Callable[[str, float], None]


class AgentMain(Protocol):
    """The agent's main function, for a scheduler that can fork an agent."""

    def __call__(self, arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
        """Run the agent. Returns its exit code."""


class AgentCall(NamedTuple):
    """How to start agents: the one on HOST with the command line ``*command HOST *arguments``.

    Attributes:
        arguments: What follows the host.
        main: The agent's main function, to be called in a forked process with HOST and arguments.
        command: What goes before HOST where another Python has to be started. There, ``@NAME`` for HOST stands for the
            value of the variable NAME on that host.
        log: The file that agents, and the program that starts them, print to.
        write_environment: Writes an environment to the run directory, for agents that inherit none; they read it where
            ENVIRONMENT_FILE=1 is set for them (agents.ENVIRONMENT_FILE).
    """

    arguments: tuple[str, ...]
    main: AgentMain
    command: tuple[str, ...]
    log: Path
    write_environment: Callable[[Mapping[str, str]], None]


class AgentEnd(NamedTuple):
    """How an agent has ended.

    Attributes:
        code: Its exit code, or minus the signal.
        host: Its host; None where that is not known.
        messages: What the program that started it has printed about it; mostly empty.
        error: What to make of it, where the scheduler knows better.
    """

    code: int
    host: str | None
    messages: tuple[str, ...] = ()
    error: GridtfError | None = None


class AgentHandle(Protocol):
    """One or more agents that were started together."""

    def poll(self) -> AgentEnd | None:
        """How the first agent that ended has ended; None while all run."""

    def terminate(self) -> None:
        """Ask the agents to tear their tasks down and to end."""

    def kill(self) -> None:
        """End the agents at once."""


class Parent(NamedTuple):
    """The process that started this one, as it was at the start.

    Attributes:
        pid: Its process id.
        name: Its command name, such as ``slurmstepd``.
    """

    pid: int
    name: str


class RankVariables(NamedTuple):
    """How a program that starts several processes says which one a process is.

    Attributes:
        rank: The variable with the process's number, from 0 on.
        size: The variable with the number of processes.
        step: The variables that together name this start, the same in all of its processes and in no others.
        reused: Whether these names come again when the job is started again.
    """

    rank: str
    size: str
    step: tuple[str, ...] = ()
    reused: bool = False


# How Open MPI, and starters that speak PMI, tell rank and size.
MPI_RANKS = (
    RankVariables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    RankVariables("PMI_RANK", "PMI_SIZE", ("PMI_JOBID",), reused=True),
)

# By these Open MPI, MPICH and those that speak PMI or PMIx tell a process its place among those started with it.
MPI_PLACE = r"OMPI_COMM_WORLD_|OMPI_MCA_(orte|ess|pmix)_|OMPI_UNIVERSE_SIZE$|PMIX?_|MPI_LOCAL(RANKID|NRANKS)$|MV2_COMM_"


class Scheduler(ABC):
    """One kind of scheduler, both halves: on the login node, and inside a job.

    Attributes:
        api_version: The version of this seam that the scheduler was written for.
        name: What the user calls it: ``--scheduler NAME``.
        title: What messages call it.
        directive_prefix: What a line of the script's head begins with that the scheduler reads, such as ``#SBATCH``.
        template: Path of the scheduler's own template of the job script; None: job.sh.j2 will do.
        options: Options that only some schedulers know: keys of the job file and flags of the command line, with their
            help. Texts are checked to be one line, anything else by resolve. An option that the user sets for a
            scheduler that does not have it is told in a note.
        requests_memory: Whether the scheduler is asked for memory.
        takes_native: Whether the user's raw options are handed on to it.
        warnings: Signals that the scheduler sends to all processes of a job, tasks included, by way of warning.
        last_warnings: Those of them that announce the end of the job.
        place_variables: Variables that tell a process its place among those started with it, matched from the
            beginning of a name. An agent's place is not that of its tasks, so they do not see it.
        host_variables: Variables, matched in full, that every host sets for itself: where the job's environment goes to
            other hosts through a file, each host keeps its own.
        rank_variables: How the scheduler's own starter of processes tells rank and size, for gridtf_join.
        restart_variable: The variable that counts how often a job was started again, where there is one; it may be
            unset in a job that never was.
        start_variables: Variables that together name this start of a job, for gridtf_join where RANK and WORLD_SIZE
            are set by hand.
        accounting_delay: Seconds after the end of a job within which its accounting has it; 0: at once, or there is
            no accounting.
    """

    api_version: ClassVar[int] = API_VERSION
    name: ClassVar[str]
    title: ClassVar[str]
    directive_prefix: ClassVar[str] = ""
    template: ClassVar[Path | None] = None
    options: ClassVar[tuple[Option, ...]] = ()
    requests_memory: ClassVar[bool] = True
    takes_native: ClassVar[bool] = True
    warnings: ClassVar[frozenset[int]] = frozenset()
    last_warnings: ClassVar[frozenset[int]] = frozenset()
    place_variables: ClassVar[re.Pattern[str]] = re.compile(MPI_PLACE)
    host_variables: ClassVar[re.Pattern[str] | None] = None
    rank_variables: ClassVar[RankVariables | None] = None
    restart_variable: ClassVar[str] = ""
    start_variables: ClassVar[tuple[str, ...]] = ()
    accounting_delay: float = 0.0

    # --- on the login node

    @abstractmethod
    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Whether jobs can be submitted to it from this machine."""

    @abstractmethod
    def directives(self, plan: Plan) -> tuple[str, ...]:
        """The options in the script's head, one a line, without the prefix. Pure.

        Raises:
            SpecError: For what the scheduler cannot be asked for.
        """

    @abstractmethod
    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        """The command that hands plan.run_dir/job.sh over. Pure.

        Raises:
            SpecError: For a run directory that the command would misread.
        """

    @abstractmethod
    def submit(self, plan: Plan) -> SubmitResult:
        """Hand plan.run_dir/job.sh over.

        Raises:
            SchedulerError: When the scheduler refuses, or does not answer.
            MaybeSubmittedError: When it is not known whether there is a job now.
        """

    @abstractmethod
    def query(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """How these jobs stand, in one call.

        Returns:
            Job id -> status. A job that the scheduler no longer knows is ``purged``.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """

    @abstractmethod
    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        """End this job; one that has ended already is no error.

        Args:
            job: The job.
            force: It did not heed the first call.

        Raises:
            SchedulerError: When the scheduler refuses, or does not answer.
        """

    def resolve(self, spec: JobSpec, *, in_job: bool = False) -> Request:
        """What the specification comes to on this scheduler. Pure.

        Args:
            spec: What the user asked for.
            in_job: The job is there already: what only its submission needs is left out.

        Raises:
            SpecError: For what cannot be.
        """
        from gridtf.jobspec import request  # `gridtf list` and `status` need none of it

        memory = self.requests_memory and not in_job
        made = request.resolve(spec, self.name, options=self.options, memory=memory)
        if in_job:
            return made
        native = self.parse_native(spec.native)
        return replace(made, native=native, elements=self.array_elements(native))

    def parse_native(self, native: Sequence[str]) -> Mapping[str, str]:
        """The user's raw options, as option -> value. Pure."""
        return {}

    def array_elements(self, native: Mapping[str, str]) -> tuple[str, ...]:
        """The elements of the job array that the raw options ask for; empty for a single job. Pure.

        Raises:
            SpecError: For elements that cannot be.
        """
        return ()

    def check(self, plan: Plan) -> Sequence[str]:
        """Ask the scheduler about plan.run_dir/job.sh before it is submitted.

        Returns:
            Notes for the user, one line each.

        Raises:
            SpecError: For what the site can never run, with what it offers instead.
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    def accounting(self, jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        """How jobs ended that query no longer knows, in one call; empty where there is no accounting."""
        return {}

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        """Where the run directory of a job may be that is not in this user's index; empty for an unknown job.

        Raises:
            SchedulerError: When the scheduler does not answer.
        """
        return ()

    # --- inside a job

    @property
    def starters(self) -> tuple[RankVariables, ...]:
        """How programs that start several processes of a job tell rank and size, the innermost program first."""
        return (*MPI_RANKS, self.rank_variables) if self.rank_variables else MPI_RANKS

    @abstractmethod
    def is_current(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs inside one of its jobs."""

    @abstractmethod
    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        """The job that this process runs in."""

    @abstractmethod
    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        """What this job was given. A scheduler that has to wait for it calls wait(reason, seconds) again and again.

        Raises:
            PlacementError: When the job is not what the request asks for.
            SchedulerError: For what cannot be read.
        """

    @abstractmethod
    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """Start an agent on every host.

        Args:
            allocation: As allocation returned it.
            call: How to start an agent.
            environ: The environment that agents and tasks are to have.
        """

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        """On a host of a job: the GPUs that this process may use, as this host calls them.

        Args:
            environ: The environment of this process.
            request: What the job requests.
            need: The GPUs that it needs.
            wait: Called again and again while GPUs are waited for.

        Raises:
            PlacementError: When there are too few.
        """
        from gridtf.host.gpus import GpuGrant, granted

        return GpuGrant(granted(environ))

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        """After a signal that ends the job: the final status that the scheduler will report, None if unknown.

        Args:
            environ: The job's environment.
            parent: What had started the launcher.
        """
        return None

    def parent_lost(self, parent: Parent) -> str:
        """In words, when the process that would tell the scheduler of the job's end is gone; mostly empty.

        Args:
            parent: What had started the launcher, and is no longer its parent.
        """
        return ""

    def suspended(self, environ: Mapping[str, str]) -> bool | None:
        """Whether the job is stopped on some hosts and goes on on others, so that silence means nothing; None when the
        scheduler does not answer."""
        return False

    def unannounced(self) -> str:
        """A note for a process that is part of one of its jobs without having been told so; mostly empty."""
        return ""
