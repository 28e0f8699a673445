"""The check of this host before its tasks start (`check`): a program beside the agent measures, as the launcher orders.

It is a process of its own, run by the tasks' Python in the tasks' container: drivers, disks and packages may block it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import contract
from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.supervisor import explain
from gridtf.bootstrap.plan import environment
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.helper import Helper
from gridtf.host import processes
from gridtf.run import recordtypes

if TYPE_CHECKING:
    import socket

    from gridtf.bootstrap.agent.containers import Entrance

PROGRAM = environment.HOME / "hook" / "hostcheck.py"
_END_LIMIT = 5.0  # seconds for a process that was killed to leave the GPUs: one that a driver blocks never does
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LONGEST = 1000  # characters of what the program prints in place of an answer


class HostCheck:
    """The agent's end of that process.

    Args:
        command: As command returns it.
        cwd: Its working folder.
        state: The state of this host.
        talk: The conversation with the launcher.
        system: This host.
    """

    def __init__(
        self,
        command: tuple[Sequence[str], Mapping[str, str]],
        cwd: Path,
        state: HostState,
        talk: Conversation,
        system: System,
    ) -> None:
        self._argv, self._env = command
        self._cwd, self._state, self._talk, self._system = cwd, state, talk, system
        self._helper = Helper(float("inf"), system)
        self._valid = recordtypes.check(recordtypes.Checked)
        self._pid = self._number = 0  # of the process, and of the last order
        self._answered = True
        self._heard, self._said = b"", ""

    def look(self) -> None:
        """Pass a new order on, and the answer to the last one."""
        order = self._talk.latest.get(messages.CHECK)
        if order and order["number"] > self._number:
            self._number, self._answered = order["number"], False
            if self._helper.due and self._helper.start(self._run):
                self._pid = self._helper.pid or 0
            self._helper.say(json.dumps(order).encode() + b"\n")
        if self._answered:
            return
        *lines, self._heard = (self._heard + self._helper.hear()).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))
        if self._helper.pid is None and not self._answered:
            self._said = self._said or self._heard.decode(errors="replace")[:_LONGEST]
            why = f"the check has ended: {self._said}".rstrip(": ")
            self._answer(
                {
                    "values": {},
                    "alike": {},
                    "missing": dict.fromkeys(order["measures"] if order else [], why),
                    "port": 0,
                }
            )

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if self._valid(record):
            self._said = line[:_LONGEST] or self._said  # of a program that cannot start
        elif record["number"] == self._number:
            self._answer(record)

    def _answer(self, record: Mapping[str, object]) -> None:
        self._answered = True
        self._talk.send(messages.CHECKED, {**record, "number": self._number, "time": self._system.time()})

    def end(self) -> None:
        """End the process, with all that it has started; the GPUs are free then."""
        if self._pid:
            self._system.signal([*self._system.descendants(self._pid), self._pid], signal.SIGKILL)
            self._helper.forget()
            deadline = self._system.monotonic() + _END_LIMIT
            while self._pid in self._system.children() and self._system.monotonic() < deadline:
                self._state.supervisor.collect()
                self._system.sleep(0.01)
            self._pid = 0

    def _run(self, agent: socket.socket) -> None:
        """In the process."""
        processes.die_with_parent(self._system.pid, signal.SIGKILL)
        processes.unblock_signals()
        processes.keep_only([agent.fileno()])
        for descriptor in (0, 1, 2):
            os.dup2(agent.fileno(), descriptor)
        os.setsid()
        try:
            os.chdir(self._cwd)
            os.execvpe(self._argv[0], [*self._argv], dict(self._env))  # noqa: S606 - there is no shell
        except OSError as error:
            agent.sendall(f"{explain(error, self._argv[0], self._cwd, self._env)}\n".encode())


def command(
    plan: AttemptPlan, host: str, base: Mapping[str, str], local: Path | None, entrance: Entrance | None
) -> tuple[Sequence[str], Mapping[str, str]]:
    """The command line and the environment of the program.

    Args:
        plan: The part of the plan for this host.
        host: This host.
        base: The environment of tasks, without what the job sets.
        local: The folder of the attempt on this host.
        entrance: How tasks enter their container; None: there is none.
    """
    mine = plan.on(host)
    task = max(mine, key=lambda task: task.gpus)
    usable = len(os.sched_getaffinity(0))
    threads = str(min(usable, sum(task.cpus or usable for task in mine)))
    given = {
        **plan.spec.env,
        **plan.spec.task(task.type).env,
        **dict.fromkeys(_THREADS, threads),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    env = {**base, **given}
    program = environment.program(plan, task)
    python = program if program.rpartition("/")[2].startswith("python") else plan.python
    argv = [python, str(PROGRAM)]
    if entrance is None:
        return argv, env
    from gridtf.bootstrap.agent import containers

    folders = [plan.attempt.run.path, environment.HOME, *([local] if local else [])]
    folders += [Path(base["TMPDIR"])] if base.get("TMPDIR") else []
    names = {*given, contract.STAGED, "TMPDIR"} & env.keys()
    whole = containers.command(entrance, plan.spec, argv, plan.cwd, folders, names, gpus=task.gpus > 0)
    return whole, containers.environment(entrance, env, names)
