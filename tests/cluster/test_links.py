"""Links of hosts that are cut while jobs run: a short cut costs nothing, a long one ends the job on both sides of it.

The shared folder goes over the same links, so that a host that is cut off has neither.
"""

from __future__ import annotations

import time

from gridtf.run.rundir import read_record
from tests.support.beds import on_every_remote_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import UNTIL_GO, ended, no_process_left, started
from tests.support.clusterjobs import ClusterJob

# Prints numbers without a gap until the test makes a file called linked.
COUNT = f"n=0; {UNTIL_GO.replace('go', 'linked').replace('do ', 'do echo $((n += 1)); ')}; echo done"
MARGIN = 20.0  # seconds for a busy machine


def on_two_hosts(bed: Bed, others: str, *words: str) -> ClusterJob:
    """A job on two of the four hosts. others: the two that it must not have."""
    return started(bed, "--exclude", others, *words, nodes=2, command=COUNT, name="link")


def wait_since(begin: float, seconds: float) -> None:
    """The link stays cut until so many seconds after ``begin``."""
    time.sleep(max(0.0, begin + seconds - time.monotonic()))


def complete(job: ClusterJob) -> None:
    """The job has completed with all of its output."""
    ended(job, "COMPLETED")
    assert len(job.logs()) == 2
    for text in job.logs().values():
        *numbers, end = text.splitlines()
        assert end == "done"
        assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


@on_every_remote_scheduler
def test_cut_that_is_shorter_than_the_heartbeat_timeout_costs_nothing(bed: Bed) -> None:
    """Of a worker's host for 5 s and for 20 s, and of the first host for 20 s, at once. A job of less patience, which
    hears of no other host any more, goes on with its spare host."""
    # more than the default, 30 s: to have a host back, the scheduler takes a while, and more on a busy machine
    words = ("--heartbeat-timeout", "90")
    first, second = on_two_hosts(bed, "n3,n4", *words), on_two_hosts(bed, "n1,n2", *words)
    hasty = on_two_hosts(bed, "n3", "--heartbeat-timeout", "8", "--restarts", "1", "--spare-nodes", "1")
    for job, hosts in ((second, ["n3", "n4"]), (hasty, ["n1", "n2"])):
        assert [job.tasks()[name]["host"] for name in ("worker:0", "worker:1")] == hosts
    before = {**first.tasks(), **{f"second {name}": task for name, task in second.tasks().items()}}
    begin = time.monotonic()
    for host in ("n2", "n3", "n4"):
        bed.cut(host)
    wait_since(begin, 5)
    bed.mend("n4")
    wait_since(begin, 20)
    for host in ("n2", "n3"):
        bed.mend(host)
    after = {**first.tasks(), **{f"second {name}": task for name, task in second.tasks().items()}}
    assert {name: task["pid"] for name, task in after.items()} == {name: task["pid"] for name, task in before.items()}
    ended(hasty, "NODE_FAIL", "host n2", "attempt 2 follows")
    hasty.running(2)
    assert [hasty.tasks()[name]["host"] for name in ("worker:0", "worker:1")] == ["n1", "n4"]
    (bed.home() / "linked").touch()
    complete(first)
    complete(second)
    ended(hasty, "COMPLETED", "after 1 restart", attempt=2)
    (bed.home() / "linked").unlink()
    for job in (first, second, hasty):
        assert job.status()["state"] == "COMPLETED"
    no_process_left(bed)


@on_every_remote_scheduler
def test_long_cut_ends_the_job_on_both_sides(bed: Bed) -> None:
    """Of a worker's host and of a first host, for 60 s with the default heartbeat_timeout of a worker's host on Slurm;
    the other limits are 10 s, to save time."""
    limit, length = (30.0, 60.0) if bed.kind == "slurm" else (10.0, 20.0)
    grace = 1.0
    words = ("--heartbeat-timeout", str(limit)) if bed.kind == "sge" else ()
    # Slurm gives up n3 while it is cut off, and holds the job if a second start there meets the first (docs/slurm.md).
    once = ("--native=--no-requeue",) if bed.kind == "slurm" else ()
    first = on_two_hosts(bed, "n3,n4", *words)
    second = on_two_hosts(bed, "n1,n2", "--heartbeat-timeout", "10", *once)
    begin = time.monotonic()
    for host in ("n2", "n3"):
        bed.cut(host)
    # its agent cannot tell anybody, but leaves nothing; nor does a host whose launcher is cut off
    no_process_left(bed, ["n4"], begin + 10 + grace + MARGIN - time.monotonic())
    ended(first, "NODE_FAIL", "host n2", seconds=begin + limit + MARGIN - time.monotonic())
    assert time.monotonic() - begin > limit - 5
    no_process_left(bed, ["n1"])
    no_process_left(bed, ["n2"], begin + limit + grace + MARGIN - time.monotonic())
    assert first.status()["state"] == "NODE_FAIL"
    wait_since(begin, length)
    for host in ("n2", "n3"):
        bed.mend(host)
    no_process_left(bed, seconds=180)
    # Where Slurm has noticed the cut, it kills what it finds on n3, perhaps before the launcher there has told
    if bed.kind == "sge" or read_record(second.run.attempt(1).verdict):
        ended(second, "NODE_FAIL", "host n4")  # all that its launcher could see
    assert second.status()["state"] == "NODE_FAIL"
