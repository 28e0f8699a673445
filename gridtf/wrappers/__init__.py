"""What stands round the programs of a job's tasks: any of these, with one implementation each, of bootstrap/agent/api.

==========  ======================================================================
containers  what runs a program in a container: tasks, and the check of their host
logcap      what writes the logs of tasks, lest they become too large
==========  ======================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

from gridtf.run.rundir import cannot, open_log

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec


class Output:
    """Where the output of tasks goes: each writes its own log."""

    @property
    def pids(self) -> Collection[int]:
        """Processes of gridtf itself that end with the last task, and not before."""
        return ()

    def opened(self, name: str, log: Path) -> BinaryIO:
        """A file that takes the output of a task, to be closed once the task has inherited it.

        Raises:
            RunDirError: The log cannot be written.
        """
        try:
            return open_log(log)
        except OSError as error:
            raise cannot("write", log, error) from None

    def counter(self, name: str) -> Callable[[], int] | None:
        """What returns how many bytes the log of a task has received since the start of the attempt; None: that is to
        be asked of the task."""
        return None

    def look(self) -> None:
        """Look after the processes."""

    def settle(self, names: Sequence[str]) -> None:
        """Wait until the logs of tasks that have ended have all that they have printed, for a short time."""

    def finish(self) -> None:
        """Have the processes end as soon as no task can print any more."""


def hides_host(spec: JobSpec) -> bool:
    """Whether tasks see other programs than those of their host."""
    return spec.contained


def python(spec: JobSpec) -> str:
    """The Python of the tasks, unless their command is another; empty: gridtf's own."""
    return spec.python or ("python3" if spec.contained else "python" if spec.setup else "")


def modules(spec: JobSpec) -> list[ModuleType]:
    """Import those that a job wants, the innermost first: each has a class Wrapper."""
    wanted = {"containers": spec.contained, "logcap": spec.log_bytes}
    return [import_module(f"gridtf.wrappers.{name}") for name, wants in wanted.items() if wants]
