"""Hosts, links and daemons of a real Grid Engine fail while jobs run. For every scheduler: test_outages.py."""

from __future__ import annotations

import time

from tests.support.cluster import Bed
from tests.support.clusterfaults import (
    PROMPT,
    STUBBORN,
    UNTIL_RELEASED,
    admin,
    ended,
    no_process_left,
    release,
    started,
)
from tests.support.sgebed import BINARIES

SOON = ("--heartbeat-timeout", "4")


def test_power_cut_of_the_host_of_the_launcher(sge: Bed) -> None:
    job = started(sge, *SOON, command=STUBBORN)
    sge.kill("n1")
    no_process_left(sge, ("n2", "n3", "n4"), seconds=60)  # the agents notice it themselves
    assert job.status()["state"] == "RUNNING"  # Grid Engine waits for the host
    sge.mend("n1")
    view = job.until(lambda: (view := job.status())["state"] == "NODE_FAIL" and view, "its end")
    assert "the launcher on n1 ended; the scheduler reports NODE_FAIL" in view["reason"]


def test_cut_link_of_a_host_without_its_shared_folder(laggy_sge: Bed) -> None:
    job = started(laggy_sge, *SOON, command=STUBBORN)
    cut = time.time()
    laggy_sge.cut("n3")  # which neither qrsh nor Grid Engine notices for a long time
    admin(laggy_sge, "pkill", "-STOP", "-x", "bindfs", host="n3")  # in n3's own namespace of processes
    try:
        verdict = ended(job, "NODE_FAIL", "no heartbeat from host n3 for 4 s")
        assert verdict["ended"] - cut < PROMPT
        no_process_left(laggy_sge, ("n1", "n2", "n4"))
    finally:
        admin(laggy_sge, "pkill", "-CONT", "-x", "bindfs", host="n3")
    no_process_left(laggy_sge)


def test_agent_is_started_again_on_a_host_whose_execd_comes_back(sge: Bed) -> None:
    ready, gate = sge.home() / "ready", sge.home() / "go"
    wait = f"touch {sge.seen(ready)}; until [ -e {sge.seen(gate)} ]; do sleep 0.1; done"
    job = started(sge, "--setup", wait, nodes=2, running=False)
    job.until(ready.exists, "the set-up")
    admin(sge, "pkill", "-9", "-x", "sge_execd", host="n2")
    gate.touch()
    try:
        job.until(lambda: "gridtf starts the agent on host n2 again in" in job.output, "the end of the first attempt")
    finally:
        admin(sge, f"{BINARIES}/sge_execd", host="n2")
        gate.unlink()
        ready.unlink()
    job.running(2)
    job.gridtf("cancel")
    ended(job, "CANCELLED")
    no_process_left(sge)


def test_killed_execd_does_not_end_the_job(sge: Bed) -> None:
    job = started(sge, nodes=2, command=UNTIL_RELEASED)
    admin(sge, "pkill", "-9", "-x", "sge_execd", host="n2")
    release(job)
    ended(job, "COMPLETED")
    no_process_left(sge)
