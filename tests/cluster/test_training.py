"""Training with TensorFlow over hosts of a real cluster, one task per GPU."""

from __future__ import annotations

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clustertraining import NODES, TELLING, one_gpu_each, submit, traffic, trained, where

pytestmark = pytest.mark.tensorflow
# One worker on each host: of two on Slurm; of four on Grid Engine, each with both slots of its host (--pe two).
WORKERS = {
    "slurm": (2, ("--nodes", "2", "--gpus-per-node", "1", "--tasks-per-node", "1")),
    "sge": (4, ("--pe", "two", "--gpus-per-task", "1", "--cpus-per-task", "2", "--tasks-per-node", "1")),
}


@on_every_scheduler
def test_multi_worker_mirrored_strategy_over_several_hosts(bed: Bed) -> None:
    count, options = WORKERS[bed.kind]
    with traffic(bed, 200_000, NODES[:count]):
        words = (*options, "--workers", str(count), "--", *TELLING, "python", "train.py")
        job = submit(bed, "multiworker", *words)
        trained(job, "multiworker")
    one_gpu_each(job, *(f"worker:{index}" for index in range(count)))
    # what each task prints about its GPUs agrees with the records
    assert where(job) == job.gpus()
    assert sorted(host for host, _ in where(job).values()) == list(NODES[:count])


def test_parameter_servers_over_four_hosts(slurm: Bed) -> None:
    words = ("--nodes", "4", "--gpus-per-node", "2", "--tasks-per-node", "2", "--chief", "--workers", "6", "--ps", "2")
    with traffic(slurm, 100_000):
        job = submit(slurm, "parameter_server", *words)
        trained(job, "parameter_server")
    one_gpu_each(job, *(f"worker:{index}" for index in range(6)))
    assert len({job.gpus()[f"ps:{index}"][0] for index in range(2)}) == 2


def test_training_with_a_laggy_shared_folder(laggy_sge: Bed) -> None:
    with traffic(laggy_sge, 200_000):
        # the script itself is the first task, so the first host accepts one qrsh less than it has slots
        job = submit(laggy_sge, "multiworker", "--pe", "rrj", "--gpus-per-task", "1", "--workers", "4")
        trained(job, "multiworker")
    assert sorted(host for host, _ in job.gpus().values()) == list(NODES)
