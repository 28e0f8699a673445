"""A training on two hosts saves on request and goes on: requeued by Slurm; on Grid Engine as another job, on one."""

from __future__ import annotations

import re

import pytest

from gridtf.run.rundir import read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob
from tests.support.clustertraining import submit, trained

pytestmark = pytest.mark.tensorflow
HALF = ("--gpus-per-task", "0", "--tasks-per-node", "1")
ON_TWO_HOSTS = {"slurm": (*HALF, "--nodes", "2"), "sge": (*HALF, "--pe", "one", "--slots", "2")}


def request_checkpoint(job: ClusterJob) -> None:
    """As a user asks for one, while the job runs."""
    if job.bed.kind == "slurm":
        job.bed.run("login", "scancel", "--batch", "--signal=USR1", job.id)
        return
    launcher = read_record(job.attempt.launcher) or {}
    job.bed.run(launcher["host"], "kill", "-USR1", str(launcher["pid"]))


def saved_step(job: ClusterJob) -> int:
    (step,) = re.findall(r"requested: saved step (\d+) in ", job.logs()["worker-0"])
    return int(step)


@on_every_scheduler
def test_training_is_saved_on_request_and_goes_on(bed: Bed) -> None:
    job = submit(bed, "resume", *ON_TWO_HOSTS[bed.kind], "--", "--steps", "1000000")
    folder = job.run.output / "checkpoints"
    job.until(lambda: (folder / "step-50").exists(), "a checkpoint", 600)
    request_checkpoint(job)
    done = job.gridtf("wait", "--timeout", "600", check=False, timeout=610)
    assert done.returncode == 42, done.stdout + done.stderr + job.output
    status = job.status()
    assert (status["state"], {task["exit"] for task in status["tasks"]}) == ("SAVED", {42})
    assert len({task["host"] for task in status["tasks"]}) == 2
    step = saved_step(job)
    assert (folder / f"step-{step}" / "checkpoint.json").exists()

    if bed.kind == "slurm":
        job.bed.run("login", "scontrol", "requeue", job.id)
        job.until(lambda: (job.run.attempt(2).logs / "worker-0.log").exists(), "the second start", 600)
        restored = f"gridtf: continues from step {step}, saved in "
        job.until(lambda: restored in job.logs()["worker-0"], restored, 600)
        job.gridtf("cancel")
        return
    checkpoints = f"CHECKPOINTS={job.seen_as}/output/checkpoints"
    options = ("--pe", "one", "--slots", "1", "--workers", "1", "--env", checkpoints)
    other = submit(bed, "resume", *HALF, *options, "--", "--steps", str(step + 200))
    trained(other, "resume")
    assert f"gridtf: continues from step {step}, saved in " in other.logs()["worker-0"]
