"""Jobs on a real Slurm cluster, as a plain user sees them from the login host."""

from __future__ import annotations

import json

import pytest

from gridtf.run.rundir import RunDir, read_record
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob, gridtf

pytestmark = pytest.mark.timeout(120)

TELL = (
    'echo "$GRIDTF_TASK_TYPE $GRIDTF_TASK_INDEX rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME"'
    ' "gpu $CUDA_VISIBLE_DEVICES"'
)


def submitted(bed: Bed, *words: str, name: str = "tell", command: str = TELL) -> ClusterJob:
    return ClusterJob(bed, "--scheduler", "slurm", "--name", name, *words, "--", "bash", "-c", command)


def test_from_submit_to_logs_in_other_processes(slurm: Bed) -> None:
    job = submitted(slurm, "--nodes", "2", "--gpus-per-node", "2", name="first")
    for word in (job.id, "first", job.seen_as):
        done = gridtf(slurm, "wait", word)
        assert f"first ({job.id}): COMPLETED" in done.stdout
    view = job.status()
    assert (view["state"], view["scheduler"], view["job_id"]) == ("COMPLETED", "slurm", job.id)
    tasks = [(task["name"], task["host"], task["state"], task["exit"]) for task in view["tasks"]]
    assert tasks == [(f"worker:{index}", f"n{1 + index // 2}", "COMPLETED", 0) for index in range(4)]
    assert job.id in gridtf(slurm, "list").stdout
    said = job.gridtf("logs", "--task", "worker:3").stdout
    assert "worker 3 rank 3 of 4 on n2 gpu 1" in said
    assert job.gridtf("logs", "--task", "job").stdout == job.output


def test_default_scheduler_is_the_one_that_is_here(slurm: Bed) -> None:
    job = ClusterJob(slurm, "--nodes", "2", "--tasks-per-node", "1", "--", "true")
    assert job.verdict()["state"] == "COMPLETED"
    assert read_record(job.run.submitted)["scheduler"] == "slurm"  # type: ignore[index]


def test_as_many_nodes_as_there_are_between_two_and_four(slurm: Bed) -> None:
    whole = ("--nodes", "1", "--workers", "1", "--native=--exclusive")
    blocker = submitted(slurm, *whole, name="blocker", command="sleep 60")
    blocker.running(1)
    job = submitted(slurm, "--nodes", "2-4", "--gpus-per-node", "4", name="range")
    job.verdict()
    assert len(job.logs()) == 12  # on the three nodes that are free
    assert blocker.gridtf("cancel").returncode == 0


def test_every_element_of_an_array_is_a_job_of_its_own(slurm: Bed) -> None:
    fails = f"{TELL}; [ $SLURM_ARRAY_TASK_ID != 2 ]"
    job = submitted(slurm, "--nodes", "1", "--workers", "1", "--native=--array=0-2", name="many", command=fails)
    done = job.gridtf("wait", check=False)
    assert done.returncode == 1
    why = "array of 3: 2 COMPLETED, 1 FAILED; element 2 FAILED: worker:0 on n1: exit code 1"
    assert why in done.stdout
    assert f"gridtf status {job.seen_as}/array/2" in done.stdout
    for element, state in (("0", "COMPLETED"), ("1", "COMPLETED"), ("2", "FAILED")):
        view = json.loads(gridtf(slurm, "status", "--json", f"{job.id}_{element}").stdout)
        assert (view["state"], view["name"]) == (state, f"many_{element}")
        run = RunDir(job.run.elements / element)
        assert run.attempt(1).verdict.exists()
        assert "worker 0 rank 0 of 1" in run.attempt(1).task_log("worker", 0).read_text()
        assert f"{state}: " in run.log.read_text()
    assert not job.run.attempts()


def test_a_job_of_somebody_else_is_not_ours_to_cancel(slurm: Bed) -> None:
    job = submitted(slurm, "--nodes", "1", "--workers", "1", name="mine", command="sleep 60")
    job.running(1)
    done = gridtf(slurm, "cancel", job.seen_as, user="bob", check=False)
    assert done.returncode != 0
    assert "is user alice's" in done.stderr
    assert "alice can cancel it" in done.stderr
    assert job.gridtf("status").returncode == 0
    assert job.status()["state"] == "RUNNING"
    assert job.gridtf("cancel").returncode == 0
    assert job.status()["state"] == "CANCELLED"


def test_a_dry_run_changes_nothing_and_is_what_runs(slurm: Bed) -> None:
    words = ("--scheduler", "slurm", "--nodes", "2", "--gpus-per-node", "2", "--time", "30", "--name", "dry")
    shown = gridtf(slurm, "render", *words, "--run-dir", "/mnt/shared/home/alice/dry-run", "--", "bash", "-c", TELL)
    assert not (slurm.home("alice") / "dry-run").exists()
    job = ClusterJob(slurm, *words, "--run-dir", "/mnt/shared/home/alice/dry-run", "--", "bash", "-c", TELL)
    assert job.run.script.read_text() == shown.stdout
    assert job.verdict()["state"] == "COMPLETED"
