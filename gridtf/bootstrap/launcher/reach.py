"""Commands that users run beside tasks (gridtf exec): the launcher passes the requests on, and records each of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.reporter import Reporter
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.bootstrap.wire import messages
from gridtf.run.rundir import Record

_KEPT = 32  # answers in exec.json
_LONGEST = 1000  # characters of a command in the events


class Reach:
    """Passes requests on to the hosts of the tasks, and answers them.

    Args:
        tasks: The tasks of the attempt.
        hosts: Its hosts.
        reporter: What records it.
    """

    def __init__(self, tasks: Sequence[PlacedTask], hosts: HostMonitor, reporter: Reporter) -> None:
        self._hosts_of = {task.name: task.host for task in tasks}
        self._hosts, self._reporter = hosts, reporter
        self._orders: dict[str, dict[str, Record]] = {}  # host -> those whose end has not been heard of
        self._answers: dict[str, Record] = {}

    def ask(self, request: Record) -> None:
        """Pass a request on.

        Args:
            request: Of the kind recordtypes.ExecRequest; with ``error`` where it is forbidden.
        """
        name, host = request["id"], self._hosts_of.get(request["task"])
        error = request.get("error") or ("" if host else f"no such task: {request['task']}")
        who = {"task": request["task"], "host": host or "", "user": request.get("user", "")}
        what = {**who, "text": shlex.join(request["command"])[:_LONGEST]}
        if host is None or error:
            self._reporter.note("exec refused", **{**what, "text": f"{what['text']}: {error}"})
            self._answer({name: {"error": error}})
            return
        self._reporter.note("exec", **what)
        self._hosts.reports.commands[name] = what
        known = self._hosts.reports.sessions.get(host, {})
        orders = self._orders.setdefault(host, {})
        for ended in [one for one in orders if known.get(one, {}).keys() & {"exit", "error"}]:
            del orders[ended]
        orders[name] = request
        self._hosts.listener.send(host, messages.EXEC, {"sessions": orders})

    def look(self) -> None:
        """Answer the requests whose hosts have."""
        new = {}
        for host, orders in self._orders.items():
            for name, state in self._hosts.reports.sessions.get(host, {}).items():
                if name in orders and name not in self._answers and state:
                    addresses = [self._hosts.reports.published[host]["address"], host]
                    new[name] = {**state, "host": host, "addresses": [*dict.fromkeys(addresses)]}
        if new:
            self._answer(new)

    def _answer(self, new: dict[str, Record]) -> None:
        self._answers = dict([*self._answers.items(), *new.items()][-_KEPT:])
        record = {"nonce": self._reporter.nonce, "answers": self._answers}
        self._reporter.recorder.write(self._reporter.attempt.exec_answers, json.dumps(record), mode=0o600)
