"""What a test bed needs to know of its scheduler: the names that slurm.py and sge.py have, and one for another must."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol

from .bed import Bed


class Scheduler(Protocol):
    """A module of this package.

    Attributes:
        HOSTS: the name and address of every host.
        ABOUT: what hosts there are, for the help text.
        OPTION: what KEY=VALUE of ``up --option`` means.
        REFUSED: options of ``up`` that this scheduler does not take, and why.
        GLANCE: the command that shows how the hosts are, such as sinfo.
        BINARIES: the folder of the scheduler's commands, where that is not on the PATH anyway.
        PRESEED: answers to what its packages ask while they are installed (debconf-set-selections(1)).
        ENVIRONMENT: what every command on a host needs in its environment.
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

    def prepare(self, bed: Bed, /) -> None:
        """Write the configuration into the state folder, before any host starts."""

    def binds(self, bed: Bed, /) -> list[tuple[Path, str]]:
        """Return the folders that all hosts see, and where."""

    def start(self, bed: Bed, host: str, /) -> None:
        """Start the daemons of a host. Runs in the first process of that host."""

    def ask(self, bed: Bed, command: list[str], /) -> subprocess.CompletedProcess[str]:
        """Run a command of the scheduler."""

    def wait_until_well(self, bed: Bed, hosts: list[str], *, since: float = 0, limit: float = 60) -> None:
        """Wait until jobs can run on these hosts, which were started at ``since`` (seconds since the epoch).

        Raises:
            TestbedError: they are not ready after ``limit`` seconds.
        """
