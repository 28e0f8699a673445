"""The local scheduler with real jobs: walltime, cancellation, the end of a job, and that no process is left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from gridtf.errors import SchedulerError
from gridtf.host.procfs import descendants
from gridtf.login.job import Job
from gridtf.run.rundir import Record, RunDir, read_record
from tests.support.commands import PRINTS, SLEEPS, TWO, call, python, running, started, status, submit
from tests.support.configuration import user_file
from tests.support.jobs import gone, until

# Set-up lines that leave behind what no signal to a process group reaches: a daemon, and one that does not heed TERM.
DAEMONS = (
    "--setup",
    "(setsid sleep 600 & echo $! >daemon.pid)",
    "--setup",
    "(setsid bash -c \"trap '' TERM; echo \\$\\$ >stubborn.pid; while :; do sleep 0.1; done\" &)",
    "--setup",
    "until [ -s stubborn.pid ]; do sleep 0.05; done",
)


def daemons() -> list[int]:
    """The pids of what DAEMONS has left behind."""
    files = [Path("daemon.pid"), Path("stubborn.pid")]
    until(lambda: all(file.exists() and file.read_text().strip() for file in files), "daemons")
    return [int(file.read_text()) for file in files]


def launcher_of(job: Record) -> int:
    """The pid of the launcher of a job that runs."""
    attempt = RunDir(job["run_dir"]).latest()
    assert attempt is not None
    launcher = read_record(attempt.launcher)
    assert launcher is not None
    return int(launcher["pid"])


def test_cancel_set_up_lines_that_ignore_sigterm(here: Path) -> None:
    job = submit("--kill-grace", "0", "--setup", "trap '' TERM; while :; do sleep 0.1; done", *TWO, *PRINTS)
    ended = Job(Path(job["run_dir"])).cancel(wait=1)
    assert ended.state == "CANCELLED"


def test_cancel_during_set_up_leaves_no_process(here: Path) -> None:
    job = submit("--kill-grace", "1", *DAEMONS, "--setup", "sleep 600", *TWO, *PRINTS)["job_id"]
    left = daemons()
    call("cancel", job)
    assert status(job)["state"] == "CANCELLED"
    assert gone(*left)


def test_jobs_are_cancelled_all_at_once_and_ctrl_c_ends_the_wait_alone(here: Path) -> None:
    """Neither job ends before both have their signal."""
    told = 'touch "$GRIDTF_RUN_DIR/told"; until [ -e go ]; do sleep 0.1; done; exit 3'
    waits = f"trap '{told}' TERM; touch \"$GRIDTF_RUN_DIR/up\""
    command = ("--workers", "1", "--kill-grace", "300", "--", "bash", "-c", f"{waits}; while :; do sleep 0.1; done")
    jobs = [submit("--name", name, *command) for name in ("one", "other")]
    runs = [Path(job["run_dir"]) for job in jobs]
    until(lambda: all((run / "up").exists() for run in runs), "both jobs to run")
    with started("cancel", "one", "other") as process:
        until(lambda: all((run / "told").exists() for run in runs), "both jobs to get TERM")
        assert process.stderr is not None
        line = process.stderr.readline()
        ids = ", ".join(job["job_id"] for job in jobs)
        assert re.fullmatch(rf"gridtf: waiting until \S+ for 2 jobs to end, then what is left is killed: {ids}\n", line)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
        output, error = process.communicate(timeout=180)
    assert (process.returncode, output) == (130, "")
    left = f"gridtf: 2 jobs were cancelled, but not seen to end: {ids}\n  to check again: gridtf list\n"
    assert error == f"\n{left}"
    Path("go").touch()
    for job in jobs:
        call("wait", job["job_id"], code=1)
        assert status(job["job_id"])["reason"].startswith("cancelled by ")


def test_processes_of_set_up_lines_end_with_the_job(here: Path) -> None:
    job = submit("--kill-grace", "1", *DAEMONS, *TWO, *PRINTS)["job_id"]
    left = daemons()
    call("wait", job)
    assert status(job)["state"] == "COMPLETED"
    assert gone(int(job.partition(".")[0]), *left)


def test_failed_set_up_leaves_no_process(here: Path) -> None:
    job = submit("--kill-grace", "1", *DAEMONS, "--setup", "false", *TWO, *PRINTS)
    call("wait", job["job_id"], code=1)
    view = status(job["job_id"])
    assert view["state"] == "FAILED"
    assert "set-up line 4 (--setup) failed with exit code 1" in view["reason"]
    log = RunDir(job["run_dir"]).log.read_text()
    assert re.search(r"set-up line \d+ \(--setup\) failed with exit code 1: line \d+ of the job script\n", log)
    assert gone(*daemons())


def test_set_up_lines_of_all_layers_run_in_order(here: Path) -> None:
    user = user_file('setup = ["export LAYERS=user"]\n')
    job = submit("--setup", "export LAYERS=$LAYERS,flag", "--workers", "1", "--wait", "--", "sh", "-c", "echo $LAYERS")
    assert (RunDir(job["run_dir"]).attempt(1).logs / "worker-0.log").read_text() == "user,flag\n"
    user_file('setup = ["true", "false"]\n')
    job = submit("--setup", "true", "--workers", "1", "--", "true")
    call("wait", job["job_id"], code=1)
    assert status(job["job_id"])["reason"].startswith(f"set-up line 2 ({user}:1) failed with exit code 1 on ")


def test_killed_launcher_is_reported(here: Path) -> None:
    job = submit("--kill-grace", "1", *DAEMONS, *TWO, *SLEEPS)
    running(job["job_id"])
    launcher = launcher_of(job)
    os.kill(launcher, signal.SIGKILL)
    call("wait", job["job_id"], code=1)
    view = status(job["job_id"])
    assert view["state"] == "FAILED"
    assert "the launcher on" in view["reason"]
    assert view["reason"].endswith("was killed by SIGKILL: by a user, or by the kernel because memory ran out")
    assert {task["state"] for task in view["tasks"]} == {"STOPPED"}
    assert gone(*daemons())


def test_stopped_launcher_fails_the_job(here: Path) -> None:
    """A user may stop `gridtf run` by Ctrl-Z, but a submitted job has no terminal."""
    job = submit("--heartbeat-timeout", "6", *TWO, *SLEEPS)
    running(job["job_id"])
    launcher = launcher_of(job)
    os.kill(launcher, signal.SIGSTOP)
    call("wait", job["job_id"], code=1)
    view = status(job["job_id"])
    assert view["state"] == "FAILED"
    assert "was stalled for" in view["reason"]
    assert gone(launcher)


def test_killed_job_runner_ends_the_job(here: Path) -> None:
    job = submit(*TWO, *SLEEPS)["job_id"]
    running(job)
    runner = int(job.partition(".")[0])
    os.kill(runner, signal.SIGKILL)
    assert call("wait", job, code=1).stdout.startswith("python")
    view = status(job)
    assert (view["state"], view["reason"]) == ("FAILED", f"the job runner, process {runner}, was killed")
    assert {task["state"] for task in view["tasks"]} == {"STOPPED"}


def test_killed_job_runner_ends_set_up_lines(here: Path) -> None:
    """What a set-up line runs just then ends as well."""
    line = "bash -c 'echo $$ >line.pid; sleep 600; true'"
    job = submit("--setup", line, *TWO, *PRINTS)["job_id"]
    pid = int(until(lambda: Path("line.pid").exists() and Path("line.pid").read_text().strip(), "the line to run"))
    (below,) = until(lambda: descendants(pid), "its command")
    os.kill(int(job.partition(".")[0]), signal.SIGKILL)
    assert gone(pid, below)
    call("wait", job, code=1)
    assert "the job script ended before the launcher started" in status(job)["reason"]


def test_walltime_ends_a_job(here: Path) -> None:
    job = submit("--time", "0:20", *TWO, *SLEEPS)["job_id"]
    call("wait", job, code=1)
    view = status(job)
    assert view["state"] == "TIMEOUT"
    assert view["reason"] == "the walltime is over"
    assert {task["state"] for task in view["tasks"]} == {"STOPPED"}


def test_walltime_ends_set_up_lines(here: Path) -> None:
    job = submit("--time", "0:10", "--kill-grace", "1", *DAEMONS, "--setup", "sleep 600", *TWO, *SLEEPS)["job_id"]
    call("wait", job, code=1)
    view = status(job)
    assert view["state"] == "TIMEOUT"
    assert view["reason"] == "the walltime is over during the set-up"
    assert gone(*daemons())


def test_walltime_includes_the_set_up(here: Path) -> None:
    """What is left of it after the set-up is what the tasks have: here less than their grace after it begins anew."""
    counts = python(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nbegin = time.monotonic()\n"
        "try:\n    time.sleep(600)\nfinally:\n    print(time.monotonic() - begin)"
    )
    job = submit("--time", "0:15", "--setup", "sleep 7", "--workers", "1", *counts)
    call("wait", job["job_id"], code=1)
    assert status(job["job_id"])["state"] == "TIMEOUT"
    assert float(call("logs", job["job_id"], "--task", "worker:0").stdout.split()[-1]) < 12


def test_cancelling_a_job_of_another_user_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(submit(*TWO, *SLEEPS)["run_dir"])

    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched, pytest.raises(SchedulerError, match="is not yours") as caught:
        patched.setattr(os, "kill", refused)
        job.cancel()
    assert caught.value.hint.endswith(" can cancel it")
    assert job.status().state == "RUNNING"
