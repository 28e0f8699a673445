"""What differs between two jobs."""

from __future__ import annotations

from gridtf.report import compare
from gridtf.report.compare import Difference
from gridtf.report.figures import Figure


def test_settings_that_differ_and_those_that_do_not() -> None:
    first = {"command": "train", "time": "1:00", "tasks.worker.count": "2"}
    second = {"command": "train", "tasks.worker.count": "4", "mem": "8G"}
    differing, same = compare.settings(first, second)
    assert differing == [("time", "1:00", None), ("tasks.worker.count", "2", "4"), ("mem", None, "8G")]
    assert same == [("command", "train")]


def test_figures_and_their_changes() -> None:
    first = [
        Figure("a", 2.0, "2"),
        Figure("b", 0.2, "0 s"),
        Figure("c", 1.0, "1"),
        Figure("d", None, ""),
        Figure("e", 0, "0"),
    ]
    second = [Figure("a", 3.0, "3"), Figure("b", 0.3, "0 s"), Figure("c", 50.0, "50"), Figure("d", None, "")]
    assert compare.figures(first, [*second, Figure("e", 4, "4"), Figure("f", 5, "5")]) == [
        Difference("a", "2", "3", "+50.0 %"),
        Difference("b", "0 s", "0 s", "the same"),
        Difference("c", "1", "50", "50.0 times"),
        Difference("e", "0", "4", ""),
        Difference("f", "", "5", ""),
    ]
