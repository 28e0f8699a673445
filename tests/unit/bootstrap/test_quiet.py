"""Since when tasks have been quiet, with a clock and processes that the test moves."""

from __future__ import annotations

import os

import pytest

from gridtf.bootstrap.agent.quiet import Quiet
from gridtf.bootstrap.agent.supervisor import TaskProcess
from tests.support.system import FakeSystem

HERTZ = os.sysconf("SC_CLK_TCK")


class Watched:
    """A task whose first process is 50, with a child, looked at every second; it is stalled after 100 s."""

    def __init__(self) -> None:
        self.system = FakeSystem()
        self.system.ticks = {50: (1, 0), 51: (50, 0), 60: (1, 0)}
        self.task = TaskProcess("worker:0", state="RUNNING", pid=50)
        self.quiet = Quiet(100.0, self.system)

    def passes(self, seconds: int) -> int:
        """Returns how often the note has changed."""
        changes = 0
        for _ in range(seconds):
            self.system.sleep(1.0)
            changes += self.quiet.look([self.task])
        return changes

    def use(self, pid: int, seconds: float) -> None:
        parent, used = self.system.ticks[pid]
        self.system.ticks[pid] = (parent, used + int(seconds * HERTZ))


def test_quiet_task_is_told_once_half_of_the_time_is_over() -> None:
    watched = Watched()
    watched.passes(1)
    begun = watched.system.time()
    assert watched.passes(45) == 0
    assert watched.task.quiet is None
    assert watched.passes(55) == 1
    assert watched.task.quiet == begun


@pytest.mark.parametrize("sign", ["own", "child", "log", "pipe", "step", "restart"])
def test_whatever_a_task_does_ends_the_quiet(sign: str) -> None:
    watched = Watched()
    watched.passes(80)
    assert watched.task.quiet is not None
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
    assert watched.task.quiet is None


def test_a_hundredth_of_a_core_and_other_processes_are_nothing() -> None:
    watched = Watched()
    for _ in range(20):
        watched.passes(5)
        watched.use(50, 0.03)
        watched.use(60, 5.0)
    assert watched.task.quiet is not None


def test_agent_that_was_suspended_begins_again() -> None:
    watched = Watched()
    watched.passes(80)
    watched.system.sleep(3600)
    assert watched.quiet.look([watched.task])
    assert watched.task.quiet is None


def test_nobody_looks_where_that_is_switched_off() -> None:
    watched = Watched()
    watched.quiet = Quiet(None, watched.system)
    assert watched.passes(200) == 0
    assert watched.task.quiet is None
