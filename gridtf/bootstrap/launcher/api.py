"""What starters and features see of an attempt in its launcher, and do there; they extend these classes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import sleep
from typing import TYPE_CHECKING, ClassVar

from gridtf import features, starters
from gridtf.host import processes
from gridtf.values import Fields

if TYPE_CHECKING:
    import socket

    from gridtf.bootstrap.judge.evidence import Evidence
    from gridtf.bootstrap.judge.outcome import Outcome
    from gridtf.bootstrap.judge.verdict import Verdict
    from gridtf.bootstrap.launcher.hosts import HostMonitor
    from gridtf.bootstrap.launcher.reporter import Reporter
    from gridtf.bootstrap.plan.launchedjob import LaunchedJob
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.bootstrap.plan.rendezvous import AttemptPlan
    from gridtf.run.recordtypes import Kind
    from gridtf.run.rundir import Attempt, Record


_ASIDE = 2.0  # seconds for what a process of its own does: the home folder may hang


class LauncherView(Fields):
    """An attempt, as its starter and its features see it.

    Attributes:
        job: The job.
        attempt: The attempt.
        hosts: Its hosts, and what they have reported.
        reporter: What users are told.
        plan: Its plan; None before the tasks are placed.
        now: What has become of the tasks that run; None while none does.
        wait: Waits for some seconds, or until there is news; raises when a signal ends the job meanwhile.
        replaceable: Returns those of some hosts that spare ones can replace.
        processes: Those of features.
    """

    job: LaunchedJob
    attempt: Attempt
    hosts: HostMonitor
    reporter: Reporter
    plan: AttemptPlan | None = None
    now: Outcome | None = None
    wait: Callable[[float], None] = sleep
    replaceable: Callable[[Sequence[str]], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        self.processes = features.Processes()

    @property
    def tasks(self) -> Sequence[PlacedTask]:
        """Its tasks; none before they are placed."""
        return self.plan.tasks if self.plan else ()

    def aside(self, work: Callable[[], str | None], limit: float = _ASIDE) -> str:
        """Do something by a process that may hang, such as in the home folder: this one waits for it for some seconds.

        Args:
            work: Does that.
            limit: Seconds.

        Returns:
            What it has returned; empty where it has not in time.
        """
        from gridtf.bootstrap.wire.helper import Helper

        def run(line: socket.socket) -> None:
            processes.keep_only([line.fileno()])
            line.sendall((work() or "").encode())

        system = self.job.system
        helper, said, begin = Helper(0.0, system, wakes=False), b"", system.monotonic()
        helper.start(run)
        while helper.pid is not None and system.monotonic() - begin < limit:
            system.sleep(0.01)
            said += helper.hear()
        ended = helper.pid is None
        helper.end(signal.SIGKILL)
        return said.decode() if ended else ""


class Starter:
    """Fork: agents start the tasks, and the launcher has no part in it.

    Attributes:
        is_world: Whether the tasks are ranks of one world: none of them goes on without all others.
        hears: Kind of a message that agents have for it -> the form of its content, as in recordtypes.
    """

    is_world: ClassVar[bool] = False
    hears: ClassVar[Mapping[str, Kind]] = {}

    def __init__(self, view: LauncherView) -> None:
        self.view = view

    def met(self) -> None:
        """Agents have been told to start the tasks."""

    def heard(self, host: str, content: Record) -> None:
        """Take a message of an agent."""

    def status(self) -> str:
        """What users should know of tasks that run, in a clause; may be empty."""
        return ""

    def stop(self) -> Evidence | None:
        """Why the attempt is to end; None: it need not."""
        return None

    def patience(self, *, well: bool) -> float:
        """Seconds in which what has started the tasks may still say why they have ended.

        Args:
            well: Whether all that are awaited have ended well; otherwise the attempt ends now.
        """
        return 0.0

    def known(self, found: Evidence) -> Iterator[Evidence]:
        """What is told beside the end of the attempt.

        Args:
            found: What the verdict is on.
        """
        yield from ()


class Feature(features.Feature):
    """What a feature does in the launcher of an attempt.

    Args:
        view: The attempt.
        before: The same feature of the attempt before; None: there is none.

    Attributes:
        asks: What the file of a user's request begins with -> its form, as in recordtypes.
    """

    asks: ClassVar[Mapping[str, Kind]] = {}

    def __init__(self, view: LauncherView, before: Feature | None) -> None:
        self.view = view

    def heard(self, host: str, content: Record) -> None:
        """Take a message of an agent."""

    def admitted(self, request: Record) -> Record | None:
        """What asked() takes of the request of a user; None: it is refused, and answered so.

        Called by another process than the launcher's. May wait.
        """
        return request

    def asked(self, request: Record) -> None:
        """Take the request of a user, as admitted() has returned it."""

    def met(self) -> None:
        """All hosts have reported, and tasks are not started yet. May wait, by view.wait.

        Raises:
            GridtfError: The attempt is to end.
        """

    def look(self) -> None:
        """Look what is new: from the start of the agents to the last, also while tasks do not run."""

    def status(self) -> str:
        """What users should know while tasks run, in a clause; may be empty."""
        return ""

    def stop(self) -> Evidence | None:
        """Why the attempt is to end while tasks run; None: it need not."""
        return None

    def known(self, end: Evidence) -> Iterable[Evidence]:
        """What is told beside the end of the attempt.

        Args:
            end: What the verdict is on.
        """
        return ()

    def concluded(self, end: Verdict) -> None:
        """The attempt has ended, and its verdict is written. May wait; called again where another verdict follows."""


def starter_of(view: LauncherView) -> Starter:
    """What starts the tasks of an attempt."""
    module = starters.of_launcher(view.job.request.mpi)
    made: Starter = (module.Starter if module else Starter)(view)
    return made


def features_of(view: LauncherView, when: str, before: Iterable[Feature]) -> list[Feature]:
    """Its features, in their order.

    Args:
        when: Of which moment, as in features.
        before: Those of the attempt before.
    """
    known = {type(one): one for one in before}
    modules = features.modules(features.LAUNCHER, when, view.job.spec, len(view.hosts.hosts))
    return [module.InLauncher(view, known.get(module.InLauncher)) for module in modules]
