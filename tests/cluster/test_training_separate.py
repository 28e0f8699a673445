"""A program that ignores the cluster, on two hosts: what gridtf sees of it, and what it says; on Slurm."""

from __future__ import annotations

import pytest

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob

pytestmark = pytest.mark.tensorflow

PROGRAM = """
import tensorflow as tf
import gridtf
weight = tf.Variable(1.0)
for step in range(1, 11):
    weight.assign_sub(0.1 * weight)
    gridtf.progress(step, weight=weight)
"""


def test_separate_training_is_reported_and_so_is_its_progress(slurm: Bed) -> None:
    options = (*slurm.options, "--nodes", "2", "--tasks-per-node", "1", "--gpus-per-task", "0", "--time", "15")
    job = ClusterJob(slurm, *options, "--env", "TF_CPP_MIN_LOG_LEVEL=2", "--", "python", "-c", PROGRAM)
    assert job.gridtf("wait", "--timeout", "600", check=False, timeout=610).returncode == 0, job.output
    view = job.status()
    warned = "2 workers trained separately: none joined the cluster"
    assert view["reason"] == f"all training tasks have exited with 0; {warned}"
    assert "MultiWorkerMirroredStrategy for a loop" in view["hint"]
    assert warned in job.output
    assert len({task["host"] for task in view["tasks"]}) == 2
    assert [task["progress"]["step"] for task in view["tasks"]] == [10, 10]
