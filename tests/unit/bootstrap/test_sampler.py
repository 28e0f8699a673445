"""What the tasks of a host use: the process that samples, and what the agent takes from it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.sampler import Rates, Sampler, _Waiting, sample_interval
from gridtf.bootstrap.agent.supervisor import TaskProcess
from gridtf.bootstrap.system import System
from gridtf.contract import progress_name
from gridtf.host import procfs, sockets, usage
from gridtf.run.rundir import Record, write_record
from gridtf.states import TaskState
from tests.support.jobs import until
from tests.support.system import FakeSystem
from tests.unit.host.test_usage import FORKS

BUSY = """
import sys, time
block = bytearray(64 << 20)
while True:
    sum(range(100000))
    print("step", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[TaskProcess]:
    """A task that computes, prints and has 64 MiB of memory."""
    with (tmp_path / "log").open("ab") as log, subprocess.Popen([sys.executable, "-c", BUSY], stdout=log) as process:
        until(lambda: (tmp_path / "log").stat().st_size, "its first line")
        yield TaskProcess("worker:0", TaskState.RUNNING, process.pid)
        process.kill()


class Clock(System):
    """This host, with seconds that pass when the test says so."""

    passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


def wait_for(found: Callable[[], list[Record]]) -> Record:
    """The first message."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if messages := found():
            return messages[0]
        time.sleep(0.02)
    raise AssertionError("no sample")


def begin(task: TaskProcess, interval: float = 0.5) -> tuple[Sampler, Clock, int]:
    """A sampler with its process, whose id is returned."""
    system = Clock()
    sampler = Sampler(interval, (), "h0", system)
    before = {*procfs.children(os.getpid())}
    assert sampler.look([task]) == []  # no process yet: a short job needs none
    assert {*procfs.children(os.getpid())} == before
    system.passed = 1.0
    sampler.look([task])
    (pid,) = {*procfs.children(os.getpid())} - before
    return sampler, system, pid


def ended(sampler: Sampler, pid: int, task: TaskProcess, number: int = signal.SIGTERM) -> list[Record]:
    """What the sampler has told last, after a tear-down."""
    os.kill(pid, number)
    os.waitpid(pid, 0)
    found = sampler.last([task])
    assert not sampler.pids
    return found


@pytest.mark.thorough
def test_sample_shows_what_a_task_uses_and_when_it_has_printed(busy: TaskProcess) -> None:
    sampler, _, pid = begin(busy)
    told = wait_for(lambda: sampler.look([busy]))
    sample = told["sample"]
    used = sample["tasks"]["worker:0"]
    assert used["cpu"] > 0
    assert used["memory"] > 64 << 20
    assert used["written"] > 0
    assert used["processes"] == 1
    assert sum(used["threads"].values()) >= 1
    assert (sample["host"], sample["cpus"]) == ("h0", os.cpu_count())
    assert 0 < sample["memory"] < sample["memory_total"]
    sizes = [size for _, size in told["logs"]["worker:0"]]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    assert "worker:0" in ended(sampler, pid, busy)[-1]["sample"]["tasks"]


@pytest.mark.thorough
def test_memory_that_a_program_shares_with_its_forks_is_sampled_once() -> None:
    """64 MiB of a program, and 32 of each of four children: 192; summed up by process, they are 448."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        task = TaskProcess("worker:0", TaskState.RUNNING, process.pid)
        sampler, _, pid = begin(task)
        try:
            used = 0
            while used < 128:  # the largest process, until the kernel has told what is shared
                used = wait_for(lambda: sampler.look([task]))["sample"]["tasks"]["worker:0"]["memory"] >> 20
            assert 192 <= used < 256
        finally:
            ended(sampler, pid, task)
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.thorough
def test_killed_sampler_is_started_again_after_a_minute(busy: TaskProcess) -> None:
    sampler, system, pid = begin(busy)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert sampler.look([busy]) == []
    before = {*procfs.children(os.getpid())}
    system.passed += 59.0
    sampler.look([busy])
    assert {*procfs.children(os.getpid())} == before
    system.passed += 2.0
    assert wait_for(lambda: sampler.look([busy]))["sample"]["tasks"]["worker:0"]["memory"]
    (again,) = {*procfs.children(os.getpid())} - before
    ended(sampler, again, busy)


@pytest.mark.thorough
def test_sampler_that_is_stopped_costs_samples_only(busy: TaskProcess) -> None:
    sampler, _, pid = begin(busy)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    while sampler.look([busy]):
        pass
    assert sampler.last([busy]) == []  # a driver keeps it from ending: it is not waited for
    assert sampler.pids == {pid}
    assert ended(sampler, pid, busy, signal.SIGKILL) == []


@pytest.mark.thorough
def test_task_that_was_started_again_is_sampled_anew(busy: TaskProcess) -> None:
    sampler, _, pid = begin(busy)
    again = TaskProcess("worker:0", TaskState.RUNNING, os.getpid())
    sampler.look([again])
    os.waitpid(pid, 0)
    (second,) = sampler.pids
    assert wait_for(lambda: sampler.look([again]))["sample"]["tasks"]["worker:0"]["processes"] > 1
    ended(sampler, second, again)


def test_no_samples_are_taken_where_they_are_switched_off(busy: TaskProcess) -> None:
    system = Clock()
    sampler = Sampler(0, (), "h0", system)
    before = procfs.children(os.getpid())
    for _ in range(3):
        assert sampler.look([busy]) == []
        system.passed += 10.0
    assert procfs.children(os.getpid()) == before


def test_rates_come_from_the_last_two_reports() -> None:
    rates, task = Rates(), TaskProcess("worker:0", TaskState.RUNNING, 7)

    def added(time: float) -> Record:
        sample: Record = {"time": time, "tasks": {"worker:0": {}}}
        rates.add(sample, [task])
        used: Record = sample["tasks"]["worker:0"]
        return used

    assert added(100.0) == {}
    task.progress = {"step": 10, "values": {"loss": 0.5}, "time": 100.0}
    assert added(101.0) == {"step": 10, "values": {"loss": 0.5}}
    task.progress = {"step": 30, "values": {}, "time": 105.0}
    assert added(106.0)["rate"] == 4.0
    assert added(111.0)["rate"] == 4.0  # the next report is still to come
    assert added(116.0)["rate"] == 0.0
    task.progress = {"step": 20, "values": {}, "time": 117.0}  # restarted from a checkpoint
    assert added(118.0)["rate"] == 0.0


def test_sample_has_the_extremes_of_all_reports_since_the_one_before(tmp_path: Path) -> None:
    state, rates = HostState("h0", FakeSystem()), Rates()
    task = TaskProcess("worker:0", TaskState.RUNNING, 7)
    state.supervisor.tasks, state.local_dir = {"worker:0": task}, tmp_path

    def reported(step: int, loss: float, *ranges: float) -> None:
        record = {"step": step, "values": {"loss": loss}, "time": float(step)}
        more = {"ranges": {"loss": ranges}} if ranges else {}
        write_record(tmp_path / progress_name("worker", 0), {**record, **more})
        state.read_notes()

    def sample() -> Record:
        found: Record = {"time": 0.0, "tasks": {"worker:0": {}}}
        rates.add(found, [task])
        used: Record = found["tasks"]["worker:0"]
        return {name: used.get(name) for name in ("step", "values", "ranges")}

    reported(1, 5.0)
    reported(2, 3.0, 3.0, 9.0)
    reported(3, 2.0, 2.0, 3.0)
    assert sample() == {"step": 3, "values": {"loss": 2.0}, "ranges": {"loss": [2.0, 9.0]}}
    assert task.progress == {"step": 3, "values": {"loss": 2.0}, "time": 3.0}
    state.read_notes()  # nothing new: what was told is not told again
    assert sample() == {"step": 3, "values": {"loss": 2.0}, "ranges": None}


@pytest.mark.parametrize(
    ("wanted", "hosts", "seconds"), [(5.0, 1, 5.0), (5.0, 250, 5.0), (5.0, 1024, 20.48), (60.0, 1024, 60.0), (0, 9, 0)]
)
def test_many_hosts_are_sampled_less_often(wanted: float, hosts: int, seconds: float) -> None:
    assert sample_interval(wanted, hosts) == seconds


def test_connection_of_the_agent_to_the_launcher_is_none_of_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signs of life look as if tasks that never hear of each other made steps together."""
    left_out: list[Collection[int]] = []

    class Connections:
        def sending(self, user: int, but: Collection[int] = ()) -> dict[sockets.Ends, tuple[int, int]]:
            left_out.append(but)
            return {}

    monkeypatch.setattr(sockets, "Connections", Connections)
    monkeypatch.setattr(os, "getppid", os.getpid)
    with socket.create_server(("127.0.0.1", 0)) as of_agent:
        _Waiting(usage).look({})
        assert os.fstat(of_agent.fileno()).st_ino in left_out[0]
