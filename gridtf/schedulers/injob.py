"""The half of a scheduler inside a job: its hosts, the agents on them, what the scheduler will do to the job."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gridtf.errors import SchedulerError
from gridtf.host.names import same_host
from gridtf.schedulers.api import (
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    GpuNeed,
    JobIdentity,
    JobStatus,
    Parent,
    RankVariables,
    Scheduler,
    Wait,
)

if TYPE_CHECKING:
    from gridtf.host.gpus import GpuGrant
    from gridtf.jobspec.request import Request

# Rank and size in Open MPI, and in programs that speak PMI.
MPI_RANKS = (
    RankVariables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    RankVariables("PMI_RANK", "PMI_SIZE", ("PMI_JOBID",), reused=True),
)

# What sbatch, salloc, srun, qsub and qrsh call a job whose user has given it no name.
_NOT_GIVEN = r"|wrap|sbatch|interactive|STDIN|Q(R?LOGIN|RSH)|(ba)?sh|.*\.(sh|bash|sbatch|slurm|qsub|sge|job|batch)"


class InJob(ABC):
    """What a scheduler does inside a job.

    Attributes:
        scheduler: The scheduler that this is a half of.
        warnings: Signals that the scheduler sends to all processes of a job, including tasks, as a warning.
        last_warnings: Those warnings that announce the end of the job.
        announces_limits: Whether one of the last warnings announces every time limit, so that another signal is none,
            even where termination_reason infers one.
        host_variables: Variables, matched in full, that every host sets for itself: where the job's environment reaches
            other hosts through a file, each host keeps its own values.
        rank_variables: The variables in which the scheduler's own starter of processes passes rank and size, for
            gridtf_join; None without such a starter.
        restart_variable: The variable that counts how often a job was restarted; it may be unset in a job that was not.
            Empty: there is none.
        name_variable: The variable that has the job's name in a job script. Empty: there is none.
        end_moves: Whether the end of a job may be moved while it runs.
        start_variables: Variables that together identify this start of a job, for gridtf_join where the user sets RANK
            and WORLD_SIZE.
    """

    warnings: ClassVar[frozenset[int]] = frozenset()
    last_warnings: ClassVar[frozenset[int]] = frozenset()
    announces_limits: ClassVar[bool] = False
    host_variables: ClassVar[re.Pattern[str] | None] = None
    rank_variables: ClassVar[RankVariables | None] = None
    restart_variable: ClassVar[str] = ""
    name_variable: ClassVar[str] = ""
    end_moves: ClassVar[bool] = True
    start_variables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    @property
    def starters(self) -> tuple[RankVariables, ...]:
        """The rank variables of all programs that may start the processes of a job, the innermost program first."""
        return (*MPI_RANKS, self.rank_variables) if self.rank_variables else MPI_RANKS

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

    def rank_types(self) -> Sequence[str] | None:
        """The types of MPI that rank_starter knows at this site; None: only mpirun starts ranks."""
        return None

    def rank_starter(
        self, kind: str, hosts: Sequence[str], file: Path, environ: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """The scheduler's own command that starts the ranks of an MPI world, where it has one. Pure.

        Args:
            kind: One of rank_types.
            hosts: The host of each rank.
            file: A file with the same, a line each.
            environ: The environment of the job on the host where the command runs.

        Returns:
            (the command, to which that of a rank is added; its environment).
        """
        raise NotImplementedError

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

    def given_name(self, environ: Mapping[str, str]) -> str | None:
        """The name that a user has given the job of a hand-written script, such as by ``#SBATCH --job-name``. Pure.

        Args:
            environ: The environment of the script, or of a process that it has started.

        Returns:
            As a name of gridtf's; None where the scheduler has called the job after the script or the command.
        """
        from gridtf.jobspec.primitives import as_name

        name = environ.get(self.name_variable, "") if self.name_variable else ""
        # ENVIRONMENT is BATCH in scripts of Slurm (sbatch(1)) and of Grid Engine (qsub(1))
        if environ.get("ENVIRONMENT") != "BATCH" or re.fullmatch(_NOT_GIVEN, name):
            return None
        return as_name(name) or None

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

    def planned_end(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        """When this job will be ended as far as is known without a question to the scheduler, as end_of_job."""
        return None if request.walltime is None else started + request.walltime

    def end_is_given(self, environ: Mapping[str, str]) -> bool:
        """Whether planned_end is what the scheduler would say at the start of this job."""
        return type(self).end_of_job is InJob.end_of_job

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        """When the scheduler will end this job. Asked several times, since an administrator may change it, by a process
        of its own, where a checkpoint is requested before the end, and else once at most.

        Args:
            environ: The job's environment.
            request: What the job requests.
            started: When the job script started, in seconds since the epoch.

        Returns:
            Seconds since the epoch; None where the job has no limit, or it is not known.
        """
        return self.planned_end(environ, request, started)

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        """Why this job cannot be started again as the same job, once its script has ended.

        Args:
            environ: The job's environment.

        Returns:
            One line; empty where start_again can be called.
        """
        return f"{self.scheduler.title} does not start jobs again"

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

    def start_after(self, environ: Mapping[str, str], jobs: Sequence[str]) -> int | None:
        """Have this job started again, as the same job, once other jobs have ended.

        Args:
            environ: The job's environment.
            jobs: Their ids.

        Returns:
            As start_again.

        Raises:
            SchedulerError: When the scheduler refuses, or does not answer.
        """
        raise SchedulerError(f"{self.scheduler.title} cannot let a job that has started wait for others")

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

    def host_fault(self, host: str) -> str:
        """What the scheduler says against a host of this job that gridtf has lost.

        Args:
            host: Its name in the allocation.

        Returns:
            One clause, such as ``Slurm says down*``; empty where the host is in service, or the scheduler does not
            answer within three seconds.
        """
        return ""

    def unannounced(self) -> str:
        """A note for a process that runs inside a job although its environment does not show it; usually empty."""
        return ""


class BatchInJob(InJob):
    """A scheduler whose agents on other hosts are started by one command per host."""

    @abstractmethod
    def agent_command(self, host: str, call: AgentCall, environ: Mapping[str, str]) -> Sequence[str]:
        """The command that starts the agent of another host of the job and runs until the agent has ended. Pure.

        If the command forwards its standard input, the agent stops at the end of the input, as well as when the
        launcher says so. If the command does not pass on the environment, it has to set agents.NEEDS_ENVIRONMENT to 1
        for the agent, which then receives the environment from the launcher.

        Args:
            host: Name of the host in the allocation.
            call: How an agent is started.
            environ: The job's environment.

        Returns:
            The command. It exits with the agent's exit code.
        """

    def agent_end(self, host: str, code: int, printed: Sequence[str]) -> AgentEnd:
        """Tell from the end of agent_command how the agent has ended. Pure.

        Args:
            host: The agent's host.
            code: Exit code of the command, or minus the number of the signal that ended it.
            printed: Output lines of the command and the agent.

        Returns:
            The agent's exit code, host and last lines.
        """
        return AgentEnd(code if code <= 128 else 128 - code, host, tuple(printed[-3:]))

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """Fork the agent of this host, and start agent_command for each other host, all at the same time."""
        from gridtf.schedulers.agents import StartedAgents, fork_agent

        here = self.this_host(environ)
        others = [host.name for host in allocation.hosts if not same_host(host.name, here)]
        # forked first, so that it does not hold on to the pipes whose end tells the others to stop
        handles: list[AgentHandle] = [
            fork_agent(host.name, call.arguments, call.main) for host in allocation.hosts if same_host(host.name, here)
        ]
        return handles + [
            StartedAgents(
                self.agent_command(name, call, environ), environ, call.log, partial(self.agent_end, name), self.warnings
            )
            for name in others
        ]
