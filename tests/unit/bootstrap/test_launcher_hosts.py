"""What the launcher knows of its hosts, and what its start and its end leave behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf.bootstrap.launcher.hosts import AgentEndedError, HostMonitor
from gridtf.bootstrap.launcher.launcher import launcher_addresses
from gridtf.bootstrap.launcher.reporter import summary_interval
from gridtf.bootstrap.main import goes_with_the_job
from gridtf.bootstrap.wire import messages
from gridtf.errors import GridtfError, HostLostError
from gridtf.run.rundir import Record, RunDir
from gridtf.schedulers.agents import StartedAgents
from gridtf.schedulers.api import LOOPBACK, AgentEnd, AgentHandle, Allocation, Host
from tests.support.python import environment, python
from tests.support.streams import FakeListener
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
    """An AgentHandle whose agent has ended, with an error that its connection was lost, as qrsh reports it, or none."""

    def __init__(self, host: str, code: int = 0, *, lost: bool = True) -> None:
        error = HostLostError(f"the connection to host {host} is lost") if lost else None
        self._end = AgentEnd(code, host, (), error)

    def poll(self) -> AgentEnd:
        return self._end

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Monitored:
    """The launcher's view of two hosts, n1 and n2, and what they say."""

    def __init__(self, folder: Path, agents: Sequence[AgentHandle] = (), limit: float = 60.0) -> None:
        run = RunDir(folder / "run")
        run.path.mkdir()
        self.system = FakeSystem()
        self.listener = FakeListener()
        names = ["n1", "n2"]
        self.hosts = HostMonitor(run.new_attempt(), self.listener, limit, self._pause, self.system, names, agents)

    def _pause(self, seconds: float) -> None:
        raise InterruptedError("a signal ends the job")

    def says(self, host: str, tasks: Record | None = None, **more: object) -> None:
        self.listener.say(host, messages.STATE, {"tasks": tasks or {}, **more})
        self.hosts.read()


def test_signal_after_a_killed_connection_is_not_the_cause(tmp_path: Path) -> None:
    """Grid Engine deletes a job whose qrsh is gone, with a signal to all of it."""
    seen = Monitored(tmp_path, [Ended("n1", -signal.SIGKILL)])
    seen.system.at(0.5, lambda: seen.system.receive(signal.SIGUSR2))
    with pytest.raises(HostLostError, match="the connection to host n1 is lost"):
        seen.hosts.check()
    assert seen.system.received == []


def test_killed_connection_came_before_the_end_of_the_job_although_its_agent_is_still_connected(tmp_path: Path) -> None:
    """Grid Engine deletes a job whose qrsh is gone, and its signal may be here before the agent has noticed."""
    seen = Monitored(tmp_path, [Ended("n1", -signal.SIGKILL)])
    for host in ("n1", "n2"):
        seen.says(host)
    error = seen.hosts.ended_before()
    assert error is not None
    assert error.what == "the connection to host n1 is lost"
    seen.hosts.agents = []
    begin = seen.system.monotonic()
    assert seen.hosts.ended_before() is None
    assert seen.system.monotonic() == begin


def test_killed_connection_is_the_cause_although_its_agent_reports_first_that_it_is_an_orphan(tmp_path: Path) -> None:
    agent = Ended("n1", -signal.SIGKILL)
    seen = Monitored(tmp_path)
    agents: list[Ended] = []
    seen.hosts.agents = agents
    gone = {"what": "the process that started the agent on host n1 was killed", "why": "", "hint": "", "orphaned": True}
    seen.says("n1", gone=gone)

    def pause(seconds: float) -> None:
        agents.append(agent)
        seen.system.sleep(seconds)

    seen.hosts.pause = pause
    with pytest.raises(HostLostError, match="the connection to host n1 is lost"):
        seen.hosts.check()


def test_why_an_agent_could_not_start_may_come_after_its_end(tmp_path: Path) -> None:
    """What slurmstepd prints, after what srun does."""
    seen = Monitored(tmp_path, [Ended("n2", 13, lost=False)])
    attempt = seen.hosts.attempt
    attempt.path.mkdir(exist_ok=True)
    seen.system.at(0.5, lambda: attempt.agents_log.write_text("n2: python3: Permission denied\n"))
    with pytest.raises(AgentEndedError, match="the agent on host n2 ended with exit code 13") as error:
        seen.hosts.check()
    assert "Permission denied" in error.value.why
    assert error.value.cause is not None
    assert error.value.cause["tail"] == ["n2: python3: Permission denied"]


class Running(StartedAgents):
    """srun, which has reported the end of an agent and runs on, for the other agents and for what slurmstepd prints."""

    def __init__(self) -> None: ...

    def failed(self) -> AgentEnd:
        return AgentEnd(13, "n2")

    def poll(self) -> None:
        return None


def test_why_an_agent_could_not_start_is_waited_for_longer_while_srun_runs(tmp_path: Path) -> None:
    """On a busy host slurmstepd prints it seconds later."""
    seen = Monitored(tmp_path, [Running()])
    attempt = seen.hosts.attempt
    attempt.path.mkdir(exist_ok=True)
    seen.system.at(8, lambda: attempt.agents_log.write_text("slurmstepd-n2: error: execve(): x: Permission denied\n"))
    with pytest.raises(AgentEndedError, match="the agent on host n2 ended with exit code 13") as error:
        seen.hosts.check_starts()
    assert error.value.why == "execve(): x: Permission denied"
    attempt.agents_log.unlink()
    begin = seen.system.monotonic()
    with pytest.raises(AgentEndedError):
        seen.hosts.check_starts()
    assert seen.system.monotonic() - begin < 20


def test_what_srun_prints_at_its_end_is_read(tmp_path: Path) -> None:
    srun = Running()
    seen = Monitored(tmp_path, [srun])
    attempt = seen.hosts.attempt
    attempt.path.mkdir(exist_ok=True)
    begin = seen.system.monotonic()

    def poll() -> AgentEnd | None:
        if seen.system.monotonic() - begin < 5:
            return None
        attempt.agents_log.write_text("slurmstepd-n2: error: execve(): x: Permission denied\n")
        return AgentEnd(13, "n2")

    srun.poll = poll  # type: ignore[method-assign,assignment]
    with pytest.raises(AgentEndedError) as error:
        seen.hosts.check_starts()
    assert error.value.why == "execve(): x: Permission denied"


@pytest.mark.parametrize(
    ("code", "why"), [(13, "its Python could not be executed: Permission denied"), (3, ""), (-9, "")]
)
def test_agent_that_has_printed_nothing_is_not_waited_for_long(tmp_path: Path, code: int, why: str) -> None:
    """Slurm returns the error of execve(2) as its exit code, and what slurmstepd prints may be lost."""
    seen = Monitored(tmp_path, [Ended("n2", code, lost=False)])
    begin = seen.system.monotonic()
    with pytest.raises(AgentEndedError, match="the agent on host n2 ") as error:
        seen.hosts.check()
    assert error.value.why == why
    assert seen.system.monotonic() - begin < 5


def test_hosts_are_known_by_what_they_have_said_last(tmp_path: Path) -> None:
    seen = Monitored(tmp_path)
    assert seen.hosts.reports.records(seen.hosts.hosts) == {}
    published = {"host": "n1", "address": "n1", "ports": {"worker:0": 4711}, "master_port": 4712}
    seen.listener.say("n1", messages.HOST, published)
    seen.says("n2", waits="waiting for a GPU")
    assert seen.hosts.reports.published == {"n1": published}
    assert seen.hosts.reports.waits == {"n2": "waiting for a GPU"}
    seen.says("n1", {"worker:0": {"state": "RUNNING"}})
    seen.says("n2", {"worker:1": {"state": "RUNNING"}}, checkpoint=True)
    seen.says("n1", {"worker:0": {"state": "FAILED", "exit": 3}})
    assert seen.hosts.reports.tasks == {"worker:0": {"state": "FAILED", "exit": 3}, "worker:1": {"state": "RUNNING"}}
    assert seen.hosts.reports.checkpoint
    assert seen.hosts.reports.records(seen.hosts.hosts) == {
        "n1": {**published, "tasks": {"worker:0": {"state": "FAILED", "exit": 3}}},
        "n2": {"tasks": {"worker:1": {"state": "RUNNING"}}, "checkpoint": True},
    }


def test_progress_alone_is_no_change(tmp_path: Path) -> None:
    seen = Monitored(tmp_path)
    steps: list[Record] = [{"step": step, "values": {}, "time": 1.0} for step in (1, 2)]
    seen.says("n1", {"worker:0": {"state": "RUNNING", "progress": steps[0]}})
    assert (seen.hosts.reports.changed, seen.hosts.reports.progressed) == (True, True)
    seen.hosts.reports.changed = seen.hosts.reports.progressed = False
    seen.listener.say("n1", messages.ALIVE)
    seen.hosts.read()
    assert (seen.hosts.reports.changed, seen.hosts.reports.progressed) == (False, False)
    seen.says("n1", {"worker:0": {"state": "RUNNING", "progress": steps[1]}})
    assert (seen.hosts.reports.changed, seen.hosts.reports.progressed) == (False, True)
    seen.says("n1", {"worker:0": {"state": "FAILED", "exit": 1}})
    assert seen.hosts.reports.changed


def test_any_message_is_a_sign_of_life_of_its_host(tmp_path: Path) -> None:
    seen = Monitored(tmp_path, limit=10)
    seen.hosts.listen()
    for second in range(30):
        seen.system.clock += 1
        seen.listener.say("n1", messages.ALIVE if second % 2 else messages.STATE, {} if second % 2 else {"tasks": {}})
        seen.hosts.read()
        if second < 9:
            seen.hosts.check()
    with pytest.raises(HostLostError, match="no heartbeat from host n2 for 10 s"):
        seen.hosts.check()


def test_reason_of_a_killed_agent_comes_from_its_supervisor(tmp_path: Path) -> None:
    seen = Monitored(tmp_path)
    gone = {"what": "the agent on host n1 was killed by SIGKILL", "why": "", "hint": "was it killed by hand?"}
    seen.listener.say("n1", messages.GONE, gone)
    seen.hosts.read()
    assert seen.hosts.reports.records(seen.hosts.hosts)["n1"]["gone"] == gone
    with pytest.raises(GridtfError, match="the agent on host n1 was killed by SIGKILL"):
        seen.hosts.check()


def test_summary_interval_grows_with_hosts() -> None:
    """A record of n hosts, written every n seconds, has a bounded rate of bytes."""
    assert summary_interval(1) <= 0.5
    assert summary_interval(16) <= 0.5
    for hosts in (64, 1024, 4096, 100_000):
        assert hosts / summary_interval(hosts) <= 1000
        assert summary_interval(hosts) <= summary_interval(2 * hosts)


def test_launcher_addresses_begin_with_the_allocation_s_and_have_no_loopback_for_other_hosts() -> None:
    found = launcher_addresses(Allocation((Host("n1", 1, address="10.9.8.7"), Host("n2", 1))), "n1.site", "n1-mgmt")
    assert found[:2] == ["10.9.8.7", "n1-mgmt"]
    assert LOOPBACK not in found
    assert len(set(found)) == len(found)
    local = Allocation((Host("a", 1, address=LOOPBACK), Host("b", 1, address=LOOPBACK)))
    assert launcher_addresses(local, "a", "n1") == [LOOPBACK]


FAILS_EARLY = """
import os, sys
from pathlib import Path
from gridtf.bootstrap.launcher.launcher import launch
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.errors import SchedulerError
from gridtf.run.rundir import RunDir
from gridtf.schedulers.local import LocalScheduler
from gridtf.schedulers.local.injob import LocalInJob
from gridtf.jobspec.spec import JobSpec

class Failing(LocalInJob):
    def start_agents(self, allocation, call, environ):
        assert "secret" in RunDir(sys.argv[1]).attempt(1).listener.read_text()
        raise SchedulerError("cannot start them")

spec, scheduler = JobSpec(command=("true",), kill_grace=0.1), LocalScheduler()
vars(scheduler)["injob"] = Failing(scheduler)
request = scheduler.login.resolve(spec, in_job=True)
sys.exit(launch(LaunchedJob(RunDir(sys.argv[1]), spec, request, scheduler, "7", System(dict(os.environ)))))
"""


def test_file_with_the_secret_is_removed_when_agents_cannot_start(tmp_path: Path) -> None:
    done = subprocess.run(python(FAILS_EARLY, tmp_path), env=environment(), capture_output=True, text=True, timeout=180)
    assert (done.returncode, "FAILED: cannot start them" in done.stderr) == (1, True), done.stderr
    assert not RunDir(tmp_path).attempt(1).listener.exists()


def test_end_does_not_wait_for_hosts_that_are_over(tmp_path: Path) -> None:
    seen = Monitored(tmp_path, [Ended("n1"), Ended("n2")])
    seen.hosts.listen()
    for host in seen.hosts.hosts:
        seen.listener.say(host, messages.STATE, {"host": host, "tasks": {}, "over": True})
    looks: list[None] = []
    seen.hosts.end(10, lambda: looks.append(None))
    assert len(looks) < 10  # of some 200 in that time
