"""Training on a real Slurm cluster: TensorFlow over four hosts, one task per GPU."""

from __future__ import annotations

import pytest

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob
from tests.support.clustertraining import NODES, TELLING, example, one_gpu_each, traffic, trained, where

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(290)]


def test_multi_worker_mirrored_strategy_over_four_hosts(slurm: Bed) -> None:
    jobfile = f"{example(slurm, 'multiworker')}/gridtf.toml"
    options = ("--scheduler", "slurm", "--nodes", "4", "--gpus-per-node", "2", "--workers", "8", "--time", "10")
    with traffic(slurm, 200_000):
        job = ClusterJob(slurm, jobfile, *options, "--", *TELLING, "python", "train.py")
        trained(job, "multiworker")
    names = [f"worker:{index}" for index in range(8)]
    one_gpu_each(job, *names)
    # in the order of the hosts, and as the scheduler gave them: each task's own words say the same as the records
    assert where(job) == job.gpus()
    assert [where(job)[name][0] for name in names] == [node for node in NODES for _ in range(2)]


def test_parameter_servers_over_four_hosts(slurm: Bed) -> None:
    jobfile = f"{example(slurm, 'parameter_server')}/gridtf.toml"
    options = ("--scheduler", "slurm", "--nodes", "4", "--gpus-per-node", "2", "--tasks-per-node", "2", "--time", "10")
    with traffic(slurm, 100_000):
        job = ClusterJob(slurm, jobfile, *options, "--chief", "--workers", "6", "--ps", "2")
        trained(job, "parameter_server")
    one_gpu_each(job, "chief:0", *(f"worker:{index}" for index in range(6)))
    hosts = [job.gpus()[f"ps:{index}"][0] for index in range(2)]
    assert len(set(hosts)) == 2


def test_parameter_servers_on_nodes_without_gpus(slurm: Bed) -> None:
    """A heterogeneous job: two components, one cluster."""
    folder = example(slurm, "parameter_server")
    told = slurm.run("login", "sed", r's/\[tasks.ps\]/&\npartition = "cpu"\ncpus = 2/', f"{folder}/gridtf.toml").stdout
    slurm.run("login", "tee", f"{folder}/het.toml", stdin=told)
    options = ("--scheduler", "slurm", "--nodes", "2", "--gpus-per-node", "2", "--tasks-per-node", "2")
    job = ClusterJob(slurm, f"{folder}/het.toml", *options)
    trained(job, "parameter_server")
    gpus = job.gpus()
    assert gpus["ps:0"] == ("c1", ())
    one_gpu_each(job, "chief:0", "worker:0", "worker:1")
    assert {gpus[name][0] for name in ("chief:0", "worker:0", "worker:1")} == {"n1", "n2"}


def test_training_where_every_host_has_a_view_of_its_own(laggy_slurm: Bed) -> None:
    jobfile = f"{example(laggy_slurm, 'multiworker')}/gridtf.toml"
    options = (
        "--scheduler",
        "slurm",
        "--nodes",
        "4",
        "--gpus-per-node",
        "1",
        "--tasks-per-node",
        "1",
        "--workers",
        "4",
    )
    job = ClusterJob(laggy_slurm, jobfile, *options)
    trained(job, "multiworker")
    assert sorted(host for host, _ in job.gpus().values()) == list(NODES)


# Both find their place by themselves under srun, one process a task.
FINDING_THEIR_PLACE = """
import os, pathlib, time
import tensorflow as tf
agents = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"}
print("an agent's:", sorted(agents & os.environ.keys()), flush=True)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.environ["SLURMD_NODENAME"], flush=True)
place = pathlib.Path(os.environ["OUTPUT_DIR"])
(place / os.environ["RANK"]).touch()
while len(list(place.iterdir())) < 4:  # else the first to fail would end those that have printed nothing yet
    time.sleep(0.1)
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
print("would train alone, as one of", resolver.cluster_spec().num_tasks("worker"))
"""


def test_no_task_takes_itself_for_the_agent_and_trains_alone(slurm: Bed) -> None:
    """With an agent's identity every task on a host believed to be the only one there, and said nothing."""
    options = ("--scheduler", "slurm", "--nodes", "2", "--tasks-per-node", "2", "--gpus-per-node", "2")
    job = ClusterJob(slurm, *options, "--", "python", "-c", FINDING_THEIR_PLACE)
    verdict = job.verdict(120)
    said = "".join(job.logs().values())
    assert verdict["state"] == "FAILED"
    assert "would train alone" not in said
    assert verdict["hint"].startswith("gridtf's tasks are not srun's tasks: use TFConfigClusterResolver()"), said
    assert "SLURM_PROCID not found in environment. Not running inside a SLURM step?" in verdict["cause"]["tail"][-1]
    for rank in range(4):
        assert f"an agent's: []\nrank {rank} of 4 on n{1 + rank // 2}\n" in job.logs()[f"worker-{rank}"], said
