"""What the launcher keeps of a job on several hosts: events, samples and times of logs, of two attempts."""

from __future__ import annotations

from gridtf.observe import history
from gridtf.run import jsonlines, recordtypes
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import admin, ended, kill9, no_process_left, started
from tests.support.jobs import hosts_of

# Prints until the test makes a file called recorded.
PRINTING = "until ls | grep -qx recorded; do echo line; sleep 0.2; done"


def sampler(bed: Bed, host: str, agent: int) -> int:
    """The child of an agent that is in its session, as no task is."""
    session = admin(bed, "ps", "-o", "sid=", "-p", str(agent), host=host).strip()
    children = admin(bed, "ps", "-o", "pid=,sid=", "--ppid", str(agent), host=host).splitlines()
    (pid,) = [int(line.split()[0]) for line in children if line.split()[1] == session]
    return pid


@on_every_scheduler
def test_records_of_all_hosts_and_attempts_are_one_chain_and_a_killed_sampler_costs_nothing_else(bed: Bed) -> None:
    job = started(bed, "--restarts", "1", "--sample-interval", "1", nodes=3, command=PRINTING, name="records")

    def samples() -> dict[str, dict[str, object]]:
        found = {name: host["sample"]["tasks"] for name, host in hosts_of(job.run.latest()).items() if "sample" in host}
        return found if len(found) == 3 else {}

    used = job.until(samples, "samples of all hosts", 90)
    assert {name for tasks in used.values() for name in tasks} == {"worker:0", "worker:1", "worker:2"}
    one, two = job.tasks()["worker:1"], job.tasks()["worker:2"]
    kill9(bed, one["host"], sampler(bed, one["host"], one["agent"]))
    kill9(bed, two["host"], two["pid"])
    job.until(lambda: job.attempt.number == 2, "the second attempt", 120)
    job.running(3)
    (bed.home() / "recorded").touch()
    ended(job, "COMPLETED", attempt=2)
    chain = list(history.events(job.run).more())
    first, second = ([event for event in chain if event["attempt"] == number] for number in (1, 2))
    for events in (first, second):
        order = [event["event"] for event in events]
        assert order.count("ready") == order.count("started") == 3
        assert order[-1] == "verdict"
    # on a busy machine a job may begin before the command that submits it has written when that was
    assert first[0]["event"] == "queued" or first[0]["time"] < job.run.submitted.stat().st_mtime
    assert (first[-1]["state"], first[-1]["task"], first[-1]["next"]) == ("FAILED", "worker:2", 2)
    assert second[-1]["state"] == "COMPLETED"
    assert {event["host"] for event in first if event["event"] == "started"} == set(used)
    kept = list(history.samples(job.run).more())
    assert {sample["host"] for sample in kept if sample["attempt"] == 1} == set(used)
    times = jsonlines.read(job.run.attempt(1).log_times, recordtypes.LogTimes)
    assert {line["task"] for line in times} == {"worker:0", "worker:1", "worker:2"}
    no_process_left(bed)
