"""Since when tasks have been quiet, with a clock and processes that the test moves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gridtf.features.stalls.agent import InAgent
from tests.support.features import agent_view
from tests.support.plans import hosts, task_plan
from tests.support.system import FakeSystem

HERTZ = os.sysconf("SC_CLK_TCK")


class Watched:
    """A task whose first process is 50, with a child, looked at every second; it is stalled after 100 s."""

    def __init__(self, folder: Path, stall_after: str = "100s") -> None:
        self.system = FakeSystem()
        self.system.ticks = {50: (1, 0), 51: (50, 0), 60: (1, 0)}
        values: dict[str, Any] = {"tasks": {"worker": {"count": 1}}, "stall_after": stall_after}
        view = agent_view(task_plan(folder / "run", hosts(0, slots=1), **values), self.system)
        self.supervisor = view.state.supervisor
        self.task = self.supervisor.tasks["worker:0"]
        self.task.state, self.task.pid = "RUNNING", 50
        self.feature = InAgent(view)

    @property
    def since(self) -> object:
        return self.task.notes.get("quiet")

    def look(self) -> bool:
        return self.supervisor.note(self.feature.look())

    def passes(self, seconds: int) -> int:
        """Returns how often the note has changed."""
        changes = 0
        for _ in range(seconds):
            self.system.sleep(1.0)
            changes += self.look()
        return changes

    def use(self, pid: int, seconds: float) -> None:
        parent, used = self.system.ticks[pid]
        self.system.ticks[pid] = (parent, used + int(seconds * HERTZ))


def test_quiet_task_is_told_once_half_of_the_time_is_over(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.passes(1)
    begun = watched.system.time()
    assert watched.passes(45) == 0
    assert watched.since is None
    assert watched.passes(55) == 1
    assert watched.since == begun


@pytest.mark.parametrize("sign", ["own", "child", "log", "pipe", "step", "restart"])
def test_whatever_a_task_does_ends_the_quiet(sign: str, tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.passes(80)
    assert watched.since is not None
    if sign in ("own", "child"):
        watched.use(50 if sign == "own" else 51, 1.0)
    elif sign == "log":
        watched.system.lines[50] = 1
    elif sign == "pipe":
        watched.task.printed = lambda: 10
    elif sign == "step":
        watched.task.progress = {"step": 3, "values": {}, "time": 1.0}
    else:
        watched.task.pid = 60
    assert watched.passes(6) == 1
    assert watched.since is None


def test_a_hundredth_of_a_core_and_other_processes_are_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for _ in range(20):
        watched.passes(5)
        watched.use(50, 0.03)
        watched.use(60, 5.0)
    assert watched.since is not None


def test_agent_that_was_suspended_begins_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.passes(80)
    watched.system.sleep(3600)
    assert watched.look()
    assert watched.since is None


def test_nobody_looks_where_that_is_switched_off(tmp_path: Path) -> None:
    watched = Watched(tmp_path, stall_after="off")
    assert watched.passes(200) == 0
    assert watched.since is None
