"""What runs on a host above gridtf's own processes, and outlives them: as a subreaper it finds whatever they leave.

The agent supervisor is what srun or qrsh starts: an agent that is killed by kill -9 cannot say so, and schedulers often
do not notice either; a parent can do both. The job runner is what the local scheduler starts: it does for the job
script what slurmstepd or sge_shepherd does elsewhere.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence

from gridtf.bootstrap.supervisor import Supervisor
from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError, RunDirError, UsageError
from gridtf.host import processes
from gridtf.host.processes import signal_name
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, read_record, write_record
from gridtf.schedulers.agents import RUNNER_PID, ForkedAgent, fork_agent

_LOOK = 5.0  # seconds between two looks at a child whose end no signal has told

# --- the job runner

# The launcher ends its hosts first, then what is left: both have their limits, this is for one that keeps neither.
_LAUNCHER_MARGIN = 30.0
_AGENT_MARGIN = 5.0  # for an agent whose launcher was killed, to write down what became of it


def run_job(arguments: Sequence[str]) -> int:
    """Run the script of a local job, pass on that it is to end, leave no process behind and write down how it ended.

    Args:
        arguments: ``RUN_DIR KILL_GRACE WALLTIME COMMAND…``: both in seconds, a walltime of 0 for none.

    Returns:
        The exit code of this process, always 0: run.ended has the script's.
    """
    path, kill_grace, walltime, *command = arguments
    processes.block_signals()
    processes.become_subreaper()
    JobRunner(RunDir(path), float(kill_grace), System()).run(command, int(walltime))
    return 0


class JobRunner:
    """Above the script of a local job.

    Args:
        run: The run directory.
        grace: Seconds between TERM and KILL.
        system: This host.
    """

    def __init__(self, run: RunDir, grace: float, system: System) -> None:
        self.run_dir = run
        self.grace = grace
        self.system = system

    def run(self, command: Sequence[str], walltime: int) -> None:
        """Run the script, then write run.ended.

        Args:
            command: The command line of the script.
            walltime: Seconds after which it is to end; 0: never.
        """
        end: Record = {"exit": None, "signal": None, "told": None, "error": None}
        env = {**self.system.environ, RUNNER_PID: str(self.system.pid)}
        try:
            # The alarm outlives exec: it ends set-up lines that hang, and reaches the launcher after them.
            script = self.system.start(command, env, death=signal.SIGTERM, alarm=walltime)
        except OSError as error:
            end["error"] = f"{command[0]} cannot be started: {error.strerror}"
            self.system.log(end["error"])
        else:
            code, received = self._wait(script)
            patience = 0.0 if code is None else self.grace + (_AGENT_MARGIN if self._launched() else 0.0)
            left = Supervisor([], self.system).tear_down(patience, lambda: None)
            if left:
                self.system.log(f"processes survived SIGKILL: {left}")
            code = -signal.SIGKILL if code is None else code
            end["exit" if code >= 0 else "signal"] = code if code >= 0 else signal_name(-code)
            end["told"] = signal_name(received) if received else None
        try:
            write_record(self.run_dir.ended, end)
        except RunDirError as error:
            self.system.log(str(error))

    def _wait(self, script: int) -> tuple[int | None, int | None]:
        """Until the script has ended.

        Returns:
            Its exit code or minus the signal, None when it has ignored that it is to end; the signal that ends the job.
        """
        received, deadline = None, float("inf")
        while True:
            number = self.system.wait(min(_LOOK, max(0.0, deadline - self.system.monotonic())))
            if processes.is_end(number) and received is None:
                received = number
                # set-up lines know nothing of the grace, the launcher keeps it itself
                margin = self.grace + _LAUNCHER_MARGIN if self._launched() else 0.0
                deadline = self.system.monotonic() + self.grace + margin
                self.system.signal([script], signal.SIGTERM)
            ended = self.system.reap()
            if script in ended:
                return ended[script], received
            if self.system.monotonic() >= deadline:
                return None, received

    def _launched(self) -> bool:
        """Whether the script has got as far as the launcher."""
        try:
            return self.run_dir.latest() is not None
        except RunDirError:
            return False


# --- the agent supervisor

_GRACE = 5.0
_STDIN = 0


def supervise_agent(arguments: Sequence[str]) -> int:
    """Fork the agent of this host and end whatever it leaves behind.

    Args:
        arguments: ``HOST ARGUMENTS…`` with those of agent.main. ``@NAME`` stands for the value of that variable.

    Returns:
        The agent's exit code, or one of agent.EXITS when it was killed.
    """
    from gridtf.bootstrap import agent

    system = System()
    host = _resolve_host(arguments[0], system)
    processes.block_signals()
    processes.become_subreaper()
    supervisor = AgentSupervisor(host, arguments[1:], system)
    processes.die_with_parent(supervisor.parent, signal.SIGTERM)  # nothing else tells that slurmstepd was killed
    handle = fork_agent(host, arguments[1:], agent.main)
    system.collect_garbage()
    pipe = processes.signal_at_end_of(_STDIN)
    return supervisor.watch(handle, lambda: pipe and processes.at_end(_STDIN))


class AgentSupervisor:
    """Above the agent of a host.

    Args:
        host: This host, as the allocation calls it.
        arguments: The agent's, without the host.
        system: This host.

    Attributes:
        parent: The process that has started this one.
    """

    def __init__(self, host: str, arguments: Sequence[str], system: System) -> None:
        self.host = host
        self.system = system
        self.parent = system.parent()
        run, number, self._nonce, *_ = arguments
        self._attempt = RunDir(run).attempt(int(number))

    def watch(self, agent: ForkedAgent, launcher_gone: Callable[[], bool]) -> int:
        """Pass signals on until the agent has ended.

        Args:
            agent: The agent.
            launcher_gone: Whether the launcher has closed its end of the pipe, or died.

        Returns:
            The agent's exit code, or one of agent.EXITS when it was killed.
        """
        from gridtf.bootstrap.agent import KILLED, LEFTOVERS, ORPHANED

        terminated = False
        while (end := agent.poll()) is None:
            if not terminated and launcher_gone():
                terminated = True
                agent.terminate()
            number = self.system.wait(_LOOK)
            if number is not None and (processes.is_end(number) or number in processes.PASSED_ON):
                agent.send(signal.Signals(number) if self.system.parent() == self.parent else ORPHANED)
        if end.code >= 0:
            return end.code
        what = f"the agent on host {self.host} was killed by {signal_name(-end.code)}"
        self.system.log(what)
        with contextlib.suppress(GridtfError):
            self._report(what)
        left = Supervisor([], self.system).tear_down(_GRACE, lambda: None)
        return LEFTOVERS if left else KILLED

    def _report(self, what: str) -> None:
        """Write it to the agent's own record, which has no other writer any more."""
        path = self._attempt.host_state(self.host)
        record = read_record(path, recordtypes.HostState, nonce=self._nonce, own=True)
        if record is None:
            record = {"nonce": self._nonce, "host": self.host, "tasks": {}}
        write_record(path, {**record, "gone": {"what": what, "why": "", "hint": "was it killed by hand?"}})


def _resolve_host(word: str, system: System) -> str:
    if not word.startswith("@"):
        return word
    host = system.environ.get(word[1:])
    if not host:
        hint = "only the launcher starts this, through srun or qrsh"
        raise UsageError(f"{word[1:]} is not set on host {system.host}", hint=hint)
    return host
