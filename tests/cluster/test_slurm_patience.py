"""Default timeouts: several jobs on one real Slurm cluster wait for them at the same time."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridtf.run.rundir import read_record
from tests.cluster.conftest import bed_for_tests
from tests.support.cluster import Bed
from tests.support.clusterfaults import (
    UNTIL_GO,
    admin,
    begun,
    ended,
    finished,
    late_agents,
    mounted,
    no_process_left,
    started,
)
from tests.support.disks import ext4, fill

ALICE = 7001  # her user id
Check = Callable[[], None]  # waits for the end of a job that was started before, and asserts how it ended


@contextmanager
def unseen(bed: Bed, host: str, name: str) -> Iterator[None]:
    """A folder in alice's home that is empty on this host, whatever the others write there."""
    folder = bed.home() / name
    bed.run("login", "mkdir", bed.seen(folder))
    with mounted(bed, host, "-t", "tmpfs", "none", bed.seen(folder)):
        yield


def late_host(bed: Bed) -> Check:
    job = started(bed, "--env", "AGENT_DELAY=45", command="true", running=False)

    def check() -> None:
        ended(job, "COMPLETED", seconds=240)

    return check


def host_that_never_starts(bed: Bed) -> Check:
    job = started(bed, "--env", "AGENT_DELAY=300", "--start-timeout", "40", running=False)

    def check() -> None:
        verdict = ended(job, "FAILED", "no report from 1 host after 40 s: n3", "their tasks: worker:2", seconds=240)
        assert "n4" not in verdict["reason"]

    return check


def host_without_the_run_directory(bed: Bed) -> Check:
    job = started(bed, "--run-root", "unseen", "--heartbeat-timeout", "10", running=False)

    def check() -> None:
        ended(job, "FAILED", "the agent on host n3 cannot see the run directory")

    return check


def stopped_launcher(bed: Bed) -> Check:
    job = started(bed, nodes=2)
    launcher = read_record(job.attempt.launcher) or {}
    admin(bed, "kill", "-STOP", str(launcher["pid"]), host=launcher["host"])

    def check() -> None:
        reason = f"the launcher on host {launcher['host']} was stalled for"
        ended(job, "FAILED", reason, "stopped by a signal", seconds=240)
        job.until(lambda: not admin(bed, "squeue", "--noheader", f"--jobs={job.id}", "--states=running"), "its end")
        view = job.status()
        assert view["state"] == "FAILED"
        assert reason in view["reason"]
        # of a host that Slurm has killed before its last word, it is only known that they have ended
        ends = {(task["state"], task["signal"], task["exit"]) for task in view["tasks"]}
        assert {state for state, _, _ in ends} <= {"STOPPED", "ENDED"}, ends

    return check


def test_default_timeouts_blame_only_the_failing_host(slurm: Bed) -> None:
    jobs = (
        late_host,
        host_that_never_starts,
        host_without_the_run_directory,
        stopped_launcher,
    )
    with late_agents(slurm, "n3"), unseen(slurm, "n3", "unseen"):
        for check in [job(slurm) for job in jobs]:
            check()
    no_process_left(slurm)


def release_until_it_ends(bed: Bed, job_id: str, process: subprocess.Popen[str], seconds: float) -> None:
    """Slurm holds a job that it starts again where its first start may not have ended yet (requeued held); release
    it, as `gridtf wait` advises."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if "held" in bed.run("login", "squeue", "--noheader", f"--jobs={job_id}", "--format=%r", check=False).stdout:
            admin(bed, "scontrol", "release", job_id)
        time.sleep(1)


def test_launcher_behind_a_cut_link_reports_no_reason(slurm: Bed) -> None:
    """Slurm ends a job on the other hosts when its first host is lost; the launcher there lives on without Slurm."""
    again = started(slurm, nodes=2, command="[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300")
    lost = started(slurm, "--native=--no-requeue", nodes=2)
    with begun(again, "wait") as waits:
        slurm.cut("n1")
        for job in (again, lost):
            assert ended(job, "NODE_FAIL", "no heartbeat from host n2", seconds=240)["again"] is None
        slurm.mend("n1")
        release_until_it_ends(slurm, again.id, waits, seconds=240)
        assert f"fault ({again.id}): COMPLETED" in finished(waits, 0)
    view = lost.status()
    assert view["state"] == "NODE_FAIL"
    assert "the scheduler reports NODE_FAIL" in view["reason"]
    no_process_left(slurm)


@pytest.fixture
def disks() -> Iterator[tuple[Path, Path]]:
    """Two small disks that belong to alice."""
    with tempfile.TemporaryDirectory(prefix="tb-disks-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        one, other = Path(folder, "one"), Path(folder, "other")
        with ext4(Path(folder, "one.img"), one), ext4(Path(folder, "other.img"), other):
            for disk in (one, other):
                os.chown(disk, ALICE, ALICE)
            yield one, other


def test_full_run_root_costs_records_only(disks: tuple[Path, Path]) -> None:
    with bed_for_tests(share=disks) as bed:
        jobs = [started(bed, "--run-root", str(disk), nodes=2, command=UNTIL_GO, running=False) for disk in disks]
        for job in jobs:
            job.running(2)
        big, _ = (fill(disk) for disk in disks)
        passes, stays = jobs
        time.sleep(8)  # so that both launchers notice
        big.unlink()
        (bed.home() / "go").touch()
        ended(passes, "COMPLETED")
        ended(stays, "COMPLETED")  # its place was reserved
        no_process_left(bed)
