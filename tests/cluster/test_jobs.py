"""Jobs on a real cluster, submitted by a plain user on the login host; for every scheduler."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

import pytest

from gridtf.run.rundir import RunDir, read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import SHARED, Bed
from tests.support.clusterfaults import PROMPT, STUBBORN, ended, kill9, no_process_left, started
from tests.support.clusterjobs import PATIENCE, ClusterJob, gridtf
from tests.support.jobs import until
from tests.support.strangers import EXCHANGE, MOMENTS, START_TIMEOUT

TELL = 'echo "$GRIDTF_TASK_TYPE $GRIDTF_TASK_INDEX rank $RANK of $WORLD_SIZE on $(uname -n) gpu $CUDA_VISIBLE_DEVICES"'
ONE_TASK = ("--nodes", "1", "--tasks-per-node", "1")


def submitted(bed: Bed, *words: str, name: str = "tell", command: str = TELL, **more: Any) -> ClusterJob:
    return ClusterJob(bed, *bed.options, "--name", name, *words, "--", "bash", "-c", command, **more)


EVERY_WAY = pytest.mark.parametrize(
    ("bed", "way"), [("slurm", "sbatch"), ("sge", "drmaa"), ("sge", "qsub")], indirect=["bed"]
)


@EVERY_WAY
def test_submit_wait_status_list_and_logs(bed: Bed, way: str) -> None:
    env = {"GRIDTF_SGE_SUBMIT": way} if bed.kind == "sge" else {}
    job = submitted(bed, *bed.two_gpus_on_each_of_four_hosts, "--time", "10", name=way, env=env)
    for word in (job.id, way, job.seen_as):
        assert f"{way} ({job.id}): COMPLETED" in gridtf(bed, "wait", word).stdout
    view = job.status()
    assert (view["state"], view["scheduler"], view["job_id"]) == ("COMPLETED", bed.kind, job.id)
    tasks = [(task["name"], task["host"], task["state"], task["exit"]) for task in view["tasks"]]
    assert tasks == [(f"worker:{index}", f"n{1 + index // 2}", "COMPLETED", 0) for index in range(8)]
    assert job.id in gridtf(bed, "list").stdout
    assert re.search(r"worker 3 rank 3 of 8 on n2 gpu [01]$", job.gridtf("logs", "--task", "worker:3").stdout, re.M)
    assert job.gridtf("logs", "--task", "job").stdout == job.output
    record = read_record(job.run.submitted) or {}
    assert (record["scheduler"], record.get("by", "sbatch")) == (bed.kind, way)
    assert not job.attempt.listener.exists()  # it holds the secret of the attempt


@EVERY_WAY
def test_script_that_another_user_exchanges_is_not_run(bed: Bed, way: str) -> None:
    """bob may rename entries of a folder above the run directory, as in a group's project folder."""
    ran = bed.home() / "ran"
    for number, (entry, times) in enumerate(MOMENTS):
        project = bed.shared / f"project-{way}-{number}"
        runs = project / "mine" / "runs"
        runs.mkdir(parents=True)
        for folder in (runs, runs.parent):
            os.chown(folder, *[bed.home().stat().st_uid] * 2)
        project.chmod(0o777)
        words = [bed.seen(runs.parent), bed.seen(runs / "job"), entry, str(times), bed.seen(ran)]
        with bed.popen("login", "python", "-c", EXCHANGE, *words, user="bob") as attack:
            try:
                assert attack.stdout is not None
                assert attack.stdout.readline() == "ready\n"
                options = (*bed.options, *ONE_TASK, *START_TIMEOUT, "--run-dir", bed.seen(runs / "job"))
                env = {"GRIDTF_SGE_SUBMIT": way} if bed.kind == "sge" else {}
                gridtf(bed, "submit", *options, "--", "true", env=env, check=False)
                assert attack.wait(90) == 0, attack.stderr and attack.stderr.read()
            finally:
                attack.kill()
    queue = {"slurm": ["squeue", "--noheader", "--user=alice"], "sge": ["qstat", "-u", "alice"]}[bed.kind]
    until(lambda: not bed.run("login", *queue).stdout, "the queue is empty", 2 * PATIENCE)
    assert not ran.exists()


@on_every_scheduler
def test_killed_task_on_another_host_fails_the_job(bed: Bed) -> None:
    job = started(bed, command=STUBBORN)
    killed = time.time()
    kill9(bed, "n3", job.tasks()["worker:2"]["pid"])
    verdict = ended(job, "FAILED", "worker:2 on n3: killed by SIGKILL")
    assert verdict["cause"]["task"] == "worker:2"
    assert verdict["ended"] - killed < PROMPT
    no_process_left(bed)
    tasks = {task["name"]: task["state"] for task in job.status()["tasks"]}
    assert tasks == {"worker:0": "STOPPED", "worker:1": "STOPPED", "worker:2": "FAILED", "worker:3": "STOPPED"}


@on_every_scheduler
def test_cancel_ends_tasks_that_ignore_sigterm(bed: Bed) -> None:
    job = started(bed, command=STUBBORN)
    assert f"fault ({job.id}): CANCELLED" in job.gridtf("cancel").stdout
    ended(job, "CANCELLED", "cancelled by alice on login")
    no_process_left(bed)


@on_every_scheduler
def test_each_array_element_has_its_own_status_and_log(bed: Bed) -> None:
    fails = f"{TELL}; [ ${bed.element_variable} != 2 ]"
    job = submitted(bed, *ONE_TASK, f"--native={' '.join(bed.array)}", name="many", command=fails)
    done = job.gridtf("wait", check=False)
    assert done.returncode == 1
    why = r"array of 3: 2 COMPLETED, 1 FAILED; element 2 FAILED: worker:0 on n\d: exit code 1"
    assert re.search(why, done.stdout), done.stdout
    assert f"gridtf status {job.seen_as}/array/2" in done.stdout
    for element in bed.elements:
        state = "FAILED" if element == "2" else "COMPLETED"
        view = json.loads(gridtf(bed, "status", "--json", f"{job.id}{bed.element_separator}{element}").stdout)
        assert (view["state"], view["name"]) == (state, f"many_{element}")
        run = RunDir(job.run.elements / element)
        assert run.attempt(1).verdict.exists()
        assert "worker 0 rank 0 of 1" in run.attempt(1).task_log("worker", 0).read_text()
        assert f"{state}: " in run.log.read_text()
    assert not job.run.attempts()


@on_every_scheduler
def test_dry_run_creates_nothing_and_renders_the_submitted_script(bed: Bed) -> None:
    options = (*bed.options, "--nodes", "2", "--tasks-per-node", "1", "--time", "30", "--name", "dry")
    words = (*options, "--run-dir", f"{SHARED}/home/alice/dry-run", "--", "bash", "-c", TELL)
    shown = gridtf(bed, "render", *words)
    assert not (bed.home() / "dry-run").exists()
    job = ClusterJob(bed, *words)
    assert job.run.script.read_text() == shown.stdout
    assert job.verdict()["state"] == "COMPLETED"
