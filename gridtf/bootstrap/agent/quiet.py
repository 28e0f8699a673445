"""Which tasks of a host have been quiet: since when they have used no CPU time, and written and reported nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from gridtf.bootstrap.agent.supervisor import TaskProcess
from gridtf.bootstrap.system import System
from gridtf.host import procfs

_SHARE = 0.01  # of a core, below which a task does nothing
_TICKS = 2  # of the clock in which the kernel counts, which say nothing
_SHORTEST, _LONGEST = 0.5, 60.0  # seconds between two looks
_LOOKS = 10  # while a task becomes stalled
_PAUSES = 3  # looks that a busy host delays; after more of them, this process was suspended


class Quiet:
    """Finds out since when each task has been quiet, from /proc alone: no file system that can hang is asked.

    Args:
        after: Seconds after which a job that is quiet is stalled; None: tasks are not looked at.
        system: This host.
    """

    def __init__(self, after: float | None, system: System) -> None:
        self._period = None if after is None else min(max(after / _LOOKS, _SHORTEST), _LONGEST)
        self._told = 0.0 if after is None else after / 2  # seconds after which the launcher is told
        self._system = system
        self._last: float | None = None  # when this last looked, by the monotonic clock
        # task -> CPU time, and what else changes while it does something
        self._seen: dict[str, tuple[int, object]] = {}
        self._since: dict[str, float] = {}
        self._hertz = os.sysconf("SC_CLK_TCK")

    def look(self, tasks: Iterable[TaskProcess]) -> bool:
        """Look, if it is time, and note in each task since when it has been quiet.

        Args:
            tasks: The tasks that run.

        Returns:
            Whether a note has changed.
        """
        now = self._system.monotonic()
        if self._period is None or (self._last is not None and now - self._last < self._period):
            return False
        elapsed, self._last = now - (self._last or now), now
        suspended = elapsed > _PAUSES * self._period + 2
        ticks, most = self._system.cpu_ticks(), max(_TICKS, elapsed * _SHARE * self._hertz)
        changed, wall = False, self._system.time()
        for task in tasks:
            if task.pid is None:
                continue
            used = _of_family(task.pid, ticks)
            printed = (self._system.written(task.pid), task.printed and task.printed())
            signs = (task.pid, printed, (task.progress or {}).get("step"))
            before, self._seen[task.name] = self._seen.get(task.name), (used, signs)
            if suspended or before is None or used - before[0] > most or signs != before[1]:
                self._since[task.name] = wall
            since = self._since[task.name]
            note = since if wall - since >= self._told else None
            changed |= note != task.quiet
            task.quiet = note
        return changed


def _of_family(root: int, ticks: Mapping[int, tuple[int, int]]) -> int:
    """The clock ticks that a process and its descendants have used."""
    family = [root, *procfs.below(root, {pid: parent for pid, (parent, _) in ticks.items()})]
    return sum(ticks[pid][1] for pid in family if pid in ticks)
