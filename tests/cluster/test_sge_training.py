"""Training on a real Grid Engine. What holds for every scheduler: test_training.py."""

from __future__ import annotations

import pytest

from tests.support.cluster import Bed
from tests.support.clustertraining import NODES, submit, traffic, trained

pytestmark = pytest.mark.tensorflow


def test_training_with_fixed_slots_per_host(sge: Bed) -> None:
    """Tasks with two CPUs take both slots of a host."""
    wide = ("--cpus-per-task", "2", "--tasks-per-node", "1")
    with traffic(sge, 200_000):
        job = submit(sge, "multiworker", "--pe", "two", "--workers", "4", *wide)
        trained(job, "multiworker")
    assert sorted(task["host"] for task in job.tasks().values()) == list(NODES)
