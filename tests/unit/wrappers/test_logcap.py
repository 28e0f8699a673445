"""What writes the logs of tasks under a log_limit: sizes, offsets, full disks, hung and killed writers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.logparts import LogParts, older
from gridtf.run.tail import between
from tests.support.disks import fill, small_disk
from tests.support.python import environment, python

# Each test runs a process of its own, as the agent is: it forks what writes, and reaps it.
PREAMBLE = """
import json, os, signal, sys, time
from pathlib import Path
from gridtf.bootstrap.system import System
from gridtf.host import processes
from gridtf.wrappers import logcap
from gridtf.wrappers.logcap import LogPump
processes.block_signals()
here = Path(sys.argv[1])
logcap._RESTART_PAUSE = 0.05

class Telling(System):
    said = []
    def log(self, text): self.said.append(text)

def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)

def begin(*names, limit=1 << 20):
    return LogPump({name: here / f"{name}.log" for name in names}, limit, Telling())

def say(pump, name, text):
    with pump.opened(name, here) as file:
        file.write(text if isinstance(text, bytes) else text.encode())

def pid(pump):
    return next(iter(pump.pids), None)

def end(pump, **more):
    pump.finish()
    os.waitpid(pid(pump), 0)
    print(json.dumps({"said": Telling.said, **more}))
"""


def pumped(folder: Path, code: str, seconds: float = 60.0) -> dict[str, Any]:
    """Run code with the helpers above in another process; returns what it reported."""
    command = [*python(PREAMBLE + code), str(folder)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, timeout=seconds, check=False)
    assert done.returncode == 0
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_output_is_in_the_log_once_it_is_settled(tmp_path: Path) -> None:
    report = pumped(
        tmp_path,
        "pump = begin('a', 'b')\n"
        "say(pump, 'a', 'one\\n'); say(pump, 'b', b'\\xff\\x00' * 100_000)\n"
        "pump.settle(['a', 'b'])\n"
        "end(pump, a=(here / 'a.log').read_text(), printed=[pump.counter('a')(), pump.counter('b')()])\n",
    )
    assert (report["a"], report["printed"], report["said"]) == ("one\n", [4, 200_000], [])
    assert (tmp_path / "b.log").read_bytes() == b"\xff\x00" * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "b.log"]


def test_everything_that_was_printed_is_written_before_the_process_ends(tmp_path: Path) -> None:
    pumped(tmp_path, "pump = begin('a')\nsay(pump, 'a', b'x' * 900_000 + b'\\n')\nend(pump)\n")
    assert LogParts(tmp_path / "a.log").extent() == (0, 900_001)


@pytest.mark.parametrize(("line", "count"), [(b"%09d\n", 30_000), (b"%09d", 30_000)], ids=["lines", "no line break"])
def test_log_has_two_parts_of_half_the_limit(line: bytes, count: int, tmp_path: Path) -> None:
    """Without line breaks a part ends anywhere."""
    pumped(
        tmp_path,
        "pump = begin('a', limit=100_000)\n"
        f"data = b''.join({line!r} % n for n in range({count}))\n"
        "for at in range(0, len(data), 7_777): say(pump, 'a', data[at:at + 7_777])\n"
        "end(pump)\n",
    )
    log = tmp_path / "a.log"
    whole = b"".join(line % number for number in range(count))
    begin, end = LogParts(log).extent()
    assert end == len(whole)
    assert between(LogParts(log), begin, end) == whole[begin:]
    assert 40_000 < older(log).stat().st_size <= 50_000
    assert log.stat().st_size <= 50_000
    if line.endswith(b"\n"):
        assert older(log).read_bytes().endswith(b"\n")


def test_killed_process_is_replaced_and_counts_on(tmp_path: Path) -> None:
    report = pumped(
        tmp_path,
        "pump = begin('a', limit=100)\n"
        "say(pump, 'a', 'x' * 79 + '\\n'); pump.settle(['a'])\n"
        "first = pid(pump); os.kill(first, signal.SIGKILL); os.waitpid(first, 0)\n"
        "say(pump, 'a', 'y' * 19 + '\\n')\n"  # the pipe is still there
        "until(lambda: pump.look() or pid(pump) != first)\n"
        "pump.settle(['a'])\n"
        "end(pump, printed=pump.counter('a')())\n",
    )
    assert report["printed"] == 100
    assert len(report["said"]) == 1
    assert "was killed, and is started again" in report["said"][0]
    log = tmp_path / "a.log"
    assert between(LogParts(log), *LogParts(log).extent()).endswith(b"x\n" + b"y" * 19 + b"\n")


def test_process_killed_between_two_renames_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    report = pumped(
        tmp_path,
        "from gridtf.run.logparts import note_begins, older\n"
        "log = here / 'a.log'; log.write_bytes(b'x' * 50); new = here / '.a.log.new'; new.touch()\n"
        "note_begins(log, {log.stat().st_ino: 0, new.stat().st_ino: 50})\n"
        "log.replace(older(log))\n"
        "pump = begin('a', limit=100)\n"
        "say(pump, 'a', 'y' * 20); pump.settle(['a'])\n"
        "end(pump, printed=pump.counter('a')())\n",
    )
    assert report["printed"] == 70
    assert between(LogParts(tmp_path / "a.log"), 0, 100) == b"x" * 50 + b"y" * 20


def test_process_that_does_not_respond_costs_lines_but_no_task_is_blocked(tmp_path: Path) -> None:
    report = pumped(
        tmp_path,
        "pump = begin('a')\n"
        "say(pump, 'a', 'before\\n'); pump.settle(['a'])\n"
        "logcap._WRITE_LIMIT = 0.05\n"
        "os.kill(pid(pump), signal.SIGSTOP)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    for _ in range(50): say(pump, 'a', b'z' * 100_000)\n"  # blocks unless the other end is read
        "    os._exit(0)\n"
        "until(lambda: pump.look() or os.waitpid(child, os.WNOHANG)[0])\n"
        "until(lambda: pump.look() or not logcap._waiting(pump._reads[0]))\n"
        "logcap._WRITE_LIMIT = 60.0\n"  # a busy machine may let it wait
        "os.kill(pid(pump), signal.SIGCONT)\n"
        "say(pump, 'a', 'after\\n'); pump.settle(['a'])\n"
        "end(pump)\n",
    )
    assert [line for line in report["said"] if "taken nothing" in line] == report["said"]
    assert report["said"]
    log = (tmp_path / "a.log").read_text().splitlines()
    assert (log[0], log[-1]) == ("before", "after")
    assert log[-2] == "gridtf: 5000000 bytes of output are missing here: the file system did not respond"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_full_disk_costs_lines_and_the_log_says_how_many(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        log = disk / "a.log"
        big = str(tmp_path / "big")
        Path(big).symlink_to(fill(disk))
        report = pumped(
            disk,
            "pump = begin('a')\n"
            "for _ in range(10): say(pump, 'a', b'x' * 99_999 + b'\\n')\n"
            "pump.settle(['a'])\n"
            f"os.truncate({big!r}, 0)\n"
            "say(pump, 'a', 'after\\n'); pump.settle(['a'])\n"
            "end(pump, printed=pump.counter('a')())\n",
        )
        *before, missing, after = log.read_text().splitlines()
        assert after == "after"
        lost = 1_000_000 - sum(len(line) for line in before)
        assert missing == f"gridtf: {lost} bytes of output are missing here: No space left on device"
        assert report["printed"] == log.stat().st_size


def test_log_of_another_program_is_not_followed(tmp_path: Path) -> None:
    """A link in place of the log is refused, and the task goes on without a log."""
    (tmp_path / "target").write_text("")
    (tmp_path / "a.log").symlink_to(tmp_path / "target")
    pumped(tmp_path, "pump = begin('a')\nsay(pump, 'a', 'text\\n')\nend(pump)\n")
    assert (tmp_path / "target").read_text() == ""
