"""Exit codes that tell the launcher what an agent could not write down."""

from __future__ import annotations

from gridtf.errors import RendezvousError

NO_RUN_DIR, NO_WRITE, NO_LAUNCHER, LEFTOVERS, BROKEN, KILLED = 70, 71, 72, 73, 74, 75
EXITS = {
    NO_RUN_DIR: "does not see the run directory: it must lie on a file system that all hosts share",
    NO_WRITE: "could not write into the run directory (disk full, quota or permissions)",
    NO_LAUNCHER: "heard no more from the launcher",
    LEFTOVERS: "could not end all of its processes",
    BROKEN: "could not go on",
    KILLED: "was killed",
}


class NoRunDirError(RendezvousError):
    code = NO_RUN_DIR


class NoLauncherError(RendezvousError):
    code = NO_LAUNCHER
