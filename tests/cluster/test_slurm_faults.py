"""What can go wrong with a job that runs on a real Slurm cluster: it ends, says why, and leaves nobody behind."""

from __future__ import annotations

import os
import sys
import time

import pytest

from gridtf.run.rundir import read_record
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import (
    STUBBORN,
    admin,
    begun,
    ended,
    finished,
    kill9,
    mounted,
    nobody_left,
    parent,
    started,
)
from tests.support.clusterjobs import ClusterJob

pytestmark = pytest.mark.timeout(120)


# --- somebody ends the job


def test_scancel(slurm: Bed) -> None:
    job = started(slurm)
    slurm.run("login", "scancel", job.id)
    ended(job, "CANCELLED", "cancelled with scancel")
    nobody_left(slurm)
    assert job.status()["state"] == "CANCELLED"


def test_scancel_of_tasks_that_do_not_heed_it(slurm: Bed) -> None:
    job = started(slurm, command=STUBBORN)
    slurm.run("login", "scancel", job.id)
    ended(job, "CANCELLED", "cancelled with scancel")
    nobody_left(slurm)


def test_killed_at_once(slurm: Bed) -> None:
    job = started(slurm, command=STUBBORN)
    slurm.run("login", "scancel", "--signal=KILL", "--full", job.id)
    nobody_left(slurm)
    assert job.until(lambda: (state := job.status()["state"]) != "RUNNING" and state, "its end") == "CANCELLED"


def test_without_a_verdict_what_is_known_is_told(slurm: Bed) -> None:
    job = started(slurm)
    record = read_record(job.attempt.launcher) or {}
    kill9(slurm, record["host"], record["pid"])
    nobody_left(slurm)
    view = job.until(lambda: (view := job.status())["state"] != "RUNNING" and view, "its end")
    assert view["state"] == "FAILED"
    why = "the launcher on n1 was killed by SIGKILL: by a user, or by the kernel because memory ran out"
    assert view["reason"] == f"ended without a verdict: {why}"
    assert view["exit_code"] != 0
    assert all(task["state"] != "RUNNING" for task in view["tasks"])


def test_how_a_set_up_has_ended_is_told(slurm: Bed) -> None:
    one = ("--scheduler", "slurm", "--nodes", "1", "--workers", "1")
    killed = ClusterJob(slurm, *one, "--setup", "kill -9 $$", "--", "true")
    failed = ClusterJob(slurm, *one, "--setup", "echo no such module >&2; ls /nowhere/secret", "--", "true")
    done = killed.gridtf("wait", check=False)
    assert done.returncode == 1
    assert "the scheduler says FAILED, its script was killed by SIGKILL: by a user, or by the kernel" in done.stdout
    assert "could not start" not in done.stdout + done.stderr
    done = failed.gridtf("wait", check=False)
    assert done.returncode == 1
    first = done.stdout.splitlines()[0] + failed.status()["reason"]
    assert "failed with exit code 2 on n1; it printed last: ls: cannot access" in first, first


def test_walltime(slurm: Bed) -> None:
    job = started(slurm, "--time", "1")
    admin(slurm, "scontrol", "update", f"JobId={job.id}", "EndTime=now+1second")  # Slurm looks twice a minute
    ended(job, "TIMEOUT", "the walltime is over", "--time", seconds=50)
    nobody_left(slurm)
    assert job.gridtf("wait", check=False).returncode == 1
    assert job.status()["state"] == "TIMEOUT"


def test_preemption(slurm: Bed) -> None:
    job = started(slurm, "--partition", "scavenge", "--native=--exclusive")
    other = started(slurm, name="important", nodes=1, command="sleep 1")
    ended(job, "PREEMPTED", "higher priority")
    nobody_left(slurm)
    assert job.status()["state"] == "PREEMPTED"
    ended(other, "COMPLETED")


def test_requeued_by_an_administrator_it_starts_again(slurm: Bed) -> None:
    job = started(slurm, nodes=2, command="[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300")
    first = job.attempt.rendezvous.read_text()
    with begun(job, "wait") as waits:
        admin(slurm, "scontrol", "requeue", job.id)
        ended(job, "CANCELLED", "back into the queue")
        nobody_left(slurm, ("n1", "n2"))
        ended(job, "COMPLETED", attempt=2, seconds=60)
        assert f"fault ({job.id}): COMPLETED" in finished(waits, 0)
    view = job.status()
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)
    assert job.run.attempt(1).rendezvous.read_text() == first != job.run.attempt(2).rendezvous.read_text()


# --- a process is killed


def test_a_task_killed_on_another_node(slurm: Bed) -> None:
    job = started(slurm, "--native=--comment=x", command=STUBBORN)
    kill9(slurm, "n3", job.tasks()["worker:2"]["pid"])
    verdict = ended(job, "FAILED", "worker:2 on n3: killed by SIGKILL")
    assert verdict["cause"]["task"] == "worker:2"
    nobody_left(slurm)
    tasks = {task["name"]: task["state"] for task in job.status()["tasks"]}
    assert tasks == {"worker:0": "STOPPED", "worker:1": "STOPPED", "worker:2": "FAILED", "worker:3": "STOPPED"}


@pytest.mark.parametrize("generations", [0, 1, 2], ids=["agent", "supervisor", "slurmstepd"])
@pytest.mark.parametrize("host", ["n1", "n3"])
def test_what_stands_between_slurm_and_the_tasks_is_killed(slurm: Bed, host: str, generations: int) -> None:
    job = started(slurm)
    pid = next(task["agent"] for task in job.tasks().values() if task["host"] == host)
    for _ in range(generations):
        pid = parent(slurm, host, pid)
    killed = time.time()
    kill9(slurm, host, pid)
    verdict = ended(job, "FAILED", f"agent on host {host}")
    # the one time that is promised; Slurm itself would take half a minute, or never notice
    assert verdict["ended"] - killed < (3 if generations == 0 else 8)
    nobody_left(slurm)
    assert job.status()["state"] == "FAILED"


# --- it cannot start everywhere


@pytest.mark.parametrize(
    ("mount", "said", "hint"),
    [
        (
            ["--bind", "/dev/null", os.path.realpath(sys.executable)],
            "Permission denied",
            "Python that runs gridtf",
        ),
        (["-t", "tmpfs", "none", str(CHECKOUT / "gridtf/bootstrap")], "No module named 'gridtf", "gridtf must lie"),
    ],
    ids=["python", "gridtf"],
)
def test_why_an_agent_could_not_start(slurm: Bed, mount: list[str], said: str, hint: str) -> None:
    with mounted(slurm, "n3", *mount):
        job = started(slurm, running=False)
        verdict = ended(job, "FAILED", "the agent on host n3 ended with exit code", said, hint)
    assert (verdict["cause"]["task"], verdict["cause"]["host"]) == (None, "n3")
    assert said in verdict["cause"]["tail"][-1]
    shown = job.gridtf("status").stdout
    assert f"last lines of {job.seen_as}/attempt-1/agents.log" in shown
    assert said in next(line for line in shown.splitlines() if line.startswith("why"))
    nobody_left(slurm)


def test_too_few_open_files(slurm: Bed) -> None:
    job = started(slurm, "--setup", "ulimit -n 16", nodes=1, running=False)
    ended(job, "FAILED", "open files are needed on host n1, but the limit is 16", "ulimit -n")


# --- what stands beside the agents


def test_srun_is_killed(slurm: Bed) -> None:
    job = started(slurm)
    admin(slurm, "pkill", "-9", "-x", "srun", host="n1")  # in n1's own namespace of processes
    ended(job, "FAILED", "srun, which had started the agents, was killed by SIGKILL")
    nobody_left(slurm)


def test_the_step_of_the_agents_is_cancelled(slurm: Bed) -> None:
    job = started(slurm)
    slurm.run("login", "scancel", f"{job.id}.0")
    verdict = ended(job, "FAILED", f"the step of the agents, {job.id}.0, was cancelled", "by scancel of the step")
    assert verdict["again"] is None  # Slurm itself ends steps so
    nobody_left(slurm)
    job.until(lambda: job.status()["state"] == "FAILED", "its end")


def test_a_job_whose_slurmstepd_was_killed_does_not_hold_its_hosts(slurm: Bed) -> None:
    job = started(slurm, command="until [ -e $OUTPUT_DIR/go ]; do sleep 0.2; done")
    launcher = read_record(job.attempt.launcher) or {}
    kill9(slurm, "n1", parent(slurm, "n1", launcher["pid"]))
    (job.run.output / "go").touch()
    ended(job, "COMPLETED", "slurmstepd, which had started the job script on n1, was killed, so gridtf cancels the job")
    job.until(lambda: not admin(slurm, "squeue", "--noheader", f"--jobs={job.id}"), "its end for Slurm")
    assert job.status()["state"] == "COMPLETED"
    nobody_left(slurm)
