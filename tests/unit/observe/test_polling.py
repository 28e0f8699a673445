"""The pauses between two questions to a scheduler."""

from __future__ import annotations

import pytest

from gridtf.observe.polling import CLUSTER, HERE, Pace


def pauses(pace: Pace, count: int, *, patient: bool) -> list[float]:
    """The pauses after each of the next questions, asked as soon as they are due."""
    found, now = [], 0.0
    for _ in range(count):
        pace.answered(now)
        due = pace.due(now, patient=patient)
        found.append(due - now)
        now = due
    return found


def test_pauses_grow_to_a_minute_where_nothing_can_be_missed() -> None:
    assert pauses(Pace(CLUSTER), 6, patient=True) == [10, 20, 40, 60, 60, 60]
    assert pauses(Pace(CLUSTER), 4, patient=False) == [10, 10, 10, 10]


def test_pauses_are_short_at_the_end() -> None:
    pace = Pace(CLUSTER)
    pace.answered(0.0)
    pace.ends()
    assert pace.due(5.0, patient=False) == 1.0
    assert pauses(pace, 5, patient=False) == [2, 4, 8, 10, 10]


def test_pauses_begin_again_after_a_change() -> None:
    pace = Pace(CLUSTER)
    pauses(pace, 5, patient=True)
    pace.changed()
    assert pauses(pace, 2, patient=True) == [20, 40]
    pace.ends()
    pace.changed()  # which makes no pause longer
    assert pace.due(0.0, patient=True) == pace.asked + 1.0  # type: ignore[operator]


@pytest.mark.parametrize(("every", "silence", "alive"), [(1, 9, True), (1, 11, False), (30, 59, True), (30, 61, False)])
def test_launcher_is_silent_after_two_of_its_own_intervals(every: float, silence: float, alive: bool) -> None:
    pace = Pace(CLUSTER)
    assert not pace.alive(0.0)
    for number in range(5):
        pace.heard(every * number)
    assert pace.alive(every * 4 + silence) == alive


def test_no_pause_is_longer_than_its_caller_wishes() -> None:
    assert pauses(Pace(CLUSTER.at_most(3.0)), 3, patient=True) == [3, 3, 3]
    assert max(pauses(Pace(HERE), 30, patient=False)) == pytest.approx(2)
