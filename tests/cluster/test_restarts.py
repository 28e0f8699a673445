"""Restarts inside an allocation: a job goes on without a host that was lost, under the same id."""

from __future__ import annotations

import re

import pytest

from gridtf.run.rundir import read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import begun, ended, finished, no_process_left, started
from tests.support.clusterjobs import ClusterJob
from tests.support.clustertraining import submit, trained

# Each task counts to 100, from what an earlier attempt has reached, and all write down the attempt that they are of.
COUNT = """
file=$OUTPUT_DIR/$GRIDTF_TASK_INDEX
n=$(cat $file 2>/dev/null || echo 0)
echo begins at $n
while [ $n -lt 100 ]; do n=$((n + 1)); echo $n > $file; echo $GRIDTF_ATTEMPT >> $OUTPUT_DIR/attempts; sleep 0.2; done
echo done
"""
# The example, whose second worker waits in the first attempt after step 60, and the first one for it.
WAITING = """
waits='(saved.step, os.environ["RANK"], os.environ["GRIDTF_ATTEMPT"]) == (60, "1", "1") and signal.pause()'
exec python -c "$(sed "s/^        saved.after_step()$/&; $waits/" train.py)"
"""


def counting(bed: Bed, *words: str, nodes: str = "3") -> ClusterJob:
    """A job on three hosts, all of which count."""
    # of a range, Slurm allocates the fewest hosts that have room for one task each
    all_of_range = ("--native=--nodes=3",) if bed.kind == "slurm" and nodes != "3" else ()
    options = ("--restarts", "3", "--nodes", nodes, "--heartbeat-timeout", "10", *all_of_range, *words)
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


@pytest.mark.tensorflow
@on_every_scheduler
def test_training_goes_on_from_its_checkpoint_on_a_spare_host_and_becomes_as_good(bed: Bed) -> None:
    """The host of a worker loses power."""
    pe = ("--pe", "one") if bed.kind == "sge" else ()
    hosts = ("--nodes", "2", "--tasks-per-node", "1", "--gpus-per-task", "0", "--spare-nodes", "1")
    job = submit(bed, "resume", *pe, *hosts, "--restarts", "2", "--", "bash", "-c", WAITING)
    job.until((job.run.output / "checkpoints/step-50").exists, "a checkpoint", 600)
    lost = job.tasks()["worker:1"]["host"]
    bed.kill(lost)
    ended(job, "NODE_FAIL", lost, "attempt 2 follows", seconds=240)
    assert job.status()["state"] == "RUNNING"
    trained(job, "resume")
    assert job.status()["attempt"] == 2
    (step,) = re.findall(r"gridtf: continues from step (\d+), saved in ", job.logs()["worker-0"])
    assert int(step) >= 50
    assert lost not in {task["host"] for task in job.tasks().values()}
    noticed = (read_record(job.run.attempt(1).verdict) or {})["ended"]
    print(f"{bed.kind}: tasks start {min(task['started'] for task in job.tasks().values()) - noticed:.1f} s later")
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
        job.until(lambda: job.status()["state"] == "PENDING" or job.status()["attempt"] == 2, "the requeue", 180)
        slurm.mend("n1")
        assert "COMPLETED" in finished(waits, 0, seconds=180)
    no_process_left(slurm)
