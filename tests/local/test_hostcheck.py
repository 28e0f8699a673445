"""The check of hosts before training, with real jobs: the local scheduler's one host, and simulated hosts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf.host.procfs import alive
from gridtf.run import jsonlines, recordtypes
from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, until

# A numpy whose matrix product takes as long as a file says, once for each line.
NUMPY = """\
import os, signal, time
class Matrix:
    def __matmul__(self, other):
        with open(os.environ["SLOW"]) as file:
            lines = file.read().split()
        if lines[0] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(float(lines[0]))
def ones(*_):
    return Matrix()
"""


@pytest.fixture
def four(launch: Launch, tmp_path: Path) -> Any:
    """four(h3=…, **spec): a task on each of four hosts; as long takes a matrix product on the third one."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "numpy.py").write_text(NUMPY)

    def start(h3: str = "0.01", command: Sequence[str] = ("true",), env: str = "A=B", **spec: Any) -> LaunchedJob:
        hosts = []
        for name in ("h1", "h2", "h3", "h4"):
            (tmp_path / name).write_text(h3 if name == "h3" else "0.01")
            own = [f"SLOW={tmp_path / name}", f"PYTHONPATH={tmp_path / 'packages'}", env if name == "h3" else "A=B"]
            hosts.append({"name": name, "prefix": ["env", *own]})
        placed = {"tasks": {"worker": {"count": 4}}, "nodes": 4, "tasks_per_node": 1}
        words = command if command != ("true",) else (sys.executable, "-S", "-c", "")
        return launch(*words, hosts=hosts, check="quick", **placed, **spec)

    return start


def found(job: LaunchedJob) -> dict[str, Any]:
    return dict(read_record(job.attempt.check) or {})


def told(job: LaunchedJob, kind: str = "notice") -> list[str]:
    return [event["text"] for event in jsonlines.read(job.attempt.events, recordtypes.Event) if event["event"] == kind]


def test_job_on_one_host_shows_its_values(launch: Launch, tmp_path: Path) -> None:
    job = launch(sys.executable, "-c", "", check="quick")
    assert job.verdict()["state"] == "COMPLETED"
    (values,) = found(job)["values"].values()
    assert values.keys() >= {"cpu", "memory", "tmp_write", "tmp_read", "run_write", "run_read", "clock"}
    assert "bandwidth" not in values
    assert [text.split(" in ")[0] for text in told(job, "check")] == ["1 host checked"]
    assert not told(job)


def test_slow_host_is_named_in_status_and_log_and_the_job_goes_on(four: Any) -> None:
    job = four("0.1")
    assert job.verdict()["state"] == "COMPLETED"
    (notice,) = told(job)
    assert notice.startswith("h3: matrix product 1"), notice
    assert notice in job.output
    assert found(job)["values"]["h1"]["bandwidth"] > 1
    assert list(found(job)["bad"]) == ["h3"]
    assert not [path for path in job.attempt.path.iterdir() if path.name.startswith("tmp")]


def test_job_is_ended_for_a_bad_host_without_a_restart(four: Any) -> None:
    verdict = four("0.1", on_bad_host="end", restarts=2).verdict()
    assert verdict["state"] == "FAILED"
    assert verdict["reason"].startswith("h3: matrix product 1"), verdict
    assert "check.json" in verdict["hint"]


def test_check_that_hangs_on_a_host_is_killed_and_the_host_is_named(four: Any) -> None:
    job = four("stop")
    assert job.verdict()["state"] == "COMPLETED"
    assert told(job) == ["h3: its check did not end within 60 s"]
    assert "survived" not in job.output


def test_what_cannot_be_measured_is_noted_and_no_host_is_bad(four: Any, tmp_path: Path) -> None:
    """No numpy anywhere; on one host no TMPDIR that can be written to."""
    (tmp_path / "packages" / "numpy.py").write_text("raise ImportError('no numpy here')")
    job = four(env="TMPDIR=/proc/self")
    assert job.verdict()["state"] == "COMPLETED"
    assert not told(job)
    (text,) = told(job, "check")
    assert "none far from the others; not measured: " in text
    assert "cpu: ImportError: no numpy here" in text
    assert found(job)["missing"]["h3"].keys() == {"cpu", "tmp"}
    assert found(job)["values"]["h3"].keys() >= {"memory", "run_write", "bandwidth"}


def test_python_that_cannot_run_the_check_is_noted(four: Any, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho this Python is broken\nexit 1\n")
    python.chmod(0o755)
    job = four(command=(str(python),))
    assert job.verdict()["state"] == "FAILED"
    assert "this Python is broken" in told(job, "check")[0]


def test_job_that_is_ended_during_the_check_leaves_no_process(four: Any, tmp_path: Path) -> None:
    job = four("stop")
    until(lambda: "are checked" in (read_record(job.attempt.launcher) or {}).get("detail", ""), "the check")
    mine = until(lambda: _running("hostcheck.py", tmp_path), "its programs")
    job.process.send_signal(signal.SIGTERM)
    assert job.verdict()["state"] == "CANCELLED"
    assert not [pid for pid in mine if alive(pid)]


def test_lost_agent_ends_the_check(four: Any) -> None:
    job = four("stop", heartbeat_timeout=5)
    until(lambda: job.hosts().get("h3"), "a state of h3")
    until(lambda: "are checked" in (read_record(job.attempt.launcher) or {}).get("detail", ""), "the check")
    os.kill(job.agent_pid("h3"), signal.SIGKILL)
    verdict = job.verdict()
    assert verdict["state"] in ("FAILED", "NODE_FAIL")
    assert "h3" in verdict["reason"]


def _running(program: str, folder: Path) -> list[int]:
    """The processes of this program whose variable SLOW names a file in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line, environ = ((path / name).read_text(errors="replace") for name in ("cmdline", "environ"))
        except OSError:
            continue
        if program in line and f"SLOW={folder}/" in environ:
            found.append(int(path.name))
    return found if len(found) == 4 else []
