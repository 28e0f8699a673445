"""The check of hosts before training, on real schedulers: a slow host is named, replaced or ends the job."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridtf.run import jsonlines, recordtypes
from gridtf.run.rundir import read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import NODES, ended, mounted, no_process_left, started
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.slowhosts import SlowHosts

SLOW = 0.05  # of a core: the others share what this machine has


@contextlib.contextmanager
def slow(bed: Bed, host: str) -> Iterator[None]:
    """Meanwhile all processes of a host have a twentieth of a core."""
    hosts = SlowHosts(bed, NODES)
    try:
        with hosts.less_cpu(host, SLOW):
            yield
    finally:
        hosts.well()


def checked(bed: Bed, *words: str, nodes: int = 4, **more: Any) -> ClusterJob:
    return started(bed, "--check", "quick", *words, nodes=nodes, **{"command": "true", "running": False, **more})


def told(job: ClusterJob, kind: str = "notice", attempt: int = 1) -> list[str]:
    events = jsonlines.read(job.run.attempt(attempt).events, recordtypes.Event)
    return [event["text"] for event in events if event["event"] == kind]


@on_every_scheduler
def test_hosts_that_are_well_pass_and_a_slow_one_is_replaced(bed: Bed) -> None:
    _memory(bed).unlink(missing_ok=True)
    job = checked(bed)
    ended(job, "COMPLETED")
    assert not told(job), (read_record(job.attempt.check) or {})["values"]
    (text,) = told(job, "check")
    assert "4 hosts checked in " in text and text.endswith(": none far from the others"), text
    assert f"\ncheck          {text}\n" in job.gridtf("status").stdout
    print(f"{bed.kind}: {text}")
    assert not _memory(bed).exists(), "other jobs may have been on the hosts"
    with slow(bed, "n3"):
        replaced = checked(bed, "--spare-nodes", "1", "--restarts", "1", nodes=3)
        ended(replaced, "FAILED", "n3: ", "attempt 2 follows")
        ended(replaced, "COMPLETED", attempt=2)
        print(f"{bed.kind}: {told(replaced, 'check')}")
        assert {task["host"] for task in replaced.tasks().values()} == {"n1", "n2", "n4"}
        status = replaced.gridtf("status").stdout
        assert re.search(r"\ncheck +3 hosts checked in .* s: n3 far from the others; without n3 since\n", status), (
            status
        )
        assert re.search(r"\nstate +COMPLETED after \d+ s in attempt 2 \(.* in all\)\n", status), status
    no_process_left(bed)


def test_hosts_without_a_task_are_not_checked(slurm: Bed) -> None:
    job = checked(slurm, "--workers", "1", nodes=3)
    ended(job, "COMPLETED")
    (text,) = told(job, "check")
    assert text.startswith("1 host checked in "), text


def test_slow_host_is_named_and_hosts_that_a_job_had_alone_are_not_checked_again(slurm: Bed) -> None:
    _memory(slurm).unlink(missing_ok=True)
    with slow(slurm, "n3"):
        names = checked(slurm, "--native=--exclusive")
        ended(names, "COMPLETED")
    (notice,) = told(names)
    assert re.fullmatch(r"n3: short of CPUs: it runs for \d+ % of the median \(.*", notice), notice
    assert "n3" in gridtf(slurm, "nodes").stdout
    again = checked(slurm, "--exclude", "n3", nodes=3)
    ended(again, "COMPLETED")
    assert told(again, "check") == ["the hosts are not checked: they have passed a check within a day"]
    _memory(slurm).unlink()


def _memory(bed: Bed) -> Path:
    return bed.home() / ".local/state/gridtf/hosts.jsonl"


def test_faults_during_the_check_are_no_alarm_and_a_program_that_stops_names_its_host(sge: Bed) -> None:
    """TMPDIR is read-only on n2; the program of n4 is stopped, and goes with the check."""
    with mounted(sge, "n2", "-t", "tmpfs", "-o", "ro", "none", "/media"):
        job = checked(sge, "--host-setup", "[ $(uname -n) != n2 ] || export TMPDIR=/media")
        stopped = job.until(lambda: _pid(sge, "n4"), "the check on n4")
        sge.run("n4", "kill", "-STOP", stopped, user="root")
        ended(job, "COMPLETED")
    assert told(job) == ["n4: its check did not end within 60 s"]
    assert "tmp: " in told(job, "check")[0]
    no_process_left(sge)


def _pid(bed: Bed, host: str) -> str:
    return bed.run(host, "pgrep", "-f", "hook/hostcheck.py", user="root", check=False).stdout.strip()
