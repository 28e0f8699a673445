"""Refused, pending, cancelled and purged jobs on a real Slurm cluster."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.conftest import bed_for_tests
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, admin, begun, ended, finished, no_process_left, started
from tests.support.clusterjobs import GRIDTF, PATIENCE, ClusterJob, gridtf, refused

OWN_FOLDER = "/run/testbed/disk/alice"  # on a disk that every host has for itself
SLURM = ("--scheduler", "slurm")


@contextmanager
def own_folder(bed: Bed, host: str) -> Iterator[None]:
    """Create a folder of alice's on this host only."""
    admin(bed, "install", "-d", "-o", "alice", OWN_FOLDER, host=host)
    admin(bed, "chmod", "o+x", str(Path(OWN_FOLDER).parent), host=host)
    try:
        yield
    finally:
        admin(bed, "rm", "-r", OWN_FOLDER, host=host)


@pytest.mark.parametrize(
    "words, pieces",
    [
        (
            ["--nodes", "1", "--partition", "gpus"],
            ["there is no partition 'gpus'", "gpu (default), cpu"],
        ),
        (["--nodes", "1", "--native=--gres=fpga:1"], ["nvalid generic resource", "gres"]),
        (["--nodes", "1", "--gpus-per-node", "5"], ["5 GPUs a node requested", "have 4"]),
        (["--nodes", "1", "--gpus-per-node", "1", "--partition", "cpu"], ["cpu has GPUs", "gpu (4 each)"]),
        (["--nodes", "9"], ["9 nodes requested, partition gpu has 4"]),
        (["--nodes", "1", "--partition", "short", "--time", "1:00:00"], ["partition short allows", "gpu"]),
        (["--nodes", "1", "--native=--bogus"], ["bogus"]),
        (["--nodes", "1", "--exclude", "n99"], ["--exclude: ", "nvalid node name", "this site has: c1, n[1-4]"]),
    ],
    ids=["partition", "gres", "gpus", "no-gpus", "nodes", "walltime", "option", "exclude"],
)
def test_request_beyond_the_site_is_refused(slurm: Bed, words: list[str], pieces: list[str]) -> None:
    error = refused(slurm, *words)
    assert all(piece in error for piece in pieces), error


@pytest.mark.parametrize(
    ("variable", "word"),
    [
        ("SBATCH_NO_KILL=1", "--native=--no-kill"),
        ("SBATCH_EXCLUSIVE=1", "--native=--exclusive"),
        ("SBATCH_GPUS=5", "--gpus"),
        ("SBATCH_GRES=gpu:9", "--gpus-per-node"),
    ],
)
def test_refused_variable_of_the_environment_is_named(slurm: Bed, variable: str, word: str) -> None:
    name, _, value = variable.partition("=")
    error = refused(slurm, "--nodes", "2", "--gpus-per-node", "2", env={"SBATCH_QOS": "", name: value})
    assert error.startswith(f"gridtf: {name}: Slurm refuses '{value}' in the environment: "), error
    assert error.endswith(f"unset {name}; what a job needs is written as {word}\n"), error


def test_variables_that_the_environment_adds_or_keeps_from_a_job_are_told(slurm: Bed) -> None:
    env = {"SBATCH_EXPORT": "NONE", "SBATCH_GPUS_PER_NODE": "2", "MINE": "1"}
    show = "${MINE:-none} $CUDA_VISIBLE_DEVICES"
    job = ClusterJob(slurm, *SLURM, "--nodes", "1", "--", "/bin/bash", "-c", f"echo {show}", env=env)
    told = job.submitted.stderr
    assert job.verdict()["state"] == "COMPLETED"
    assert "SBATCH_EXPORT=NONE keeps this shell's PATH and other variables from the job: unset it, or set" in told
    assert "SBATCH_GPUS_PER_NODE=2 in the environment adds --gpus-per-node=2 to the job" in told
    assert sorted(job.logs().values()) == ["none 0\n", "none 1\n"]


def test_submit_without_sbatch(slurm: Bed) -> None:
    env = {**GRIDTF_ENVIRON, "PATH": "/nowhere"}
    command = [sys.executable, *GRIDTF[1:], "submit", *SLURM, "--nodes", "1", "--", sys.executable, "-V"]
    done = slurm.run("login", *command, env=env, check=False)
    assert done.returncode == 1
    assert "sbatch not found on login" in done.stderr
    assert "module load" in done.stderr


def test_run_directory_in_memory_is_refused(slurm: Bed) -> None:
    error = refused(slurm, "--nodes", "2", "--run-root", "/tmp/runs")
    assert "/tmp/runs" in error
    assert "cannot be seen by other hosts" in error
    error = refused(slurm, "--nodes", "2", "--run-root", f"{SHARED}/home/alice/gridtf-runs", cwd="/tmp")
    assert "/tmp cannot be seen by other hosts" in error


def test_run_directory_on_a_local_disk_is_reported(slurm: Bed) -> None:
    options = ("--nodes", "2", "--tasks-per-node", "1", "--run-root", f"{OWN_FOLDER}/runs")
    with own_folder(slurm, "login"):
        done = gridtf(slurm, "submit", *SLURM, *options, "--wait", "--", "true", check=False, timeout=240)
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "can the job's hosts see that folder?" in done.stdout
    assert "--run-root" in done.stdout


def test_run_directory_of_a_hand_written_script_must_be_shared(slurm: Bed) -> None:
    words = "gridtf_run --workers 2 --tasks-per-node 1 --run-dir"
    assert "/tmp/mine cannot be seen by other hosts" in _by_hand(slurm, f"{words} /tmp/mine -- true\n", "--nodes=2")
    with own_folder(slurm, "n1"):
        log = _by_hand(slurm, f"{words} {OWN_FOLDER}/run -- true\n", "--nodes=2")
    assert "the agent on host n2 cannot see the run directory: it must be on a file system that all hosts" in log
    no_process_left(slurm)


def test_missing_working_folder_is_reported(slurm: Bed) -> None:
    folders = ("--chdir", OWN_FOLDER, "--run-root", f"{SHARED}/home/alice/gridtf-runs")
    with own_folder(slurm, "login"):
        job = ClusterJob(slurm, *SLURM, "--nodes", "1", "--workers", "1", *folders, "--", "true")
        done = job.gridtf("wait", check=False)
    assert done.returncode == 1
    assert "cannot change to the working folder on this host: see --chdir" in done.stdout
    assert job.status()["state"] == "FAILED"


def test_working_folder_missing_on_one_node_is_reported(slurm: Bed) -> None:
    script = "mkdir -p /tmp/only/here\ncd /tmp/only/here\n"
    script += f"gridtf_run --run-dir {SHARED}/home/alice/run-$SLURM_JOB_ID --tasks-per-node 1 -- true\n"
    out = _by_hand(slurm, script, "--nodes=2")
    assert "worker:1 on n2: the working folder /tmp/only/here does not exist on this host" in out, out
    no_process_left(slurm)


def _by_hand(bed: Bed, script: str, *options: str) -> str:
    """Submit a script with sbatch as alice, wait until it has failed, and return its log."""
    bootstrap = shlex.quote(str(CHECKOUT / "scripts/gridtf-bootstrap.sh"))
    (bed.home() / "by-hand.sh").write_text(f"#!/bin/bash\nset -eu\nsource {bootstrap}\n{script}")
    env = {**GRIDTF_ENVIRON, "GRIDTF_PYTHON": sys.executable}
    log = bed.home() / "by-hand.log"
    log.unlink(missing_ok=True)
    # sbatch --wait checks only every half minute
    words = ["sbatch", "--parsable", f"--output={log.name}", *options, "by-hand.sh"]
    job_id = bed.run("login", *words, env=env).stdout.strip()
    deadline = time.monotonic() + PATIENCE
    while (state := admin(bed, "squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id).strip()) != "FAILED":
        assert time.monotonic() < deadline, f"still {state}\n{log.read_text() if log.exists() else ''}"
        time.sleep(0.2)
    return log.read_text()


# --- pending, cancelled and purged jobs


def test_pending_job_has_slurm_s_reason_and_expected_start(slurm: Bed) -> None:
    started(slurm, "--native=--exclusive", "--time", "10", name="blocker")
    job = started(slurm, name="waiting", running=False)
    view = job.until(lambda: (view := job.status()) and view["expected"] and view, "an expected start")
    assert view["state"] == "PENDING"
    assert view["reason"] == "the nodes are busy (Resources)"
    assert time.time() < view["expected"] < time.time() + 3600
    assert "; expected to start " in job.gridtf("status").stdout
    slurm.run("login", "scancel", job.id)
    view = job.until(lambda: (view := job.status())["state"] == "CANCELLED" and view, "its end")
    assert view["reason"].startswith("cancelled before it started, while it was pending")
    job = started(slurm, name="waiting", running=False)
    done = job.gridtf("cancel")
    assert f"waiting ({job.id}): CANCELLED" in done.stdout
    assert job.status()["state"] == "CANCELLED"
    assert admin(slurm, "squeue", "-h", "-j", job.id, "-t", "PENDING,RUNNING") == ""


def test_cancel_by_id_by_name_and_by_run_directory(slurm: Bed) -> None:
    jobs = [started(slurm, nodes=1, name=f"cancel-{number}") for number in range(3)]
    for job, word in zip(jobs, (jobs[0].id, "cancel-1", jobs[2].seen_as), strict=True):
        done = gridtf(slurm, "cancel", word)
        assert f"({job.id}): CANCELLED" in done.stdout
        ended(job, "CANCELLED", "cancelled by alice on login")
    no_process_left(slurm)
    again = gridtf(slurm, "cancel", "cancel-1")
    assert "has already ended" in again.stderr
    job = started(slurm, "--native=--output=/tmp/own.log", nodes=1, name="by-root")
    assert f"--output=/tmp/own.log has no effect: the output of the script goes to {job.seen_as}/job.log" in (
        job.submitted.stderr
    )
    assert f"by-root ({job.id}): CANCELLED" in gridtf(slurm, "cancel", job.id, user="root", cwd="/").stdout
    ended(job, "CANCELLED", "cancelled with scancel")
    assert not job.run.cancelled.exists()  # root writes nothing into a folder of alice's
    no_process_left(slurm)


def test_job_for_a_later_reservation_is_submitted(slurm: Bed) -> None:
    later = ("starttime=now+1hour", "duration=60", "users=alice", "nodes=n4")
    admin(slurm, "scontrol", "create", "reservation", "reservationname=later", *later)
    try:
        job = started(slurm, "--native=--reservation=later", nodes=1, name="reserved", running=False)
        assert "the job waits until its reservation begins" in job.submitted.stderr
        assert job.status()["state"] == "PENDING"
        job.gridtf("cancel")
    finally:
        admin(slurm, "scontrol", "delete", "reservation=later")


def test_cancel_refuses_a_job_not_started_by_gridtf(slurm: Bed) -> None:
    done = slurm.run("login", "sbatch", "--parsable", "--wrap", "sleep 60")
    job_id = done.stdout.strip()
    refusal = gridtf(slurm, "cancel", job_id, check=False)
    slurm.run("login", "scancel", job_id)
    assert refusal.returncode == 2
    assert f"job {job_id} was not started by gridtf" in refusal.stderr


def test_wait_for_a_job_whose_run_directory_is_removed(slurm: Bed) -> None:
    job = started(slurm, nodes=1, name="removed")
    with begun(job, "wait") as waits:
        assert waits.stderr is not None
        assert "running" in waits.stderr.readline()
        slurm.run("login", "chmod", "000", job.seen_as)
        output = finished(waits, 1)
        assert f"it is yours: chmod u+rwX {job.seen_as}" in output
    slurm.run("login", "chmod", "700", job.seen_as)
    job.gridtf("cancel")
    job = started(slurm, nodes=1, name="removed")
    with begun(job, "wait") as waits:
        assert waits.stderr is not None
        assert "running" in waits.stderr.readline()
        slurm.run("login", "rm", "-rf", job.seen_as)
        output = finished(waits, 1)
    assert f"{job.seen_as} was removed while gridtf waited for its job, {job.id}" in output
    slurm.run("login", "scancel", job.id)  # it goes on: only records are lost
    no_process_left(slurm)


def test_status_of_jobs_that_slurm_has_purged() -> None:
    with bed_for_tests(options=["MinJobAge=2"]) as bed:
        good = started(bed, nodes=1, name="good", command="true", running=False)
        bad = started(bed, nodes=1, name="bad", command="exit 3", running=False)
        ended(good, "COMPLETED")
        ended(bad, "FAILED")
        killed = started(bed, nodes=1, name="killed")
        record = json.loads(killed.attempt.launcher.read_text())
        admin(bed, "kill", "-9", str(record["pid"]), host=record["host"])
        no_process_left(bed)

        def forgotten() -> bool:
            return not bed.run("login", "squeue", "-h", "-t", "all", "-o", "%i").stdout.strip()

        killed.until(forgotten, "Slurm to forget its jobs")
        assert (good.status()["state"], bad.status()["state"]) == ("COMPLETED", "FAILED")
        view = killed.status()
        assert view["state"] == "FAILED"
        assert "ended without a verdict: the launcher on n1 ended" in view["reason"]
        assert killed.gridtf("wait", check=False).returncode == 1
        assert "has already ended" in killed.gridtf("cancel").stderr
