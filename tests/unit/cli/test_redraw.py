"""gridtf status --watch on a terminal."""

from __future__ import annotations

from gridtf.cli.redraw import Screen


def test_lines_take_the_place_of_those_before() -> None:
    screen = Screen()
    assert screen.draw(["a", "b"], 80, 24) == "a\x1b[K\nb\x1b[K\n\x1b[J"
    assert screen.draw(["c"], 80, 24) == "\x1b[2Fc\x1b[K\n\x1b[J"
    assert screen.clear() == "\x1b[1F\x1b[J"


def test_lines_fit_the_terminal() -> None:
    lines = [f"line {number}" for number in range(30)]
    drawn = Screen().draw([*lines, "the end"], 6, 5)
    assert drawn == "line 0\x1b[K\nline 1\x1b[K\nline 2\x1b[K\nthe e…\x1b[K\n\x1b[J"
    assert Screen().draw(["a", "b"], 5, 1) == "b\x1b[K\n\x1b[J"


def test_terminal_of_another_size_is_cleared() -> None:
    screen = Screen()
    screen.draw(["a"], 80, 24)
    assert screen.draw(["a"], 40, 24).startswith("\x1b[2J\x1b[H")
    assert screen.draw(["a"], 40, 24).startswith("\x1b[1F")
