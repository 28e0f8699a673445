"""State of jobs on a real Grid Engine cell, by its queue and its accounting."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import admin
from tests.support.clusterjobs import PATIENCE

_ASK = """
import json, sys
from gridtf.errors import SchedulerError
from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.sge import scheduler
from gridtf.values import as_dict
try:
    found = scheduler.login.{function}([JobIdentity(job_id, user="alice") for job_id in sys.argv[1:]])
    print(json.dumps({{job_id: as_dict(status) for job_id, status in found.items()}}))
except SchedulerError as error:
    print(json.dumps({{"error": error.what}}))
"""


def ask(bed: Bed, *ids: str, function: str = "query") -> dict[str, Any]:
    """The status of jobs, queried by alice on the login host."""
    source = _ASK.format(function=function)
    done = bed.run("login", sys.executable, "-c", source, *ids, env={"PYTHONPATH": str(CHECKOUT)})
    return dict(json.loads(done.stdout))


def accounting(bed: Bed, *ids: str) -> dict[str, Any]:
    return ask(bed, *ids, function="accounting")


def qsub(bed: Bed, script: str, *options: str) -> str:
    """Submit a hand-written script as alice; returns the number of the job."""
    name = "by-hand.sh"
    (bed.home() / name).write_text(f"#!/bin/bash\n{script}\n")
    words = ["qsub", "-terse", "-S", "/bin/bash", "-j", "y", "-o", "/dev/null", *options, name]
    return bed.run("login", *words).stdout.split()[-1].partition(".")[0]


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)
    return value


def until_state(bed: Bed, job_id: str, state: str, reason: str = "") -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        status = ask(bed, job_id)[job_id]
        return status if status["state"] == state and reason in status["reason"] else None

    return dict(until(reached, f"{job_id} to be {state} {reason}"))


def until_ended(bed: Bed, job_id: str) -> dict[str, Any]:
    """The status in the accounting, once the job is purged from the queue."""
    until(lambda: ask(bed, job_id)[job_id]["purged"], f"{job_id} to be purged")
    return dict(until(lambda: accounting(bed, job_id).get(job_id), f"the accounting of {job_id}"))


def test_running_and_pending_jobs(sge: Bed) -> None:
    runs = qsub(sge, "sleep 600", "-pe", "rr", "8")
    waits = qsub(sge, "sleep 600", "-pe", "rr", "16")
    held = qsub(sge, "sleep 600", "-h")
    after = qsub(sge, "sleep 600", "-hold_jid", held)
    later = qsub(sge, "sleep 600", "-a", "203501010000")
    until_state(sge, runs, "RUNNING")
    until_state(sge, waits, "PENDING", 'cannot run in PE "rr" because it only offers')
    nowhere = qsub(sge, "true", "-pe", "rr", "2", "-l", "arch=sol")
    until_state(sge, nowhere, "PENDING", '(-l arch=sol) cannot run in queue "')
    until_state(sge, later, "PENDING", "it may not start before 2035-01-01 00:00")
    found = ask(sge, runs, waits, held, after, later, "9999999")
    assert found[held]["reason"] == f"held: qrls {held} releases it"
    assert found[after]["reason"] == f"it waits for job {held}"
    assert [job_id for job_id, status in found.items() if status["purged"]] == ["9999999"]


def test_job_of_a_disabled_queue_says_so(sge: Bed) -> None:
    admin(sge, "qmod", "-d", "all.q")
    try:
        for options in (["-pe", "one", "2"], ["-q", "all.q"]):
            job = qsub(sge, "true", *options)
            until_state(sge, job, "PENDING", "its queues are disabled: all.q@n1, all.q@n2, all.q@n3, all.q@n4")
    finally:
        admin(sge, "qmod", "-e", "all.q")


def test_status_of_an_array(sge: Bed) -> None:
    array = qsub(sge, "[ $SGE_TASK_ID = 3 ] || sleep 600", "-t", "3-9:2", "-tc", "2")
    until(lambda: ask(sge, f"{array}.3")[f"{array}.3"]["purged"], "the first element to end")
    until_state(sge, f"{array}.7", "RUNNING")
    found = ask(sge, array, *(f"{array}.{element}" for element in (3, 5, 9)))
    assert found[array]["state"] == "RUNNING"
    assert "2 RUNNING, 1 PENDING" in found[array]["reason"]
    assert [found[f"{array}.{element}"]["state"] for element in (3, 5, 9)] == ["UNKNOWN", "RUNNING", "PENDING"]
    until(lambda: accounting(sge, f"{array}.3"), "the accounting of the first element")
    assert accounting(sge, f"{array}.3", f"{array}.5")[f"{array}.3"]["state"] == "COMPLETED"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-wd", "/nowhere"], "can't chdir to /nowhere: No such file or directory"),
        (["-o", "/nowhere/log"], 'can\'t open output file "/nowhere/log"'),
    ],
)
def test_job_in_error_has_its_reason(sge: Bed, options: list[str], reason: str) -> None:
    job = qsub(sge, "true", *options)
    status = until_state(sge, job, "PENDING", "in error (Eqw)")
    assert reason in status["reason"]
    assert f"qmod -cj {job} clears it" in status["reason"]


def test_job_hidden_by_sge_qstat_is_not_purged(sge: Bed) -> None:
    job = qsub(sge, "sleep 600")
    until_state(sge, job, "RUNNING")
    file = sge.home() / ".sge_qstat"
    file.write_text("-q short.q\n")
    try:
        status = ask(sge, job)[job]
    finally:
        file.unlink()
    assert (status["state"], status["purged"]) == ("UNKNOWN", False)
    assert ".sge_qstat" in status["reason"]


def test_suspended_job_and_job_being_deleted(sge: Bed) -> None:
    job = qsub(sge, "sleep 600")
    until_state(sge, job, "RUNNING")
    admin(sge, "qmod", "-sj", job)
    until_state(sge, job, "RUNNING", "suspended: qmod -usj resumes it")
    admin(sge, "qmod", "-usj", job)
    sge.cut("n1")
    try:
        sge.run("login", "qdel", job)
        until_state(sge, job, "RUNNING", "it is being deleted")
    finally:
        sge.mend("n1")


@pytest.mark.parametrize(
    ("script", "options", "state", "reason"),
    [
        ("true", [], "COMPLETED", ""),
        ("exit 7", [], "FAILED", "its script ended with exit code 7"),
        ("kill -SEGV $$", [], "FAILED", "it was killed by SIGSEGV"),
        ("[ $RESTARTED = 1 ] && exit 3; exit 99", ["-r", "y"], "FAILED", "its script ended with exit code 3"),
        ("sleep 60", ["-l", "h_rt=2"], "TIMEOUT", "the walltime is over (h_rt=2)"),
        ("sleep 60", ["-l", "s_rt=2"], "TIMEOUT", "the walltime is over (s_rt=2)"),
        # tasks on other hosts have records of their own
        (
            "qrsh=$SGE_BINARY_PATH/qrsh; $qrsh -nostdin -inherit n2 true; exit 5",
            ["-pe", "one", "2"],
            "FAILED",
            "code 5",
        ),
    ],
    ids=["well", "exit", "signal", "again", "h_rt", "s_rt", "parallel"],
)
def test_final_status_by_the_accounting(sge: Bed, script: str, options: list[str], state: str, reason: str) -> None:
    status = until_ended(sge, qsub(sge, script, *options))
    assert status["state"] == state
    assert reason in status["reason"]


def test_deleted_jobs_are_not_completed(sge: Bed) -> None:
    runs, held = qsub(sge, "sleep 600"), qsub(sge, "true", "-h")
    until_state(sge, runs, "RUNNING")
    sge.run("login", "qdel", runs, held)
    status = until_ended(sge, runs)
    assert status["state"] == "FAILED"
    assert "killed by SIGKILL: by qdel" in status["reason"]
    until(lambda: ask(sge, held)[held]["purged"], "the other job to be purged")
    assert accounting(sge, held) == {}


def test_qmaster_that_hangs_purges_no_job(sge: Bed) -> None:
    job = qsub(sge, "sleep 600")  # on a busy machine all of this takes minutes
    until_state(sge, job, "RUNNING")
    pid = admin(sge, "pgrep", "-x", "sge_qmaster").strip()
    admin(sge, "kill", "-STOP", pid)
    try:
        found = ask(sge, job)
    finally:
        admin(sge, "kill", "-CONT", pid)
    assert "qmaster on ctl does not answer: qstat has not answered within 10 s" in found["error"]
    until_state(sge, job, "RUNNING")
