"""Jobs with a log_limit: their logs stay small, and have what was printed last, whatever happens to who writes them."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from gridtf.host import procfs
from gridtf.observe import logs
from gridtf.observe.logtimes import UNKNOWN, LogTimes
from gridtf.run.logparts import LogParts, older
from gridtf.run.tail import between
from tests.support.jobs import LaunchedJob, until

LIMIT = 1 << 20
LINES = 400_000  # of 100 bytes
PRINTS = f"""
import sys
for number in range({LINES // 1000}):
    sys.stdout.write("".join(f"{{number * 1000 + line:0>98}}|\\n" for line in range(1000)))
sys.stdout.flush()
raise ValueError("bad label 11")
"""


def job(folder: Path, code: str, **more: object) -> LaunchedJob:
    command = [sys.executable, "-c", code]
    return LaunchedJob(folder, {"command": command, "log_limit": 1, "tasks": {"worker": {"count": 1}}, **more})


def log_of(started: LaunchedJob) -> Path:
    return started.attempt.task_log("worker", 0)


def pump_of(started: LaunchedJob) -> int:
    """The process that writes the logs: a child of the agent with its command line."""
    task = started.running("worker:0")["worker:0"]
    agent = next(host["pid"] for host in started.hosts().values())
    return next(pid for pid in procfs.children(agent) if pid != task and procfs.session(pid) == procfs.session(agent))


def numbers(data: bytes) -> list[int]:
    return [int(line) for line in re.findall(rb"^(\d{98})\|$", data, re.MULTILINE)]


def test_log_of_a_task_that_prints_at_full_speed_is_bounded_and_ends_with_its_error(tmp_path: Path) -> None:
    started = job(tmp_path, PRINTS)
    verdict = started.verdict(60)
    assert "ValueError: bad label 11" in verdict["reason"]
    assert verdict["cause"]["tail"][-1] == "ValueError: bad label 11"
    log = log_of(started)
    assert log.stat().st_size + older(log).stat().st_size <= LIMIT
    begin, end = LogParts(log).extent()
    assert end > LINES * 100
    assert end - begin > LIMIT // 2
    kept = numbers(between(LogParts(log), begin, end))
    assert kept == list(range(kept[0], LINES))
    assert kept[0] == begin // 100  # offsets count what was printed
    shown = [line for _, data, _ in logs.pieces(started.run, logs.Choice(("worker:0",))) for line in data.splitlines()]
    assert shown[0] == f"gridtf: {begin} bytes are missing here: log_limit has removed them".encode()
    assert shown[1 : 1 + len(kept)] == [b"%098d|" % number for number in kept]


def test_times_of_a_log_of_two_parts_count_all_that_was_printed(tmp_path: Path) -> None:
    code = "import os, time\nprint('x' * 999_999, flush=True)\n"
    code += "while not os.path.exists('go'): time.sleep(0.01)\nprint('x' * 1_999_999)\n"
    started = job(tmp_path, code, sample_interval=1)
    until(lambda: any("sample" in host for host in started.hosts().values()), "a sample")
    (tmp_path / "go").touch()
    assert started.verdict()["state"] == "COMPLETED"
    times = LogTimes(started.attempt).of("worker:0")
    assert (times.before(float("inf")), LogParts(log_of(started)).extent()[1]) == (3_000_000, 3_000_000)
    assert next(times.split(b"x\n", 2_999_998, UNKNOWN))[0] < UNKNOWN


def test_killed_writer_of_the_logs_is_replaced_and_the_task_goes_on(tmp_path: Path) -> None:
    code = "import time\nfor n in range(3):\n  print('line', n, flush=True)\n  open(f'at-{n}', 'w').close()\n"
    code += "  import os\n  while not os.path.exists(f'go-{n}'): time.sleep(0.01)\n"
    started = job(tmp_path, code, kill_grace=5)
    log = log_of(started)
    until(lambda: log.exists() and b"line 0\n" in log.read_bytes(), "the first line")
    first = pump_of(started)
    os.kill(first, signal.SIGKILL)
    (tmp_path / "go-0").touch()
    until(lambda: b"line 1\n" in log.read_bytes(), "a line by another process")
    assert pump_of(started) != first
    (tmp_path / "go-1").touch()
    (tmp_path / "go-2").touch()
    assert started.verdict()["state"] == "COMPLETED"
    assert log.read_text() == "line 0\nline 1\nline 2\n"
    assert "what writes the logs of tasks was killed" in started.output


def test_task_restarted_in_place_goes_on_in_the_same_log(tmp_path: Path) -> None:
    code = "import os, pathlib\nprint('begins', flush=True)\np = pathlib.Path('once')\n"
    code += "if not p.exists():\n  p.touch()\n  os.kill(os.getpid(), 9)\nprint('ends')\n"
    started = job(tmp_path, code, tasks={"worker": {"count": 1, "on_failure": "restart"}})
    assert started.verdict()["state"] == "COMPLETED"
    assert log_of(started).read_text().splitlines() == [
        "begins",
        "gridtf: the task has failed: restart 1 of at most 5",
        "begins",
        "ends",
    ]


def test_command_that_cannot_be_run_says_so_in_the_log(tmp_path: Path) -> None:
    started = LaunchedJob(tmp_path, {"command": ["no-such-command"], "log_limit": "1M"})
    assert "command not found" in started.verdict()["reason"]
    assert "gridtf: command not found: no-such-command" in log_of(started).read_text()


def test_writer_of_the_logs_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    started = job(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(100)\n", heartbeat_timeout=5)
    log = log_of(started)
    until(lambda: log.exists() and log.read_bytes() == b"up\n", "the line")
    pump = pump_of(started)
    os.kill(next(host["pid"] for host in started.hosts().values()), signal.SIGKILL)
    until(lambda: not procfs.alive(pump), "the end of the process that writes")
    started.wait()


def test_writer_of_the_logs_that_hangs_does_not_keep_the_job_from_ending(tmp_path: Path) -> None:
    """It is stopped here, as a file system that does not respond would: its output is lost."""
    code = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('lost')\n"
    started = job(tmp_path, code)
    until(lambda: log_of(started).exists() and log_of(started).read_bytes() == b"up\n", "the line")
    pump = pump_of(started)
    os.kill(pump, signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert started.verdict()["state"] == "COMPLETED"
    assert not procfs.alive(pump)
    assert log_of(started).read_text() == "up\n"


def test_child_that_outlives_its_task_does_not_delay_the_end(tmp_path: Path) -> None:
    code = "import subprocess\nprint('ends', flush=True)\nsubprocess.Popen(['setsid', 'sleep', '100'])\n"
    started = job(tmp_path, code)
    assert started.verdict()["state"] == "COMPLETED"
    assert log_of(started).read_text() == "ends\n"
