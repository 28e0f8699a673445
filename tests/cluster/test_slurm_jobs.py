"""Jobs of a plain user on a real Slurm cluster. Tests for every scheduler are in test_jobs.py."""

from __future__ import annotations

from gridtf.run.rundir import read_record
from tests.support.cluster import Bed
from tests.support.clusterfaults import UNTIL_RELEASED, release
from tests.support.clusterjobs import ClusterJob, gridtf

TELL = (
    'echo "$GRIDTF_TASK_TYPE $GRIDTF_TASK_INDEX rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME"'
    ' "gpu $CUDA_VISIBLE_DEVICES"'
)


def submitted(bed: Bed, *words: str, name: str = "tell", command: str = TELL) -> ClusterJob:
    return ClusterJob(bed, "--scheduler", "slurm", "--name", name, *words, "--", "bash", "-c", command)


def test_default_scheduler_is_slurm(slurm: Bed) -> None:
    job = ClusterJob(slurm, "--nodes", "2", "--tasks-per-node", "1", "--", "true")
    assert job.verdict()["state"] == "COMPLETED"
    assert read_record(job.run.submitted)["scheduler"] == "slurm"  # type: ignore[index]


def test_range_of_nodes_gets_the_free_ones(slurm: Bed) -> None:
    whole = ("--nodes", "1", "--workers", "1", "--native=--exclusive")
    blocker = submitted(slurm, *whole, name="blocker", command="sleep 60")
    blocker.running(1)
    job = submitted(slurm, "--nodes", "2-4", "--gpus-per-node", "4", name="range")
    job.verdict()
    assert len(job.logs()) == 12  # on the three nodes that are free
    assert blocker.gridtf("cancel").returncode == 0


def test_excluded_nodes_are_not_used(slurm: Bed) -> None:
    job = submitted(slurm, "--nodes", "2", "--workers", "2", "--exclude", "n1,n[3]", command=UNTIL_RELEASED)
    tasks = job.running(2)
    assert {task["host"] for task in tasks.values()} == {"n2", "n4"}
    release(job)
    assert job.verdict()["state"] == "COMPLETED"


def test_job_of_another_user_cannot_be_cancelled(slurm: Bed) -> None:
    job = submitted(slurm, "--nodes", "1", "--workers", "1", name="mine", command="sleep 60")
    job.running(1)
    done = gridtf(slurm, "cancel", job.seen_as, user="bob", check=False)
    assert done.returncode != 0
    assert "belongs to user alice" in done.stderr
    assert "alice and root can cancel it" in done.stderr
    assert job.gridtf("status").returncode == 0
    assert job.status()["state"] == "RUNNING"
    assert job.gridtf("cancel").returncode == 0
    assert job.status()["state"] == "CANCELLED"
