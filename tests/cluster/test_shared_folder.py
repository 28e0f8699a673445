"""A shared folder that hangs, is full, read-only or not mounted on hosts of a job costs records, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from gridtf.run.rundir import read_record
from tests.support.beds import on_every_remote_scheduler
from tests.support.cluster import SHARED, Bed
from tests.support.clusterfaults import ended, no_process_left, started
from tests.support.clusterjobs import ClusterJob

# A task that looks at its host's own disk only.
UNTIL_TOLD = "until [ -e /tmp/told ]; do sleep 0.2; done"
SHORT = 4.0  # heartbeat_timeout, in seconds


def tell(bed: Bed, *hosts: str, what: str = "told") -> None:
    """Have the tasks on these hosts end."""
    for host in hosts:
        bed.run(host, "touch", f"/tmp/{what}", cwd="/")


def noted(job: ClusterJob, times: int = 1) -> bool:
    """Whether the launcher has told, in its record and its log, that records could not be written so many times."""
    detail = str((read_record(job.attempt.launcher) or {}).get("detail", ""))
    again = job.output.count("records can be written again")
    assert again <= times, job.output
    return again == times and "records could not be written for some time from" in detail


@on_every_remote_scheduler
def test_folder_that_is_gone_for_a_while_costs_records_only(bed: Bed) -> None:
    """On a first host and a worker's at once: it hangs for 40 s, with default settings; the rest with shorter ones.

    A task of a third job fails meanwhile.
    """
    hung = started(bed, "--exclude", "n3,n4", nodes=2, command=UNTIL_TOLD)
    words = ("--exclude", "n1,n2", "--heartbeat-timeout", str(SHORT))
    spoilt = started(bed, *words, nodes=2, command=UNTIL_TOLD, name="spoilt")
    fails = started(bed, *words, nodes=2, command=f"{UNTIL_TOLD.replace('told', 'fail')}; exit 7", name="fails")
    before = {**hung.tasks()}, {**spoilt.tasks()}
    begin = time.monotonic()
    for host in ("n1", "n2"):
        bed.spoil(host, "hang")
    for times, state in enumerate(("full", "read-only", "unmounted", "hang"), 1):
        for host in ("n3", "n4"):
            bed.spoil(host, state)
        if state == "hang":
            tell(bed, "n4", what="fail")
        time.sleep((4 if state == "hang" else 1.5) * SHORT)  # nobody may be missed, or end
        for host in ("n3", "n4"):
            bed.spoil(host, "well")
        spoilt.until(partial(noted, spoilt, times), f"the launcher to tell of a folder that was {state}", 240)
    ended(fails, "FAILED", "worker:1 on n4: exit code 7")
    time.sleep(max(0.0, begin + 40 - time.monotonic()))
    for host in ("n1", "n2"):
        bed.spoil(host, "well")
    hung.until(lambda: noted(hung), "the launcher to tell of a folder that hung", 240)
    for job, known in zip((hung, spoilt), before, strict=True):
        view = job.status()
        assert view["state"] == "RUNNING"
        assert "records could not be written" in view["reason"]
        assert {name: task["pid"] for name, task in job.tasks().items()} == {
            name: task["pid"] for name, task in known.items()
        }
    tell(bed, "n1", "n2", "n3", "n4")
    for job in (hung, spoilt):
        ended(job, "COMPLETED")
        assert [task["state"] for task in job.status()["tasks"]] == ["COMPLETED", "COMPLETED"]
    no_process_left(bed)
    for host in ("n1", "n2", "n3", "n4"):
        bed.run(host, "rm", "-f", "/tmp/told", "/tmp/fail", cwd="/")


# Set-up lines after which the launcher starts when the test says so.
UNTIL_BEGUN = "until [ -e /tmp/begin ]; do sleep 0.2; done"


def set_up(bed: Bed) -> tuple[ClusterJob, ClusterJob]:
    """A job on n1 and n2, and one on n3 and n4, both before the start of their launchers."""
    words = ("--start-timeout", "30", "--setup", f"echo set-up; {UNTIL_BEGUN}")
    jobs = [
        started(bed, "--exclude", others, *words, nodes=2, command="true", running=False)
        for others in ("n3,n4", "n1,n2")
    ]
    for job in jobs:
        job.until(lambda: "set-up" in job.output, "the set-up")  # noqa: B023
    return jobs[0], jobs[1]


@contextmanager
def launching(bed: Bed) -> Iterator[None]:
    """Have the launchers start."""
    for host in ("n1", "n3"):
        bed.run(host, "touch", "/tmp/begin", cwd="/")
    yield
    for host in ("n1", "n3"):
        bed.run(host, "rm", "/tmp/begin", cwd="/")


@on_every_remote_scheduler
def test_folder_that_hangs_at_the_start_is_waited_for_and_one_that_is_not_mounted_is_named(bed: Bed) -> None:
    hangs, misses = set_up(bed)
    bed.spoil("n2", "hang")
    bed.spoil("n4", "unmounted")
    with launching(bed):
        time.sleep(10)
        assert not hangs.attempt.verdict.exists()
        bed.spoil("n2", "well")
        ended(hangs, "COMPLETED")
        ended(misses, "FAILED", "n4", f"{SHARED}/home/alice")
    bed.mend("n4")
    no_process_left(bed)


@on_every_remote_scheduler
def test_folder_that_hangs_or_is_full_on_the_first_host_at_the_start(bed: Bed) -> None:
    """Where it is full there is no place for an error; what the scheduler knows is told."""
    hangs, fills = set_up(bed)
    bed.spoil("n1", "hang")
    bed.spoil("n3", "full")
    with launching(bed):
        view = fills.until(lambda: (view := fills.status())["state"] != "RUNNING" and view, "its end")
        assert view["state"] == "FAILED", view
        bed.spoil("n1", "well")
        ended(hangs, "COMPLETED")
        bed.mend("n3")
    no_process_left(bed)
