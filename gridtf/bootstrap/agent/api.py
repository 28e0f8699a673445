"""What starters, wrappers and features see of a host, and do there; they extend these classes.

An error of a starter or a wrapper ends the attempt: no job goes on without what it has asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gridtf import features, starters, wrappers
from gridtf.values import Fields, Value

if TYPE_CHECKING:
    import socket

    from gridtf.bootstrap.agent.conversation import Conversation
    from gridtf.bootstrap.agent.hoststate import HostState
    from gridtf.bootstrap.agent.supervisor import Program
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous
    from gridtf.bootstrap.system import System
    from gridtf.run.recordtypes import Kind
    from gridtf.run.rundir import Record
    from gridtf.schedulers.api import Scheduler


class AgentView(Fields):
    """A host, as its starter, its wrappers and its features see it.

    Attributes:
        plan: The part of the plan for it.
        scheduler: The scheduler of the job.
        state: Its state.
        conversation: The conversation with the launcher.
        system: The host.
        folders: The folders that features have prepared, which tasks need at their own paths.
        ports: Task -> its port; none before they are reserved.
        environ: The environment of the tasks, before anything of their own; none before the GPUs are known.
        wrapped: Returns what runs a program of a task, as in a container.
        processes: Those of features.
    """

    plan: AttemptPlan
    scheduler: Scheduler
    state: HostState
    conversation: Conversation
    system: System
    folders: Sequence[Path] = ()
    ports: Mapping[str, int] = {}
    environ: Mapping[str, str] = {}
    wrapped: Callable[[PlacedTask, Program], Program] = lambda task, program: program

    def __post_init__(self) -> None:
        self.processes = features.Processes()

    @property
    def is_world(self) -> bool:
        """Whether the tasks are ranks of one world."""
        return bool(self.plan.request.mpi)

    @property
    def mine(self) -> Sequence[PlacedTask]:
        """Its tasks."""
        return self.plan.on(self.state.host)

    def waits_for(self, what: str) -> None:
        """Tell what the start of the tasks waits for on this host."""
        self.state.waits = what
        self.conversation.report(now=True)

    def listening(self, limit: float) -> Iterator[float]:
        """Wait as Conversation.waiting does, in contact with the launcher.

        Raises:
            GridtfError: The launcher is silent.
            Stopped: The agent is stopped.
        """
        for waited in self.conversation.waiting(limit):
            yield waited
            self.conversation.report()
            self.conversation.listen()

    def until_ended(self, pid: int, limit: float) -> Iterator[int | None]:
        """Wait for a process that was started; yields its exit code, as of reap, None while it runs.

        Raises:
            GridtfError, Stopped: As in listening.
        """
        supervisor = self.state.supervisor
        supervisor.others[pid] = None
        try:
            for _ in self.listening(limit):
                supervisor.collect()
                yield (code := supervisor.others[pid])
                if code is not None:
                    return
        finally:
            del supervisor.others[pid]


class Starter:
    """Fork: tasks are children of the agent. Every method returns at once but form.

    Attributes:
        hears: Kind of a message that the launcher has for it -> the form of its content, as in recordtypes.
    """

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


class Prepared(Value):
    """What a feature has prepared on a host.

    Attributes:
        environ: Variables of the tasks -> their values; None: it is removed.
        folders: Folders that tasks need at their own paths.
    """

    environ: Mapping[str, str | None] = {}
    folders: Sequence[Path] = ()

    def set_in(self, environ: MutableMapping[str, str]) -> None:
        """Set the variables in an environment, which is changed."""
        for name in self.environ.keys() & environ.keys():
            del environ[name]
        environ.update({name: text for name, text in self.environ.items() if text is not None})


class Published(Value):
    """What a feature publishes of a host.

    Attributes:
        record: Entries of the record of the host.
        gates: Inodes of sockets that listen on ports of tasks, and belong to no task.
    """

    record: Record = {}  # noqa: RUF012 - copied for each value
    gates: Collection[int] = ()


_NOTHING = Prepared()
_NOT_MORE = Published()


class Feature(features.Feature):
    """What a feature does on a host. Messages for it are in view.conversation.latest.

    Attributes:
        due: When to look at the latest, by the monotonic clock; a few seconds after the last look in any case.
    """

    due = float("inf")

    def __init__(self, view: AgentView) -> None:
        self.view = view

    def prepare(self) -> Prepared:
        """Prepare this host, before its GPUs are claimed. May wait, by view.listening.

        Raises:
            GridtfError: That is impossible.
            Stopped: The agent is stopped meanwhile.
        """
        return _NOTHING

    def published(self, held: Collection[socket.socket], *, released: bool) -> Published:
        """What this host publishes of the feature.

        Args:
            held: The sockets that hold the ports of tasks.
            released: Whether other tasks have ports that are not held.

        Raises:
            GridtfError: The tasks are not to start.
        """
        return _NOT_MORE

    def look(self) -> Mapping[str, Record]:
        """Look what is new, while the tasks run, and before: until the rendezvous is known, and once when it is.

        Returns:
            Task -> entries of its record, which are empty where they are to go.
        """
        return {}

    def end(self) -> None:
        """No task runs any more."""


def starter_of(view: AgentView) -> Starter:
    """What starts the tasks of a host."""
    module = starters.of_agent(view.plan.request.mpi)
    made: Starter = (module.Starter if module else Starter)(view)
    return made


def wrappers_of(view: AgentView) -> list[Wrapper]:
    """What wraps them, the innermost first."""
    return [module.Wrapper(view) for module in wrappers.modules(view.plan.spec)]


def features_of(view: AgentView, when: str) -> list[Feature]:
    """Its features of one moment, in their order: as in features."""
    modules = features.modules(features.AGENT, when, view.plan.spec, view.plan.host_count)
    return [module.InAgent(view) for module in modules]
