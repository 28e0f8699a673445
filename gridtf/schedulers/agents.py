"""Handles on agents: forked by the launcher, or started on other hosts by a program such as srun or qrsh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import RunDirError, SchedulerError
from gridtf.host.processes import die_with_parent, ignore_signals, tell, unblock_signals
from gridtf.run.rundir import open_log, open_plain
from gridtf.schedulers.api import AgentEnd, AgentMain
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.host.gpus import GpuGrant

# The launcher's own signal to a forked agent. A TERM comes from elsewhere, and then tasks may have received it as well.
STOP_SIGNAL = signal.SIGINT

# The variable that tells an agent to ask the launcher for the environment of the job.
NEEDS_ENVIRONMENT = "GRIDTF_ENVIRONMENT"

# The variable that tells a local job's script, and the launcher that it becomes, the pid of its job runner.
RUNNER_PID = "GRIDTF_LOCAL_JOB"
# In an element of a local sweep: its id, such as 4711.HOST_3.
ELEMENT = "GRIDTF_LOCAL_ELEMENT"


def fork_agent(host: str, arguments: Sequence[str], agent: AgentMain, gpus: GpuGrant | None = None) -> ForkedAgent:
    """Fork an agent on this host.

    It starts at once, inherits all open files, and receives TERM when this process dies.

    Args:
        host: Name of this host in the allocation.
        arguments: The agent's arguments after the host.
        agent: The agent's main function.
        gpus: The GPUs that this process has claimed for the agent; None: the agent gets its own.

    Returns:
        The handle on the agent.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()  # a signal to the parent's process group does not reach the agent
            die_with_parent(parent, signal.SIGTERM)
            code = agent([host, *arguments], gpus)
        except BaseException:
            import traceback

            tell(traceback.format_exc())
        finally:
            os._exit(code)  # whatever happens, this copy of the parent goes no further
    return ForkedAgent(host, pid)


class ForkedAgent(Fields):
    """An AgentHandle for an agent that is a child process.

    Attributes:
        host: Name of this host in the allocation.
        pid: Process id of the agent.
        end: How the agent has ended; None while it runs.
    """

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
        self.send(STOP_SIGNAL)
        self.send(signal.SIGCONT)  # one that was stopped would stay, with its tasks, after all others have ended

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send the agent this signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


# Seconds before each further attempt to start an agent: an sge_execd that had begun 2 s before lost the order.
_RESTART_PAUSES = 5, 10, 15

ParseEnd = Callable[[int, Sequence[str]], AgentEnd]


class StartedAgents:
    """An AgentHandle for a program that starts agents on other hosts and runs until they have ended.

    Args:
        argv: Command of the program. If it forwards its standard input, the agents stop at the end of the input,
            whether the launcher closes it or dies. No signal could do that: srun forwards signals to the tasks as well.
        environ: Environment of the program.
        log: The file that the program and the agents print to.
        parse_end: Makes an AgentEnd of the program's exit code and output lines.
        ignored: Signals that must not end the program.

    Raises:
        SchedulerError: When the program cannot be run.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        parse_end: ParseEnd,
        ignored: Iterable[int] = (),
    ) -> None:
        self._argv, self._environ, self._log, self._ignored = list(argv), dict(environ), log, ignored
        self._parse_end = parse_end
        self._end: AgentEnd | None = None
        self._pauses = list(_RESTART_PAUSES)
        self._due: float | None = None  # when the next attempt to start the agents begins, as time.monotonic
        self._start()

    def _start(self) -> None:
        def child() -> None:
            ignore_signals(self._ignored)
            unblock_signals()

        try:
            with open_log(self._log) as output:
                self._begin = output.tell()
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._environ,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the launcher only, which stops the agents
                    preexec_fn=child,  # safe: this process has one thread
                )
        except OSError as error:
            raise SchedulerError(f"cannot run {self._argv[0]}: {error.strerror}") from None

    def poll(self) -> AgentEnd | None:
        if self._end is None and (code := self._process.poll()) is not None:
            self._end = end = self._parse_end(code, self._printed())
            if end.again and self._pauses:
                pause = self._pauses.pop(0)
                self._due = time.monotonic() + pause
                tell(f"{'; '.join(end.messages)}: gridtf starts the agent on host {end.host} again in {pause} s")
        if self._due is None:
            return self._end
        if time.monotonic() >= self._due:
            self._due = self._end = None
            self._close_input()
            self._start()
        return None

    def failed(self) -> AgentEnd | None:
        """The end of an agent that the program has reported although it runs on; None where it has reported none.

        srun ends the other agents when one fails, but an agent of a busy host may begin only after that.
        """
        end = None if self._process.poll() is not None else self._parse_end(0, self._printed())
        return end if end is not None and end.host and end.code else None

    def terminate(self) -> None:
        self._pauses.clear()
        self._due = None
        self._close_input()

    def _close_input(self) -> None:
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
