"""Restarts inside the allocation, with the local scheduler: after failures of programs, of an agent, of a training."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import RunDir, read_record
from tests.support.commands import submit
from tests.support.examples import EXAMPLES, reached
from tests.support.fixtures import Launch, Program
from tests.support.jobs import LaunchedJob, hosts_of, until
from tests.support.tasks import LIMIT

# FAILS attempts of worker 1 fail, after a step more than the attempt before.
PROGRAM = """
import os, sys, time
import gridtf
attempt, fails = int(os.environ["GRIDTF_ATTEMPT"]), int(sys.argv[1])
if len(sys.argv) < 3:
    gridtf.progress(attempt)
while os.environ["RANK"] == "0" and attempt <= fails or os.path.exists("wait"):
    time.sleep(0.05)
if os.environ["RANK"] == "1" and attempt <= fails:
    raise ValueError(f"attempt {attempt}")
"""


@pytest.fixture
def flaky(launch: Launch, tmp_path: Path) -> Any:
    """flaky(FAILS, …, restarts=N): start two workers that run PROGRAM."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(*words: object, **spec: Any) -> LaunchedJob:
        command = (sys.executable, "program.py", *map(str, words))
        return launch(*command, tasks={"worker": {"count": 2}}, tasks_per_node=2, **spec)

    return start


def verdicts(job: LaunchedJob) -> list[dict[str, Any]]:
    return [read_record(attempt.verdict) or {} for attempt in job.run.attempts()]


def test_all_tasks_start_again_until_they_succeed(flaky: Any) -> None:
    job = flaky(2, restarts=5)
    assert job.wait() == 0, job.output
    *failed, last = verdicts(job)
    assert [verdict["state"] for verdict in failed] == ["FAILED", "FAILED"]
    for number, verdict in enumerate(failed, 1):
        assert re.fullmatch(
            rf"worker:1 on \S+: ValueError: attempt {number} \(program.py:10\) \(attempt {number + 1} follows\)",
            verdict["reason"],
        )
    assert (last["state"], last["exit_code"]) == ("COMPLETED", 0)
    assert last["reason"] == "all training tasks have exited with 0 (after 2 restarts)"
    nonces = {verdict["nonce"] for verdict in verdicts(job)}
    assert len(nonces) == 3


def test_last_failure_is_the_verdict_when_the_restarts_are_used_up(flaky: Any) -> None:
    job = flaky(9, restarts=1)
    assert job.wait() == 1
    assert verdicts(job)[-1]["reason"].endswith("ValueError: attempt 2 (program.py:10) (after 1 restart)")
    assert len(verdicts(job)) == 2


def test_no_restart_is_the_default(flaky: Any) -> None:
    job = flaky(9)
    assert job.wait() == 1
    (verdict,) = verdicts(job)
    assert verdict["reason"].endswith("ValueError: attempt 1 (program.py:10)")


def test_two_attempts_without_progress_end_the_job(flaky: Any) -> None:
    job = flaky(9, "says nothing", restarts=9)
    assert job.wait() == 1
    assert len(verdicts(job)) == 2
    assert "not restarted, since 2 attempts have made no progress" in verdicts(job)[-1]["reason"]


def test_program_that_cannot_be_imported_is_not_started_again(launch: Launch) -> None:
    job = launch(sys.executable, "-c", "import no_such_module", restarts=3)
    assert job.wait() == 1
    (verdict,) = verdicts(job)
    assert "not restarted, since a program that cannot be imported does not heal" in verdict["reason"]


def test_cancelling_between_two_attempts_ends_the_job(flaky: Any) -> None:
    job = flaky(9, restarts=9)
    until(lambda: len(job.run.attempts()) == 4, "the third failure, after which it waits 4 s")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait() == 1
    *failed, last = verdicts(job)
    assert [verdict["state"] for verdict in failed] == ["FAILED"] * 3
    assert last["state"] == "CANCELLED"
    assert not list(job.run.attempt(4).logs.iterdir())


def test_killed_agent_costs_an_attempt(flaky: Any, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # a path that is short enough
        job = flaky(0, restarts=1, env={"TMPDIR": place})
        pids = job.running("worker:0", "worker:1")
        (host,) = job.hosts()
        os.kill(job.agent_pid(host), signal.SIGKILL)
        second = job.run.attempt(2)
        until(second.rendezvous.exists, "the second attempt")
        assert len(os.listdir(place)) == 1  # the folder of the first attempt is gone
        assert set(job.running("worker:0", "worker:1").values()).isdisjoint(pids.values())
        (tmp_path / "wait").unlink()
        assert job.wait() == 0, job.output
    first, last = verdicts(job)
    assert first["reason"] == f"the agent on host {host} was killed by SIGKILL (attempt 2 follows)"
    assert last["state"] == "COMPLETED"


FAILS_ONCE = """
if [ "$GRIDTF_TASK_INDEX" = 1 ] && mkdir once 2> /dev/null; then exit 3; fi
until [ -e once ] && [ -e again ]; do sleep 0.05; done
"""


def test_one_task_starts_again_in_place_while_the_others_go_on(launch: Launch, program: Program) -> None:
    worker = {"count": 2, "on_failure": "restart"}
    job = launch(program("worker", FAILS_ONCE), tasks={"worker": worker}, tasks_per_node=2)
    until(lambda: job.tasks().get("worker:1", {}).get("restarts") == 1, "the restart")
    pids = job.running("worker:0", "worker:1")
    (job.folder / "again").touch()
    assert job.wait() == 0, job.output
    (verdict,) = verdicts(job)
    assert "1 restart of worker:1 after a failure" in verdict["reason"]
    assert job.tasks()["worker:0"]["pid"] == pids["worker:0"]
    assert "gridtf: the task has failed: restart 1 of at most 5" in job.attempt.task_log("worker", 1).read_text()


def test_on_failure_end_ends_the_job_in_spite_of_restarts(launch: Launch, program: Program) -> None:
    worker = {"count": 2, "on_failure": "end"}
    job = launch(program("worker", FAILS_ONCE), tasks={"worker": worker}, tasks_per_node=2, restarts=3)
    assert job.wait() == 1
    (verdict,) = verdicts(job)
    assert 'not restarted, since the table of that task has on_failure = "end"' in verdict["reason"]


def test_workers_that_fail_cost_nothing_while_the_chief_goes_on(launch: Launch, program: Program) -> None:
    tasks = {"chief": {}, "worker": {"count": 2}}
    script = '[ "$GRIDTF_TASK_TYPE" = chief ] || exit 3\nuntil [ -e go ]; do sleep 0.05; done'
    job = launch(program("task", script), tasks=tasks, tasks_per_node=3, success_policy="chief", restarts=1)
    states = ("worker:0", "worker:1")
    until(lambda: all(job.tasks().get(name, {}).get("state") == "FAILED" for name in states), "both failures")
    assert job.running("chief:0")
    (job.folder / "go").touch()
    assert job.wait() == 0, job.output
    (verdict,) = verdicts(job)
    assert verdict["reason"] == "chief:0 has exited with 0; worker:0, worker:1 failed"


@pytest.mark.tensorflow
def test_training_goes_on_from_its_last_checkpoint_and_becomes_as_good(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """examples/resume, as its README says, with steps enough to kill a worker in the middle of them."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    words = ("--restarts", "1", "--gpus-per-task", "0", "--cpus-per-task", "1", "--run-dir", str(tmp_path / "run"))
    command = ("--", "python", "train.py", "--steps", "400")
    run = RunDir(submit(str(EXAMPLES / "resume/gridtf.toml"), *words, *command)["run_dir"])
    first, last = run.attempt(1), run.attempt(2)
    checkpoint = run.output / "checkpoints" / "step-50"
    until(lambda: checkpoint.exists() or first.verdict.exists(), "a checkpoint", LIMIT)
    (host,) = hosts_of(first).values()
    os.kill(host["tasks"]["worker:1"]["pid"], signal.SIGKILL)
    until(lambda: last.verdict.exists() or run.ended.exists(), "the end of the second attempt", LIMIT)
    assert re.match(r"worker:1 on \S+: killed by SIGKILL", (read_record(first.verdict) or {})["reason"])
    logs = "".join(path.read_text() for path in last.logs.iterdir())
    assert (read_record(last.verdict) or {})["state"] == "COMPLETED", logs
    step = int(re.findall(r"gridtf: continues from step (\d+), saved in ", logs)[0])
    assert step >= 50
    assert json.loads((run.output / "result.json").read_text())["steps"] == 400
    reached("resume", run.output, logs)


# The ps of the first attempt held the variables, so that no other task can go on. What those that wait for it answer is
# in test_first_cause.py; here the chief goes on until it is ended.
CHIEF = '[ "$GRIDTF_ATTEMPT" = 2 ] || sleep 600'


@pytest.mark.tensorflow
def test_lost_ps_costs_an_attempt(launch: Launch, program: Program) -> None:
    tasks = {"chief": {"count": 1}, "ps": {"count": 1}}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    job = launch(program("chief", CHIEF), tasks=tasks, serve=["ps"], python=sys.executable, restarts=1, env=quiet)
    log = job.attempt.task_log("ps", 0)
    until(lambda: log.exists() and "gridtf serves ps:0 at " in log.read_text(), "the server", LIMIT)
    os.kill(job.running("ps:0")["ps:0"], signal.SIGKILL)
    assert job.wait(LIMIT) == 0, job.output
    first, last = verdicts(job)
    assert re.match(r"ps:0 on \S+: killed by SIGKILL", first["reason"]), first
    assert last["state"] == "COMPLETED"
