"""Every example on two hosts of a real cluster, every other one on each; with its other options as its README says."""

from __future__ import annotations

import json

import pytest

from tests.support import clustertraining
from tests.support.cluster import Bed
from tests.support.clusterjobs import gridtf
from tests.support.clustertraining import submit, trained
from tests.support.examples import names

pytestmark = pytest.mark.tensorflow


def on_two_hosts(bed: Bed, example: str) -> tuple[str, ...]:
    """The options with which half of the training tasks of an example run on each of two hosts, without GPUs."""
    job = f"{clustertraining.example(bed, example)}/gridtf.toml"
    rendered = json.loads(gridtf(bed, "render", job, "--scheduler", "local", "--json").stdout)
    half = -(-rendered["request"]["training"] // 2)
    options = ("--gpus-per-task", "0", "--tasks-per-node", str(half))
    if bed.kind == "slurm":
        return (*options, "--nodes", "2")
    return (*options, "--pe", {1: "one", 2: "two"}[half], "--slots", str(2 * half))


@pytest.mark.parametrize(
    ("bed", "example"), [(("slurm", "sge")[number % 2], name) for number, name in enumerate(names())], indirect=["bed"]
)
def test_example_on_two_hosts(bed: Bed, example: str) -> None:
    job = submit(bed, example, *on_two_hosts(bed, example))
    trained(job, example)
    assert len({task["host"] for task in job.tasks().values()}) == 2
