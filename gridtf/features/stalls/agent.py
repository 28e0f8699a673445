"""The agent's half: since when tasks have used no CPU time, and written and reported nothing; and where they are."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import ClassVar

from gridtf.bootstrap.agent import api
from gridtf.bootstrap.wire.helper import Helper
from gridtf.features.stalls import DUMP, STACKS
from gridtf.host import processes, procfs
from gridtf.run import recordtypes
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record

_SHARE = 0.01  # of a core, below which a task does nothing
_TICKS = 2  # of the clock in which the kernel counts, which say nothing
_SHORTEST, _LONGEST = 0.5, 60.0  # seconds between two looks
_LOOKS = 10  # while a task becomes stalled
_PAUSES = 3  # looks that a busy host delays; after more of them, this process was suspended


class InAgent(api.Feature):
    """Finds that out from /proc alone: no file system that can hang is asked."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {DUMP: {"id": recordtypes.Hex}}

    def __init__(self, view: api.AgentView) -> None:
        super().__init__(view)
        after = view.plan.spec.seconds_to_stall  # None: it does not matter whether tasks are quiet
        self._period = None if after is None else min(max(after / _LOOKS, _SHORTEST), _LONGEST)
        self._told = 0.0 if after is None else after / 2  # seconds after which the launcher is told
        self._last: float | None = None  # when this last looked, by the monotonic clock
        # task -> CPU time, and what else changes while it does something
        self._seen: dict[str, tuple[int, object]] = {}
        self._since: dict[str, float] = {}
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._asked = ""  # the id of the last request for stacks
        self._helper = view.processes.own(Helper(0.0, view.system))  # takes them
        self._taken = b""

    def look(self) -> Mapping[str, Record]:
        self._look_for_request()
        now = self.view.system.monotonic()
        if self._period is None or (self._last is not None and now - self._last < self._period):
            return {}
        elapsed, self._last = now - (self._last or now), now
        return self._quiet(elapsed, suspended=elapsed > _PAUSES * self._period + 2)

    def _quiet(self, elapsed: float, *, suspended: bool) -> Mapping[str, Record]:
        """Task -> since when it has been quiet; None: it has not been for long."""
        system, found = self.view.system, dict[str, Record]()
        ticks, most, wall = system.cpu_ticks(), max(_TICKS, elapsed * _SHARE * self._hertz), system.time()
        for task in self.view.state.supervisor.running():
            if task.pid is None:
                continue
            used = _of_family(task.pid, ticks)
            printed = (system.written(task.pid), task.printed and task.printed())
            signs = (task.pid, printed, (task.progress or {}).get("step"))
            before, self._seen[task.name] = self._seen.get(task.name), (used, signs)
            if suspended or before is None or used - before[0] > most or signs != before[1]:
                self._since[task.name] = wall
            since = self._since[task.name]
            found[task.name] = {"quiet": since if wall - since >= self._told else None}
        return found

    def _look_for_request(self) -> None:
        """Have a process take the stacks for which the launcher asks, and tell it what that has said."""
        talk, helper = self.view.conversation, self._helper
        while heard := helper.hear():
            self._taken += heard
        if helper.pid is None and self._taken:
            with contextlib.suppress(ValueError):  # it was killed
                talk.send(STACKS, {"id": self._asked, "tasks": json.loads(self._taken)})
            self._taken = b""
        asked = talk.latest.get(DUMP, {}).get("id", "")
        if helper.pid is None and asked != self._asked and not talk.stop:
            self._asked = asked
            helper.start(self._take)

    def _take(self, agent: socket.socket) -> None:
        """In the process: take the stacks of all processes of the tasks of this host."""
        from gridtf.features.stalls import stacks

        processes.die_with_parent(self.view.system.pid, signal.SIGKILL)
        processes.keep_only([agent.fileno()])
        state = self.view.state
        tasks = {task.name: task.pid for task in state.supervisor.running() if task.pid}
        agent.sendall(json.dumps(stacks.take(tasks, state.local_dir, self.view.system)).encode())


def _of_family(root: int, ticks: Mapping[int, tuple[int, int]]) -> int:
    """The clock ticks that a process and its descendants have used."""
    family = [root, *procfs.below(root, {pid: parent for pid, (parent, _) in ticks.items()})]
    return sum(ticks[pid][1] for pid in family if pid in ticks)
