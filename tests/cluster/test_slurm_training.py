"""Training on a real Slurm cluster: TensorFlow over four hosts, one task per GPU."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterjobs import ClusterJob, received
from tests.support.examples import stated_accuracy

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(290)]

NODES = ("n1", "n2", "n3", "n4")
# Each task says where it is and what it sees, then becomes the program.
TELLING = ("bash", "-c", 'echo "at $SLURMD_NODENAME sees $CUDA_VISIBLE_DEVICES"; exec "$@"', "task")


def example(bed: Bed, name: str) -> str:
    """An example, copied into alice's home; its folder as the hosts see it."""
    bed.run("login", "cp", "-r", str(CHECKOUT / "examples" / name), ".")
    return f"{SHARED}/home/alice/{name}"


def trained(job: ClusterJob, name: str) -> None:
    """The job has ended well, with the accuracy that the example promises."""
    done = job.gridtf("wait", "--timeout", "240", check=False, timeout=250)
    said = done.stdout + done.stderr + job.output + "".join(job.logs().values())
    assert done.returncode == 0, said
    assert job.status()["state"] == "COMPLETED"
    reached = json.loads((job.run.output / "result.json").read_text())["accuracy"]
    assert stated_accuracy(name) <= reached <= 1, said


def one_gpu_each(job: ClusterJob, *names: str) -> None:
    """Each of these tasks has one GPU of its own host, no two the same; the others have none."""
    gpus = job.gpus()
    assert all(len(gpus[name][1]) == 1 for name in names), gpus
    assert len({gpus[name] for name in names}) == len(names), gpus
    assert all(not share for name, (_, share) in gpus.items() if name not in names), gpus


def test_multi_worker_mirrored_strategy_over_four_hosts(slurm: Bed) -> None:
    jobfile = f"{example(slurm, 'multiworker')}/gridtf.toml"
    before = received(slurm, *NODES)
    options = ("--scheduler", "slurm", "--nodes", "4", "--gpus-per-node", "2", "--workers", "8", "--time", "10")
    job = ClusterJob(slurm, jobfile, *options, "--", *TELLING, "python", "train.py")
    trained(job, "multiworker")
    names = [f"worker:{index}" for index in range(8)]
    one_gpu_each(job, *names)
    # in the order of the hosts, and as the scheduler gave them: each task's own words say the same as the records
    told = {name: re.match(r"at (\S+) sees (\S+)\n", text) for name, text in job.logs().items()}
    seen = {name.replace("-", ":"): (match[1], (match[2],)) for name, match in told.items() if match}
    assert seen == job.gpus()
    assert [seen[name][0] for name in names] == [node for node in NODES for _ in range(2)]
    after = received(slurm, *NODES)
    assert all(after[node] - before[node] > 200_000 for node in NODES), (before, after)


def test_parameter_servers_over_four_hosts(slurm: Bed) -> None:
    jobfile = f"{example(slurm, 'parameter_server')}/gridtf.toml"
    before = received(slurm, *NODES)
    options = ("--scheduler", "slurm", "--nodes", "4", "--gpus-per-node", "2", "--tasks-per-node", "2", "--time", "10")
    job = ClusterJob(slurm, jobfile, *options, "--chief", "--workers", "6", "--ps", "2")
    trained(job, "parameter_server")
    one_gpu_each(job, "chief:0", *(f"worker:{index}" for index in range(6)))
    hosts = [job.gpus()[f"ps:{index}"][0] for index in range(2)]
    assert len(set(hosts)) == 2
    after = received(slurm, *NODES)
    assert all(after[node] - before[node] > 100_000 for node in NODES), (before, after)


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
