"""Every example on two hosts of a real cluster, the doors of docs/training.md on both, every other one on each.

With its other options as its README says.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from tests.support import clustertraining
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterjobs import gridtf
from tests.support.clustertraining import submit, trained
from tests.support.examples import names
from tests.support.legacy_keras import need_tf_keras

pytestmark = pytest.mark.tensorflow
BEDS = ("slurm", "sge")
DOORS = {
    *("one_host", "keras_distribution", "tf_keras_fit", "multiworker"),  # exact
    *("ps_flags", "parameter_server", "averaging", "multi_worker_keras_fit"),
}


def on_two_hosts(bed: Bed, example: str) -> tuple[int, tuple[str, ...]]:
    """The options with which half of the training tasks of an example run on each of two hosts, without GPUs.

    Returns:
        How many hosts these are, which is one for a single task, and the options.
    """
    job = f"{clustertraining.example(bed, example)}/gridtf.toml"
    rendered = json.loads(gridtf(bed, "render", job, "--scheduler", "local", "--json").stdout)
    training = rendered["request"]["training"]
    hosts, half = min(training, 2), -(-training // 2)
    options = ("--gpus-per-task", "0", "--tasks-per-node", str(half))
    if bed.kind == "slurm":
        return hosts, (*options, "--nodes", str(hosts))
    return hosts, (*options, "--pe", {1: "one", 2: "two"}[half], "--slots", str(hosts * half))


def packages(example: str) -> tuple[str, ...]:
    """The options for what an example needs beside TensorFlow and Keras 3; skips where that cannot be had."""
    if example == "keras_distribution" and not find_spec("jax"):
        pytest.skip("no jax in this environment: pip install jax")
    return ("--env", f"PYTHONPATH={need_tf_keras()}:{CHECKOUT}") if example == "tf_keras_fit" else ()


@pytest.mark.parametrize(
    ("bed", "example"),
    [(bed, name) for number, name in enumerate(names()) for bed in (BEDS if name in DOORS else (BEDS[number % 2],))],
    indirect=["bed"],
)
def test_on_two_hosts(bed: Bed, example: str) -> None:
    needed = packages(example)
    hosts, options = on_two_hosts(bed, example)
    job = submit(bed, example, *options, *needed)
    trained(job, example)
    assert len({task["host"] for task in job.tasks().values()}) == hosts
