"""Axes, ticks and paths."""

from __future__ import annotations

import itertools
import math

import pytest

from gridtf.report import drawing
from gridtf.report.curves import Point


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (45, "45 s"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (90000, "1 d 1 h"),
        (86460, "1 d 1 min"),
    ],
)
def test_elapsed(seconds: float, text: str) -> None:
    assert drawing.elapsed(seconds) == text


@pytest.mark.parametrize("end", [1, 7, 60, 3600, 36000, 864000, 3e7])
def test_time_axis_has_some_round_ticks(end: float) -> None:
    axis = drawing.time_axis(1000, 1000 + end, (), 0, 800)
    ticks = axis.ticks(100)
    assert 2 <= len(ticks) <= 10
    assert ticks[0].label == "0"
    places = [tick.at for tick in ticks]
    assert places == sorted(places)
    assert all(right - left >= 60 for left, right in itertools.pairwise(places))
    assert (axis.at(1000), axis.at(1000 + end), axis.at(9e12), axis.at(0)) == (0, 800, 800, 0)


def test_long_wait_is_drawn_short() -> None:
    axis = drawing.time_axis(0, 1_000_600, [(100, 1_000_100)], 0, 1000)
    assert [piece.short for piece in axis.pieces] == [False, True, False]
    assert axis.at(1_000_100) - axis.at(100) < 150
    labels = [tick.label for tick in axis.ticks(100)]
    assert labels[0] == "0"
    assert any(label.startswith("11 d") for label in labels)


def test_job_that_only_waits_has_an_axis() -> None:
    axis = drawing.time_axis(0, 500, [(0, 500)], 0, 1000)
    assert axis.at(250) == 500


@pytest.mark.parametrize(
    ("low", "high"),
    [
        *((0, 1), (0, 0), (5, 5), (-3, -3), (0.001, 0.0017), (-1e9, 1e12), (0, 100), (97, 99)),
        *((0, 4e-14), (1e-300, 3e-300), (0.3, math.nextafter(0.3, 1)), (1e20, math.nextafter(1e20, math.inf))),
        *((0, 5e-324), (5e-324, 5e-324), (-1e308, 1e308), (0, 1e308)),
    ],
)
def test_scale_holds_the_values(low: float, high: float) -> None:
    marks = drawing.scale(low, high)
    assert marks[0] <= low
    assert marks[-1] >= high
    assert marks[-1] > marks[0]
    assert 2 <= len(marks) <= 8
    assert all(map(math.isfinite, marks))


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0.03, 0.9, [0.02, 0.05, 0.1, 0.2, 0.5, 1]),
        (0.02, 2.3, [0.01, 0.1, 1, 10]),
        (1, 10, [1, 2, 5, 10]),
        (0.0003, 2.3, [0.0001, 0.001, 0.01, 0.1, 1, 10]),
        (1e-9, 1e9, [1e-9, 1e-6, 1e-3, 1, 1e3, 1e6, 1e9]),
    ],
)
def test_marks_of_a_logarithmic_axis(low: float, high: float, marks: list[float]) -> None:
    assert drawing.log_scale(low, high) == pytest.approx(marks)


def test_paths() -> None:
    points = [Point(0, 0, 1, 2), Point(10, 1, 2, 3)]
    assert drawing.line(points, lambda x: x, lambda y: y) == "M0.0 1.0L10.0 2.0"
    assert drawing.area(points, lambda x: x, lambda y: y) == "M0.0 2.0L10.0 3.0L10.0 1.0L0.0 0.0Z"
    assert drawing.line(points[:1], lambda x: x, lambda y: y) == "M0.0 1.0h.01"
