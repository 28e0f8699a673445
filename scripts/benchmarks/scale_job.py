"""python scale_job.py RUN_DIR HOSTS MARKS: the launcher of an attempt on simulated hosts, observed from inside.

A line on stdin begins the attempt. The tasks run for a while, then the first one fails. MARKS gets what was measured.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import scale_agents

from gridtf.bootstrap.launcher.launcher import Launcher, supervise
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages, stream
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.bootstrap.wire.stream import Connection, Listener, News
from gridtf.host import processes
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import LOOPBACK, AgentCall, AgentEnd, AgentHandle, Allocation, Host, Wait
from gridtf.schedulers.local import LocalScheduler
from gridtf.schedulers.local.injob import LocalInJob
from gridtf.states import TaskState

TASKS = 8
SETTLING = 3.0  # seconds from the last state to the begin of the idle phase
IDLE = 30.0  # seconds, the longest time between two writes of a record that does not change
MOST_IN_VARIABLE = (
    8192  # tasks; with more the launcher refuses, as TF_CONFIG does not fit: their commands read the file
)
Counts = dict[str, float]


class Traffic:
    """What has passed through the launcher's connections.

    Attributes:
        sent: Messages sent.
        received: Messages received.
    """

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._open: set[Counted] = set()
        self._closed = [0, 0]

    def open(self, connection: Counted) -> None:
        self._open.add(connection)

    def close(self, connection: Counted) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._closed = [a + b for a, b in zip(self._closed, connection.bytes(), strict=True)]

    def counts(self) -> Counts:
        sums = [sum(values) for values in zip(self._closed, *(one.bytes() for one in self._open), strict=True)]
        return {"sent": self.sent, "received": self.received, "sent B": sums[0], "received B": sums[1]}


traffic = Traffic()


class Counted(Connection):
    """A connection whose messages are counted here; its bytes are counted by the kernel (tcp_info in linux/tcp.h)."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        traffic.open(self)

    def send(self, message: bytes) -> None:
        traffic.sent += 1
        super().send(message)

    def receive(self) -> Iterator[News]:
        for news in super().receive():
            traffic.received += 1
            yield news

    def close(self) -> None:
        traffic.close(self)
        super().close()

    def bytes(self) -> tuple[int, int]:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        acked, received = (int.from_bytes(info[at : at + 8], sys.byteorder) for at in (120, 128))
        return acked, received


class CountedRecorder(Recorder):
    """A Recorder that knows the CPU time of its processes."""

    cpu = 0.0

    def _ended(self, pid: int) -> int | None:
        before = _cpu(resource.RUSAGE_CHILDREN)
        code = super()._ended(pid)
        CountedRecorder.cpu += _cpu(resource.RUSAGE_CHILDREN) - before
        return code


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


class Observer:
    """Notes when what happens, and what it has cost until then.

    Args:
        hosts: How many hosts have to report.

    Attributes:
        marks: Phase -> when it ended, with the counts until then.
        agents: The processes that simulate agents.
    """

    def __init__(self, hosts: int) -> None:
        self.marks: dict[str, Counts] = {}
        self.agents: list[subprocess.Popen[bytes]] = []
        self._hosts = hosts
        self._running: set[str] = set()

    def note(self, phase: str) -> None:
        if phase not in self.marks:
            cpu = _cpu(resource.RUSAGE_SELF) + CountedRecorder.cpu
            self.marks[phase] = {"at": time.monotonic(), "cpu": cpu, **traffic.counts()}

    def observe(self, news: Sequence[tuple[str, str, dict[str, object]]]) -> None:
        for host, kind, content in news:
            tasks = content.get("tasks") if kind == messages.STATE else None
            if isinstance(tasks, dict) and all(task["state"] == TaskState.RUNNING for task in tasks.values()):
                self._running.add(host)
        if len(self._running) < self._hosts:
            return
        self.note("known")
        now = time.monotonic()
        if now > self.marks["known"]["at"] + SETTLING:
            self.note("settled")
        if "settled" in self.marks and now > self.marks["settled"]["at"] + IDLE and "idle" not in self.marks:
            self.note("idle")
            pipe = self.agents[0].stdin
            assert pipe is not None
            pipe.write(b"x")
            pipe.flush()


class ObservedListener(Listener):
    observer: Observer

    def receive(self) -> list[tuple[str, str, dict[str, object]]]:
        news = super().receive()
        self.observer.observe(news)
        return news

    def send_all(self, kind: str, content: dict[str, object]) -> None:
        super().send_all(kind, content)
        self.observer.note(kind)


class Agents:
    """Handle on a process with the agents of many hosts, as srun is."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> AgentEnd | None:
        code = self._process.poll()
        return None if code is None else AgentEnd(code, None)

    def terminate(self) -> None:
        """Does nothing: the launcher tells the agents to stop."""

    def kill(self) -> None:
        self._process.kill()


class SimulatedHosts(LocalInJob):
    """A scheduler with any number of hosts, whose agents are simulated by as many processes as there are cores."""

    def __init__(self, hosts: int, marks: Path, observer: Observer) -> None:
        super().__init__(LocalScheduler())
        vars(self.scheduler)["injob"] = self  # the half that it shows
        self._hosts = hosts
        self._marks = marks
        self._observer = observer

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        names = map(scale_agents.host_name, range(self._hosts))
        return Allocation(tuple(Host(name, TASKS, cpus=TASKS, address=LOOPBACK) for name in names))

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        count = min(len(os.sched_getaffinity(0)), self._hosts)
        bounds = [self._hosts * number // count for number in range(count + 1)]
        run, number, nonce, _ = call.arguments
        for first, end in pairwise(bounds):
            marks = self._marks.with_name(f"{self._marks.name}-{first}")
            what = [str(first), str(end), run, number, nonce, str(marks)]
            command = [sys.executable, scale_agents.__file__, *what]
            self._observer.agents.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return [Agents(process) for process in self._observer.agents]


def main(run: Path, size: int, marks: Path) -> None:
    observer = Observer(size)
    ObservedListener.observer = observer
    stream.Connection = Counted  # type: ignore[misc,assignment]
    env = {"TF_CONFIG": ""} if size * TASKS > MOST_IN_VARIABLE else {}
    spec = JobSpec(command=("true",), tasks_per_node=TASKS, env=env)
    scheduler = SimulatedHosts(size, marks, observer).scheduler
    request = scheduler.login.resolve(spec, in_job=True)
    processes.block_signals()
    processes.become_subreaper()
    system = System()
    job = LaunchedJob(RunDir(run), spec, request, scheduler, "1", system)
    attempt = Launcher(job, ObservedListener, CountedRecorder)
    print("ready", flush=True)
    sys.stdin.readline()
    observer.note("begin")
    supervise(attempt)
    observer.note("end")
    status = Path("/proc/self/status").read_text()
    observer.marks["memory"] = {"MiB": int(status.partition("VmHWM:")[2].split()[0]) / 1024}
    for file in marks.parent.glob(f"{marks.name}-*"):
        for kind, when in json.loads(file.read_text()).items():
            mark = observer.marks.setdefault(f"agents {kind}", {"at": 0.0})
            mark["at"] = max(mark["at"], when)
    marks.write_text(json.dumps(observer.marks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
