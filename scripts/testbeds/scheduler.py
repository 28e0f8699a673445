"""The interface of a test bed's scheduler: the names that slurm.py and sge.py define, as a module for another must."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .bed import Bed


class Scheduler(Protocol):
    """A module of this package.

    Attributes:
        HOSTS: Host -> its IP address.
        ABOUT: Its name and the kinds of hosts, for the help text.
        OPTION: The meaning of KEY=VALUE of ``up --option``, for the help text.
        REFUSED: Options of ``up`` that this scheduler does not support -> the reason.
        GLANCE: The command that shows the state of the hosts, such as sinfo.
        BINARIES: The folder of the scheduler's commands; empty if they are on the PATH.
        PRESEED: Answers to questions of its packages' installation (debconf-set-selections(1)).
        ENVIRONMENT: Variables that every command on a host needs.
    """

    HOSTS: dict[str, str]
    ABOUT: str
    OPTION: str
    REFUSED: dict[str, str]
    GLANCE: str
    BINARIES: str
    PRESEED: tuple[str, ...]
    ENVIRONMENT: dict[str, str]

    def packages(self, bed: Bed, /) -> dict[str, str]:
        """Return the packages that bring each command or file."""

    def fetch(self, bed: Bed, say: Callable[[str], None], /) -> None:
        """Get what apt-get does not install, before an older bed is taken down. say: prints a line of progress."""

    def prepare(self, bed: Bed, /) -> None:
        """Write the configuration into the state folder, before any host starts."""

    def binds(self, bed: Bed, /) -> list[tuple[Path, str]]:
        """Return (real path, path on the hosts) of further folders that all hosts see."""

    def start(self, bed: Bed, host: str, /) -> None:
        """Start the daemons of a host. Runs in the first process of that host."""

    def ask(self, bed: Bed, command: list[str], /) -> subprocess.CompletedProcess[str]:
        """Run a command of the scheduler."""

    def wait_until_well(self, bed: Bed, hosts: list[str], *, since: float = 0, limit: float = 60) -> None:
        """Wait until jobs can run on these hosts, which were started at ``since`` (seconds since the epoch).

        Raises:
            TestbedError: When they are not ready after ``limit`` seconds.
        """
