"""The part of a host in an MPI world, with the real processes that mpirun starts for the ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.bootstrap.agent.api import AgentView
from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.supervisor import Program, TaskProcess
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous
from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError
from gridtf.run.rundir import Record
from gridtf.starters.mpi import REMOTE, shim, world
from gridtf.starters.mpi.mpirun import Starter
from gridtf.states import TaskState
from tests.support.plans import hosts, task_plan

PATIENCE = 60.0


class Talk(Conversation):
    """A conversation with a launcher that never says anything."""

    def __init__(self, state: HostState, system: System) -> None:
        super().__init__(state, system)
        self.sent: list[tuple[str, Record]] = []

    def waiting(self, seconds: float) -> Iterator[float]:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            yield left
            time.sleep(0.01)

    def listen(self) -> None:
        pass

    def report(self, *, now: bool = False) -> None:
        pass

    def send(self, kind: str, content: Record) -> None:
        self.sent.append((kind, content))


def opened(plan: AttemptPlan, state: HostState, *of: Any) -> Starter:
    made = Starter(AgentView(plan, schedulers.get("local"), state, *of))
    made.open()
    made.log.parent.mkdir(exist_ok=True)
    return made


class Host:
    """h0 with two tasks, ranks 0 and 1, and what the test has mpirun start there."""

    def __init__(self, folder: Path, **values: Any) -> None:
        plan = task_plan(folder / "run", hosts(0, slots=2), tasks={"worker": {"count": 2}}, mpi="mpirun", **values)
        request = plan.request.replace(mpi="mpirun")
        self.plan = plan.replace(request=request, cwd=folder, key=os.urandom(32).hex())
        self.system = System()
        self.state = HostState("h0", self.system)
        self.talk = Talk(self.state, self.system)
        self.world = opened(self.plan, self.state, self.talk, self.system)
        self.world.environ = {"HOME": "/of/the/agent"}
        self.begun: list[subprocess.Popen[str]] = []

    def form(self) -> Mapping[str, Mapping[str, str]]:
        self.world.form(self.world.environ, Rendezvous("{}", "127.0.0.1", 1))
        return self.world.places

    def begin(self, *words: str, passed: Sequence[int] = (), **variables: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-I", "-S", shim.__file__, *words]
        variables[shim.KEY] = world._key(self.plan)
        process = subprocess.Popen(argv, env=variables, pass_fds=passed, stderr=subprocess.PIPE, text=True)
        self.begun.append(process)
        return process

    def until(self, condition: Callable[[], object]) -> None:
        for _ in self.talk.waiting(PATIENCE):
            self.world.look()
            if condition():
                return
        raise AssertionError("nothing has happened")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # an agent waits for it
    # who a rank is, MPI alone says
    made = Host(tmp_path, env={"OMPI_MCA_btl_tcp_if_include": "ib0", "PMI_RANK": "7"}, start_timeout=60)
    yield made
    for process in made.begun:
        process.kill()
        process.communicate()
    ours = made.world  # the end of an agent closes its sockets
    for link in (ours.socket, *ours._links.values(), *ours._asking.values()):
        link.close()
    signal.signal(signal.SIGIO, before)


def test_ranks_hand_over_their_place_and_end_with_their_task(host: Host) -> None:
    reading, writing = os.pipe()
    large = "x" * 120_000  # a variable has 128 KiB at most
    first = host.begin("rank", PMI_RANK="0", HOME="/of/mpirun", OMPI_MCA_btl_tcp_if_include="eth0", A=large, B=large)
    second = host.begin("rank", passed=[writing], PMI_RANK="1", PMI_FD=str(writing))
    os.close(writing)
    places = host.form()
    assert places["worker:0"] == {"PMI_RANK": "0", "A": large, "B": large}
    descriptor = int(places["worker:1"]["PMI_FD"])
    assert places["worker:1"] == {"PMI_RANK": "1", "PMI_FD": str(descriptor)}
    os.write(descriptor, b"cmd")
    assert os.read(reading, 3) == b"cmd"
    for number in (descriptor, reading):
        os.close(number)

    for number in (signal.SIGUSR1, signal.SIGUSR2):  # a scheduler sends them to all processes of a job
        first.send_signal(number)
    host.state.supervisor.tasks["worker:0"] = TaskProcess("worker:0", state=TaskState.COMPLETED)
    host.state.supervisor.tasks["worker:1"] = TaskProcess("worker:1", state=TaskState.FAILED)
    host.until(lambda: first.poll() is not None)
    assert (first.returncode, second.poll()) == (0, None)


@pytest.mark.parametrize(
    ("name", "number", "named"), [("PMI_RANK", "2", "rank 2"), ("RANK", "0", "rank without a number")]
)
def test_rank_that_does_not_belong_here_is_an_error(host: Host, name: str, number: str, named: str) -> None:
    host.begin("rank", passed=(), **{name: number})
    with pytest.raises(GridtfError, match=f"mpirun has started {named} on host h0, where it does not belong"):
        host.form()


def formed(host: Host, log: Path, *states: str) -> list[subprocess.Popen[str]]:
    """Form the world of two ranks, whose tasks are in these states and write this log."""
    ranks = [host.begin("rank", PMI_RANK=rank) for rank in "01"]
    host.form()
    program = Program(["true"], {}, log.parent, log)
    for number, state in enumerate(states):
        name = f"worker:{number}"
        code = {TaskState.FAILED: 195, TaskState.COMPLETED: 0}.get(TaskState(state))
        host.state.supervisor.tasks[name] = TaskProcess(name, state=state, program=program, exit=code)
    return ranks


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.COMPLETED])
def test_rank_whose_process_mpirun_has_ended_is_no_cause(host: Host, tmp_path: Path, state: str) -> None:
    """MPICH ends them all when the first one leaves without MPI_Finalize."""
    ranks = formed(host, tmp_path / "log", TaskState.RUNNING, TaskState.RUNNING)
    tasks = host.state.supervisor.tasks
    ranks[0].kill()
    ranks[0].wait()
    host.until(lambda: "worker:0" not in host.world._links)
    tasks["worker:0"].state, tasks["worker:0"].exit = state, 195 if state == TaskState.FAILED else 0
    for _ in range(20):
        host.world.look()
    assert [task.state for task in tasks.values()] == [state, TaskState.RUNNING]
    assert [task.abandoned for task in tasks.values()] == [True, False]


def test_rank_that_was_ending_before_mpirun_has_ended_its_process_is_a_cause(host: Host, tmp_path: Path) -> None:
    """MPICH ends them all as soon as the first one has closed its descriptor, before that one can be waited for."""
    ranks = formed(host, tmp_path / "log", TaskState.RUNNING, TaskState.RUNNING)
    tasks = host.state.supervisor.tasks.values()
    with subprocess.Popen(["true"]) as ending:
        os.waitid(os.P_PID, ending.pid, os.WEXITED | os.WNOWAIT)
        for rank, task, pid in zip(ranks, tasks, (ending.pid, os.getpid()), strict=True):
            task.pid = pid
            rank.kill()
            rank.wait()
        host.until(lambda: not host.world._links)
    for task in tasks:
        task.state, task.exit = TaskState.FAILED, 9
    host.world.look()
    assert [task.abandoned for task in tasks] == [False, True]


@pytest.mark.parametrize(
    ("code", "cut", "fails"), [(7, True, True), (9, True, False), (7, False, False), (0, True, False)]
)
def test_abort_in_a_script_that_goes_on_is_known_by_the_code_of_mpirun(
    host: Host, tmp_path: Path, code: int, cut: bool, fails: bool
) -> None:
    formed(host, tmp_path / "log", TaskState.COMPLETED, TaskState.COMPLETED)
    host.world._starter, host.state.supervisor.others[99] = 99, code
    host.world._cut = {"worker:0": 1.0} if cut else {}
    with pytest.raises(GridtfError, match="code 7") if fails else contextlib.nullcontext():
        host.world.look()


@pytest.mark.parametrize(
    ("line", "abandoned"),
    [
        ("epoch 1", True),
        ("Abort(470468870) on node 2 (rank 2 in comm 0): Fatal error in internal_Send_c: Invalid rank", False),
        ("application called MPI_Abort(MPI_COMM_WORLD, 3) - process 6", False),
    ],
)
def test_rank_that_has_ended_the_others_is_no_victim(host: Host, tmp_path: Path, line: str, abandoned: bool) -> None:
    (tmp_path / "log").write_text(f"{line}\n")
    ranks = formed(host, tmp_path / "log", TaskState.FAILED, TaskState.FAILED)
    ranks[0].kill()
    ranks[0].wait()
    for _ in range(20):
        host.world.look()
    assert host.state.supervisor.tasks["worker:0"].abandoned is abandoned


def test_rank_that_runs_on_without_its_process_ends_the_job(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of Intel MPI wait for ever then, each with a whole core."""
    ranks = formed(host, tmp_path / "log", TaskState.RUNNING, TaskState.RUNNING)
    monkeypatch.setattr(world, "_LAST_WORDS", 0.2)
    ranks[1].kill()
    ranks[1].wait()
    with pytest.raises(GridtfError, match="mpirun has ended the process of worker:1 on host h0"):
        host.until(lambda: False)


def test_others_who_know_the_attempt_and_another_host_cannot_take_the_socket_of_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read its nonce in state/launcher.json, and names of sockets that are open in /proc/net/unix."""
    plan = task_plan(tmp_path / "run", hosts(0)).replace(key=os.urandom(32).hex())

    def ranks_of(host: str) -> socket.socket:
        system = System()
        return opened(plan, HostState(host, system), None, system).socket

    with socket.socket(socket.AF_UNIX) as taken, ranks_of("h0") as ranks:
        taken.bind(f"\0gridtf-{plan.nonce}")
        open_here = ranks.getsockname().decode().removeprefix("\0gridtf-")
        assert open_here in Path("/proc/net/unix").read_text()
        assert open_here not in str(plan.to_record())
        with pytest.raises(GridtfError, match="host h0: no socket for the ranks of MPI can be opened: Address already"):
            ranks_of("h0")
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="other"))
        with ranks_of("h1") as other:
            assert other.getsockname() != ranks.getsockname()


def test_process_that_is_killed_before_it_has_spoken_is_forgotten(host: Host) -> None:
    code = (
        "import socket, sys; link = socket.socket(socket.AF_UNIX); link.connect('\\0' + sys.argv[1]); link.send(b'x')"
    )
    subprocess.run([sys.executable, "-c", code, shim.address(world._key(host.plan))[1:]], check=False)
    for rank in "01":
        host.begin("rank", PMI_RANK=rank)
    assert set(host.form()) == {"worker:0", "worker:1"}


def test_command_for_another_host_ends_as_it_has_ended_there(host: Host) -> None:
    daemon = host.begin("remote", "-x", "n2", "orted", "-mca", "ess env")
    host.until(lambda: host.talk.sent)
    asked = {"commands": {"0": ["n2", "orted -mca ess env"]}, "codes": {}}
    assert host.talk.sent == [(REMOTE, asked)]
    host.talk.latest[REMOTE] = {"commands": {}, "codes": {"0": 7}}
    host.until(lambda: daemon.poll() is not None)
    assert daemon.returncode == 7


def test_command_of_another_host_runs_here_once_with_what_the_job_sets(host: Host, tmp_path: Path) -> None:
    command = f"echo $OMPI_MCA_btl_tcp_if_include >> {tmp_path}/said; exit 3"
    host.talk.latest[REMOTE] = {"commands": {"4": ["h0", command]}, "codes": {}}

    def ended() -> bool:
        host.state.supervisor.collect()
        return bool(host.talk.sent)

    host.until(ended)
    host.world.look()
    assert host.talk.sent == [(REMOTE, {"commands": {}, "codes": {"4": 3}})]
    assert (tmp_path / "said").read_text() == "ib0\n"


def test_without_an_agent_the_process_of_a_rank_says_so(host: Host) -> None:
    argv = [sys.executable, "-I", "-S", shim.__file__, "no-such-attempt", "rank"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = f"gridtf: no agent of this attempt is on host {os.uname().nodename}: Connection refused\n"
    assert (done.returncode, done.stderr) == (1, said)
