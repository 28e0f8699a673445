"""python scale_agents.py FIRST END RUN_DIR NUMBER NONCE MARKS: the agents of many simulated hosts, in one process.

Each host has a Link of its own and says what a real agent says. A byte on stdin makes the first task of the first host
fail. When all hosts are over, MARKS gets the times of what they heard, by the monotonic clock of this machine.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from gridtf.bootstrap.plan import rendezvous
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.heartbeat import interval
from gridtf.bootstrap.wire.stream import Link, link_of
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, is_listed, read_record
from gridtf.states import TaskState

PORT = 20000  # of the first task of each host: nothing listens there
_STDIN = 0
_LOOK = 0.02  # seconds between two looks at all connections that are still being made


def host_name(number: int) -> str:
    return f"n{number:04}"


class StubAgent:
    """What the agent of one host says and hears.

    Args:
        name: The host.
        link: Its end of the stream.
        heard: Kind of a message -> when it came to this process last, of all hosts.
    """

    def __init__(self, name: str, link: Link, heard: dict[str, float]) -> None:
        self.name = name
        self.link = link
        self.over = False
        self.told = 0.0
        self.interval = 1.0
        self._heard = heard
        self._tasks: dict[str, Record] = {}

    def hear(self) -> None:
        for kind, content in self.link.receive():
            self._heard[kind] = time.monotonic()
            if kind == messages.PLAN:
                self._publish(content)
            elif kind == messages.RENDEZVOUS:
                rendezvous.rendezvous_of(content).config("worker", 0)
                self._set(self._tasks, TaskState.RUNNING)
            elif kind == messages.STOP:
                self.over = True
                self._set(self._running(), TaskState.FAILED, signal="SIGTERM", ended=time.time())

    def _publish(self, plan: Record) -> None:
        self.interval = interval(plan["whole"][0], plan["spec"].get("heartbeat_timeout", 30.0))
        ports = {f"{task['type']}:{task['index']}": PORT + task["local_rank"] for task in plan["tasks"]}
        unknown = {"ended": None, "exit": None, "signal": None, "oom": False, "error": None, "restarts": 0}
        task = {"state": TaskState.PENDING, "pid": os.getpid(), "started": time.time(), **unknown, "tensorflow": ""}
        self._tasks = {name: dict(task) for name in ports}
        host = {"host": self.name, "hostname": self.name, "address": self.name, "pid": os.getpid(), "ports": ports}
        more = {"gpus": {name: [] for name in ports}, "versions": {"gridtf": "", "python": ""}, "tensorflow": {}}
        self.link.send(messages.HOST, {**host, "master_port": PORT - 1, **more})

    def _running(self) -> Iterable[str]:
        return [name for name, task in self._tasks.items() if task["state"] == TaskState.RUNNING]

    def _set(self, names: Iterable[str], state: str, **more: object) -> None:
        for name in names:
            self._tasks[name].update(more, state=state)
        self.told = time.monotonic()
        record = {"host": self.name, "pid": os.getpid(), "tasks": self._tasks, "over": self.over}
        self.link.send(messages.STATE, record)

    def fail(self) -> None:
        self._set([min(self._tasks)], TaskState.FAILED, exit=1, ended=time.time())

    def tick(self, now: float) -> None:
        if self._tasks and now - self.told >= self.interval:
            self.told = now
            self.link.alive()


def play(first: int, end: int, attempt: Attempt, nonce: str) -> dict[str, float]:
    """Be the agents of the hosts with these numbers, until the launcher has told all of them to stop.

    Returns:
        Kind of a message -> when the last host has received it; ``failed``: when the task has.
    """
    system, marks = System(), dict[str, float]()
    agents = []
    for name in map(host_name, range(first, end)):
        assert is_listed(attempt.listener, attempt.run.path)
        listener = read_record(attempt.listener, recordtypes.Listener, nonce=nonce, listed=True, own=True)
        assert listener is not None
        agents.append(StubAgent(name, link_of(listener, name, system), marks))
    poll, known = select.poll(), dict[int, StubAgent]()
    poll.register(_STDIN, select.POLLIN)
    connecting = list(agents)
    while any(not agent.over for agent in agents):
        for agent in connecting:
            agent.hear()
            if agent.link.connected:
                descriptor = agent.link.fileno()
                known[descriptor] = agent
                poll.register(descriptor, select.POLLIN)
        connecting = [agent for agent in connecting if not agent.link.connected]
        for descriptor, _ in poll.poll(1000 * (_LOOK if connecting else agents[0].interval / 10)):
            if descriptor == _STDIN:
                poll.unregister(_STDIN)
                if os.read(_STDIN, 1):
                    marks["failed"] = time.monotonic()
                    agents[0].fail()
                continue
            known[descriptor].hear()
            if not known[descriptor].link.connected:
                raise SystemExit(f"{known[descriptor].name}: {known[descriptor].link.refused}")
        now = time.monotonic()
        for agent in agents:
            agent.tick(now)
    for agent in agents:
        agent.link.drain(5.0)
        agent.link.close()
    return marks


if __name__ == "__main__":
    first, end, run, number, nonce, file = sys.argv[1:]
    processes.block_signals()  # SIGIO of the connections: poll tells which they are
    processes.need_open_files(int(end) - int(first))
    times = play(int(first), int(end), RunDir(run).attempt(int(number)), nonce)
    Path(file).write_text(json.dumps(times))
