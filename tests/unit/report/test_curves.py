"""Curves stay short, and keep their extremes."""

from __future__ import annotations

import math
import random

from gridtf.report import curves
from gridtf.report.curves import Curve, Point


def test_short_curve_keeps_every_value() -> None:
    curve = Curve(1.0)
    for x in range(5):
        curve.add(x, x * x)
    assert curve.points() == [Point(x + 0.5, x * x, x * x, x * x) for x in range(5)]
    assert (curve.last, curve.low, curve.high) == (16, 0, 16)


def test_long_curve_is_short_and_keeps_the_extremes() -> None:
    curve, chance = Curve(1.0), random.Random(1)
    values = [chance.random() for _ in range(20_000)]
    values[4321], values[15_000] = 9.0, -9.0
    for x, y in enumerate(values):
        curve.add(x, y)
    points = curve.points()
    assert 100 < len(points) <= 240
    assert max(point.high for point in points) == curve.high == 9.0
    assert min(point.low for point in points) == curve.low == -9.0
    near = min(points, key=lambda point: abs(point.x - 4321.5))
    assert near.high == 9.0
    width = curve.width
    assert math.isclose(
        sum(point.middle for point in points[:-1]) * width, sum(values[: int(width) * len(points[:-1])])
    )


def test_curves_are_aligned_for_a_band() -> None:
    long, short = Curve(1.0), Curve(1.0)
    for x in range(1000):
        long.add(x, 1.0)
    for x in range(10):
        short.add(x, 3.0)
    points = curves.band([long, short])
    assert short.width == long.width == 8.0
    assert (points[0].low, points[0].middle, points[0].high) == (1.0, 2.0, 3.0)
    assert points[-1].middle == 1.0


def test_curves_without_values() -> None:
    assert Curve(1.0).points() == []
    assert (Curve(1.0).low, Curve(1.0).last) == (None, None)
    assert curves.band([]) == []
    assert [*curves.unbroken([], 5)] == []


def test_places_without_values_break_a_line() -> None:
    points = [Point(x, 0, 0, 0) for x in (0, 1, 2, 50, 51)]
    assert [[point.x for point in part] for part in curves.unbroken(points, 5)] == [[0, 1, 2], [50, 51]]
