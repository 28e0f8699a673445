"""Handles on agents: forked from here, or started on other hosts by a program such as srun or qrsh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.processes import die_with_parent, tell, unblock_signals
from gridtf.schedulers.base import AgentEnd, AgentMain


def fork_agent(host: str, arguments: Sequence[str], agent: AgentMain) -> ForkedAgent:
    """Fork an agent: it starts in no time, inherits what is open, and is told to end when this process dies."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()  # what is sent to the parent's group is not for us
            die_with_parent(parent, signal.SIGTERM)
            code = agent([host, *arguments])
        except BaseException:
            import traceback

            tell(traceback.format_exc())
        finally:
            os._exit(code)  # whatever happens, this copy of the parent goes no further
    return ForkedAgent(host, pid)


@dataclass
class ForkedAgent:
    """An AgentHandle for a child of ours."""

    host: str
    pid: int
    end: AgentEnd | None = None

    def poll(self) -> AgentEnd | None:
        if self.end is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.end = AgentEnd(1, self.host)
            else:
                if pid:
                    self.end = AgentEnd(os.waitstatus_to_exitcode(status), self.host)
        return self.end

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


Blame = Callable[[int, Sequence[str]], AgentEnd]


class StartedAgents:
    """An AgentHandle for the program that starts agents elsewhere and stays until they have ended.

    argv: its command. log: where it and the agents print. stop: the signal that it passes on to the agents. blame: who
    ended and how, from its exit code and the lines it has printed.
    """

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], log: Path, stop: signal.Signals, blame: Blame
    ) -> None:
        parent = os.getpid()

        def child() -> None:
            die_with_parent(parent, stop)
            unblock_signals()

        self._log, self._stop, self._blame = log, stop, blame
        self._end: AgentEnd | None = None
        try:
            with log.open("ab") as output:
                self._begin = output.tell()
                self._process = subprocess.Popen(
                    list(argv),
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C is for us, who then tell the agents
                    preexec_fn=child,  # safe: this process has one thread
                )
        except OSError as error:
            raise SchedulerError(f"cannot run {argv[0]}: {error.strerror}") from None

    def poll(self) -> AgentEnd | None:
        if self._end is None and (code := self._process.poll()) is not None:
            self._end = self._blame(code, self._printed())
        return self._end

    def terminate(self) -> None:
        self._send(self._stop)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _printed(self) -> list[str]:
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(self._begin)
            return file.read(65536).decode(errors="replace").splitlines()
        return []
