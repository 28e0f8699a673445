"""The agent's half: it starts a process for each command, and tells the launcher how those have ended."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from typing import ClassVar

from gridtf.bootstrap.agent import api
from gridtf.bootstrap.wire.helper import Helper
from gridtf.features.exec import EXEC
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record
from gridtf.states import TaskState


class Feature(api.Feature):
    """The commands beside the tasks of a host."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {EXEC: {str: recordtypes.ExecRequest}}

    def __init__(self, view: api.AgentView) -> None:
        super().__init__(view)
        self._helpers: dict[str, Helper] = {}
        self._codes: dict[str, int | None] = {}  # of those that have ended: a connection that is made anew repeats all

    def look(self) -> None:
        """Start what was ordered, and tell the launcher what is new."""
        orders = self.view.conversation.latest.get(EXEC, {})
        self._codes = {name: code for name, code in self._codes.items() if name in orders}
        for name in orders.keys() - self._helpers.keys() - self._codes.keys():
            self._helpers[name] = self._begun(name, orders[name])
        ended = {}
        for name, helper in self._helpers.items():
            said = helper.hear()
            if said or helper.pid is None:
                ended[name] = int(said) if said else None
        for name in ended:
            self._helpers.pop(name).forget()
        self._codes.update(ended)
        if ended:
            self.view.conversation.send(EXEC, {name: {"exit": code} for name, code in self._codes.items()})

    def end(self) -> None:
        self.look()

    def _begun(self, name: str, order: Record) -> Helper:
        """Start the process of a command."""
        plan, state, system = self.view.plan, self.view.state, self.view.system
        task, host, parent = state.supervisor.tasks.get(order["task"]), state.host, system.pid
        program = task.program if task and task.state == TaskState.RUNNING else None
        addresses = [*dict.fromkeys([plan.hosts.get(host, host), host, system.host])]
        where = {"nonce": plan.nonce, "host": host, "addresses": addresses}

        def work(agent: socket.socket) -> None:
            from gridtf.features.exec import session

            processes.die_with_parent(parent, signal.SIGKILL)
            processes.become_subreaper()
            processes.keep_only([agent.fileno()])
            processes.unblock_signals()
            _, answer = plan.attempt.exec_files(name)
            code = session.serve(order, program, answer, where)
            if code is not None:
                os.write(agent.fileno(), str(code).encode())

        helper = self.view.processes.own(Helper(float("inf"), system))  # a file system may block it for ever
        helper.start(work)
        return helper
