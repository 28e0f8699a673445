"""Faults of running jobs on a real Slurm cluster: the job ends, reports why, and leaves no process behind."""

from __future__ import annotations

import os
import sys
import time

import pytest

from gridtf.run.rundir import read_record
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import (
    PROMPT,
    STUBBORN,
    UNTIL_RELEASED,
    admin,
    begun,
    ended,
    finished,
    kill9,
    mounted,
    no_process_left,
    parent,
    release,
    started,
)
from tests.support.clusterjobs import ClusterJob, refused, shares_gpus

# --- the job is ended from outside


def test_scancel_of_tasks_that_ignore_term(slurm: Bed) -> None:
    job = started(slurm, command=STUBBORN)
    slurm.run("login", "scancel", job.id)
    ended(job, "CANCELLED", "cancelled with scancel")
    no_process_left(slurm)


def test_scancel_with_kill(slurm: Bed) -> None:
    job = started(slurm, command=STUBBORN)
    slurm.run("login", "scancel", "--signal=KILL", "--full", job.id)
    no_process_left(slurm)
    assert job.until(lambda: (state := job.status()["state"]) != "RUNNING" and state, "its end") == "CANCELLED"


def test_killed_launcher_is_reported_without_a_verdict(slurm: Bed) -> None:
    job = started(slurm)
    record = read_record(job.attempt.launcher) or {}
    kill9(slurm, record["host"], record["pid"])
    no_process_left(slurm)
    view = job.until(lambda: (view := job.status())["state"] != "RUNNING" and view, "its end")
    assert view["state"] == "FAILED"
    why = "the launcher on n1 was killed by SIGKILL: by a user, or by the kernel because memory ran out"
    assert view["reason"] == f"ended without a verdict: {why}"
    assert view["exit_code"] != 0
    assert all(task["state"] != "RUNNING" for task in view["tasks"])


def test_verdict_that_cannot_be_written_is_that_of_the_log(slurm: Bed) -> None:
    """The program has made the run directory read-only."""
    program = 'import os; [os.chmod(folder, 0o500) for folder, _, _ in os.walk(os.environ["GRIDTF_RUN_DIR"])]; exit(7)'
    options = ("--scheduler", "slurm", "--nodes", "1", "--workers", "1")
    job = ClusterJob(slurm, *options, "--", "python3", "-c", program)
    try:
        view = job.until(lambda: (view := job.status())["state"] not in ("PENDING", "RUNNING") and view, "its end")
        assert view["state"] == "FAILED"
        assert view["reason"] == "worker:0 on n1: exit code 7; its verdict could not be written"
        job.until(lambda: "verdict.json: Permission denied" in job.output, "the error")
    finally:
        slurm.run("login", "chmod", "-R", "u+w", job.seen_as)


def test_killed_and_failed_set_up_is_reported(slurm: Bed) -> None:
    options = ("--scheduler", "slurm", "--nodes", "1", "--workers", "1")
    killed = ClusterJob(slurm, *options, "--setup", "kill -9 $$", "--", "true")
    failed = ClusterJob(slurm, *options, "--setup", "echo no such module >&2; ls /nowhere/secret", "--", "true")
    done = killed.gridtf("wait", check=False)
    assert done.returncode == 1
    assert "the scheduler reports FAILED, its script was killed by SIGKILL: by a user, or by the kernel" in done.stdout
    assert "could not start" not in done.stdout + done.stderr
    done = failed.gridtf("wait", check=False)
    assert done.returncode == 1
    first = done.stdout.splitlines()[0] + failed.status()["reason"]
    assert "failed with exit code 2 on n1; last output: ls: cannot access" in first, first


def test_walltime_is_reported_as_timeout(slurm: Bed) -> None:
    job = started(slurm, "--time", "1")
    admin(slurm, "scontrol", "update", f"JobId={job.id}", "EndTime=now+1second")  # Slurm checks twice a minute
    ended(job, "TIMEOUT", "the walltime is over", "--time")
    no_process_left(slurm)
    assert job.gridtf("wait", check=False).returncode == 1
    assert job.status()["state"] == "TIMEOUT"


def test_preemption_is_reported(slurm: Bed) -> None:
    job = started(slurm, "--partition", "scavenge", "--native=--exclusive")
    other = started(slurm, name="important", nodes=1, command="sleep 1")
    ended(job, "PREEMPTED", "higher priority")
    no_process_left(slurm)
    assert job.status()["state"] == "PREEMPTED"
    ended(other, "COMPLETED")


def test_requeued_job_starts_again(slurm: Bed) -> None:
    job = started(slurm, nodes=2, command="[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300")
    first = job.attempt.rendezvous.read_text()
    with begun(job, "wait") as waits:
        admin(slurm, "scontrol", "requeue", job.id)
        ended(job, "CANCELLED", "Slurm has requeued it")
        no_process_left(slurm, ("n1", "n2"))
        ended(job, "COMPLETED", attempt=2)
        assert f"fault ({job.id}): COMPLETED" in finished(waits, 0)
    view = job.status()
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)
    assert job.run.attempt(1).rendezvous.read_text() == first != job.run.attempt(2).rendezvous.read_text()


# --- a process is killed


@pytest.mark.parametrize("generations", [0, 1, 2], ids=["agent", "supervisor", "slurmstepd"])
@pytest.mark.parametrize("host", ["n1", "n3"])
def test_killed_agent_supervisor_or_slurmstepd_is_reported(slurm: Bed, host: str, generations: int) -> None:
    job = started(slurm)
    pid = next(task["agent"] for task in job.tasks().values() if task["host"] == host)
    for _ in range(generations):
        pid = parent(slurm, host, pid)
    killed = time.time()
    kill9(slurm, host, pid)
    verdict = ended(job, "FAILED", f"agent on host {host}")
    assert verdict["ended"] - killed < PROMPT  # Slurm itself may also never notice
    no_process_left(slurm)
    assert job.status()["state"] == "FAILED"


# --- a host with GPUs is lost


def test_job_with_gpus_goes_on_on_a_spare_host(remote_slurm: Bed) -> None:
    words = ("--restarts", "1", "--spare-nodes", "1", "--gpus-per-node", "1")
    if not shares_gpus(remote_slurm):
        why = "--spare-nodes: with Slurm 20.11 a job with GPUs does not go on after it has lost a host"
        assert why in refused(remote_slurm, "--nodes", "2", *words)
        return
    command = "[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300"
    job = started(remote_slurm, *words, "--heartbeat-timeout", "10", nodes=2, command=command)
    remote_slurm.kill("n2")
    ended(job, "COMPLETED", "after 1 restart", attempt=2)
    assert job.gpus() == {"worker:0": ("n1", ("0",)), "worker:1": ("n3", ("0",))}


def test_job_with_gpus_on_fewer_hosts(remote_slurm: Bed) -> None:
    words = ("--restarts", "1", "--nodes", "2-3", "--native=--nodes=3", "--gpus-per-node", "1")
    command = "[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300"
    job = started(remote_slurm, *words, "--heartbeat-timeout", "10", nodes=3, command=command)
    remote_slurm.kill("n3")
    if shares_gpus(remote_slurm):
        ended(job, "COMPLETED", "after 1 restart", attempt=2)
        return
    why = "Slurm 20.11 does not share GPUs between steps, and the one that has lost a host has those of this job"
    ended(job, "FAILED", why, attempt=2)


# --- agents cannot start


@pytest.mark.parametrize(
    ("mount", "error", "hint"),
    [
        (
            ["--bind", "/dev/null", os.path.realpath(sys.executable)],
            "Permission denied",
            "Python that runs gridtf",
        ),
        (["-t", "tmpfs", "none", str(CHECKOUT / "gridtf/bootstrap")], "No module named 'gridtf", "gridtf must be"),
    ],
    ids=["python", "gridtf"],
)
def test_agent_that_cannot_start_is_reported(slurm: Bed, mount: list[str], error: str, hint: str) -> None:
    with mounted(slurm, "n3", *mount):
        job = started(slurm, running=False)
        verdict = ended(job, "FAILED", "the agent on host n3 ended with exit code", error, hint)
    assert (verdict["cause"]["task"], verdict["cause"]["host"]) == (None, "n3")
    assert error in verdict["cause"]["tail"][-1]
    shown = job.gridtf("status").stdout
    assert f"last lines of {job.seen_as}/attempt-1/agents.log" in shown
    assert error in next(line for line in shown.splitlines() if line.startswith("why"))
    no_process_left(slurm)


def test_agent_that_cannot_start_is_reported_although_another_begins_late(remote_slurm: Bed) -> None:
    """srun ends the agents when one has failed, and then waits for one that begins after that."""
    slurmd = admin(remote_slurm, "pgrep", "-o", "-x", "slurmd", host="n4").strip()
    with mounted(remote_slurm, "n3", "--bind", "/dev/null", os.path.realpath(sys.executable)):
        # Slurm would give a stopped host up while the job is submitted, and does after 45 s here
        job = started(remote_slurm, "--native=--hold", running=False)
        admin(remote_slurm, "kill", "-STOP", slurmd, host="n4")
        try:
            admin(remote_slurm, "scontrol", "release", job.id)
            log = job.run.attempt(1).agents_log
            job.until(lambda: log.exists() and "exit code 13" in log.read_text(), "the failure on n3")
        finally:
            admin(remote_slurm, "kill", "-CONT", slurmd, host="n4")
        ended(job, "FAILED", "the agent on host n3 ended with exit code", "Permission denied")
    no_process_left(remote_slurm)


def test_job_goes_on_after_a_suspension_although_the_launcher_goes_on_later_than_the_agents(slurm: Bed) -> None:
    job = started(slurm, "--heartbeat-timeout", "8", command=UNTIL_RELEASED)
    slurmd = admin(slurm, "pgrep", "-o", "-x", "slurmd", host="n1").strip()
    admin(slurm, "scontrol", "suspend", job.id)
    time.sleep(26)
    admin(slurm, "kill", "-STOP", slurmd, host="n1")
    try:
        with slurm.popen("ctl", "scontrol", "resume", job.id, user="root"):
            time.sleep(5.5)
    finally:
        admin(slurm, "kill", "-CONT", slurmd, host="n1")
    time.sleep(8)
    release(job)
    ended(job, "COMPLETED")
    no_process_left(slurm)


def test_too_low_limit_of_open_files_is_reported(slurm: Bed) -> None:
    job = started(slurm, "--setup", "ulimit -n 16", nodes=1, running=False)
    ended(job, "FAILED", "open files are needed on host n1, but the limit is 16", "ulimit -n")


# --- srun, its step and slurmstepd


def test_cancelled_step_of_the_agents_is_reported(slurm: Bed) -> None:
    job = started(slurm)
    slurm.run("login", "scancel", f"{job.id}.0")
    verdict = ended(job, "FAILED", f"the agents' job step {job.id}.0 was cancelled", "by scancel of the step")
    assert verdict["again"] is None  # Slurm itself cancels steps in the same way
    no_process_left(slurm)
    job.until(lambda: job.status()["state"] == "FAILED", "its end")


def test_job_whose_slurmstepd_was_killed_releases_its_hosts(slurm: Bed) -> None:
    job = started(slurm, command=UNTIL_RELEASED)
    launcher = read_record(job.attempt.launcher) or {}
    kill9(slurm, "n1", parent(slurm, "n1", launcher["pid"]))
    release(job)
    ended(job, "COMPLETED", "slurmstepd, which had started the job script on n1, was killed, so gridtf cancels the job")
    job.until(lambda: not admin(slurm, "squeue", "--noheader", f"--jobs={job.id}"), "the job's end in squeue")
    assert job.status()["state"] == "COMPLETED"
    no_process_left(slurm)
