"""Who is slow in lock-step training, on hosts of which one gets less CPU time, a slow disk, link or neighbour."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.slowhosts import INTERVAL, SlowHosts, events, named, training

pytestmark = pytest.mark.tensorflow

HOSTS = ("n1", "n2", "n3")  # with two, there is only one that the other differs from
# Of hosts that use up their quotas, one is slow by chance: a task needs a third of its own, and in a part of each step
# none.
QUOTA, DEVICE = 0.5, 0.2  # cores of each host, and seconds


@pytest.fixture
def slow(bed: Bed) -> Iterator[SlowHosts]:
    hosts = SlowHosts(bed, HOSTS)
    try:
        yield hosts
    finally:
        hosts.well()


@on_every_scheduler
def test_the_slow_host_of_three_is_named_with_what_it_lacks(bed: Bed, slow: SlowHosts, tmp_path: Path) -> None:
    job = training(bed, len(HOSTS), device=DEVICE)
    slow.limit(QUOTA)
    time.sleep(10 * INTERVAL)  # three judgements of six samples
    assert job.status()["slow"] is None
    expected = []
    for fault, host, what in (
        (slow.less_cpu("n3", 0.3) if bed.kind == "slurm" else slow.neighbour("n3", 4), "n3", "CPU"),
        (slow.slow_disk("n2", 400_000), "n2", "input"),
        (slow.slow_link("n3", "8mbit"), "n3", "network"),
    ):
        expected.append((host, what))
        with fault:
            job.until(lambda: len([*named(job)]) == len(expected), f"{host} is named, for want of {what}", 120)
            assert [*named(job)] == expected
            told = job.status()["slow"]
            assert (told["host"], told["what"]) == expected[-1]
            assert told["text"] in job.gridtf("status").stdout
    job.until(lambda: events(job)[-1]["event"] == "in step", "the name is withdrawn", 120)
    assert job.status()["slow"] is None
    job.gridtf("cancel")
    job.verdict()
    assert [*named(job)] == expected  # hosts have kept their quotas, which this machine has for all, to the end
    assert re.search(r"\nslow +worker:\d on n3 held the others up for .*: network\n", job.gridtf("status").stdout)
    job.gridtf("report", "--output", bed.seen(bed.home() / "report.html"))
    assert "on n3 held the others up for " in (bed.home() / "report.html").read_text()


@on_every_scheduler
def test_task_with_more_to_compute_is_named_as_that_and_not_for_want_of_cpus(bed: Bed, slow: SlowHosts) -> None:
    job = training(bed, len(HOSTS), device=DEVICE, more="n3")
    slow.limit(QUOTA / 2)
    job.until(lambda: [*named(job)], "a task is named", 120)
    assert {*named(job)} == {("n3", "more to compute")}
    assert "holds the others up (more to compute, " in job.gridtf("status").stdout
    job.gridtf("cancel")
    job.verdict()
