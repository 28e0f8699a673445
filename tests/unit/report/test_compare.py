"""What differs between two jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.report import charts, compare
from gridtf.report.compare import Difference
from gridtf.report.figures import Figure
from gridtf.report.gather import gather
from tests.support import recordedruns
from tests.support.recordedruns import BEGIN
from tests.support.topics import fast


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


def test_settings_of_several_jobs() -> None:
    runs = [{"mem": "8G", "lr": "0.1"}, {"mem": "8G", "lr": "0.01"}, {"lr": "0.1", "mem": "8G", "time": "1:00"}]
    assert compare.differing(runs) == {"lr": {"0.1": [0, 2], "0.01": [1]}, "time": {None: [0, 1], "1:00": [2]}}
    assert compare.differing(runs[:1]) == compare.differing([]) == {}


@pytest.mark.parametrize("count", fast(2, 2, 3, 7))
def test_lines_keep_the_number_of_their_run_and_share_places(count: int, tmp_path: Path) -> None:
    made = [
        recordedruns.make(tmp_path / f"{n}", workers=2, minutes=2 + 9 * n, begin=BEGIN + 7.3 * n, reports=n != 1)
        for n in range(count)
    ]
    materials = [gather(run, BEGIN + 90_000) for run in made]
    labels = [f"run {number}" for number in range(count)]
    loss = compare.by_step(*materials, labels=labels)[0]
    numbers = [0, *range(2, count)]  # the second has reported nothing
    assert loss.numbers == tuple(numbers)
    assert [series.label for series in loss.series] == [labels[number] for number in numbers]
    by_time = compare.by_time(*materials, labels=labels)
    assert {chart.title: chart.numbers for chart in by_time}["Memory"] == tuple(range(count))
    assert count < 7 or not any(area for chart in (loss, *by_time) for area in chart.pictures[0].areas)
    if count > 2:
        for chart in (loss, *by_time):
            assert len(chart.places) <= 242
            assert {len(series.values) for series in chart.series} == {len(chart.places)}


def test_colours_go_from_blue_to_red() -> None:
    assert [charts.colour(number, 3) for number in range(3)] == [f"hsl({hue} 65% 45%)" for hue in (225, 112, 0)]
    assert charts.colour(0, 1) == "hsl(225 65% 45%)"
