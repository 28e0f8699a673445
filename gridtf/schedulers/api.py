"""The interface between gridtf and a scheduler: the base class, and the values that both exchange.

A scheduler has two halves. On the login node (``login``) it returns the directives of a job script, submits the script
and reports the status of jobs. Inside a job (``injob``) it returns the hosts of the job and starts an agent on each of
them. The life of a job, in the order in which gridtf calls a scheduler:

1. ``is_available`` (unless the user names a scheduler), ``resolve``, ``with_site``, ``directives`` and
   ``submit_command``: what `gridtf render` prints. None of them needs the run directory to exist.
2. ``check`` and ``submit``, with the script in its run directory; ``query``, ``accounting`` and ``cancel``, any number
   of times, from any host where the scheduler's commands work.
3. In the job: ``is_current`` (in hand-written scripts), ``identity``, ``allocation``, ``start_agents``; on every host
   ``gpu_grant``; ``suspended`` when the heartbeat of another process stops, ``termination_reason`` after a signal that
   ends the job; ``end_of_job`` before a checkpoint is requested, ``why_not_again`` and ``start_again`` when a job has
   saved one.

A plugin has a class for each half. They derive from Login and InJob, or from CommandLogin and BatchInJob, which have
what schedulers with commands to submit, to list and to cancel jobs share; docs/extending.md shows how.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gridtf.errors import GridtfError
from gridtf.states import JobState
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.host.gpus import GpuGrant
    from gridtf.jobspec.options import Option
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec
    from gridtf.jobspec.sweep import Sweep
    from gridtf.run.hosthistory import History
    from gridtf.run.rundir import Record
    from gridtf.schedulers.injob import InJob
    from gridtf.schedulers.login import Login

# The version of this interface. A plugin that was written for another version is skipped with a warning.
API_VERSION = 2


class Plan(Value):
    """A submission as a value, from which both `gridtf render` and `gridtf submit` start.

    Attributes:
        spec: The user's specification.
        scheduler: The scheduler that the job is for.
        request: The resources to request from it, worked out from the specification.
        run_dir: Absolute path of the run directory.
        python: Absolute path of the interpreter that gridtf runs under, also in the job.
        bootstrap: Absolute path of gridtf-bootstrap.sh.
        sources: Where each value of the specification comes from, such as ``nodes`` -> ``gridtf.toml:3``.
        trusted: Ids of users who may own the template, besides this user and root; None: any user.
        site: What the scheduler's Login.with_site has found out about the site; None where it has not been asked.
        script: Text of the job script, once it is rendered.
        origin: What the job comes from, for job.json, such as ``rerun_of`` -> a run directory.
        moved: A folder and its snapshot, in which the job runs; empty without one. The specification is that of a job
            in the snapshot then.
        sweep: The rows of parameters whose jobs are the elements of its array; None: it is one job.
        waits_for: Ids of the jobs that have to end before it starts: the scheduler is asked for no more than that.
        places: Where jobs may run (Login.places), where the scheduler has been asked for that.
        history: What is known of bad hosts, where that has been read.
        bad_hosts: Notes on hosts that were bad in earlier jobs: those that the request excludes, and others.
    """

    spec: JobSpec
    scheduler: Scheduler
    request: Request
    run_dir: Path
    python: str
    bootstrap: Path
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None
    site: Any = None
    script: str = ""
    origin: Mapping[str, Any] = {}
    moved: tuple[str, ...] = ()
    sweep: Sweep | None = None
    waits_for: tuple[str, ...] = ()
    places: Sequence[Place] = ()
    history: History | None = None
    bad_hosts: tuple[str, ...] = ()


# in submitted.json as well, of no use to a scheduler; `name` is, for jobs of hand-written scripts
_NO_DETAILS = frozenset({"command", "elements", "scheduler", "time"})


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
        others = known.keys() | _NO_DETAILS
        return cls(details={name: value for name, value in record.items() if name not in others}, **known)


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
        by: Name of the user who cancelled it, where the reason says so.
        killed: What killed its script, where the reason says so: ``killed by SIGTERM``.
        waits: A job that is PENDING waits for other jobs to end.
        suspended: A job that is RUNNING is stopped, so that its launcher need not give signs of life.
    """

    state: JobState
    reason: str = ""
    purged: bool = False
    requeued: bool = False
    expected: float | None = None
    starting: bool = False
    by: str = ""
    killed: str = ""
    waits: bool = False
    suspended: bool = False


class Place(Value):
    """Where a job may run: a partition of Slurm's, a queue of Grid Engine's.

    Attributes:
        name: Its name.
        offer: What its scheduler knows of it.
        hidden: Whether it is asked about only where it is named: the site hides it, or it is closed to this user.
        asked: Whether a job on it is asked about.
    """

    name: str
    offer: Any = None
    hidden: bool = False
    asked: bool = True


class Estimate(Value):
    """When a job would start if it were submitted now.

    Attributes:
        start: Seconds since the epoch; None where it is not known.
        why: Why it is not known, in one line.
        never: Whether the site can never run it.
        at_most: Whether it starts then at the latest, as far as the scheduler tells.
    """

    start: float | None = None
    why: str = ""
    never: bool = False
    at_most: bool = False


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
        gpu_type: Where hosts with GPUs of another type may not take its place after a loss, that of its GPUs.
    """

    name: str
    slots: int
    gpus: int | None = None
    cpus: int | None = None
    address: str | None = None
    component: int = 0
    gpu_type: str = ""


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


# Variables by which Open MPI, MPICH, PMI and PMIx pass a process its rank among those started together.
MPI_PLACE = r"OMPI_(COMM_WORLD_|MCA_(orte|ess|pmix)_|UNIVERSE_SIZE$)|PMIX?_(?!MCA_)|MPI_LOCAL(RANKID|NRANKS)$|MV2_COMM_"


class Scheduler(ABC):
    """One kind of scheduler.

    Attributes:
        api_version: The version of this interface that the scheduler was written for.
        name: The scheduler's name for users: ``--scheduler NAME``.
        title: The scheduler's name in messages.
        options: Options that only some schedulers have: keys of the job file and flags of the command line, with their
            help. Texts are checked to be one line, anything else by resolve. If the user sets an option that the
            scheduler does not have, a note says so.
        place_variables: Variables that pass a process its rank among those started together, matched from the beginning
            of a name. An agent's rank is not that of its tasks, so these variables are removed for tasks.
    """

    api_version: ClassVar[int] = API_VERSION
    name: ClassVar[str]
    title: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    place_variables: ClassVar[re.Pattern[str]] = re.compile(MPI_PLACE)

    @property
    @abstractmethod
    def login(self) -> Login:
        """The half for the login node, which is imported when it is first used."""

    @property
    @abstractmethod
    def injob(self) -> InJob:
        """The half for the inside of a job, which is imported when it is first used."""

    @abstractmethod
    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Whether jobs can be submitted to this scheduler from this machine."""

    def out_of_order(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """Why a scheduler that is not available has commands on this machine all the same.

        A job that nobody has sent to this machine must not run there because the scheduler is not set up. Only
        gridtf's own schedulers are asked.

        Args:
            environ: The environment; is_available is false in it.

        Returns:
            Why, and what to do, a line each; both empty where the scheduler has no commands.
        """
        return "", ""

    @abstractmethod
    def is_current(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with this environment runs inside a job of this scheduler."""
