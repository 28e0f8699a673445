"""Restarts inside an allocation: a job goes on without a host that was lost, under the same id."""

from __future__ import annotations

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import begun, ended, finished, no_process_left, started
from tests.support.clusterjobs import ClusterJob

pytestmark = pytest.mark.timeout(290)
HOSTS = {"n1", "n2", "n3", "n4"}

# Each task counts to 150, from what an earlier attempt has reached, and all write down the attempt that they are of.
COUNT = """
file=$OUTPUT_DIR/$GRIDTF_TASK_INDEX
n=$(cat $file 2>/dev/null || echo 0)
echo begins at $n
while [ $n -lt 150 ]; do n=$((n + 1)); echo $n > $file; echo $GRIDTF_ATTEMPT >> $OUTPUT_DIR/attempts; sleep 0.2; done
echo done
"""


def counting(bed: Bed, *words: str, nodes: str = "3") -> ClusterJob:
    """A job on three hosts, all of which count."""
    # of a range, Slurm allocates the fewest hosts that have room for one task each
    all_of_range = ("--native=--nodes=3",) if bed.kind == "slurm" and nodes != "3" else ()
    options = ("--restarts", "3", "--nodes", nodes, *all_of_range, *words)
    job = started(bed, *options, nodes=3, command=COUNT, name="restart", running=False)
    job.running(3)
    job.until(lambda: len(list(job.run.output.glob("[012]"))) == 3, "all tasks to count")
    return job


def goes_on(job: ClusterJob, hosts: set[str]) -> None:
    """The second attempt ends well on these hosts, from where the first one was, and after all of it had ended."""
    ended(job, "COMPLETED", "after 1 restart", attempt=2)
    assert {task["host"] for task in job.tasks().values()} == hosts
    assert not any("begins at 0" in log for log in job.logs().values())
    attempts = (job.run.output / "attempts").read_text().split()
    assert attempts == sorted(attempts)
    assert job.status()["state"] == "COMPLETED"
    assert job.status()["attempt"] == 2


@on_every_scheduler
def test_spare_host_takes_the_place_of_one_without_power(bed: Bed) -> None:
    job = counting(bed, "--spare-nodes", "1")
    lost = job.tasks()["worker:2"]["host"]
    bed.kill(lost)
    ended(job, "NODE_FAIL", lost, "attempt 2 follows", seconds=60)
    assert job.status()["state"] == "RUNNING"
    goes_on(job, HOSTS - {lost})
    bed.mend(lost)
    no_process_left(bed)


@on_every_scheduler
def test_job_with_a_range_of_hosts_goes_on_with_fewer_once_a_host_that_is_cut_off_has_ended_its_tasks(bed: Bed) -> None:
    """The shared folder can still be reached from that host, so that its tasks could do harm."""
    job = counting(bed, nodes="2-3")
    hosts = {task["host"] for task in job.tasks().values()}
    lost = job.tasks()["worker:2"]["host"]
    bed.cut(lost)
    goes_on(job, hosts - {lost})
    bed.mend(lost)
    no_process_left(bed)


@on_every_scheduler
def test_killed_agent_costs_an_attempt_and_no_host(bed: Bed) -> None:
    job = counting(bed)
    hosts, task = {task["host"] for task in job.tasks().values()}, job.tasks()["worker:2"]
    bed.run(task["host"], "kill", "-9", str(task["agent"]), user="root")
    ended(job, "FAILED", f"the agent on host {task['host']} was killed by SIGKILL", "attempt 2 follows")
    goes_on(job, hosts)
    no_process_left(bed)


def test_job_that_loses_its_launcher_s_host_is_queued_again(slurm: Bed) -> None:
    """With --no-kill, Slurm would leave it running without its script."""
    job = counting(slurm, nodes="2-3")
    with begun(job, "wait") as waits:
        slurm.kill("n1")
        job.until(lambda: job.status()["state"] == "PENDING" or job.status()["attempt"] == 2, "the requeue")
        slurm.mend("n1")
        assert "COMPLETED" in finished(waits, 0, seconds=150)
    no_process_left(slurm)
