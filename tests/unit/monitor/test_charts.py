"""Sparklines and curves."""

from __future__ import annotations

import pytest

from gridtf.monitor import charts
from gridtf.monitor.charts import Curve
from gridtf.monitor.lines import text_of


def test_sparkline_shows_the_newest_values_at_the_right() -> None:
    assert charts.sparkline([0.0, 50.0, 100.0], 5, 100.0) == "  ▁▄█"
    assert charts.sparkline([100.0, 0.0, 50.0, 100.0], 3, 100.0) == "▁▄█"
    assert charts.sparkline([None, 1.0], 2, 1.0) == " █"
    assert charts.sparkline([], 3, 1.0) == "   "
    assert charts.sparkline([5.0, 0.0], 2, 0.0) == "▁▁"


def test_curve_falls_from_the_upper_left_to_the_lower_right() -> None:
    lines = charts.curve([(0, 8, 8), (7, 1, 1)], 4, 2)
    assert lines == ["⠑⢄  ", "  ⠑⢄"]


def test_curve_has_no_gaps_and_shows_extremes() -> None:
    points = [(float(x), 0.0, 0.0) for x in range(100)]
    points[50] = (50.0, 0.0, 100.0)
    lines = charts.curve(points, 10, 3)
    assert all(lines[-1]), lines
    assert " " not in lines[-1]
    assert lines[0].strip()


def test_curve_of_one_value_is_in_the_middle() -> None:
    assert charts.curve([(5, 1, 1)], 3, 3)[1].strip()


def test_curve_goes_back_after_a_restart() -> None:
    assert charts.curve([(0, 1, 1), (10, 2, 2), (5, 3, 3), (12, 0, 0)], 8, 4)


@pytest.mark.parametrize(("width", "height"), [(0, 0), (13, 5), (80, 1), (80, 0)])
def test_plot_without_space_is_empty(width: int, height: int) -> None:
    assert charts.plot([(0, 1, 1), (1, 2, 2)], width, height) == []


def test_plot_has_scales() -> None:
    lines = text_of(charts.plot([(0, 0.5, 0.5), (1000, 2.25, 2.25)], 40, 6)).splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("    2.25 │")
    assert lines[4].startswith("     0.5 │")
    assert lines[5].split() == ["0", "1000"]
    assert len(lines[5]) == 40


def test_scale_of_one_value_names_it_once() -> None:
    assert text_of(charts.plot([(5, 0.25, 0.25)], 40, 6)).count("0.25") == 1


def test_long_curve_is_thinned_with_its_extremes() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.add(step, 1000.0 if step == 77_777 else step % 10)
    assert 256 <= len(curve.points) <= 512
    assert curve.points[-1][0] == 99_999
    assert max(high for _, _, high in curve.points) == 1000.0
    assert [x for x, _, _ in curve.points] == sorted(x for x, _, _ in curve.points)
    widths = {round(two[0] - one[0]) for one, two in zip(curve.points[:-1], curve.points[1:-1], strict=False)}
    assert len(widths) == 1, "each point stands for as many values"


@pytest.mark.parametrize("value", [0, -1.5, 1e7, 123456789, 1e-12, -1.2345e-300, 1e299, 0.00012345])
def test_numbers_have_at_most_eight_characters(value: float) -> None:
    assert len(charts.number(value)) <= 8, charts.number(value)
    assert float(charts.number(value)) == pytest.approx(value, rel=0.2)
