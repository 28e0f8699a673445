"""gridtf exec and gridtf shell with real jobs: a command beside a running task, with and without a terminal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import GridtfError
from gridtf.host import procfs
from gridtf.host.encrypted import identity
from gridtf.observe.beside import connect, start
from gridtf.run import registry
from tests.support.fixtures import Launch
from tests.support.jobs import ROOT, LaunchedJob, gone, until
from tests.support.terminals import Terminal

MEGABYTES = 10 << 20


@pytest.fixture
def two(launch: Launch) -> LaunchedJob:
    """Two workers that sleep; the second one ends as soon as there is a file ``end``, the job a second later."""
    waits = "while [ ! -e end ]; do sleep 0.1; done; [ $RANK = 1 ] && exit 3; sleep 600"
    workers = {"count": 2, "on_failure": "restart"}
    job = launch("bash", "-c", waits, tasks={"worker": workers}, tasks_per_node=2, gpus_per_task=0)
    job.running("worker:0", "worker:1")
    return job


def environment(job: LaunchedJob, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(job.folder / "state"), **more}


def words(job: LaunchedJob, *options: str, task: str = "worker:1", command: Sequence[str] = ()) -> list[str]:
    first, *rest = options or ("exec",)
    after = ["--", *command] if command else []
    return [sys.executable, "-m", "gridtf", first, *rest, str(job.run.path), task, *after]


def run(
    job: LaunchedJob, *command: str, task: str = "worker:1", given: bytes | None = None, **more: str
) -> subprocess.CompletedProcess[bytes]:
    options = ("exec", "-i") if given is not None else ("exec",)
    argv = words(job, *options, task=task, command=command)
    stdin: Any = {"input": given} if given is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(argv, env=environment(job, **more), capture_output=True, timeout=120, **stdin)


def events(job: LaunchedJob) -> list[dict[str, Any]]:
    text = job.attempt.events.read_text() if job.attempt.events.exists() else ""
    return [event for line in text.splitlines() if (event := json.loads(line)).get("event", "").startswith("exec")]


def recorded(job: LaunchedJob, count: int) -> list[dict[str, Any]]:
    return list(until(lambda: found if len(found := events(job)) >= count else None, f"{count} events"))


def beside(job: LaunchedJob) -> list[int]:
    """The processes of this job that are neither gridtf's own nor tasks': those below a process of gridtf exec."""
    agent = job.agent_pid(next(iter(job.hosts())))
    tasks = {task["pid"] for task in job.tasks().values()}
    return [pid for pid in procfs.descendants(agent) if procfs.session(pid) not in tasks | {procfs.session(agent)}]


def test_command_has_the_environment_the_folder_and_the_exit_code(two: LaunchedJob) -> None:
    pid = two.tasks()["worker:1"]["pid"]
    of_task = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    done = run(two, "bash", "-c", "cat /proc/$$/environ; pwd >&2; exit 7")
    assert done.returncode == 7
    assert done.stderr.decode().strip() == str(two.folder)
    of_command = set(done.stdout.split(b"\0"))
    assert of_command <= of_task
    left_out = {variable.partition(b"=")[0] for variable in of_task - of_command}
    assert left_out == {b"TF_GRPC_REUSE_PORT", b"GRIDTF_LOCAL_DIR"}
    begun, ended = recorded(two, 2)
    about = {"task": "worker:1", "host": next(iter(two.hosts())), "user": begun["user"]}
    text = "bash -c 'cat /proc/$$/environ; pwd >&2; exit 7'"
    assert begun == {"time": begun["time"], "event": "exec", **about, "text": text}
    assert ended == {"time": ended["time"], "event": "exec ended", **about, "text": text, "exit": 7}
    assert run(two, "bash", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL
    missing = run(two, "nosuchprogram")
    assert (missing.returncode, missing.stdout) == (127, b"")
    assert missing.stderr.startswith(b"gridtf: command not found: nosuchprogram (PATH=")
    assert run(two, "true", "--token", "a1b2c3d4").returncode == 0
    assert [event["text"] for event in recorded(two, 8)[-2:]] == ["true --token '••••••'"] * 2
    assert two.process.poll() is None
    assert not [path.name for path in two.attempt.path.iterdir() if "exec" in path.name]


def test_megabytes_pass_both_ways_unchanged(two: LaunchedJob) -> None:
    data = os.urandom(1 << 20) * (MEGABYTES >> 20)
    done = run(two, "sha256sum", given=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    done = run(two, "cat", given=data)
    assert (done.returncode, hashlib.sha256(done.stdout).digest()) == (0, hashlib.sha256(data).digest())
    assert run(two, "head", "-c", "5", given=data).stdout == data[:5]  # it does not read the rest
    assert run(two, "wc", "-c").stdout.strip() == b"0"  # without -i there is no input


def test_reader_that_reads_slowly_or_leaves_keeps_the_command_waiting(two: LaunchedJob) -> None:
    argv = words(two, command=["bash", "-c", "echo $$; exec cat /dev/zero"])
    with subprocess.Popen(argv, env=environment(two), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        helper = procfs.parent(pid) or 0
        process.stdout.read(1 << 20)
        before = 0
        while (now := _written(pid)) != before:  # until all that may wait does
            before = now
            time.sleep(0.5)
        assert before < 32 << 20  # pipes, two processes and what TCP holds
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
    assert gone(pid, helper)


def test_full_disk_is_named_and_no_bug(two: LaunchedJob) -> None:
    with Path("/dev/full").open("wb") as full:
        argv = words(two, command=["seq", "100000"])
        done = subprocess.run(argv, env=environment(two), stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        1,
        "gridtf: cannot write what the command prints: No space left on device\n",
    )


def test_terminal_whose_keys_nobody_reads_ends_the_command_by_its_own(two: LaunchedJob) -> None:
    with Terminal(words(two, "exec", "-t", command=["sh", "-c", "echo up=; sleep 600"]), environment(two)) as terminal:
        terminal.until("up=")
        assert terminal.is_as_before()
        terminal.type("\x03")
        assert terminal.process.wait(60) == 128 + signal.SIGINT


def _written(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if line.startswith("wchar"))
    return int(line.split()[1])


def test_what_a_command_has_started_ends_with_it(two: LaunchedJob) -> None:
    done = run(two, "bash", "-c", "setsid sleep 600 & echo $!; trap '' HUP; sleep 600 & echo $!")
    assert done.returncode == 0
    assert gone(*map(int, done.stdout.split()))
    until(lambda: not beside(two), "the end of all that was beside the task")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_command_of_a_client_that_has_ended_gets_sighup(two: LaunchedJob, number: int) -> None:
    argv = words(two, command=["bash", "-c", "trap 'touch hung-up' HUP; echo $$; while :; do sleep 0.1; done"])
    with subprocess.Popen(argv, env=environment(two), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
    assert gone(pid)
    assert (two.folder / "hung-up").exists()
    assert recorded(two, 2)[1]["exit"] == 128 + signal.SIGKILL
    until(lambda: not beside(two), "the end of the process beside the task")


def test_shell_on_a_terminal(two: LaunchedJob) -> None:
    with Terminal(words(two, "shell"), environment(two, TERM="dumb"), lines=30, columns=20) as terminal:
        terminal.type("PS1=; stty -echo; echo rea''dy $TERM $RANK; stty size; tty\r")
        terminal.until("ready dumb 1\r\n30 20\r\n/dev/pts/")
        terminal.resize(50, 132)
        terminal.type("until [ \"$(stty size)\" = '50 132' ]; do sleep 0.1; done; echo resi''zed\r")
        terminal.until("resized")
        terminal.type("sleep 600\r")
        sleeping = until(lambda: [pid for pid in beside(two) if procfs.name(pid) == "sleep"], "a sleep")
        assert not terminal.is_as_before()
        terminal.type("\x03")
        assert gone(*sleeping)
        terminal.type("echo still $((1 + 1))\r")
        terminal.until("still 2")
        terminal.type("exit 9\r")
        assert terminal.process.wait(60) == 9
        assert terminal.is_as_before()
    assert [event["exit"] for event in recorded(two, 2) if "exit" in event] == [9]
    until(lambda: not beside(two), "the end of all that was beside the task")


@pytest.mark.parametrize("how", ["closed", "terminated", "quit"])
def test_terminal_that_is_closed_ends_the_shell(two: LaunchedJob, how: str) -> None:
    number = {"closed": signal.SIGHUP, "terminated": signal.SIGTERM, "quit": signal.SIGQUIT}[how]
    with Terminal(words(two, "shell"), environment(two, TERM="xterm")) as terminal:
        terminal.type("echo sh''ell=$$=\r")
        terminal.until("shell=")
        terminal.until("=\r\n")
        assert beside(two)
        if how == "closed":
            terminal.hang_up()
        else:
            terminal.process.send_signal(number)
        assert terminal.process.wait(60) == 128 + number
        assert how == "closed" or terminal.is_as_before()
    until(lambda: not beside(two), "the end of the shell")
    assert two.process.poll() is None


def test_shell_ends_with_the_job_and_changes_nothing_about_it(two: LaunchedJob) -> None:
    with Terminal(words(two, "shell"), environment(two, TERM="xterm")) as terminal:
        terminal.type("trap '' TERM HUP; echo sh''ell=$$=\r")
        terminal.until("shell=")
        pid = int(terminal.until("=\r\n"))
        two.process.terminate()
        terminal.until(f"gridtf: the connection with worker:1 on host {next(iter(two.hosts()))} has ended\r\n")
        assert terminal.process.wait(60) == 1
        assert terminal.is_as_before()
    verdict = two.verdict()
    assert verdict["state"] == "CANCELLED"
    assert "left on" not in json.dumps(verdict)
    assert not procfs.alive(pid)
    assert [event["event"] for event in recorded(two, 2)] == ["exec", "exec ended"]


def test_wrong_requests_are_refused_in_plain_words(two: LaunchedJob) -> None:
    def refused(*argv: str, code: int = 2, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gridtf", *argv],
            env=environment(two, **more),
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.count("\n") <= 3
        return done.stderr

    path = str(two.run.path)
    assert "there is no command\n  it goes after --" in refused("exec", path, "worker:1")
    assert "no such task: wroker:1\n  choose from: worker:0, worker:1\n  did you mean" in refused(
        "exec", path, "wroker:1", "--", "true"
    )
    assert "which task is meant?\n  choose from: worker:0, worker:1" in refused("exec", path, "--", "true")
    assert "a terminal is needed, and stdin is none" in refused("exec", "-t", path, "worker:1", "--", "true")
    assert "a terminal is needed, and stdin is none" in refused("shell", path, "worker:1")
    assert events(two) == []
    site = two.folder / "site.toml"
    site.write_text("[limits]\nexec = false\n")
    named = {"GRIDTF_SITE_CONFIG": str(site)}
    said = refused("exec", path, "worker:1", "--", "true", code=1, **named)
    assert said == f"gridtf: this site does not allow commands beside running tasks\n  {site}:2: exec = false\n"
    two.process.terminate()
    two.wait()
    said = refused("exec", path, "worker:1", "--", "true", code=1)
    assert "is not running, so that it cannot be asked\n  CANCELLED" in said


def test_job_that_is_ending_is_named(launch: Launch) -> None:
    job = launch("bash", "-c", "trap '' TERM; while :; do sleep 0.2; done", gpus_per_task=0, kill_grace=30.0)
    job.running("worker:0")
    job.process.terminate()
    until(job.attempt.stop.exists, "its end to begin")
    done = run(job, "true", task="worker:0")
    assert (done.returncode, job.process.poll()) == (1, None)
    why = "is ending, so that it cannot be asked\n  CANCELLED: the launcher received SIGTERM"
    assert why in done.stderr.decode(), done.stderr


def test_command_whose_job_ends_before_it_is_connected_blames_no_firewall(two: LaunchedJob) -> None:
    own, certificate = identity()
    about = {"task": "worker:1", "command": ["true"], "term": "", "certificate": certificate}
    found = start(two.run, {**about, **registry.who()})
    two.process.terminate()
    assert two.verdict()["state"] == "CANCELLED"
    with pytest.raises(GridtfError, match="the job has ended what was to run on host") as caught:
        connect(two.run, found, own)
    assert caught.value.why == "CANCELLED: the launcher received SIGTERM"


def test_execution_host_has_the_last_word_on_what_the_site_forbids(launch: Launch, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[limits]\nexec = false\n")
    job = launch("sleep", "600", gpus_per_task=0, env={"GRIDTF_SITE_CONFIG": str(site)})
    job.running("worker:0")
    argv = words(job, task="worker:0", command=["touch", "made"])
    env = environment(job, GRIDTF_SITE_CONFIG="")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    why = f"the site forbids it: {site}:2: exec = false"
    assert done.stderr == f"gridtf: nothing can run beside worker:0\n  {why}\n"
    assert events(job) == []
    assert not (tmp_path / "made").exists()


def test_task_that_has_ended_is_named_with_its_end(launch: Launch) -> None:
    lines = "[ $GRIDTF_TASK_TYPE = evaluator ] && exit 3; sleep 600"
    tasks = {"worker": {"count": 1}, "evaluator": {"count": 1, "command": ["bash", "-c", "exit 0"]}}
    job = launch("bash", "-c", lines, tasks=tasks, tasks_per_node=2, gpus_per_task=0)
    job.running("worker:0")
    until(lambda: job.tasks()["evaluator:0"]["state"] == "COMPLETED", "the end of the evaluator")
    argv = words(job, task="evaluator:0", command=["true"])
    done = subprocess.run(argv, env=environment(job), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("gridtf: evaluator:0 is not running\n  COMPLETED at ")
    assert ": exit code 0\n" in done.stderr
