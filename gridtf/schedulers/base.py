"""The seam to a scheduler: the Protocol, and the values that cross it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gridtf.rundir import Record
from gridtf.spec import JobSpec

# Job states, in Slurm's spelling; UNKNOWN is ours.
PENDING = "PENDING"
RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
TIMEOUT = "TIMEOUT"
NODE_FAIL = "NODE_FAIL"
UNKNOWN = "UNKNOWN"
ENDED = frozenset({COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL})


@dataclass(frozen=True)
class Plan:
    """A submission as a value: rendering it and submitting it start from the same thing.

    run_dir: absolute. python: the interpreter that gridtf runs under, also in the job. bootstrap: the absolute path
    of gridtf-bootstrap.sh. sources: where each value came from, such as ``nodes`` -> ``gridtf.toml:3``.
    """

    spec: JobSpec
    scheduler: str
    run_dir: Path
    python: str
    bootstrap: Path
    sources: Mapping[str, str]


@dataclass(frozen=True)
class JobStatus:
    """What a scheduler says of a job. gone: it no longer knows it (which says nothing about how it ended)."""

    state: str
    reason: str = ""
    gone: bool = False


@dataclass(frozen=True)
class Host:
    """One host of an allocation.

    slots: tasks it has room for without GPUs. gpus, cpus: None where nobody says. address: what the other hosts reach
    it by; None: its name.
    """

    name: str
    slots: int
    gpus: int | None = None
    cpus: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Allocation:
    """What the scheduler gave this job; hosts in the order in which tasks are numbered."""

    hosts: tuple[Host, ...]


Wait = Callable[[str, float], None]
AgentMain = Callable[[Sequence[str]], int]


class AgentHandle(Protocol):
    """An agent that was started on a host."""

    host: str

    def poll(self) -> int | None:
        """Its exit code (negative: minus the signal), None while it runs."""

    def terminate(self) -> None:
        """Ask it to tear its tasks down and to end."""

    def kill(self) -> None:
        """End it at once."""


class Scheduler(Protocol):
    """One kind of scheduler, both halves: on the login node, and inside a job."""

    name: str

    def here(self, environ: Mapping[str, str]) -> bool:
        """Whether jobs can be submitted to it from this machine."""

    def inside(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs inside one of its jobs."""

    def directives(self, plan: Plan) -> tuple[str, ...]:
        """The options that stand in the script's head, one a line. Pure."""

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        """The command that hands the script over (its path is plan.run_dir/job.sh). Pure."""

    def submit(self, plan: Plan) -> Record:
        """Hand plan.run_dir/job.sh over; gives ``job_id`` and whatever else query and cancel need to find it."""

    def query(self, submitted: Sequence[Record]) -> dict[str, JobStatus]:
        """The state of these jobs (records as written by submit), in one call; job id -> status."""

    def cancel(self, submitted: Record, *, force: bool = False) -> None:
        """End this job; one that has ended already is no error here. force: it did not heed the first call."""

    def identity(self, environ: Mapping[str, str]) -> Record:
        """Inside a job: what submit gives for it, ``job_id`` and the rest."""

    def allocation(self, environ: MutableMapping[str, str], spec: JobSpec, wait: Wait) -> Allocation:
        """What this job was given. A scheduler that has to wait for it calls wait(why, seconds) again and again.

        environ: this process's own, which the agents started from here inherit.
        """

    def start_agents(self, allocation: Allocation, arguments: Sequence[str], agent: AgentMain) -> list[AgentHandle]:
        """Start an agent on every host: gridtf.bootstrap's ``agent HOST ARGUMENTS``.

        agent: its main function, for a scheduler that can fork it instead of starting another Python.
        """
