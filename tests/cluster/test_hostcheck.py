"""The check of hosts before training, on real schedulers: a slow host is named, replaced or ends the job."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbeds import groups

from gridtf.run import jsonlines, recordtypes
from gridtf.run.rundir import read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import ended, mounted, no_process_left, started
from tests.support.clusterjobs import ClusterJob, gridtf

_CPU = groups.ROOT / "cpu"
SLOW = 0.05  # of a core: the others share what this machine has, which others may use too


@contextlib.contextmanager
def slow(bed: Bed, host: str) -> Iterator[None]:
    """Meanwhile all processes of a host, and those that they start, have a twentieth of a core."""
    if not (_CPU / "cpu.cfs_quota_us").exists():
        pytest.skip("needs control groups of version 1 with cpu")
    group = _CPU / f"{groups.name(bed.state / bed.kind)}-check"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(str(int(SLOW * 100_000)))
    first = json.loads((bed.state / bed.kind / "bed.json").read_text())["hosts"][host]["pid"]
    of_host = Path(f"/proc/{first}/ns/net").readlink()
    try:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "ns/net").readlink() == of_host:
                    (group / "cgroup.procs").write_text(path.name)
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (_CPU / "cgroup.procs").write_text(pid)
        end = time.monotonic() + 20
        while group.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.1)


def checked(bed: Bed, *words: str, nodes: int = 4, **more: Any) -> ClusterJob:
    return started(bed, "--check", "quick", *words, nodes=nodes, **{"command": "true", "running": False, **more})


def told(job: ClusterJob, kind: str = "notice", attempt: int = 1) -> list[str]:
    events = jsonlines.read(job.run.attempt(attempt).events, recordtypes.Event)
    return [event["text"] for event in events if event["event"] == kind]


@on_every_scheduler
def test_hosts_that_are_well_pass_and_a_slow_one_is_named_or_ends_the_job_or_is_replaced(bed: Bed) -> None:
    _memory(bed).unlink(missing_ok=True)
    job = checked(bed)
    ended(job, "COMPLETED")
    assert not told(job), (read_record(job.attempt.check) or {})["values"]
    (text,) = told(job, "check")
    assert "4 hosts checked in " in text and text.endswith(": none far from the others"), text
    print(f"{bed.kind}: {text}")
    assert not _memory(bed).exists(), "other jobs may have been on the hosts"
    with slow(bed, "n3"):
        names = checked(bed)
        ended(names, "COMPLETED")
        (notice,) = told(names)
        assert notice.startswith("n3: "), notice
        print(f"{bed.kind}: {notice}; {told(names, 'check')}")
        ends = checked(bed, "--on-bad-host", "end")
        ended(ends, "FAILED", "n3: ", "check.json")
        replaced = checked(bed, "--spare-nodes", "1", "--restarts", "1", nodes=3)
        ended(replaced, "FAILED", "n3: ", "attempt 2 follows")
        ended(replaced, "COMPLETED", attempt=2)
        assert {task["host"] for task in replaced.tasks().values()} == {"n1", "n2", "n4"}
        assert "restart" not in (replaced.verdict(attempt=2)["reason"])
    no_process_left(bed)


def test_hosts_that_a_job_had_alone_are_not_checked_again(slurm: Bed) -> None:
    _memory(slurm).unlink(missing_ok=True)
    with slow(slurm, "n3"):
        ended(checked(slurm, "--native=--exclusive"), "COMPLETED")
    assert "n3" in gridtf(slurm, "nodes").stdout
    again = checked(slurm, "--native=--exclusive")
    ended(again, "COMPLETED")
    assert "none far from the others" in told(again, "check")[0], "a host that was bad is checked"
    third = checked(slurm)
    ended(third, "COMPLETED")
    assert told(third, "check") == ["the hosts are not checked: they have passed a check within a day"]
    _memory(slurm).unlink()


def _memory(bed: Bed) -> Path:
    return bed.home() / ".local/state/gridtf/hosts.jsonl"


@on_every_scheduler
def test_faults_during_the_check_are_no_alarm_and_a_program_that_stops_names_its_host(bed: Bed) -> None:
    """TMPDIR is read-only on n2; the program of n4 is stopped, and goes with the check."""
    with mounted(bed, "n2", "-t", "tmpfs", "-o", "ro", "none", "/media"):
        job = checked(bed, "--host-setup", "[ $(uname -n) != n2 ] || export TMPDIR=/media")
        stopped = job.until(lambda: _pid(bed, "n4"), "the check on n4")
        bed.run("n4", "kill", "-STOP", stopped, user="root")
        ended(job, "COMPLETED")
    assert told(job) == ["n4: its check did not end within 60 s"]
    assert "tmp: " in told(job, "check")[0]
    no_process_left(bed)


def _pid(bed: Bed, host: str) -> str:
    return bed.run(host, "pgrep", "-f", "hook/hostcheck.py", user="root", check=False).stdout.strip()
