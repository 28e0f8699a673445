"""Outages of hosts and links of a real Slurm cluster while jobs run. Tests for every scheduler: test_outages.py."""

from __future__ import annotations

from gridtf.run.rundir import read_record
from tests.support.cluster import Bed
from tests.support.clusterfaults import STUBBORN, begun, ended, finished, no_process_left, started

SOON = ("--heartbeat-timeout", "4")


def test_power_cut_of_the_launcher_s_host_is_a_node_failure(slurm: Bed) -> None:
    job = started(slurm, *SOON, "--native=--no-requeue", command=STUBBORN)
    slurm.kill("n1")
    no_process_left(slurm, ("n2", "n3", "n4"), seconds=60)  # the agents notice the lost heartbeat by themselves
    view = job.until(lambda: (view := job.status())["state"] != "RUNNING" and view, "its end")
    assert view["state"] == "NODE_FAIL"
    assert "the launcher on n1 ended; the scheduler reports NODE_FAIL" in view["reason"]
    slurm.mend("n1")


def test_link_of_the_launcher_s_host_is_cut_and_mended(slurm: Bed) -> None:
    """With all defaults: Slurm requeues the job while its launcher, on the host behind the cut link, cannot know."""
    job = started(slurm, command="[ $GRIDTF_ATTEMPT = 2 ] || exec sleep 300")
    with begun(job, "wait") as waits:
        slurm.cut("n1")
        slurm.await_state("n1", "down")
        slurm.mend("n1")
        output = finished(waits, 0, seconds=240)
    assert f"fault ({job.id}): COMPLETED" in output
    no_process_left(slurm)  # nor of the first attempt, whose launcher Slurm may have killed before its verdict
    view = job.status()
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)


def test_job_whose_second_start_is_killed_instead_of_the_first_starts_once_more(slurm: Bed) -> None:
    """Slurm starts it as soon as the host behind the cut link is back, and tells that host late to end the first start;
    where it does so in time, the second start completes. On a busy machine gridtf might notice before Slurm does."""
    job = started(slurm, "--heartbeat-timeout", "90", command="[ $GRIDTF_ATTEMPT = 1 ] || exec sleep 6; sleep 300")
    slurm.cut("n3")

    def waits_for_the_host() -> bool:
        reason = slurm.run("login", "squeue", "--noheader", "--format=%T %r", f"--jobs={job.id}").stdout
        return reason.startswith("PENDING") and "BeginTime" not in reason

    job.until(waits_for_the_host, "it to need nothing but n3")
    with begun(job, "wait") as waits:
        slurm.mend("n3")
        assert f"fault ({job.id}): COMPLETED" in finished(waits, 0, seconds=240)
    first, *_, last = (read_record(attempt.verdict) or {} for attempt in job.run.attempts())
    assert (first["state"], last["state"]) == ("NODE_FAIL", "COMPLETED")
    no_process_left(slurm)


def test_cut_link_of_a_host_is_a_node_failure(slurm: Bed) -> None:
    job = started(slurm, *SOON, "--native=--no-requeue", command=STUBBORN)
    slurm.cut("n3")
    verdict = ended(job, "NODE_FAIL")
    assert "n3" in verdict["reason"], verdict
    no_process_left(slurm)
    slurm.mend("n3")
    job.until(lambda: slurm.states()["n3"].startswith("idle"), "n3 to be idle")
