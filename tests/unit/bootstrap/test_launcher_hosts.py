"""What the launcher knows of its hosts, and what its start and its end leave behind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from gridtf.bootstrap.launcher import HostMonitor, poll_interval
from gridtf.bootstrap.main import goes_with_the_job
from gridtf.errors import HostLostError
from gridtf.run.rundir import RunDir, write_record
from gridtf.schedulers.api import AgentEnd
from tests.support.python import environment, python
from tests.support.system import FakeSystem


@pytest.mark.parametrize(
    ("folder", "job_id", "temporary", "goes"),
    [
        ("/tmp/4711.1.all.q/gridtf-runs/a-4711", "4711", "/tmp/4711.1.all.q", True),
        ("/scratch/77/x/run", "77.3", "/scratch/77", True),
        ("/home/a/gridtf-runs/a-4711", "4711", "/tmp/4711.1.all.q", False),
        ("/tmp/run", "4711", "/tmp", False),  # everybody's
        ("/tmp/47110/run", "4711", "/tmp/47110", False),
        ("/home/a", "1", "", False),
    ],
)
def test_goes_with_the_job(folder: str, job_id: str, temporary: str, goes: bool) -> None:
    assert goes_with_the_job(Path(folder), job_id, {"TMPDIR": temporary} if temporary else {}) is goes


class Ended:
    """An AgentHandle whose agent has ended, with an error that its connection was lost, as qrsh reports it."""

    def __init__(self, host: str, code: int = 0) -> None:
        self._end = AgentEnd(code, host, (), HostLostError(f"the connection to host {host} is lost"))

    def poll(self) -> AgentEnd:
        return self._end

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def test_signal_after_a_killed_connection_is_not_the_cause(tmp_path: Path) -> None:
    """Grid Engine deletes a job whose qrsh is gone, with a signal to all of it."""

    def terminated(seconds: float) -> None:
        raise InterruptedError("a signal ends the job")

    run, system = RunDir(tmp_path / "run"), FakeSystem()
    run.path.mkdir()
    system.at(0.5, lambda: system.receive(signal.SIGUSR2))
    hosts = HostMonitor(run.new_attempt(), "nonce", ["n1"], 60, [Ended("n1", -signal.SIGKILL)], terminated, system)
    with pytest.raises(HostLostError, match="the connection to host n1 is lost"):
        hosts.check()
    assert system.received == []


def test_poll_interval_limits_the_file_server_s_load() -> None:
    assert poll_interval(1, 0) < poll_interval(1, 3600) < 1
    assert poll_interval(16, 3600) < 1
    for hosts in (64, 1024, 4096):
        assert hosts / poll_interval(hosts, 3600) <= 200
        assert hosts / poll_interval(hosts, 0) <= 200


FAILS_EARLY = """
import os, sys
from pathlib import Path
from gridtf.bootstrap.launcher import launch
from gridtf.errors import SchedulerError
from gridtf.run.rundir import RunDir
from gridtf.schedulers.local import LocalScheduler
from gridtf.jobspec.spec import JobSpec

class Failing(LocalScheduler):
    def start_agents(self, allocation, call, environ):
        call.write_environment({"PASSWORD": "x"})
        assert RunDir(sys.argv[1]).attempt(1).environment.exists()
        raise SchedulerError("cannot start them")

spec, scheduler = JobSpec(command=("true",), kill_grace=0.1), Failing()
request = scheduler.resolve(spec, in_job=True)
sys.exit(launch(RunDir(sys.argv[1]), spec, request, scheduler, "7", dict(os.environ)))
"""


def test_environment_file_is_removed_when_agents_cannot_start(tmp_path: Path) -> None:
    """It may hold passwords, and no agent would read it any more."""
    done = subprocess.run(python(FAILS_EARLY, tmp_path), env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, "FAILED: cannot start them" in done.stderr) == (1, True), done.stderr
    assert not RunDir(tmp_path).attempt(1).environment.exists()


def test_end_does_not_wait_for_hosts_that_are_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    attempt = run.new_attempt()
    hosts = HostMonitor(attempt, "nonce", ["n1", "n2"], 60, [Ended("n1"), Ended("n2")], print, FakeSystem())
    hosts.listen()
    for host in hosts.hosts:
        write_record(attempt.host_state(host), {"nonce": "nonce", "host": host, "tasks": {}, "over": True, "beat": 7})
    looks: list[None] = []
    hosts.end(10, lambda: looks.append(None))
    assert len(looks) < 10  # of some 200 in that time
