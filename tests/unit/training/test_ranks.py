"""Which process keeps checkpoints, and how often processes ask each other whether one is requested."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.training.exchange import Interval
from gridtf.training.group import Group
from gridtf.training.ranks import Alone, Averaged, is_leader, steps_until


def test_leader_is_the_chief_else_worker_0() -> None:
    both, workers = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, {"worker": ["b:1", "c:1"]}
    assert is_leader("chief", 0, both)
    assert not is_leader("worker", 0, both)
    assert is_leader("worker", 0, workers)
    assert not is_leader("worker", 1, workers)
    assert not is_leader("evaluator", 0, workers)


def test_question_is_repeated_after_about_a_second() -> None:
    assert steps_until(100, 1.0) == 100
    assert steps_until(100, 2.0) == 50
    assert steps_until(1, 30.0) == 1  # slow steps: after each of them
    assert steps_until(1, 0.0001) == 2  # not at once after 10,000 steps: the first may have been a short one
    assert steps_until(1 << 20, 0.001) == 1 << 20
    steps, seconds = 1, 0.0
    while seconds < 10:  # steps of a millisecond, asked from the first one on
        seconds += steps / 1000
        steps = steps_until(steps, steps / 1000)
        assert steps <= 1000


def test_process_outside_a_job_keeps_its_own_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [False, True]
    alone = Alone(lambda: wanted.pop(0))
    assert alone.leads
    assert alone.told("step 3") == "step 3"
    assert [alone.wanted(1), alone.wanted(1)] == [False, True]


def test_members_of_a_group_save_right_after_an_exchange() -> None:
    """A group with one member and no link; ``exchanged`` and ``agreed_checkpoint`` as group.step() sets them."""
    ended: list[str] = []
    group: Any = Group(["worker:0"], 0, None, Interval(2))  # type: ignore[arg-type]
    averaged = Averaged(group, lambda: ended.append("end"))
    assert averaged.leads
    assert (averaged.together, averaged.wanted(1)) == (False, False)
    group.exchanged = True
    assert (averaged.together, averaged.wanted(1)) == (True, False)
    group.agreed_checkpoint = True
    assert averaged.wanted(1)
    group.exchanged = False  # the next step
    assert (averaged.together, averaged.wanted(1)) == (False, False)
    group.on_agreed_checkpoint()  # in group.finish(), of a member that waits for the others
    assert ended == ["end"]
    assert not Averaged(Group(["worker:0", "worker:1"], 1, None), print).leads  # type: ignore[arg-type]
