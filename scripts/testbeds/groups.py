"""Control groups, version 1: every host has a sub-tree of each hierarchy of its own, and sees it as the whole.

Otherwise the slurmds of all hosts would share the groups slurm/uid_…/job_… of this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from .errors import TestbedError

ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("devices", "freezer")
_USED = (*_NEEDED, "cpu", "cpuacct", "cpuset", "memory", "pids", "blkio")


def name(state: Path) -> str:
    """The name of a test bed's control groups."""
    return "gridtf-testbed-" + hashlib.sha256(os.fsencode(state)).hexdigest()[:12]


def make(state: Path, hosts: Iterable[str]) -> None:
    """Make the control groups of all hosts.

    Raises:
        TestbedError: When this machine has none of version 1.
    """
    missing = [kind for kind in _NEEDED if not (ROOT / kind / "cgroup.procs").exists()]
    if missing:
        raise TestbedError(
            f"no control groups of version 1 here: {', '.join(missing)}",
            why="without systemd, Debian's Slurm can constrain devices by no others",
            hint="leave out --cgroups",
        )
    for hierarchy in _hierarchies():
        top = hierarchy / name(state)
        for group in (top, *(top / host for host in hosts)):
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # a new group has none, and accepts no process without
                if (group / setting).exists():
                    (group / setting).write_text((hierarchy / setting).read_text())


def binds(state: Path, host: str) -> list[tuple[Path, str]]:
    return [(hierarchy / name(state) / host, str(hierarchy)) for hierarchy in _hierarchies()]


def remove(state: Path, limit: float = 10) -> None:
    """Remove the control groups, which is possible only some time after their last process has ended.

    Raises:
        TestbedError: When they cannot be removed after ``limit`` seconds.
    """
    end = time.monotonic() + limit
    for hierarchy in _hierarchies():
        top = hierarchy / name(state)
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
            if top.exists() and time.monotonic() > end:
                raise TestbedError(f"{top} cannot be removed", why="processes in it do not end")
            time.sleep(0.01 if top.exists() else 0)


def _hierarchies() -> list[Path]:
    return [ROOT / kind for kind in _USED if (ROOT / kind / "cgroup.procs").exists()]
