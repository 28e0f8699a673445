"""Training on a real Grid Engine: TensorFlow over four hosts, by every allocation rule that can give them."""

from __future__ import annotations

import pytest

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob
from tests.support.clustertraining import NODES, TELLING, example, one_gpu_each, traffic, trained, where

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(290)]


def submit(bed: Bed, name: str, *words: str) -> ClusterJob:
    """An example. A job does not inherit the environment: what alice's module would set up comes from login."""
    here = ("--scheduler", "sge", "--env", "PATH", "--env", "PYTHONPATH", "--time", "10")
    return ClusterJob(bed, f"{example(bed, name)}/gridtf.toml", *here, *words)


def test_multi_worker_mirrored_strategy_round_robin(sge: Bed) -> None:
    with traffic(sge, 200_000):
        pe = ("--pe", "rr", "--workers", "8", "--gpus-per-task", "1")
        job = submit(sge, "multiworker", *pe, "--", *TELLING, "python", "train.py")
        trained(job, "multiworker")
    names = [f"worker:{index}" for index in range(8)]
    one_gpu_each(job, *names)
    # in the order of the hosts, and as claimed: each task's own words say the same as the records
    assert where(job) == job.gpus()
    hosts = [where(job)[name][0] for name in names]
    assert sorted(hosts) == [node for node in NODES for _ in range(2)]
    assert hosts[::2] == hosts[1::2]


def test_parameter_servers_fill_up(sge: Bed) -> None:
    """Two GPUs a host: seven slots fill four hosts."""
    with traffic(sge, 100_000):
        tasks = ("--chief", "--workers", "6", "--ps", "2", "--gpus-per-task", "1")
        job = submit(sge, "parameter_server", "--pe", "fill", *tasks)
        trained(job, "parameter_server")
    one_gpu_each(job, "chief:0", *(f"worker:{index}" for index in range(6)))
    assert len({job.gpus()[f"ps:{index}"][0] for index in range(2)}) == 2


def test_a_fixed_number_of_slots_on_each_host(sge: Bed) -> None:
    """A task of two CPUs takes both slots of a host."""
    wide = ("--cpus-per-task", "2", "--tasks-per-node", "1")
    with traffic(sge, 200_000):
        job = submit(sge, "multiworker", "--pe", "two", "--workers", "4", *wide)
        trained(job, "multiworker")
    assert sorted(task["host"] for task in job.tasks().values()) == list(NODES)


def test_training_where_every_host_has_a_view_of_its_own(laggy_sge: Bed) -> None:
    """The script itself is the first task, so the first host takes a qrsh less than it has slots."""
    with traffic(laggy_sge, 200_000):
        job = submit(laggy_sge, "multiworker", "--pe", "rrj", "--workers", "4", "--gpus-per-task", "1")
        trained(job, "multiworker")
    assert sorted(host for host, _ in job.gpus().values()) == list(NODES)
