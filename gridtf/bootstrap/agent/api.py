"""What starts and wraps the tasks of a host: fork, and what those in gridtf/starters and gridtf/wrappers extend.

An error of theirs ends the attempt: no job goes on without what it has asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gridtf import starters, wrappers
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.conversation import Conversation
    from gridtf.bootstrap.agent.hoststate import HostState
    from gridtf.bootstrap.agent.supervisor import Program
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous
    from gridtf.bootstrap.system import System
    from gridtf.run.recordtypes import Kind
    from gridtf.schedulers.api import Scheduler


class AgentView(Fields):
    """A host, as its starter and its wrappers see it.

    Attributes:
        plan: The part of the plan for it.
        scheduler: The scheduler of the job.
        state: Its state.
        conversation: The conversation with the launcher.
        system: The host.
        folders: The folders with staged files, which tasks need at their own paths.
    """

    plan: AttemptPlan
    scheduler: Scheduler
    state: HostState
    conversation: Conversation
    system: System
    folders: Sequence[Path] = ()

    @property
    def mine(self) -> Sequence[PlacedTask]:
        """Its tasks."""
        return self.plan.on(self.state.host)


class Starter:
    """Fork: tasks are children of the agent. Every method returns at once but form.

    Attributes:
        is_world: Whether the tasks are ranks of one world: none of them goes on without all others.
        hears: Kind of a message that the launcher has for it -> the form of its content, as in recordtypes.
    """

    is_world: ClassVar[bool] = False
    hears: ClassVar[Mapping[str, Kind]] = {}

    def __init__(self, view: AgentView) -> None:
        self.view = view

    def open(self) -> None:
        """Open what mpirun's processes connect to, before this host publishes its ports: they may come soon after.

        Raises:
            GridtfError: That is impossible.
        """

    def form(self, environ: Mapping[str, str], cluster: Rendezvous) -> None:
        """Have a place for each task of this host. May wait.

        Args:
            environ: The environment of its tasks, before anything of their own.
            cluster: What all tasks agree on.

        Raises:
            GridtfError: There is none.
            Stopped: The agent is stopped meanwhile.
        """

    def placed(self, task: PlacedTask, program: Program) -> Program:
        """What a task runs in its place."""
        return program

    def started(self, task: PlacedTask) -> None:
        """A task has been started in its place."""

    def look(self) -> bool:
        """Look at what has become of the places.

        Returns:
            Whether more is known of a task.

        Raises:
            GridtfError: Something that tasks need has ended.
        """
        return False

    def remove_own(self, paths: set[str]) -> set[str]:
        """Remove its own of files in shared memory that nobody uses; returns the others."""
        return paths


class Wrapper:
    """What stands round the programs of a host's tasks."""

    def __init__(self, view: AgentView) -> None:
        self.view = view

    def prepare(self) -> None:
        """Look whether this host has what is needed, before its GPUs are claimed.

        Raises:
            GridtfError: It has not.
        """

    def wrapped(self, task: PlacedTask, program: Program) -> Program:
        """What runs a program of a task, which may be the check of its host."""
        return program

    def output(self) -> wrappers.Output | None:
        """What takes the output of all tasks, which are started next; None: they write their logs themselves."""
        return None


def starter_of(view: AgentView) -> Starter:
    """What starts the tasks of a host."""
    module = starters.of_agent(view.plan.request.mpi)
    made: Starter = (module.Starter if module else Starter)(view)
    return made


def wrappers_of(view: AgentView) -> list[Wrapper]:
    """What wraps them, the innermost first."""
    return [module.Wrapper(view) for module in wrappers.modules(view.plan.spec)]
