"""Training on a test bed: the examples in alice's home, and their required accuracy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterjobs import ClusterJob, received
from tests.support.examples import reached

NODES = ("n1", "n2", "n3", "n4")
# Each task prints its host and its GPUs, then becomes the program.
TELLING = ("bash", "-c", 'echo "at $(uname -n) sees $CUDA_VISIBLE_DEVICES"; exec "$@"', "task")


def example(bed: Bed, name: str) -> str:
    """Copy an example into alice's home; returns its folder as the hosts see it."""
    bed.run("login", "cp", "-r", str(CHECKOUT / "examples" / name), ".")
    return f"{SHARED}/home/alice/{name}"


def submit(bed: Bed, name: str, *words: str) -> ClusterJob:
    """Submit an example. PATH, which alice's module would set, is passed on where jobs inherit no environment."""
    inherits = ("--env", "PATH") if bed.kind == "sge" else ()
    return ClusterJob(bed, f"{example(bed, name)}/gridtf.toml", *bed.options, *inherits, "--time", "30", *words)


def trained(job: ClusterJob, name: str) -> None:
    """Wait until the job has completed, with what the example's README states."""
    done = job.gridtf("wait", "--json", "--timeout", "1000", check=False, timeout=1010)
    output = done.stdout + done.stderr + job.output + "".join(job.logs().values())
    assert done.returncode == 0, output
    assert json.loads(done.stdout)["state"] == "COMPLETED"
    reached(name, job.run.output, output)


def one_gpu_each(job: ClusterJob, *names: str) -> None:
    """Check that each of these tasks has one GPU of its own, and that the other tasks have none."""
    gpus = job.gpus()
    assert all(len(gpus[name][1]) == 1 for name in names), gpus
    assert len({gpus[name] for name in names}) == len(names), gpus
    assert all(not share for name, (_, share) in gpus.items() if name not in names), gpus


def where(job: ClusterJob) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Task name -> (host, GPUs), from the output of tasks that began with TELLING."""
    matches = {name: re.match(r"at (\S+) sees (\S*)\n", text) for name, text in job.logs().items()}
    return {name.replace("-", ":"): (match[1], (match[2],)) for name, match in matches.items() if match}


@contextmanager
def traffic(bed: Bed, least: int, hosts: Sequence[str] = NODES) -> Iterator[None]:
    """Check that each of these hosts receives more than ``least`` bytes through its link meanwhile."""
    before = received(bed, *hosts)
    yield
    after = received(bed, *hosts)
    assert all(after[node] - before[node] > least for node in hosts), (before, after)
