"""Agents, launchers and hosts that are lost."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import read_record
from tests.support.disks import ext4, fill, small_disk
from tests.support.fixtures import Launch, Program
from tests.support.jobs import IGNORING, ROOT, LaunchedJob, gone, until

PTRACE_ATTACH = 16  # <sys/ptrace.h>
SHELL_PS = {"tasks": {"ps": {"count": 1}, "worker": {"count": 2}}, "tasks_per_node": 2}


def test_killed_agent_ends_its_tasks_and_is_reported(launch: Launch) -> None:
    job = launch("bash", "-c", "setsid sleep 1000 & echo $! >grandchild.pid; wait")
    pids = job.running("worker:0")
    grandchild = job.written("grandchild.pid")
    os.kill(job.agent_pid(os.uname().nodename), signal.SIGKILL)
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert f"the agent on host {os.uname().nodename} was killed by SIGKILL" in verdict["reason"]
    gone(*pids.values(), grandchild)


def test_killed_launcher_leaves_no_process(launch: Launch) -> None:
    job = launch("bash", "-c", "setsid sleep 1000 & echo $! >grandchild.pid; wait", **SHELL_PS)
    pids = job.running("worker:0", "worker:1", "ps:0")
    grandchild = job.written("grandchild.pid")
    agent = job.agent_pid(os.uname().nodename)
    job.process.kill()
    job.wait()
    gone(*pids.values(), agent, grandchild)
    assert read_record(job.attempt.verdict) is None  # so status cannot call it COMPLETED


def test_launcher_and_agent_killed_together_leave_no_task(launch: Launch) -> None:
    job = launch("sleep", "1000", **SHELL_PS)
    pids = job.running("worker:0", "worker:1", "ps:0")
    agent = job.agent_pid(os.uname().nodename)
    os.kill(agent, signal.SIGSTOP)
    job.process.kill()
    os.kill(agent, signal.SIGKILL)
    gone(*pids.values(), agent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_launcher_cancels_the_job(launch: Launch, number: signal.Signals) -> None:
    job = launch("sleep", "1000", **SHELL_PS)
    pids = job.running("worker:0", "worker:1", "ps:0")
    job.process.send_signal(number)
    verdict = job.verdict()
    assert verdict["state"] == "CANCELLED"
    assert number.name in verdict["reason"]
    assert job.process.returncode == 1
    gone(*pids.values())


def test_stopped_agent_is_node_fail_after_heartbeat_timeout(launch: Launch) -> None:
    hosts = [{"name": "h1"}, {"name": "h2"}]
    job = launch("sleep", "1000", hosts=hosts, heartbeat_timeout=6)
    pids = job.running("worker:0", "worker:1")
    os.kill(job.agent_pid("h2"), signal.SIGSTOP)
    verdict = job.verdict()
    assert verdict["state"] == "NODE_FAIL"
    assert "no heartbeat from host h2 for 6 s" in verdict["reason"]
    gone(*pids.values())


def test_stalled_launcher_is_continued_after_its_tasks_have_ended(launch: Launch) -> None:
    job = launch("sleep", "1000", hosts=[{"name": "h1"}, {"name": "h2"}], heartbeat_timeout=6)
    pids = job.running("worker:0", "worker:1")
    agents = [job.agent_pid("h1"), job.agent_pid("h2")]
    job.process.send_signal(signal.SIGSTOP)
    verdict = job.verdict()
    assert (verdict["state"], verdict["exit_code"]) == ("FAILED", 1)
    assert f"the launcher on host {os.uname().nodename} was stalled for" in verdict["reason"]
    assert "was it stopped by a signal" in verdict["hint"]
    assert "no heartbeat from the launcher for 6 s" in job.output
    gone(*pids.values(), *agents)


def held_by_a_debugger(pid: int) -> None:
    """Stop a child for good, until it is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, pid, None, None):
        raise OSError(number := ctypes.get_errno(), f"ptrace: {os.strerror(number)}")
    os.waitpid(pid, os.WUNTRACED)  # for the stop; otherwise Popen would take it for the end of the process


def test_stalled_launcher_is_killed_and_its_verdict_written_by_an_agent(launch: Launch) -> None:
    job = launch("sleep", "1000", hosts=[{"name": "h1"}], heartbeat_timeout=6)
    pids = job.running("worker:0")
    agent = job.agent_pid("h1")
    held_by_a_debugger(job.process.pid)  # SIGCONT has no effect
    assert job.wait(180) == -signal.SIGKILL
    gone(*pids.values(), agent)
    verdict = job.verdict()
    assert (verdict["state"], verdict["exit_code"]) == ("FAILED", 1)
    assert "an agent has killed it (it was stopped by a signal or a debugger)" in verdict["reason"]


def test_launcher_stopped_in_a_terminal_finds_its_tasks_again(launch: Launch) -> None:
    """As by Ctrl-Z in the terminal of `gridtf run`, and fg."""
    job = launch("bash", "-c", "until [ -e end ]; do sleep 0.1; done", heartbeat_timeout=3)
    job.running("worker:0")
    job.process.send_signal(signal.SIGSTOP)
    time.sleep(8)  # several times the limit
    job.process.send_signal(signal.SIGCONT)
    (job.folder / "end").touch()
    assert job.verdict()["state"] == "COMPLETED"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_signals_ignored_by_nohup_do_not_end_the_launcher(launch: Launch, number: signal.Signals) -> None:
    prefix = [sys.executable, "-c", IGNORING, str(int(number))]
    job = launch("bash", "-c", "until [ -e end ]; do sleep 0.1; done", prefix=prefix)
    job.running("worker:0")
    job.process.send_signal(number)
    time.sleep(0.5)
    (job.folder / "end").touch()
    assert job.verdict()["state"] == "COMPLETED"


def test_killed_agent_after_the_chief_s_end_fails_the_job(launch: Launch, program: Program) -> None:
    train = program("train", '[ "$GRIDTF_TASK_TYPE" = chief ] || sleep 1000')
    job = launch(train, tasks={"chief": {"count": 1}, "worker": {"count": 1}}, tasks_per_node=2)
    until(lambda: "chief:0 ended, waiting for worker:0" in str(read_record(job.attempt.launcher)), "the chief's end")
    os.kill(job.agent_pid(os.uname().nodename), signal.SIGKILL)
    verdict = job.verdict()
    assert f"the agent on host {os.uname().nodename} was killed by SIGKILL" in verdict["reason"]


def test_killed_agent_among_several_is_reported_with_its_host(launch: Launch) -> None:
    job = launch("sleep", "1000", hosts=[{"name": "h1"}, {"name": "h2"}, {"name": "h3"}])
    pids = job.running("worker:0", "worker:1", "worker:2")
    os.kill(job.agent_pid("h2"), signal.SIGKILL)
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert "the agent on host h2 was killed by SIGKILL" in verdict["reason"]
    gone(*pids.values())


def test_missing_hosts_are_reported_with_their_tasks(launch: Launch) -> None:
    never = ["bash", "-c", "exec sleep 100", "host"]
    hosts = [{"name": "h1"}, {"name": "h2", "prefix": never}, {"name": "h3", "prefix": never}]
    job = launch("true", hosts=hosts, start_timeout=15, tasks={"ps": {"count": 1}})
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert "no report from 2 hosts after 15 s: h2, h3" in verdict["reason"]
    assert "their tasks: worker:1, worker:2" in verdict["reason"]
    assert job.tasks() == {} or all(task["state"] == "PENDING" for task in job.tasks().values())


def test_agent_that_cannot_start_is_reported(launch: Launch) -> None:
    job = launch("true", hosts=[{"name": "h1"}, {"name": "h2", "prefix": ["false"]}])
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert "the agent on host h2 ended with exit code 1" in verdict["reason"]


@pytest.mark.parametrize("limit", [64, 16])
def test_low_limit_on_open_files_is_reported(launch: Launch, limit: int) -> None:
    prefix = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "limited"]
    verdict = launch("true", tasks={"worker": {"count": 64}}, tasks_per_node=64, prefix=prefix).verdict()
    assert verdict["state"] == "FAILED"
    assert f"open files are needed on host {os.uname().nodename}, but the limit is {limit}" in verdict["reason"]
    assert "ulimit -n" in verdict["hint"]


def test_soft_limit_on_open_files_is_raised(launch: Launch) -> None:
    prefix = ["bash", "-c", 'ulimit -S -n 64; exec "$@"', "limited"]
    job = launch("true", tasks={"worker": {"count": 64}}, tasks_per_node=64, prefix=prefix)
    assert job.verdict()["state"] == "COMPLETED"


def test_unexpected_exception_in_the_launcher_has_a_verdict(launch: Launch) -> None:
    job = launch("true", hosts=[{"name": "h1"}, {"name": "h2", "prefix": ["/no/such/rsh"]}])
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert "the launcher could not continue" in verdict["reason"]
    assert "/no/such/rsh" in verdict["reason"]


@pytest.mark.parametrize("spec", ["{}", "[]", "not JSON", '{"command": 7}', '{"nodes": -1, "command": ["x"]}'])
def test_invalid_gridtf_spec_is_an_error_without_traceback(tmp_path: Path, spec: str) -> None:
    code = "import sys; from gridtf.bootstrap.main import main; sys.exit(main(['exec']))"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GRIDTF_SPEC": spec, "GRIDTF_RUN_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gridtf: GRIDTF_SPEC cannot be read")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.root
def test_host_that_cannot_see_the_run_directory_is_reported(launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    elsewhere = ["unshare", "--mount", "bash", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "host"]
    job = launch("true", hosts=[{"name": "h1"}, {"name": "h2", "prefix": elsewhere}], folder=folder)
    verdict = job.verdict(60)
    assert verdict["state"] == "FAILED"
    assert "the agent on host h2 cannot see the run directory" in verdict["reason"]


@pytest.mark.root
def test_full_disk_costs_nothing_but_records(launch: Launch, tmp_path: Path) -> None:
    with ext4(tmp_path / "a.img", tmp_path / "a") as short, ext4(tmp_path / "b.img", tmp_path / "b") as long:
        wait = "until [ -e end ]; do sleep 0.1; done; [ $GRIDTF_TASK_INDEX = 0 ] || exit 7"
        hosts = [{"name": "h1"}, {"name": "h2"}]
        spec: dict[str, Any] = {"hosts": hosts, "heartbeat_timeout": 4}
        passes, stays = (launch("bash", "-c", wait, folder=folder, **spec) for folder in (short, long))
        pids = [*passes.running("worker:0", "worker:1").values(), *stays.running("worker:0", "worker:1").values()]

        def told(job: LaunchedJob) -> bool:
            return "No space left on device; the job goes on" in job.output

        full = {job: fill(folder) for job, folder in ((passes, short), (stays, long))}
        for job in full:
            until(partial(told, job), "the launcher to notice")
        time.sleep(8)  # twice the time after which a host or the launcher would be lost
        full[passes].unlink()
        until(lambda: "records could not be written" in str(read_record(passes.attempt.launcher)), "it to be told")
        assert passes.process.poll() is None
        (short / "end").touch()
        assert "worker:1 on h2: exit code 7" in passes.verdict()["reason"]
        # where the disk stays full, the verdict has the space that was reserved for it
        os.kill(pids[3], signal.SIGKILL)
        assert stays.verdict(60)["reason"].startswith("worker:1 on h2: killed by SIGKILL")
        gone(*pids)


@pytest.mark.root
def test_disk_full_from_the_start_is_an_error_without_traceback(launch: Launch, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "64k") as folder:
        (folder / "run").mkdir()
        fill(folder)
        job = launch("true", folder=folder)
        assert job.wait() == 1
        assert "No space left on device" in job.output
        assert "Traceback" not in job.output


def test_run_directory_that_cannot_be_made_is_an_error_without_traceback(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in its place")
    job = launch("true")
    assert job.wait() == 1
    assert f"gridtf: cannot make {tmp_path}/run" in job.output
    assert "Traceback" not in job.output


def test_lost_host_is_reported_with_the_task_that_failed(launch: Launch) -> None:
    """As when a node crashes: TensorFlow on the others fails at once, long before the heartbeat is missed."""
    train = 'if [ "$GRIDTF_TASK_INDEX" = 0 ]; then until [ -e fail ]; do sleep 0.05; done; exit 1; fi; sleep 1000'
    job = launch("bash", "-c", train, hosts=[{"name": "h1"}, {"name": "h2"}], kill_grace=0)
    pids = job.running("worker:0", "worker:1")
    os.kill(job.agent_pid("h2"), signal.SIGSTOP)
    (job.folder / "fail").touch()
    verdict = job.verdict()
    assert verdict["cause"]["task"] == "worker:0"
    assert "worker:0 on h1: exit code 1" in verdict["reason"]
    assert "lost contact with 1 host: h2" in verdict["reason"]
    gone(*pids.values())
