"""Commands that users run beside the tasks of a host (gridtf exec): the agent starts a process for each of them."""

from __future__ import annotations

import json
import signal
import socket

from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.helper import Helper
from gridtf.run.rundir import Record
from gridtf.states import TaskState

_MOST = 16  # commands at once beside the tasks of a host
_NEVER = float("inf")


class Beside:
    """Starts them, and tells the launcher where they can be reached and how they have ended.

    Args:
        state: The state of this host.
        conversation: The conversation with the launcher.
        address: This host's address, as the scheduler knows it.
        system: This host.
    """

    def __init__(self, state: HostState, conversation: Conversation, address: str, system: System) -> None:
        self._state, self._conversation, self._address, self._system = state, conversation, address, system
        self._helpers: dict[str, Helper] = {}
        self._said: dict[str, bytes] = {}
        self._told: dict[str, Record] = {}  # id -> what is known: a connection that is made anew repeats all

    def look(self) -> None:
        """Start what was ordered, and tell the launcher what is new."""
        orders = self._conversation.latest.get(messages.EXEC, {"sessions": {}})["sessions"]
        before = {name: {**known} for name, known in self._told.items()}
        self._told = {name: known for name, known in self._told.items() if name in orders or name in self._helpers}
        for name in orders.keys() - self._told.keys():
            self._told[name] = self._begin(name, orders[name])
        for name, helper in list(self._helpers.items()):
            *lines, self._said[name] = (self._said[name] + helper.hear()).split(b"\n")
            for line in lines:
                self._told[name].update(json.loads(line))
            if helper.pid is None:
                del self._helpers[name], self._said[name]
                if not self._told[name].keys() & {"exit", "error"}:  # it was killed
                    self._told[name]["exit"] = 128 + signal.SIGKILL
        if self._told != before and self._told:
            self._conversation.send(messages.EXEC, {"sessions": self._told})

    def _begin(self, name: str, order: Record) -> Record:
        """Start the process of a command. Returns what is known of it."""
        task = self._state.supervisor.tasks.get(order["task"])
        program = task.program if task and task.state == TaskState.RUNNING else None
        if program is None:
            return {"error": f"{order['task']} does not run any more on host {self._state.host}"}
        if len(self._helpers) >= _MOST:
            return {"error": f"{_MOST} commands run beside the tasks of host {self._state.host} already"}
        helper = Helper(_NEVER, self._system)
        parent = self._system.pid

        def work(agent: socket.socket) -> None:
            from gridtf.bootstrap.agent import session

            session.serve(agent, order, program, self._address, parent)

        if not helper.start(work):
            return {"error": f"no process can be started on host {self._state.host}"}
        self._helpers[name], self._said[name] = helper, b""
        return {}
