"""What starts the tasks of an attempt, in its launcher: fork, and what those in gridtf/starters extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from gridtf import starters
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.judge.evidence import Evidence
    from gridtf.bootstrap.launcher.hosts import HostMonitor
    from gridtf.bootstrap.plan.launchedjob import LaunchedJob
    from gridtf.bootstrap.plan.placement import PlacedTask
    from gridtf.run.recordtypes import Kind
    from gridtf.run.rundir import Attempt, Record


class LauncherView(Fields):
    """An attempt, as its starter sees it.

    Attributes:
        job: The job.
        attempt: The attempt.
        hosts: Its hosts, and what they have reported.
        tasks: Its tasks; none before they are placed.
    """

    job: LaunchedJob
    attempt: Attempt
    hosts: HostMonitor
    tasks: Sequence[PlacedTask] = ()


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


def starter_of(view: LauncherView) -> Starter:
    """What starts the tasks of an attempt."""
    module = starters.of_launcher(view.job.request.mpi)
    made: Starter = (module.Starter if module else Starter)(view)
    return made
