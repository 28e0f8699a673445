"""The launcher's half: it passes requests on to the hosts of their tasks, and notes what was run, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import ClassVar

from gridtf.bootstrap.launcher import api
from gridtf.features.exec import EXEC
from gridtf.run import recordtypes, rundir
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record, write_record

_LONGEST_COMMAND = 1000  # characters of a user's command in the events


class Feature(api.Feature):
    """The commands beside the tasks of an attempt."""

    vital = False
    hears: ClassVar[Mapping[str, Kind]] = {EXEC: {str: {"exit": (range(256), None)}}}
    asks: ClassVar[Mapping[str, Kind]] = {rundir.EXEC: recordtypes.ExecRequest}

    def __init__(self, view: api.LauncherView, before: api.Feature | None) -> None:
        super().__init__(view, before)
        self._running: dict[str, tuple[Record, Record]] = {}  # id -> what its event has of a command, and the request

    def refused(self, request: Record) -> bool:
        """Whether the site forbids it; then it is answered."""
        from gridtf.jobspec.config import forbidden_by_site

        if why := forbidden_by_site("exec", self.view.job.system.environ):
            answer = {"nonce": self.view.reporter.nonce, "error": f"the site forbids it: {why}"}
            write_record(self.view.attempt.exec_files(request["id"])[1], answer, mode=0o600)
        return bool(why)

    def asked(self, request: Record) -> None:
        from gridtf.secrets import Masker  # few jobs need it

        host = next((task.host for task in self.view.tasks if task.name == request["task"]), None)
        if host is not None:
            text = shlex.join(Masker().words(request["command"]))
            about = {"task": request["task"], "host": host, "user": request["user"], "text": text[:_LONGEST_COMMAND]}
            self._running[request["id"]] = about, request
            self.view.reporter.note("exec", **about)
            orders = {name: order for name, (where, order) in self._running.items() if where["host"] == host}
            self.view.hosts.listener.send(host, EXEC, orders)

    def heard(self, host: str, content: Record) -> None:
        for name in self._running.keys() & content.keys():
            about, _ = self._running.pop(name)
            self.view.reporter.note("exec ended", **about, **content[name])
