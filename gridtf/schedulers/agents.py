"""Handles on agents: forked from here, or started on other hosts by a program such as srun or qrsh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridtf.errors import RunDirError, SchedulerError
from gridtf.host.processes import die_with_parent, ignore_signals, tell, unblock_signals
from gridtf.run.rundir import open_log, open_plain
from gridtf.schedulers.base import AgentEnd, AgentMain

# Our own word to an agent. A TERM may be anybody's, and then its tasks have got one, too.
TOLD = signal.SIGINT

# A variable that says to an agent: the environment of the job waits for you in the run directory.
SENT = "GRIDTF_ENVIRONMENT"

# A variable of a local job's script, and of the launcher that it becomes: the pid of the job runner that started it.
MINDER = "GRIDTF_LOCAL_JOB"


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
        self.send(TOLD)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send it this signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


Blame = Callable[[int, Sequence[str]], AgentEnd]


class StartedAgents:
    """An AgentHandle for the program that starts agents elsewhere and stays until they have ended.

    argv: its command; it must pass its standard input on: the end of that tells the agents to stop, whether we close
    it or die. No signal could do that: srun passes signals on to the tasks as well. log: where it and the agents print.
    blame: who ended and how, from its exit code and the lines it has printed. ignored: signals that must not end it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        blame: Blame,
        ignored: Iterable[int] = (),
    ) -> None:
        self._log, self._blame = log, blame
        self._end: AgentEnd | None = None

        def child() -> None:
            ignore_signals(ignored)
            unblock_signals()

        try:
            with open_log(log) as output:
                self._begin = output.tell()
                self._process = subprocess.Popen(
                    list(argv),
                    env=dict(environ),
                    stdin=subprocess.PIPE,
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
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def _printed(self) -> list[str]:
        with contextlib.suppress(OSError, RunDirError), open_plain(self._log) as file:
            file.seek(self._begin)
            return file.read(65536).decode(errors="replace").splitlines()
        return []
