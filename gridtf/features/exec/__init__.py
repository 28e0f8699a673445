"""Commands that users run beside a task (gridtf exec, gridtf shell).

A user writes a request into the run directory. The launcher sends it to the task's host, whose agent starts a process
that waits for the user by TLS, and serves it (session). How the command has ended goes the other way.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
from collections.abc import Mapping
from typing import ClassVar

from gridtf.bootstrap.agent import api as agent_api
from gridtf.bootstrap.launcher import api as launcher_api
from gridtf.bootstrap.wire.helper import Helper
from gridtf.host import processes
from gridtf.run import recordtypes, rundir
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record, write_record
from gridtf.states import TaskState

EXEC = "exec"  # the messages of both sides: all commands of a host; and how those have ended
_LONGEST_COMMAND = 1000  # characters of a user's command in the events


class InLauncher(launcher_api.Feature):
    """The commands beside the tasks of an attempt."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {EXEC: {str: {"exit": (range(256), None)}}}
    asks: ClassVar[Mapping[str, Kind]] = {rundir.EXEC: recordtypes.ExecRequest}

    def __init__(self, view: launcher_api.LauncherView, before: launcher_api.Feature | None) -> None:
        super().__init__(view, before)
        self._running: dict[str, tuple[Record, Record]] = {}  # id -> what its event has of a command, and the request

    def admitted(self, request: Record) -> Record | None:
        from gridtf.jobspec.config import forbidden_by_site
        from gridtf.secrets import Masker

        if why := forbidden_by_site("exec", self.view.job.system.environ):
            answer = {"nonce": self.view.reporter.nonce, "error": f"the site forbids it: {why}"}
            write_record(self.view.attempt.exec_files(request["id"])[1], answer, mode=0o600)
            return None
        text = shlex.join(Masker().words(request["command"]))
        return {"order": request, "text": text[:_LONGEST_COMMAND]}

    def asked(self, request: Record) -> None:
        request, text = request["order"], request["text"]
        host = next((task.host for task in self.view.tasks if task.name == request["task"]), None)
        if host is not None:
            about = {"task": request["task"], "host": host, "user": request["user"], "text": text}
            self._running[request["id"]] = about, request
            self.view.reporter.note("exec", **about)
            orders = {name: order for name, (where, order) in self._running.items() if where["host"] == host}
            self.view.hosts.listener.send(host, EXEC, orders)

    def heard(self, host: str, content: Record) -> None:
        for name in self._running.keys() & content.keys():
            about, _ = self._running.pop(name)
            self.view.reporter.note("exec ended", **about, **content[name])


class InAgent(agent_api.Feature):
    """The commands beside the tasks of a host."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {EXEC: {str: recordtypes.ExecRequest}}

    def __init__(self, view: agent_api.AgentView) -> None:
        super().__init__(view)
        self._helpers: dict[str, Helper] = {}
        self._codes: dict[str, int | None] = {}  # of those that have ended: a connection that is made anew repeats all

    def look(self) -> Mapping[str, Record]:
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
        return {}

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
