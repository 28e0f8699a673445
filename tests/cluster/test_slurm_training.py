"""Training on a real Slurm cluster. Tests for every scheduler are in test_training.py."""

from __future__ import annotations

import pytest

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob
from tests.support.clustertraining import example, one_gpu_each, trained

pytestmark = pytest.mark.tensorflow


def test_parameter_servers_on_nodes_without_gpus(slurm: Bed) -> None:
    """A heterogeneous job has two components, whose tasks form one TensorFlow cluster."""
    folder = example(slurm, "parameter_server")
    toml = slurm.run("login", "sed", r's/\[tasks.ps\]/&\npartition = "cpu"\ncpus = 2/', f"{folder}/gridtf.toml").stdout
    slurm.run("login", "tee", f"{folder}/het.toml", stdin=toml)
    options = ("--scheduler", "slurm", "--nodes", "1", "--gpus-per-node", "1")
    job = ClusterJob(slurm, f"{folder}/het.toml", *options, "--workers", "1")
    trained(job, "parameter_server")
    gpus = job.gpus()
    assert gpus["ps:0"] == ("c1", ())
    one_gpu_each(job, "worker:0")
    assert gpus["chief:0"][0] == gpus["worker:0"][0]


# TensorFlow's resolver reads Slurm's variables, as under srun with one process per task. One task asks it, for all.
FINDING_THEIR_PLACE = """
import os, pathlib, time
agents = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"}
print("an agent's:", sorted(agents & os.environ.keys()), flush=True)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.environ["SLURMD_NODENAME"], flush=True)
place = pathlib.Path(os.environ["OUTPUT_DIR"])
(place / os.environ["RANK"]).touch()
while len(list(place.iterdir())) < 4:  # else the one that fails would end tasks that have printed nothing yet
    time.sleep(0.1)
if os.environ["RANK"] != "3":
    time.sleep(600)
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
print("would train alone, as one of", resolver.cluster_spec().num_tasks("worker"))
"""


def test_slurm_cluster_resolver_fails_instead_of_training_alone(slurm: Bed) -> None:
    """With the rank variables of their agent, all tasks of a host would take themselves for the only one there."""
    options = ("--scheduler", "slurm", "--nodes", "2", "--tasks-per-node", "2", "--gpus-per-node", "2")
    job = ClusterJob(slurm, *options, "--", "python", "-c", FINDING_THEIR_PLACE)
    verdict = job.verdict(600)
    output = "".join(job.logs().values())
    assert verdict["state"] == "FAILED"
    assert "would train alone" not in output
    assert verdict["hint"].startswith("gridtf's tasks are not srun's tasks: use TFConfigClusterResolver()"), output
    assert "SLURM_PROCID not found in environment. Not running inside a SLURM step?" in verdict["cause"]["tail"][-1]
    for rank in range(4):
        assert f"an agent's: []\nrank {rank} of 4 on n{1 + rank // 2}\n" in job.logs()[f"worker-{rank}"], output
