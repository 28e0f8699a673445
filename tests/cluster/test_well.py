"""Jobs of many kinds on hosts that are well: no host is named as bad or slow, whatever the tasks do."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tests.cluster.test_mpi import FOUR_BY_TWO
from tests.cluster.test_mpi import submit as submit_world
from tests.cluster.test_sweeps import SweepJob
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import started
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.clustertraining import submit
from tests.support.mpi import MPICH, OPEN_MPI

WATCHED = ("--check", "quick", "--sample-interval", "1")
_WORKS = "end=$((SECONDS + 20)); while [ $SECONDS -lt $end ]; do "
# Name -> options, how many hosts have a task, and what each task runs.
PLAIN = {
    "silent": ((), 4, "sleep 15"),
    "computing": ((), 4, f"{_WORKS}:; done"),
    "writing": ((), 4, f"{_WORKS}dd if=/dev/zero of=/tmp/zeros bs=1M count=20 conv=fsync; rm /tmp/zeros; done"),
    "uneven": ((), 4, "sleep $((5 + 4 * GRIDTF_TASK_INDEX))"),
    "with GPUs": (("--gpus-per-task", "1"), 4, "echo $CUDA_VISIBLE_DEVICES; sleep 10"),
    "restarted": (("--restarts", "1"), 3, "sleep 8; [ $GRIDTF_ATTEMPT = 2 ]"),
    "with a spare host": (("--restarts", "1", "--spare-nodes", "1"), 3, "sleep 10"),
}
# Example -> how many workers it has on four hosts.
TRAINED = {
    **dict.fromkeys(("multiworker", "averaging", "multi_worker_keras_fit", "data_service", "evaluator"), 4),
    "parameter_server": 3,  # and a chief
}
# Ranks that reduce a gradient in each step.
REDUCES = """
import time
import numpy as np
from mpi4py import MPI
import gridtf

for step in range(1, 41):
    MPI.COMM_WORLD.allreduce(np.ones(100_000, np.float32))
    gridtf.progress(step)
    time.sleep(0.4)
"""


def hosts(bed: Bed, count: int) -> tuple[str, ...]:
    """The options for so many hosts with a training task each."""
    where = ("--nodes", str(count)) if bed.kind == "slurm" else ("--pe", "one", "--slots", str(count))
    return (*where, "--tasks-per-node", "1")


def names_none(bed: Bed, run: str) -> str:
    """Of a run that has ended, check that no host is named; returns what the check of its hosts has said."""
    view = json.loads(gridtf(bed, "status", "--json", run).stdout)
    assert view["was_slow"] is None
    assert json.loads(gridtf(bed, "nodes", "--json").stdout) == []
    return str(view["check"])


def is_well(job: ClusterJob, attempt: int = 1) -> None:
    assert job.verdict(600, attempt)["state"] == "COMPLETED", job.output
    said = names_none(job.bed, job.seen_as)
    assert re.fullmatch(r"[34] hosts checked in .*: none far from the others.*", said), said


@on_every_scheduler
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_programs(bed: Bed, kind: str) -> None:
    options, count, command = PLAIN[kind]
    job = started(bed, *WATCHED, *options, nodes=count, command=command, running=False)
    is_well(job, 2 if kind == "restarted" else 1)


@on_every_scheduler
@pytest.mark.tensorflow
@pytest.mark.parametrize("example", TRAINED)
def test_examples(bed: Bed, example: str) -> None:
    workers = ("--workers", str(TRAINED[example]))
    is_well(submit(bed, example, *WATCHED, "--gpus-per-task", "0", *hosts(bed, 4), *workers))


@on_every_scheduler
@pytest.mark.tensorflow
def test_training_in_lock_step(bed: Bed) -> None:
    shutil.copy(CHECKOUT / "tests/support/lockstep.py", bed.home() / "lockstep.py")
    environ = ("--env", "SECONDS_OF_TRAINING=20", *(("--env", "PATH") if bed.kind == "sge" else ()))
    command = ("bash", "-c", "exec python lockstep.py data-$(uname -n) 256 0.1 2")
    is_well(ClusterJob(bed, *bed.options, *hosts(bed, 3), *environ, *WATCHED, "--", *command, cwd=bed.seen(bed.home())))


@on_every_scheduler
@pytest.mark.parametrize("kind", [MPICH, OPEN_MPI])
def test_worlds(bed: Bed, kind: str) -> None:
    is_well(submit_world(bed, kind, REDUCES, options=WATCHED, where=FOUR_BY_TWO))


@on_every_scheduler
def test_sweeps(bed: Bed) -> None:
    job = SweepJob(bed, *hosts(bed, 4), "--workers", "4", *WATCHED, "--at-once", "1", count=2)
    job.wait()
    names_none(bed, f"{job.seen_as}/array/1")
