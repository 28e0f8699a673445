"""CPU time of tests with all that they start: a control group of each process that runs tests counts it.

Without one (version 2 of control groups, whose files this user may write) it is that of the process and of those that
it has waited for, which the jobs of a test bed are not.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_ROOTS = Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")
# The processes of a test bed that are there without a job, as the kernel shortens their names.
_DAEMONS = {"slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sge_qmaster", "sge_execd", "bindfs"}
_TICKS = os.sysconf("SC_CLK_TCK")


class Spent:
    """Counts from the end of one test to the end of the next."""

    def __init__(self) -> None:
        self._group = _group()
        self._daemons: dict[int, float] = {}  # process -> CPU-seconds when it was last looked at
        self._whole = self._all()

    def since(self, *, bed: bool) -> tuple[float, float]:
        """(CPU-seconds since the last call, how much of them was of daemons of the test bed; bed: whether it is up)."""
        whole, now, daemons = self._whole, self._all(), 0.0
        self._whole = now
        if self._group and bed:
            pids = map(int, (self._group / "cgroup.procs").read_text().split())
            before, self._daemons = self._daemons, dict(map(_of_daemon, pids))
            daemons = sum(spent - before.get(pid, 0.0) for pid, spent in self._daemons.items())
        return round(now - whole, 3), round(daemons, 3)

    def close(self) -> None:
        """Leave the control group, and remove it."""
        if self._group:
            with contextlib.suppress(OSError):  # what a test has left there stays
                (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()

    def _all(self) -> float:
        if self._group:
            (used,) = (line for line in (self._group / "cpu.stat").read_text().splitlines() if line.startswith("usage"))
            return int(used.split()[1]) / 1e6
        uses = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(use.ru_utime + use.ru_stime for use in uses)


def _group() -> Path | None:
    """A new control group with this process."""
    for root in _ROOTS:
        with contextlib.suppress(OSError):
            if (root / "cgroup.procs").exists():
                group = root / f"gridtf-tests-{os.getpid()}"
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                (group / "cpu.stat").read_text()
                return group
    return None


def _of_daemon(pid: int) -> tuple[int, float]:
    """The process, and its CPU-seconds if it is a daemon, else 0."""
    with contextlib.suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
        if name in _DAEMONS:
            return pid, sum(map(int, rest.split()[11:13])) / _TICKS
    return pid, 0.0
