"""Hosts, links and daemons of a real Grid Engine fail while jobs run."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, STUBBORN, admin, begun, ended, finished, nobody_left, started
from tests.support.clusterjobs import GRIDTF

pytestmark = pytest.mark.timeout(120)

SOON = ("--heartbeat-timeout", "4")
# Runs until the test says that it may end.
UNTIL_TOLD = "until ls | grep -qx go; do sleep 0.2; done"


def test_power_cut_of_a_host(sge: Bed) -> None:
    job = started(sge, *SOON, command=STUBBORN)
    cut = time.time()
    sge.kill("n3")
    verdict = ended(job, "NODE_FAIL", "host n3")
    assert verdict["ended"] - cut < 10
    nobody_left(sge, ("n1", "n2", "n4"))
    view = job.status()
    assert (view["state"], view["exit_code"]) == ("NODE_FAIL", 1)
    lost = next(task for task in view["tasks"] if task["host"] == "n3")
    assert lost["state"] in ("STOPPED", "UNKNOWN")


def test_power_cut_of_the_launchers_host(sge: Bed) -> None:
    job = started(sge, *SOON, command=STUBBORN)
    sge.kill("n1")
    nobody_left(sge, ("n2", "n3", "n4"), seconds=20)  # they notice by themselves
    assert job.status()["state"] == "RUNNING"  # as far as Grid Engine knows, which waits for the host
    sge.mend("n1")
    view = job.until(lambda: (view := job.status())["state"] == "NODE_FAIL" and view, "its end")
    assert "the launcher on n1 ended; the scheduler says NODE_FAIL" in view["reason"]


def test_link_of_a_host_is_cut_and_its_shared_folder_is_gone(laggy_sge: Bed) -> None:
    job = started(laggy_sge, *SOON, command=STUBBORN)
    cut = time.time()
    laggy_sge.cut("n3")  # which neither qrsh nor Grid Engine notices for a long time
    admin(laggy_sge, "pkill", "-STOP", "-x", "bindfs", host="n3")  # in n3's own namespace of processes
    try:
        verdict = ended(job, "NODE_FAIL", "no heartbeat from host n3 for 4 s")
        assert verdict["ended"] - cut < 4 + 5
        nobody_left(laggy_sge, ("n1", "n2", "n4"))
    finally:
        admin(laggy_sge, "pkill", "-CONT", "-x", "bindfs", host="n3")
    nobody_left(laggy_sge)


def test_link_of_a_host_is_cut_but_its_shared_folder_is_there(sge: Bed) -> None:
    job = started(sge, nodes=2, command="sleep 4")
    sge.cut("n2")
    ended(job, "COMPLETED")
    nobody_left(sge)


def test_the_daemon_of_a_host_is_killed(sge: Bed) -> None:
    job = started(sge, nodes=2, command="sleep 3")
    admin(sge, "pkill", "-9", "-x", "sge_execd", host="n2")
    ended(job, "COMPLETED")
    nobody_left(sge)


def test_the_qmaster_is_down(sge: Bed) -> None:
    """A job goes on meanwhile, another one ends."""
    job = started(sge, nodes=2, command=UNTIL_TOLD)
    ends = started(sge, nodes=2, name="ends", command=UNTIL_TOLD.replace("go", "end"))
    runs = set((sge.home() / "gridtf-runs").iterdir())
    submit = [*GRIDTF, "submit", "--scheduler", "sge", "--workers", "1", "--", "true"]
    with begun(job, "wait") as waits:
        admin(sge, "pkill", "-9", "-x", "sge_qmaster")
        with (
            begun(job, "status", "--json") as asks,
            begun(job, "cancel") as cancels,
            sge.popen("login", *submit, env=GRIDTF_ENVIRON) as submits,
        ):
            refused, shown, kept = finished(submits, 1), finished(asks, 0), finished(cancels, 1)
        view = json.loads(shown)
        assert view["state"] == "RUNNING"
        assert [task["state"] for task in view["tasks"]] == ["RUNNING", "RUNNING"]
        for said in (refused, kept):
            assert "Grid Engine's qmaster on ctl does not answer" in said
            assert "try again later" in said
        assert set((sge.home() / "gridtf-runs").iterdir()) == runs
        assert not job.run.cancelled.exists()
        (sge.home() / "end").touch()
        ended(ends, "COMPLETED")
        sge.mend("ctl")
        assert waits.poll() is None
        (sge.home() / "go").touch()
        assert f"fault ({job.id}): COMPLETED" in finished(waits, 0)
    assert "COMPLETED" in ends.gridtf("wait").stdout


def test_qdel_and_a_failure_where_hosts_cache_the_shared_folder(laggy_sge: Bed) -> None:
    job = started(laggy_sge, command=STUBBORN)
    laggy_sge.run("login", "qdel", job.id)
    ended(job, "CANCELLED", "deleted with qdel")
    nobody_left(laggy_sge)
    fails = started(laggy_sge, command="[ $RANK != 2 ] || exit 7; sleep 300", running=False)
    with begun(fails, "wait") as waits:
        assert "worker:2 on n3: exit code 7" in finished(waits, 1)
    ended(fails, "FAILED", "worker:2 on n3: exit code 7")
    nobody_left(laggy_sge)
