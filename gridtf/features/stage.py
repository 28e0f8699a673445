"""What a job wants on a disk of each host before its tasks start (`stage`): a process makes it, holds it, removes it.

It is a process of its own, since a file system may block it, and lives as long as the agent: it ignores the signals
that end a job, whose tasks may still read, and removes what no other job uses when the agent ends or is killed.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

from gridtf import contract
from gridtf.bootstrap.agent import api, local_dir
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import GridtfError
from gridtf.host import processes
from gridtf.jobspec.staged import staged_name
from gridtf.run.rundir import Record

_END_LIMIT = 8.0  # seconds for the removal at the end; the rest is removed by the next job of the user there
_COMMON = "/tmp"  # noqa: S108 - the folder in it is checked


class InAgent(api.Feature):
    """The agent's end of that process."""

    vital = True

    def __init__(self, view: api.AgentView) -> None:
        super().__init__(view)
        self._helper = view.processes.own(Helper(float("inf"), view.system), outlives=True)

    def prepare(self) -> api.Prepared:
        state, host = self.view.state, self.view.state.host
        if state.local_dir is None:
            raise GridtfError(f"nothing can be staged on host {host}: no folder can be made in /tmp or TMPDIR there")
        links = state.local_dir / "staged"
        links.mkdir()
        if not self._helper.start(lambda agent: self._keep(links, agent)):
            raise GridtfError(f"nothing can be staged on host {host}: no process can be started there")
        heard = b""
        for _ in self.view.listening(float("inf")):  # the launcher ends it when it hears of no progress
            *lines, heard = (heard + self._helper.hear()).split(b"\n")
            for said in map(json.loads, lines):
                if "what" in said:
                    raise GridtfError(f"{said['what']} (on host {host})", why=said["why"], hint=said["hint"])
                if "folder" in said:
                    return api.Prepared({contract.STAGED: str(links)}, (Path(said["folder"]),))
                self.view.waits_for(said["waits"])
            if self._helper.pid is None:
                break
        raise GridtfError(f"what stages files on host {host} was killed")

    def end(self) -> None:
        """Have removed what no other job uses."""
        view, pid = self.view, self._helper.pid
        self._helper.forget()
        deadline = view.system.monotonic() + _END_LIMIT
        while pid in view.system.children() and view.system.monotonic() < deadline:
            view.state.supervisor.collect()
            view.conversation.keep_telling()
            view.system.sleep(0.02)

    def _keep(self, links: Path, agent: socket.socket) -> None:
        """In the process: make all, and hold it as long as the agent lives."""
        from gridtf.host import staging

        processes.keep_only([agent.fileno()])

        def say(record: Record) -> None:
            agent.sendall(json.dumps(record).encode() + b"\n")

        held, folder = [], self._folder()
        staging.clean(folder)
        try:
            for path in self.view.plan.spec.stage:
                name, archive = staged_name(path)
                about = {"archive": archive, "say": lambda text: say({"waits": text})}
                place, descriptor = staging.held(Path(path), name, folder, **about)  # type: ignore[arg-type]
                held.append(descriptor)
                (links / name).symlink_to(place)
            say({"folder": str(folder)})
            agent.recv(1)  # nothing comes but the end
        except GridtfError as error:
            say({"what": error.what, "why": error.why, "hint": error.hint})
        except OSError as error:
            say({"what": f"cannot stage files: {error}", "why": "", "hint": ""})
        finally:
            for descriptor in held:
                os.close(descriptor)
            staging.clean(folder)

    def _folder(self) -> Path:
        """Where the copies are: beside a TMPDIR of this job alone, where other jobs find them too."""
        from gridtf.host import staging

        temporary = Path(self.view.system.environ.get("TMPDIR") or _COMMON)
        own = self.view.plan.job_id.partition(".")[0] in re.split(r"[^0-9]+", temporary.name)
        for parent in dict.fromkeys([*([temporary.parent] if own else []), temporary, Path(_COMMON)]):
            if local_dir.is_safe(parent) and (folder := staging.folder_of(parent, self.view.system.host)):
                return folder
        assert self.view.state.local_dir is not None
        return self.view.state.local_dir / "copies"
