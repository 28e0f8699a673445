"""The parents of a local job's script and of an agent: with a simulated clock and without processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf.bootstrap.agent.exits import KILLED, LEFTOVERS, ORPHANED
from gridtf.bootstrap.agent.node import AgentSupervisor, JobRunner, run_job
from gridtf.bootstrap.wire import messages
from gridtf.errors import RunDirError
from gridtf.host.processes import PASSED_ON
from gridtf.run.rundir import Record, RunDir, read_record, write_record
from gridtf.schedulers.agents import RUNNER_PID, STOP_SIGNAL, ForkedAgent
from gridtf.schedulers.api import AgentEnd
from tests.support.streams import FakeLink
from tests.support.system import FakeSystem

# --- the job runner


class Job:
    """A job runner with a grace of 10 s. The script is the process that is started first."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "run")
        self.run.path.mkdir()
        self.system = FakeSystem({"PATH": "/bin"})

    @property
    def script(self) -> int:
        return min(self.system.started)

    def launched(self) -> None:
        self.run.new_attempt()

    def ended(self, walltime: int = 0) -> Record:
        JobRunner(self.run, 10.0, self.system).run(["bash", "job.sh"], walltime)
        return read_record(self.run.ended) or {}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize(("code", "end"), [(0, (0, None)), (3, (3, None)), (-9, (None, "SIGKILL"))])
def test_job_runner_records_how_the_script_ended(job: Job, code: int, end: tuple[int | None, str | None]) -> None:
    job.system.at(50, lambda: job.system.exit(job.script, code))
    ended = job.ended(walltime=60)
    assert (ended["exit"], ended["signal"], ended["told"], ended["error"]) == (*end, None, None)
    started = job.system.started[job.script]
    assert started["argv"] == ["bash", "job.sh"]
    assert started["env"] == {"PATH": "/bin", RUNNER_PID: "4000"}
    assert (started["death"], started["alarm"]) == (signal.SIGTERM, 60)


def test_job_runner_records_a_script_that_cannot_be_started(job: Job) -> None:
    job.system.missing = {"bash"}
    assert job.ended()["error"] == "bash cannot be started: No such file or directory"
    assert job.system.logged == ["bash cannot be started: No such file or directory"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_job_runner_forwards_and_records_end_signals(job: Job, number: signal.Signals) -> None:
    job.system.at(5, lambda: job.system.receive(number))
    ended = job.ended()
    assert (ended["signal"], ended["told"]) == ("SIGTERM", number.name)
    assert job.system.sent[0] == (job.script, signal.SIGTERM)


def test_job_runner_kills_set_up_lines_after_the_grace(job: Job) -> None:
    job.system.at(1, lambda: job.system.stubborn.add(job.script))
    job.system.at(5, lambda: job.system.receive(signal.SIGTERM))
    ended = job.ended()
    assert (ended["signal"], ended["told"]) == ("SIGKILL", "SIGTERM")
    assert 15 <= job.system.clock - 1000 < 17


def test_job_runner_gives_a_launcher_a_margin_after_the_grace(job: Job) -> None:
    job.launched()
    job.system.at(1, lambda: job.system.stubborn.add(job.script))
    job.system.at(5, lambda: job.system.receive(signal.SIGTERM))
    job.system.at(40, lambda: job.system.exit(job.script, 1))
    assert (job.ended()["exit"], job.system.clock - 1000 < 42) == (1, True)


def test_job_runner_passes_a_request_for_a_checkpoint_to_the_launcher_and_to_no_set_up_line(job: Job) -> None:
    job.system.at(5, lambda: job.system.receive(signal.SIGUSR1))
    job.system.at(10, job.launched)
    job.system.at(15, lambda: job.system.receive(signal.SIGUSR1))
    job.system.at(20, lambda: job.system.exit(job.script, 42))
    assert job.ended()["exit"] == 42
    assert job.system.sent == [(job.script, signal.SIGUSR1)]


def test_job_runner_ignores_a_second_end_signal(job: Job) -> None:
    job.system.at(1, lambda: job.system.stubborn.add(job.script))
    for second in (5, 9, 13):
        job.system.at(second, lambda: job.system.receive(signal.SIGTERM))
    assert job.ended()["signal"] == "SIGKILL"
    assert job.system.clock - 1000 < 17


def test_job_runner_ends_orphans_with_sigterm_before_sigkill(job: Job) -> None:
    daemons: list[int] = []

    def end() -> None:
        daemons.extend([job.system.start(["polite"], {}), job.system.start(["stubborn"], {})])
        job.system.stubborn.add(daemons[1])
        job.system.exit(job.script, 0)

    job.system.at(5, end)
    assert job.ended()["exit"] == 0
    assert [number for pid, number in job.system.sent if pid == daemons[0]] == [signal.SIGTERM]
    assert (daemons[1], signal.SIGKILL) in job.system.sent
    assert 15 <= job.system.clock - 1000 < 17


def saved(job: Job, *, again: bool = True, code: int = 99) -> None:
    """The launcher of the script that runs now has ended, and wants another start or not."""
    attempt = job.run.new_attempt()
    write_record(attempt.verdict, {"nonce": "n", "state": "SAVED", "again": again})
    job.system.exit(max(job.system.started), code)


def test_job_runner_starts_the_script_again_for_a_launcher_that_asks_for_it(job: Job) -> None:
    job.system.at(5, lambda: saved(job))
    job.system.at(10, lambda: saved(job))
    job.system.at(15, lambda: saved(job, again=False, code=42))
    assert job.ended(walltime=60)["exit"] == 42
    assert [(how["argv"], how["alarm"]) for how in job.system.started.values()] == [(["bash", "job.sh"], 60)] * 3


@pytest.mark.parametrize("again", [None, False])
def test_job_runner_does_not_start_a_script_again_that_ends_with_99_by_itself(job: Job, again: bool | None) -> None:
    if again is None:
        job.system.at(5, lambda: job.system.exit(job.script, 99))
    else:
        job.system.at(5, lambda: saved(job, again=again))
    assert (job.ended()["exit"], len(job.system.started)) == (99, 1)


def test_job_runner_does_not_start_the_script_of_a_job_again_that_is_cancelled(job: Job) -> None:
    job.system.at(4, lambda: job.system.stubborn.add(job.script))
    job.system.at(5, lambda: job.system.receive(signal.SIGTERM))
    job.system.at(6, lambda: saved(job))
    ended = job.ended()
    assert (ended["exit"], ended["told"], len(job.system.started)) == (99, "SIGTERM", 1)


def test_job_runner_logs_an_end_that_cannot_be_written(job: Job) -> None:
    job.system.at(5, lambda: job.system.exit(job.script, 0))
    job.run.ended.mkdir()
    with pytest.raises(RunDirError, match="not a regular file"):
        job.ended()
    assert [text.startswith(f"cannot write {job.run.ended}") for text in job.system.logged] == [True]


# --- the agent supervisor


class Agent(ForkedAgent):
    """An agent that takes signals down."""

    def __init__(self, system: FakeSystem) -> None:
        super().__init__("h0", 77)
        self.system = system
        self.got: list[int] = []

    def poll(self) -> AgentEnd | None:
        return self.end

    def send(self, number: signal.Signals) -> None:
        self.got.append(number)

    def ends(self, code: int) -> None:
        self.end = AgentEnd(code, "h0")
        self.system.receive(signal.SIGCHLD)


class Node:
    """An agent supervisor and its agent. closed: whether the launcher has closed the pipe."""

    def __init__(self, folder: Path) -> None:
        run = RunDir(folder / "run")
        run.path.mkdir()
        self.attempt = run.new_attempt()
        self.system = FakeSystem()
        self.agent = Agent(self.system)
        self.closed = False
        self.link = FakeLink(self.system)
        arguments = [str(run.path), "1", "nonce", "60"]
        self.supervisor = AgentSupervisor("h0", arguments, self.system, self.link.of)
        listener = {"nonce": "nonce", "addresses": ["127.0.0.1"], "port": 4711, "secret": "5e" * 32}
        write_record(self.attempt.listener, listener, mode=0o600)

    def watch(self) -> int:
        return self.supervisor.watch(self.agent, lambda: self.closed)

    @property
    def reported(self) -> Record:
        """What the launcher was told in the agent's place."""
        return self.link.last(messages.GONE)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("code", [0, 70, 75])
def test_agent_supervisor_returns_the_agent_s_exit_code(node: Node, code: int) -> None:
    node.system.at(30, lambda: node.agent.ends(code))
    assert node.watch() == code
    assert not node.link.sent
    assert node.agent.got == []


def test_agent_supervisor_ends_the_agent_when_the_launcher_closes_the_pipe(node: Node) -> None:
    def close() -> None:
        node.closed = True
        node.system.receive(signal.SIGIO)

    node.system.at(20, close)
    node.system.at(22, lambda: node.agent.ends(0))
    assert node.watch() == 0
    assert node.agent.got == [STOP_SIGNAL, signal.SIGCONT]


@pytest.mark.parametrize("number", [signal.SIGTERM, *PASSED_ON])
def test_agent_supervisor_forwards_signals(node: Node, number: signal.Signals) -> None:
    node.system.at(5, lambda: node.system.receive(number))
    node.system.at(6, lambda: node.agent.ends(0))
    node.watch()
    assert node.agent.got == [number]


def test_agent_supervisor_sends_orphaned_when_its_parent_has_died(node: Node) -> None:
    def die() -> None:
        node.system.ppid = 1
        node.system.receive(signal.SIGTERM)

    node.system.at(5, die)
    node.system.at(6, lambda: node.agent.ends(0))
    node.watch()
    assert node.agent.got == [ORPHANED]


def killed(node: Node, left: Sequence[str] = ()) -> int:
    def kill() -> None:
        for name in left:
            node.system.start([name], {})
        node.agent.ends(-9)

    node.system.at(5, kill)
    return node.watch()


def test_killed_agent_is_reported_to_the_launcher(node: Node) -> None:
    assert killed(node, ["task"]) == KILLED
    what = "the agent on host h0 was killed by SIGKILL"
    assert node.reported == {"what": what, "why": "", "hint": "was it killed by hand?", "over": True}
    assert (node.link.drained, node.link.closed) == (True, True)
    assert node.system.alive == set()


@pytest.mark.parametrize("nonce", ["of another attempt", None])
def test_killed_agent_of_a_launcher_that_has_ended_leaves_no_process_behind(nonce: str | None, node: Node) -> None:
    if nonce:
        write_record(node.attempt.listener, {**(read_record(node.attempt.listener) or {}), "nonce": nonce})
    else:
        node.attempt.listener.unlink()
    assert killed(node, ["task"]) == KILLED
    assert not node.link.sent
    assert node.system.alive == set()


def test_orphans_that_survive_sigkill_are_reported_by_the_exit_code(node: Node) -> None:
    node.system.immortal = {5000}
    assert killed(node, ["task"]) == LEFTOVERS


def test_bash_reads_a_job_s_script_from_a_descriptor_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not look at those of a Python that is not dumpable (proc_pid_fd(5)), as one that only root may read."""
    started: list[tuple[Sequence[str], Sequence[int]]] = []
    monkeypatch.setattr(JobRunner, "run", lambda _, command, walltime, keep: started.append((command, keep)))
    for name in ("block_signals", "become_subreaper"):
        monkeypatch.setattr(f"gridtf.host.processes.{name}", lambda: None)
    assert run_job([str(tmp_path), "5", "0", "0"]) == 0
    ((command, (script,)),) = started
    assert command == ["bash", f"/dev/fd/{script}"]
    os.close(script)
