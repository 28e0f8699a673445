"""Where the tasks of real jobs are, and stalled jobs: a task sleeps or is stopped while the others wait for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf.host import procfs
from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch
from tests.support.jobs import ROOT, LaunchedJob, until

# Worker 2 does what its argument says, the others wait for it.
PROGRAM = """\
import os, sys, threading, time
def wait():
    threading.Event().wait()
def sleep():
    while True:
        time.sleep(1000)
def compute():
    while True:
        sum(range(1000000))
def talk():
    while True:
        print("still here", flush=True)
        time.sleep(0.3)
def leave():
    while not os.path.exists("go"):
        time.sleep(1)
if os.environ["RANK"] == "2":
    globals()[sys.argv[1]]()
elif sys.argv[1] == "leave":
    leave()
else:
    wait()
"""


@pytest.fixture
def three(launch: Launch, tmp_path: Path) -> Any:
    """three(HOW, **spec): three workers, of which the last does something else than the others."""

    def start(how: str, folder: Path = tmp_path, **spec: Any) -> LaunchedJob:
        (folder / "train.py").write_text(PROGRAM)
        placed = {"tasks": {"worker": {"count": 3}}, "tasks_per_node": 3, "gpus_per_task": 0, "folder": folder}
        job = launch(sys.executable, "train.py", how, **placed, **spec)
        job.running("worker:0", "worker:1", "worker:2")
        return job

    return start


def gridtf(job: LaunchedJob, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gridtf", command, str(job.run.path), *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(job.folder / "state")}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90)


def detail(job: LaunchedJob) -> str:
    return str((read_record(job.attempt.launcher) or {}).get("detail", ""))


def settled(job: LaunchedJob) -> str:
    """The output of gridtf stacks once all programs have come to their last line."""

    def shown() -> str:
        done = gridtf(job, "stacks")
        assert done.returncode == 0, done.stderr + job.output
        return done.stdout if "worker:2 " in done.stdout and "worker:0-1 " in done.stdout else ""

    return str(until(shown, "all tasks to be where they stay", 90))


def test_stacks_show_the_odd_one_out_and_the_stacks_of_all_threads(three: Any) -> None:
    job = three("sleep")
    out = settled(job)
    (host,) = job.hosts()
    first, second, *rest = out.splitlines()
    assert first == f"worker:2 on {host} is at train.py:6"
    assert second == "worker:0-1 are in threading.wait (train.py:3)"
    assert f"worker:2 on {host}, process {job.tasks()['worker:2']['pid']} (" in "\n".join(rest)
    assert re.search(r'File ".*train.py", line 6 in sleep', out)
    answer = json.loads(gridtf(job, "stacks", "--task", "worker:2", "--json").stdout)
    assert [group["says"] for group in answer["groups"]] == [first]
    assert set(answer["tasks"]) == {"worker:2"}
    assert answer["missing"] == []
    wrong = gridtf(job, "stacks", "--task", "worker:7")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("gridtf: no such task runs: worker:7\n  choose from: worker:0, worker:1, worker:2")
    assert not job.attempt.stacks_request.exists()
    launcher = job.process.pid
    until(lambda: "Z" not in map(procfs.state, procfs.children(launcher)), "ended processes to be waited for")


def test_task_that_is_stopped_is_named_without_a_stack(three: Any) -> None:
    job = three("sleep")
    settled(job)
    os.kill(job.tasks()["worker:2"]["pid"], signal.SIGSTOP)
    (host,) = job.hosts()
    first = gridtf(job, "stacks").stdout.splitlines()[0]
    assert first == f"worker:2 on {host} is stopped by a signal (state T)"


def test_job_that_has_ended_has_no_stacks(three: Any) -> None:
    job = three("sleep")
    job.end()
    done = gridtf(job, "stacks")
    assert done.returncode == 1
    assert "is not running, so that it cannot be asked\n  CANCELLED" in done.stderr
    assert done.stderr.count("\n") <= 3


def test_program_that_is_no_python_goes_on_and_the_reason_is_said(launch: Launch) -> None:
    job = launch("sleep", "1000", stall_after="off")
    pid = job.running("worker:0")["worker:0"]
    done = gridtf(job, "stacks")
    assert "worker:0" in done.stdout
    assert "shows no stack: it is not a Python program" in done.stdout, done.stderr
    assert job.running("worker:0") == {"worker:0": pid}


# --- stalled


def test_stalled_job_says_where_its_tasks_are_and_goes_on(three: Any, tmp_path: Path) -> None:
    job = three("sleep", stall_after="8s")
    until(lambda: detail(job).startswith("stalled for "), "the stall", 120)
    (host,) = job.hosts()
    where = rf"worker:0-1 are in threading.wait \(train.py:3\); worker:2 on {host} is at train.py:6"
    assert re.match(rf"stalled for \d+ (s|min): {where}; 3 tasks on 1 host", detail(job))
    assert "stalled for" in job.output
    assert "stalled for" in gridtf(job, "status").stdout


def test_stalled_job_ends_where_that_is_wanted(three: Any) -> None:
    job = three("sleep", stall_after="8s", on_stall="end", restarts=3)
    verdict = job.verdict(120)
    assert verdict["state"] == "FAILED"
    assert re.match(r"stalled for \d+ s: worker:0-1 are in threading.wait", verdict["reason"])
    assert 'not restarted, since on_stall is "end"' in verdict["reason"]
    assert len(job.run.attempts()) == 1


def test_stalled_job_is_restarted_where_that_is_wanted(three: Any) -> None:
    job = three("sleep", stall_after="6s", on_stall="restart", restarts=1)
    assert job.wait(180) == 1
    first, last = (read_record(attempt.verdict) or {} for attempt in job.run.attempts())
    assert first["reason"].startswith("stalled for ")
    assert first["reason"].endswith("(attempt 2 follows)")
    assert last["reason"].endswith("(after 1 restart)")


def test_task_that_is_stopped_stalls_the_job(three: Any) -> None:
    job = three("sleep", stall_after="6s", on_stall="end")
    settled(job)
    os.kill(job.tasks()["worker:2"]["pid"], signal.SIGSTOP)
    assert "is stopped by a signal (state T)" in job.verdict(120)["reason"]


@pytest.mark.parametrize("how", ["compute", "talk"])
def test_job_that_is_silent_but_busy_or_idle_but_talks_is_not_stalled(three: Any, tmp_path: Path, how: str) -> None:
    limits = {"stall_after": "3s", "on_stall": "end"}
    job = three(how, **limits)
    waiting = ("worker:0", "worker:1")
    until(lambda: all(job.tasks()[name].get("quiet") for name in waiting), "the other tasks to be quiet")
    # a job that begins only now, and in which nothing moves, has both of its dumps meanwhile
    (tmp_path / "later").mkdir()
    assert three("sleep", tmp_path / "later", **limits).verdict(120)["reason"].startswith("stalled for ")
    assert job.process.poll() is None, job.output
    quiet = {name: task.get("quiet") for name, task in job.tasks().items()}
    assert [quiet[name] is None for name in (*waiting, "worker:2")] == [False, False, True], quiet
    assert "stalled" not in job.output
