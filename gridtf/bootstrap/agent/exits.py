"""How an agent ends: its exit codes, for what it could not tell the launcher, and the errors that have one."""

from __future__ import annotations

import signal

from gridtf.errors import RendezvousError

# The signal that the agent supervisor sends to the agent when srun's or qrsh's process on this host has died.
ORPHANED = signal.SIGHUP

NO_RUN_DIR, NO_WRITE, NO_LAUNCHER, LEFTOVERS, BROKEN, KILLED = 70, 71, 72, 73, 74, 75
EXITS = {
    NO_RUN_DIR: "cannot see the run directory: it must be on a file system that all hosts share",
    NO_WRITE: "could not write into the run directory (disk full, quota or permissions)",
    NO_LAUNCHER: "lost contact with the launcher",
    LEFTOVERS: "could not end all of its processes",
    BROKEN: "could not continue",
    KILLED: "was killed",
}


class NoRunDirError(RendezvousError):
    """The run directory, or listener.json in it, did not appear on this host."""

    code = NO_RUN_DIR


class NoLauncherError(RendezvousError):
    """The launcher has been silent for too long."""

    code = NO_LAUNCHER


class Stopped(Exception):
    """The launcher has stopped the agent, or a signal has.

    Attributes:
        number: The signal; None: the launcher has.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = number
