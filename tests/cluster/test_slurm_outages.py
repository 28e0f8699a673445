"""Hosts, links and the controller of a real Slurm cluster fail while jobs run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import bed_for_tests
from tests.support.cluster import Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, STUBBORN, admin, begun, ended, finished, nobody_left, started
from tests.support.clusterjobs import GRIDTF, ClusterJob

pytestmark = pytest.mark.timeout(120)

SOON = ("--heartbeat-timeout", "4")
# Runs until the test says that it may end.
UNTIL_TOLD = "until ls | grep -qx go; do sleep 0.2; done"


def test_power_cut_of_a_host(slurm: Bed) -> None:
    job = started(slurm, *SOON)
    slurm.kill("n3")
    ended(job, "NODE_FAIL", "no heartbeat from host n3 for 4 s", seconds=20)
    nobody_left(slurm, ("n1", "n2", "n4"))
    view = job.status()
    assert (view["state"], view["exit_code"]) == ("NODE_FAIL", 1)
    lost = next(task for task in view["tasks"] if task["host"] == "n3")
    assert lost["state"] in ("STOPPED", "UNKNOWN")
    slurm.mend("n3")
    nobody_left(slurm)


def test_power_cut_of_the_launchers_host(slurm: Bed) -> None:
    job = started(slurm, *SOON, "--native=--no-requeue", command=STUBBORN)
    slurm.kill("n1")
    nobody_left(slurm, ("n2", "n3", "n4"), seconds=25)  # they notice by themselves
    view = job.until(lambda: (view := job.status())["state"] != "RUNNING" and view, "its end")
    assert view["state"] == "NODE_FAIL"
    assert "the launcher on n1 ended; the scheduler says NODE_FAIL" in view["reason"]
    slurm.mend("n1")


def test_link_of_the_launchers_host_is_cut_and_mended(slurm: Bed) -> None:
    """All defaults: Slurm takes the job back, while its launcher on the cut host cannot know it."""
    job = started(slurm, command="[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300")
    with begun(job, "wait") as waits:
        slurm.cut("n1")
        time.sleep(20)
        slurm.mend("n1")
        said = finished(waits, 0, seconds=90)
    assert f"fault ({job.id}): COMPLETED" in said
    assert job.run.attempt(1).verdict.exists()
    view = job.status()
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)
    nobody_left(slurm)


def test_link_of_a_host_is_cut(slurm: Bed) -> None:
    job = started(slurm, *SOON, "--native=--no-requeue", command=STUBBORN)
    slurm.cut("n3")
    # the shared folder is still there: Slurm is the first to notice
    verdict = ended(job, "NODE_FAIL", seconds=60)
    assert "n3" in verdict["reason"], verdict
    nobody_left(slurm)
    slurm.mend("n3")
    assert slurm.states()["n3"].startswith("idle")


def test_a_host_whose_shared_folder_hangs(laggy_slurm: Bed) -> None:
    job = started(laggy_slurm, *SOON, command=STUBBORN)
    admin(laggy_slurm, "pkill", "-STOP", "-x", "bindfs", host="n3")  # in n3's own namespace of processes
    try:
        ended(job, "NODE_FAIL", "no heartbeat from host n3 for 4 s", seconds=30)
        nobody_left(laggy_slurm, ("n1", "n2", "n4"))
    finally:
        admin(laggy_slurm, "pkill", "-CONT", "-x", "bindfs", host="n3")
    nobody_left(laggy_slurm)


@pytest.fixture
def own_slurm() -> Iterator[Bed]:
    """Nodes whose jobs end while the controller is down may end up drained: no other test shall find them so."""
    with bed_for_tests() as bed:
        yield bed


def stop_controller(bed: Bed) -> None:
    """It writes down what it knows: after a power cut it would start the jobs of the last seconds again."""
    admin(bed, "scontrol", "shutdown", "slurmctld")
    deadline = time.monotonic() + 20
    while bed.run("ctl", "pgrep", "-x", "slurmctld", user="root", check=False).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_controller_is_down(own_slurm: Bed) -> None:
    job = started(own_slurm, nodes=2, command=UNTIL_TOLD)
    submit = [*GRIDTF, "submit", "--scheduler", "slurm", "--nodes", "1", "--workers", "1", "--", "true"]
    runs = set((own_slurm.home() / "gridtf-runs").iterdir())
    with begun(job, "wait") as waits:
        stop_controller(own_slurm)
        with (
            begun(job, "status", "--json") as asks,
            begun(job, "cancel") as cancels,
            own_slurm.popen("login", *submit, env=GRIDTF_ENVIRON) as submits,
        ):
            refused, shown, kept = finished(submits, 1), finished(asks, 0), finished(cancels, 1)
        view = json.loads(shown)
        assert view["state"] == "RUNNING"
        assert [task["state"] for task in view["tasks"]] == ["RUNNING", "RUNNING"]
        for said in (refused, kept):
            assert "Slurm's controller on ctl does not answer" in said
            assert "try again later" in said
        assert set((own_slurm.home() / "gridtf-runs").iterdir()) == runs
        assert not job.run.cancelled.exists()
        own_slurm.mend("ctl")
        assert waits.poll() is None
        (own_slurm.home() / "go").touch()
        assert f"fault ({job.id}): COMPLETED" in finished(waits, 0)


def test_a_job_ends_while_the_controller_is_down(own_slurm: Bed) -> None:
    job = started(own_slurm, nodes=2, command="sleep 3")
    stop_controller(own_slurm)
    ended(job, "COMPLETED")
    assert "COMPLETED" in job.gridtf("wait").stdout


def test_scancel_and_a_failure_where_hosts_cache_the_shared_folder(laggy_slurm: Bed) -> None:
    job = started(laggy_slurm, command=STUBBORN)
    laggy_slurm.run("login", "scancel", job.id)
    ended(job, "CANCELLED", "cancelled with scancel")
    nobody_left(laggy_slurm)
    fails = ClusterJob(
        laggy_slurm, "--nodes", "4", "--tasks-per-node", "1", "--", "bash", "-c", "[ $RANK != 2 ] || exit 7; sleep 300"
    )
    assert "worker:2 on n3: exit code 7" in _waited_for(fails)
    ended(fails, "FAILED", "worker:2 on n3: exit code 7")
    nobody_left(laggy_slurm)


def _waited_for(job: ClusterJob) -> str:
    with begun(job, "wait") as waits:
        return finished(waits, 1)
