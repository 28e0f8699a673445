"""Commands that users run beside the tasks of a host (gridtf exec): the agent starts a process for each of them."""

from __future__ import annotations

import os
import signal
import socket

from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.helper import Helper
from gridtf.host import processes
from gridtf.run.rundir import Record
from gridtf.states import TaskState


class Beside:
    """Starts them, and tells the launcher how they have ended.

    Args:
        plan: The part of the plan for this host.
        state: The state of this host.
        conversation: The conversation with the launcher.
        system: This host.
    """

    def __init__(self, plan: AttemptPlan, state: HostState, conversation: Conversation, system: System) -> None:
        self._plan, self._state, self._conversation, self._system = plan, state, conversation, system
        self._helpers: dict[str, Helper] = {}
        self._codes: dict[str, int | None] = {}  # of those that have ended: a connection that is made anew repeats all

    @property
    def pids(self) -> frozenset[int]:
        """The ids of the processes: a file system may block them for ever."""
        return frozenset(helper.pid for helper in self._helpers.values() if helper.pid is not None)

    def look(self) -> None:
        """Start what was ordered, and tell the launcher what is new."""
        orders = self._conversation.latest.get(messages.EXEC, {})
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
            self._conversation.send(messages.EXEC, {name: {"exit": code} for name, code in self._codes.items()})

    def _begun(self, name: str, order: Record) -> Helper:
        """Start the process of a command."""
        task = self._state.supervisor.tasks.get(order["task"])
        program = task.program if task and task.state == TaskState.RUNNING else None
        plan, host, parent = self._plan, self._state.host, self._system.pid
        addresses = [*dict.fromkeys([plan.hosts.get(host, host), host, self._system.host])]
        where = {"nonce": plan.nonce, "host": host, "addresses": addresses}

        def work(agent: socket.socket) -> None:
            from gridtf.bootstrap.agent import session

            processes.die_with_parent(parent, signal.SIGKILL)
            processes.become_subreaper()
            processes.keep_only([agent.fileno()])
            processes.unblock_signals()
            _, answer = plan.attempt.exec_files(name)
            code = session.serve(order, program, answer, where)
            if code is not None:
                os.write(agent.fileno(), str(code).encode())

        helper = Helper(float("inf"), self._system)
        helper.start(work)
        return helper
