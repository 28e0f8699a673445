"""What samples add up to."""

from __future__ import annotations

import re

import pytest

from gridtf.report import charts
from gridtf.report import usage as measures
from gridtf.report.drawing import time_axis
from tests.support.samples import sample, used


def test_use_is_weighted_with_the_time_between_samples() -> None:
    usage = used(sample(0), sample(10, cpu=4.0), sample(100, cpu=1.0))
    task = usage.tasks["worker:0"]
    assert (task.seconds, task.amount, task.peak, task.memory) == (100, 130, 4, 1 << 30)
    gpu = usage.gpus["n1", "0"]
    assert (gpu.mean, gpu.energy, gpu.most_memory) == (0.5, 36_000, 8 << 30)
    assert (usage.hosts["n1"].mean, usage.cpus, usage.samples, usage.begin, usage.end) == (3, {"n1": 8}, 3, 0, 100)


def test_time_between_attempts_counts_for_nothing() -> None:
    usage = used(sample(0), sample(10), {**sample(500), "attempt": 2}, {**sample(510), "attempt": 2})
    assert usage.tasks["worker:0"].seconds == 20


def test_silence_and_clocks_that_go_back_count_for_nothing() -> None:
    usage = used(sample(0), sample(100_000), sample(50))
    assert usage.tasks["worker:0"].seconds == 0
    assert usage.tasks["worker:0"].mean is None


def test_gpu_whose_driver_tells_little() -> None:
    odd = [{**sample(time), "gpus": {"0": {"memory": 5}, "1": {}}} for time in (0, 10)]
    usage = used(*odd)
    assert usage.gpus["n1", "0"].memory == 5
    assert usage.gpus["n1", "1"].mean is None
    assert measures.GPU not in usage.curves


def test_steps_and_values() -> None:
    usage = used(
        sample(0, step=0, values={}),
        sample(5, step=10, values={"loss": 2.0, "name": "x", "flag": True, "list": [1]}),
        sample(10, step=20, values={"loss": 1.0}, rate=2.0),
        sample(15, step=30, values={"loss": "nan"}),
        sample(20, step=40, values={"loss": "inf"}),
    )
    assert usage.first_step == 5
    assert usage.steps == {"worker:0": (0, 40)}
    assert usage.odd == {"loss": (15, 30, "worker:0")}
    loss = usage.by_step["loss"]
    assert (loss.last, loss.low, loss.high) == (1, 1, 2)
    assert set(usage.by_step) == {"loss"}
    assert {"rate", "value:loss"} <= set(usage.curves)


def test_extremes_between_samples_are_kept() -> None:
    usage = used(
        sample(0, step=0, values={"loss": 2.0}),
        sample(5, step=10, values={"loss": 1.0}, ranges={"loss": [0.25, 9.0]}),
    )
    loss = usage.by_step["loss"]
    assert (loss.last, loss.low, loss.high) == (1, 0.25, 9)
    assert [(point.low, point.middle, point.high) for point in usage.curves["value:loss"]["worker:0"].points()] == [
        (2, 2, 2),
        (0.25, 1, 9),
    ]


def test_idle_gpu_has_a_chart_but_files_that_are_not_read_have_none() -> None:
    idle = [{**sample(time), "gpus": {"0": {"use": 0.0}}} for time in (0, 10)]
    titles = [title for _, title, _ in charts.measures(used(*idle))]
    assert titles == ["GPU utilisation", "CPU cores in use", "Memory"]


@pytest.mark.parametrize(
    ("values", "kinds", "chosen"),
    [
        ((2.0, 1.0), ["linear"], False),
        ((2.0, 0.1), ["linear", "log"], False),
        ((2.0, 0.001), ["linear", "log"], True),
        ((2.0, 0.0), ["linear"], False),
        ((-2.0, -0.001), ["linear"], False),
        ((1e300, 1e-300), ["linear"], False),
        ((1.7e308, 1e307), ["linear"], False),
    ],
)
def test_logarithmic_axis_is_for_positive_values_of_several_decades(
    values: tuple[float, float], kinds: list[str], chosen: bool
) -> None:
    usage = used(*(sample(5.0 * step, step=step, values={"loss": value}) for step, value in enumerate(values)))
    axis = charts.by_time(time_axis(0.0, 10.0, (), charts.LEFT, charts.RIGHT))
    first = charts.of_run(usage, axis, {}, ["worker:0"])[0]
    assert ([picture.kind for picture in first.pictures], first.log) == (kinds, chosen)
    for picture in first.pictures:
        places = [float(place) for place in re.findall(r"[\d.]+ ([\d.-]+)", picture.lines[0])]
        assert all(charts.TOP <= place <= charts.BOTTOM for place in places)


@pytest.mark.parametrize("count", [3, 40])
def test_only_some_values_are_shown(count: int) -> None:
    usage = used(*(sample(time, step=time, values={f"v{n}": 1.0 for n in range(count)}) for time in (1, 2)))
    assert len(usage.by_step) == min(count, 12)
