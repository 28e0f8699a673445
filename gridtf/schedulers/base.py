"""The seam to a scheduler: the Protocol, and the values that cross it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record

if TYPE_CHECKING:
    from gridtf.errors import GridtfError
    from gridtf.host.gpus import Claim

# Job states, in Slurm's spelling; UNKNOWN is ours.
PENDING = "PENDING"
RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
TIMEOUT = "TIMEOUT"
NODE_FAIL = "NODE_FAIL"
PREEMPTED = "PREEMPTED"
OUT_OF_MEMORY = "OUT_OF_MEMORY"
UNKNOWN = "UNKNOWN"
ENDED = frozenset({COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, PREEMPTED, OUT_OF_MEMORY})

# By these Open MPI, MPICH and those that speak PMI or PMIx tell a process its place among those started with it.
MPI_PLACE = r"OMPI_COMM_WORLD_|OMPI_MCA_(orte|ess|pmix)_|OMPI_UNIVERSE_SIZE$|PMIX?_|MPI_LOCAL(RANKID|NRANKS)$|MV2_COMM_"


@dataclass(frozen=True)
class Plan:
    """A submission as a value: rendering it and submitting it start from the same thing.

    run_dir: absolute. python: the interpreter that gridtf runs under, also in the job. bootstrap: the absolute path
    of gridtf-bootstrap.sh. sources: where each value came from, such as ``nodes`` -> ``gridtf.toml:3``. trusted: as
    config.Configured's: whose files the template may be.
    """

    spec: JobSpec
    scheduler: str
    run_dir: Path
    python: str
    bootstrap: Path
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None


@dataclass(frozen=True)
class JobStatus:
    """What a scheduler says of a job. gone: it no longer knows it (which says nothing about how it ended). again: this
    start of it has ended, and it will be started anew."""

    state: str
    reason: str = ""
    gone: bool = False
    again: bool = False


LOOPBACK = "127.0.0.1"  # the address of a host that is this machine


@dataclass(frozen=True)
class Host:
    """One host of an allocation.

    slots: training tasks it has room for without GPUs, and with them where tasks_per_node sets a limit. gpus, cpus:
    None where nobody says. address: what the other hosts reach it by; None: its name. component: which one of
    layout.components it belongs to.
    """

    name: str
    slots: int
    gpus: int | None = None
    cpus: int | None = None
    address: str | None = None
    component: int = 0


@dataclass(frozen=True)
class Allocation:
    """What the scheduler gave this job; hosts in the order in which tasks are numbered, those of component 0 first."""

    hosts: tuple[Host, ...]


Wait = Callable[[str, float], None]
AgentMain = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class AgentCall:
    """How agents are to be started: the one on HOST with the words HOST, *arguments.

    main: the agent's main function, for a scheduler that can fork it. command: what goes before those words where
    another Python has to be started; there, ``@NAME`` for HOST means what the variable NAME says on the host. log: for
    what the agents print, and what starts them. leave: puts an environment where those agents find it whose own one has
    agents.SENT; for a scheduler that takes none along.
    """

    arguments: tuple[str, ...]
    main: AgentMain
    command: tuple[str, ...]
    log: Path
    leave: Callable[[Mapping[str, str]], None]


@dataclass(frozen=True)
class AgentEnd:
    """How an agent has ended. code: its exit code, or minus the signal. host: None where nobody says it.
    words: what was said about it, mostly empty. error: what to make of it, where the scheduler knows better."""

    code: int
    host: str | None
    words: tuple[str, ...] = ()
    error: GridtfError | None = None


class AgentHandle(Protocol):
    """One or more agents that were started together."""

    def poll(self) -> AgentEnd | None:
        """How the first that ended has ended; None while they run."""

    def terminate(self) -> None:
        """Ask them to tear their tasks down and to end."""

    def kill(self) -> None:
        """End them at once."""


class Scheduler(Protocol):
    """One kind of scheduler, both halves: on the login node, and inside a job."""

    name: str
    # Signals that it sends to all processes of a job, tasks included, by way of warning; those that announce the end.
    warnings: frozenset[int]
    last_warnings: frozenset[int]
    # The variables that tell a process its place among those that were started with it. An agent has one of its own,
    # which is not that of its tasks: a program that believed it would train alone. Matched from a name's beginning.
    place_variables: re.Pattern[str]
    # Seconds after the end of a job within which its accounting has it; 0: at once, or there is no accounting.
    accounting_delay: float

    def here(self, environ: Mapping[str, str]) -> bool:
        """Whether jobs can be submitted to it from this machine."""

    def inside(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs inside one of its jobs."""

    def directives(self, plan: Plan) -> tuple[str, ...]:
        """The options that stand in the script's head, one a line. Pure."""

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        """The command that hands the script over (its path is plan.run_dir/job.sh). Pure."""

    def check(self, plan: Plan) -> Sequence[str]:
        """What the scheduler says to plan.run_dir/job.sh before it is submitted; gives notes for the user.

        Raises SpecError for what it can never run, with what the site offers instead, SchedulerError when it does not
        answer.
        """

    def elements(self, spec: JobSpec) -> Sequence[str]:
        """The elements of the job array that the user's native options ask for; none for a single job. Pure."""

    def submit(self, plan: Plan) -> Record:
        """Hand plan.run_dir/job.sh over; gives ``job_id`` and whatever else query and cancel need to find it.

        ``notes``, where it is there, is for the user and not for the record. Raises MaybeSubmittedError when nobody
        knows whether there is a job now.
        """

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        """The state of these jobs (records as written by submit), in one call; job id -> status."""

    def accounting(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        """How jobs ended that query no longer knows, in one call; nothing where there is no accounting."""

    def run_dirs(self, job_id: str) -> Sequence[Path]:
        """Where the run directory of a job may be that is not in this user's index; none for a job that it does not
        know. Raises SchedulerError when it does not answer."""

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        """End this job; one that has ended already is no error here. force: it did not heed the first call."""

    def untold(self) -> str:
        """A note for a process that is part of one of its jobs without having been told so; mostly empty."""

    def identity(self, environ: Mapping[str, str]) -> Record:
        """Inside a job: what submit gives for it, ``job_id`` and the rest."""

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        """What this job was given. A scheduler that has to wait for it calls wait(why, seconds) again and again.

        environ: this process's own, which the agents started from here inherit.
        """

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """Start an agent on every host. environ: what they, and the tasks, are to find in theirs."""

    def grant(
        self, environ: MutableMapping[str, str], spec: JobSpec, count: int | None, owner: str, wait: Wait
    ) -> Claim:
        """On a host of a job: the GPUs that it may use there, at least so many if all is well, as this host calls them.

        environ: the agent's; CUDA_VISIBLE_DEVICES says afterwards what is granted. count: None for one of several
        processes that join, and nobody has said how many it needs: its own share, or what all of them share. owner:
        one line that tells others who has them. Calls wait(why, seconds) again and again while it has to wait. Raises
        PlacementError.
        """

    def ending(self, environ: Mapping[str, str]) -> JobStatus | None:
        """Inside a job that has just been told to end: how the scheduler will say that it ended; None: no telling."""

    def deserted(self) -> str:
        """Inside a job, after identity: who has gone that would tell the scheduler of the job's end, in words; empty if
        nobody has, or that is no matter."""

    def suspended(self, environ: Mapping[str, str]) -> bool | None:
        """Inside a job: whether it is stopped on some hosts, and goes on on others, so that silence means nothing.

        None: nobody answers.
        """
