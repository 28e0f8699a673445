"""Tasks that fail: the job ends, no process is left, and the verdict names the first failure and its reason."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch, Program
from tests.support.jobs import IGNORING, gone, until

TWO_AND_PS = {"tasks": {"ps": {"count": 1}, "worker": {"count": 2}}, "tasks_per_node": 2}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_killed_task_fails_the_job_and_is_reported(launch: Launch, number: signal.Signals) -> None:
    job = launch("sleep", "100", **TWO_AND_PS)
    pids = job.running("worker:0", "worker:1", "ps:0")
    os.kill(pids["worker:1"], number)
    verdict = job.verdict()
    assert (verdict["state"], verdict["exit_code"], job.process.returncode) == ("FAILED", 1, 1)
    assert verdict["cause"]["task"] == "worker:1"
    assert verdict["cause"]["host"] == os.uname().nodename
    assert verdict["cause"]["signal"] == number.name
    assert f"worker:1 on {os.uname().nodename}: killed by {number.name}" in verdict["reason"]
    gone(*pids.values())
    states = {name: task["state"] for name, task in job.tasks().items()}
    assert states == {"worker:0": "STOPPED", "worker:1": "FAILED", "ps:0": "STOPPED"}


def test_exit_code_and_last_lines_of_the_log_are_in_the_verdict(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_INDEX" = 1 ] && { echo "cannot open /data/x" >&2; exit 3; }; sleep 100')
    verdict = launch(train, tasks={"worker": {"count": 2}}, tasks_per_node=2).verdict()
    cause = verdict["cause"]
    assert (cause["task"], cause["exit"], cause["signal"]) == ("worker:1", 3, None)
    assert cause["tail"] == ["cannot open /data/x"]
    assert Path(cause["log"]).read_text() == "cannot open /data/x\n"


def test_first_of_several_failures_is_the_cause(launch: Launch, program: Program) -> None:
    train = program(
        "train",
        'if [ "$GRIDTF_TASK_INDEX" = 2 ]; then touch first; exit 9; fi\n'
        "until [ -e first ]; do sleep 0.05; done; sleep 0.3; exit 4",  # the consequence
    )
    verdict = launch(train, tasks={"worker": {"count": 3}}, tasks_per_node=3).verdict()
    assert (verdict["cause"]["task"], verdict["cause"]["exit"]) == ("worker:2", 9)


@pytest.mark.parametrize("ignored", [signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP])
def test_inherited_ignored_signals_are_reset(launch: Launch, ignored: signal.Signals) -> None:
    """`trap '' TERM` in a script, SIGCHLD ignored by a daemon: child processes inherit ignored signals."""
    prefix = [sys.executable, "-c", IGNORING, str(int(ignored))]
    dispositions = "import signal; print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD))"
    done = launch(sys.executable, "-c", dispositions, prefix=prefix, kill_grace=60)
    assert done.verdict()["state"] == "COMPLETED"
    assert done.attempt.task_log("worker", 0).read_text() == "0 0\n"
    assert done.wait() == 0


def test_sigterm_ignored_by_the_parent_cancels_the_job(launch: Launch) -> None:
    prefix = [sys.executable, "-c", IGNORING, str(int(signal.SIGTERM))]
    job = launch("sleep", "1000", prefix=prefix, kill_grace=60)
    job.running("worker:0")
    job.process.terminate()
    assert job.verdict()["state"] == "CANCELLED"


def test_children_that_ignore_sigterm_or_called_setsid_are_ended(launch: Launch, program: Program) -> None:
    train = program(
        "train",
        "trap '' TERM\n"
        "setsid sleep 1000 & echo $! >setsid.pid\n"
        "bash -c \"trap '' TERM; echo \\$\\$ >stubborn.pid; while :; do sleep 1; done\" &\n"
        "( setsid bash -c 'echo $$ >daemon.pid; sleep 1000' & )\n"
        "while [ ! -e fail ]; do sleep 0.05; done; exit 5",
    )
    job = launch(train)
    pids = [job.written(f"{name}.pid") for name in ("setsid", "stubborn", "daemon")]
    (job.folder / "fail").touch()
    assert job.verdict()["cause"]["exit"] == 5
    gone(*pids)


def test_command_not_found_is_reported_with_its_host(launch: Launch) -> None:
    verdict = launch("no-such-program", "--x").verdict()
    assert verdict["cause"]["exit"] == 127
    assert f"on {os.uname().nodename}: command not found: no-such-program" in verdict["reason"]
    assert verdict["hint"]


def test_command_without_permission_has_exit_code_126(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    verdict = launch(str(tmp_path / "data")).verdict()
    assert verdict["cause"]["exit"] == 126
    assert "cannot run" in verdict["reason"]


def test_ps_failure_during_training_fails_the_job(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = ps ] && exit 7; sleep 100')
    verdict = launch(train, **TWO_AND_PS).verdict()
    assert (verdict["cause"]["task"], verdict["cause"]["exit"]) == ("ps:0", 7)


def test_ps_is_stopped_after_success_whatever_its_exit_code(launch: Launch, program: Program) -> None:
    train = program(
        "train",
        'if [ "$GRIDTF_TASK_TYPE" = ps ]; then trap "exit 9" TERM; touch trapped; while :; do sleep 0.05; done; fi\n'
        "while [ ! -e trapped ]; do sleep 0.05; done",
    )
    job = launch(train, **TWO_AND_PS)
    verdict = job.verdict()
    assert (verdict["state"], verdict["exit_code"], job.process.returncode) == ("COMPLETED", 0, 0)
    assert job.tasks()["ps:0"]["exit"] == 9
    gone(job.tasks()["ps:0"]["pid"])


def test_evaluator_failure_does_not_fail_the_job(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = evaluator ] && exit 4; sleep 0.5')
    job = launch(train, tasks={"evaluator": {"count": 1}, "worker": {"count": 1}})
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED"
    assert verdict["reason"] == "all training tasks have exited with 0; evaluator:0 failed"
    assert job.tasks()["evaluator:0"]["state"] == "FAILED"


def test_evaluator_finishes_after_the_training(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = evaluator ] && { sleep 1; touch evaluated; }; exit 0')
    job = launch(train, tasks={"evaluator": {"count": 1}, "worker": {"count": 1}})
    assert job.verdict()["state"] == "COMPLETED"
    assert (job.folder / "evaluated").exists()


def test_evaluator_is_stopped_after_evaluator_wait(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = evaluator ] && sleep 1000; exit 0')
    job = launch(train, tasks={"evaluator": {"count": 1}, "worker": {"count": 1}}, evaluator_wait=0.2)
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED"
    assert "evaluator:0 was still running 0.2 s after the training and was stopped" in verdict["reason"]
    assert "--evaluator-wait" in verdict["hint"]
    gone(job.tasks()["evaluator:0"]["pid"])


@pytest.mark.parametrize("leader", ["chief", "worker"])
def test_workers_are_stopped_leader_wait_after_the_leader(launch: Launch, program: Program, leader: str) -> None:
    """The leader has ended; one worker ends within leader_wait, the last one never does."""
    train = program(
        "train",
        'case "$GRIDTF_TASK_TYPE:$GRIDTF_TASK_INDEX" in\n'
        f"{leader}:0) exit 0;;\n"
        "worker:1) while [ ! -e go ]; do sleep 0.05; done;;\n"
        "*) sleep 1000;;\n"
        "esac",
    )
    tasks = {"chief": {"count": int(leader == "chief")}, "worker": {"count": 3}, "ps": {"count": 1}}
    job = launch(train, tasks=tasks, tasks_per_node=4, leader_wait=15.0)
    last = "worker:2" if leader == "worker" else "worker:0, worker:2"
    detail = f"{leader}:0 ended, waiting for"
    until(lambda: detail in (read_record(job.attempt.launcher) or {}).get("detail", ""), "the launcher to say so")
    detail = (read_record(job.attempt.launcher) or {})["detail"]
    assert re.search(r" for at most 15 s, until \d\d:\d\d:\d\d$", detail), detail
    (job.folder / "go").touch()
    verdict = job.verdict()
    were = "were" if "," in last else "was"
    reason = f"{leader}:0 has exited with 0; {last} {were} still running and {were} stopped"
    assert (verdict["state"], verdict["reason"]) == ("COMPLETED", reason)
    assert "--leader-wait" in verdict["hint"]
    assert job.tasks()["worker:1"]["state"] == "COMPLETED"


def test_worker_failure_after_the_leader_s_end_fails_the_job(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = chief ] && exit 0; sleep 1; exit 5')
    job = launch(train, tasks={"chief": {"count": 1}, "worker": {"count": 1}}, tasks_per_node=2)
    verdict = job.verdict()
    assert (verdict["state"], verdict["cause"]["task"], verdict["cause"]["exit"]) == ("FAILED", "worker:0", 5)


def test_timeout_names_tasks_that_had_finished(launch: Launch, program: Program) -> None:
    """Workers by themselves: none of them leads, so that all of them are waited for, up to the walltime."""
    train = program("train", '[ "$GRIDTF_TASK_INDEX" = 0 ] && exit 0; sleep 1000')
    job = launch(train, tasks={"worker": {"count": 2}}, tasks_per_node=2, leader_wait=0.0)
    until(lambda: job.tasks().get("worker:0", {}).get("state") == "COMPLETED", "worker:0 to end")
    job.process.send_signal(signal.SIGALRM)  # as the script's own clock does
    verdict = job.verdict()
    assert verdict["state"] == "TIMEOUT"
    assert verdict["reason"].startswith("the walltime is over")  # later also that worker:1 has not opened its port
    assert verdict["reason"].endswith(" (worker:0 had exited with 0, worker:1 had not)")
    assert verdict["hint"].endswith("if the job is done when worker:0 is: --success-policy chief")


def test_success_policy_chief_does_not_wait_for_workers(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = worker ] && sleep 1000; sleep 0.2')
    tasks = {"chief": {"count": 1}, "worker": {"count": 1}}
    job = launch(train, tasks=tasks, tasks_per_node=2, success_policy="chief")
    verdict = job.verdict()
    assert (verdict["state"], verdict["reason"]) == ("COMPLETED", "chief:0 has exited with 0")
    gone(job.tasks()["worker:0"]["pid"])


@pytest.fixture
def memory_group() -> Generator[Callable[[str], Path]]:
    """Makes a cgroup whose processes may use 32 MiB."""
    made: list[Path] = []

    def make(name: str) -> Path:
        group = Path("/sys/fs/cgroup/memory") / f"gridtf-test-{os.getpid()}-{name}"
        if not group.parent.is_dir():
            group = Path("/sys/fs/cgroup") / group.name
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"no memory cgroup can be made here: {error}")
        made.append(group)
        limit = group / "memory.limit_in_bytes"
        (limit if limit.exists() else group / "memory.max").write_text(str(32 * 2**20))
        return group

    yield make
    for group in made:
        group.rmdir()


GREEDY = "python3 -c 'x = bytearray(2**28); print(len(x))'"


@pytest.mark.root
def test_out_of_memory_is_reported(launch: Launch, program: Program, memory_group: Callable[[str], Path]) -> None:
    # the agent, $PPID, is in the cgroup of the job too, as where a scheduler has made it
    group = memory_group("job")
    train = program("train", f"for pid in $PPID $$; do echo $pid >{group}/cgroup.procs; done; exec {GREEDY}")
    verdict = launch(train).verdict()
    assert verdict["state"] == "OUT_OF_MEMORY"
    assert verdict["cause"]["signal"] == "SIGKILL"
    assert "out of memory" in verdict["reason"]
    assert "--mem" in verdict["hint"]


@pytest.mark.root
def test_memory_of_another_job_is_not_the_cause(
    launch: Launch, program: Program, memory_group: Callable[[str], Path]
) -> None:
    ours, other = memory_group("job"), memory_group("other")
    neighbour = f"(echo $BASHPID >{other}/cgroup.procs; exec {GREEDY}); [ $? = 137 ] || exit"
    train = program("train", f"echo $PPID >{ours}/cgroup.procs; {neighbour}; kill -9 $$")
    verdict = launch(train).verdict()
    assert (verdict["state"], verdict["cause"]["signal"]) == ("FAILED", "SIGKILL")
    assert "out of memory" not in verdict["reason"]  # jobs beside this one may leave files in memory, which it names


def test_python_memory_error_has_a_hint(launch: Launch, program: Program) -> None:
    train = program("train", "ulimit -v 1000000; exec python3 -c 'x = bytearray(2**32)'")
    verdict = launch(train).verdict()
    assert verdict["cause"]["exit"] == 1
    assert "ran out of memory" in verdict["hint"]


@pytest.mark.root
def test_file_in_shared_memory_that_a_killed_task_leaves_is_named(launch: Launch, program: Program) -> None:
    # of its own: in the shared one, the verdicts of other tests' jobs would name the file as well
    memory = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "host"]
    job = launch(program("task", "head -c 3145728 /dev/zero > /dev/shm/left; kill -9 $$"), prefix=memory)
    assert job.wait() == 1
    reason = job.verdict()["reason"]
    assert reason.startswith("worker:0 on ")
    whose = "made by this or another job of yours"
    assert f"left on {os.uname().nodename}: /dev/shm/left (3 MiB of memory, {whose})" in reason
    assert not Path("/dev/shm/left").exists()
