"""The parents of gridtf's processes on a host: as subreapers they end the processes that an agent or a script leaves.

The agent supervisor is started by srun or qrsh: an agent that SIGKILL ends cannot report it, and schedulers often do
not notice; its parent does. The job runner is started by the local scheduler: it does for the job script what
slurmstepd or sge_shepherd does elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial

from gridtf import files
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.agent.supervisor import Supervisor
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.stream import Link, link_of
from gridtf.errors import GridtfError, RunDirError, UsageError
from gridtf.host import processes
from gridtf.host.processes import signal_name
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, listdir, open_log, read_record, write_record, write_text
from gridtf.schedulers.agents import ELEMENT, RUNNER_PID, ForkedAgent, fork_agent
from gridtf.states import AGAIN_CODE
from gridtf.values import Fields

_STDIN, _STDOUT, _STDERR = range(3)
_CHILD_PAUSE = 5.0  # seconds between two checks of the child, in case no signal announces its end

# --- the job runner

_LAUNCHER_MARGIN = 30.0  # seconds, in addition to its own limits, for a launcher that ends the agents, then the rest
_AGENT_MARGIN = 5.0  # seconds for an agent whose launcher was killed, to write its last record


def run_job(arguments: Sequence[str]) -> int:
    """Run the script of a local job, forward signals that end it, leave no process behind and record how it ended.

    Args:
        arguments: ``RUN_DIR KILL_GRACE WALLTIME AFTER``, and of a sweep ``LAST STEP AT_ONCE``: its elements are 1,
            1 + STEP, … up to LAST, of which so many run at once. Grace and walltime are in seconds; 0 for no walltime.
            AFTER is 1 for a job that waits for others, else 0. The script is a regular file, this process's standard
            input.

    Returns:
        The exit code of this process, always 0; the script's is in ended.json.
    """
    path, kill_grace, walltime, after, *sweep = arguments
    processes.block_signals()
    processes.become_subreaper()
    os.environ.pop(ELEMENT, None)  # of the sweep whose task has submitted this job
    # not by its path in the run directory, where another user may put another script
    script = os.dup(_STDIN)
    run, about, system = RunDir(path), (["bash", f"/dev/fd/{script}"], int(walltime), [script]), System()
    runner = JobRunner(run, float(kill_grace), system, after == "1")
    if not sweep:
        runner.run(*about)
        return 0
    job, (last, step, at_once) = f"{system.pid}.{system.host}", map(int, sweep)

    def element(number: int) -> int:
        own = RunDir(run.elements / str(number))
        processes.become_subreaper()
        with open_log(own.log) as log:
            for descriptor in (_STDOUT, _STDERR):
                os.dup2(log.fileno(), descriptor)
        environ = {**os.environ, ELEMENT: f"{job}_{number}"}
        # where several share it, launchers survive the script
        margin = _LAUNCHER_MARGIN if step > 1 else _AGENT_MARGIN
        JobRunner(own, float(kill_grace), System(environ), margin=margin).run(*about)
        return 0

    told = runner.wait_for_others()
    if not told:
        told = fork_each([partial(element, number) for number in range(1, last + 1, step)], at_once, system)[1]
    Supervisor([], system).tear_down(float(kill_grace), lambda: None)
    end: Record = {"exit": 0, "signal": None, "told": signal_name(told) if told else None, "error": None}
    write_record(run.ended, end)
    return 0


def fork_each(
    mains: Sequence[Callable[[], int]],
    at_once: int,
    system: System,
    end: signal.Signals | None = signal.SIGTERM,
    ended: Callable[[int, int], None] = lambda number, code: None,
) -> tuple[list[int], int | None]:
    """Run functions in processes of their own, some at once. After a signal that ends this process no other one begins.

    Args:
        mains: The functions; each returns the exit code of its process.
        at_once: How many run at once.
        system: This host.
        end: The signal that they receive then; None: the same one. Others that are passed on they receive as well.
        ended: Called with the number of each that has ended, from 0, and its exit code.

    Returns:
        (the exit codes of those that have begun, in the order of ``mains``; the signal, None where there was none).
    """
    waiting, running, told = list(enumerate(mains)), dict[int, int](), None
    codes: dict[int, int] = {}
    while running or (waiting and told is None):
        while waiting and len(running) < at_once and told is None:
            number, main = waiting.pop(0)
            running[_forked(main, system)] = number
        received = system.wait(_CHILD_PAUSE)
        if received is not None and processes.is_end(received) and told is None:
            told = received
            system.signal([*running], told if end is None else end)
        elif received is not None and received in processes.PASSED_ON:
            system.signal([*running], received)
        for pid, code in system.reap().items():
            if pid in running:
                codes[number := running.pop(pid)] = code
                ended(number, code)
    return [codes[number] for number in sorted(codes)], told


def _forked(main: Callable[[], int], system: System) -> int:
    """Run a function in a new process, which receives TERM when this one dies. Returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        processes.die_with_parent(system.pid, signal.SIGTERM)
        code = main()
    except BaseException:
        from traceback import format_exc

        processes.tell(format_exc())
    finally:
        os._exit(code)  # whatever happens, this copy of the parent goes no further


class JobRunner(Fields):
    """The parent of the script of a local job.

    Attributes:
        run_dir: The run directory.
        grace: Seconds between SIGTERM and SIGKILL.
        system: This host.
        after: Whether the script starts after other jobs, which job.json names.
        margin: Seconds in addition to the grace, for what survives the script and has to write a last record.
    """

    run_dir: RunDir
    grace: float
    system: System
    after: bool = False
    margin: float = _AGENT_MARGIN

    def run(self, command: Sequence[str], walltime: int, keep: Sequence[int] = ()) -> None:
        """Run the script, again where its launcher asks for that, then write ended.json.

        Args:
            command: The command line of the script.
            walltime: Seconds after which a start of it is ended; 0: never.
            keep: Descriptors that it inherits.
        """
        end = self._run_once(command, walltime, keep)
        while end["exit"] == AGAIN_CODE and not end["told"] and self._goes_on():
            end = self._run_once(command, walltime, keep)
        try:
            if self.run_dir.result.name not in listdir(self.run_dir.path):  # which says how an element has ended
                write_record(self.run_dir.ended, end)
        except RunDirError as error:
            self.system.log(str(error))

    def _run_once(self, command: Sequence[str], walltime: int, keep: Sequence[int]) -> Record:
        """Run the script once. Returns how it has ended, for ended.json."""
        end: Record = {"exit": None, "signal": None, "told": None, "error": None}
        if told := self.wait_for_others():
            return {**end, "told": signal_name(told)}
        env = {**self.system.environ, RUNNER_PID: str(self.system.pid)}
        try:
            # The alarm outlives exec: it ends set-up lines that hang, and reaches the launcher after them.
            script = self.system.start(command, env, keep=keep, death=signal.SIGTERM, alarm=walltime)
        except OSError as error:
            end["error"] = f"{command[0]} cannot be started: {error.strerror}"
            self.system.log(end["error"])
            return end
        code, received = self._wait(script)
        patience = 0.0 if code is None else self.grace + (self.margin if self._launched() else 0.0)
        survivors = Supervisor([], self.system).tear_down(patience, lambda: None)
        if survivors:
            self.system.log(f"processes survived SIGKILL: {survivors}")
        code = -signal.SIGKILL if code is None else code
        end["exit" if code >= 0 else "signal"] = code if code >= 0 else signal_name(-code)
        end["told"] = signal_name(received) if received else None
        return end

    def wait_for_others(self) -> int | None:
        """Wait until the jobs have ended that this one starts after. Returns the signal that ends it meanwhile.

        The script is started as well where it can never start: its launcher says so.
        """
        if not self.after:
            return None
        from gridtf import schedulers
        from gridtf.bootstrap.judge.conditions import Conditions
        from gridtf.jobspec.spec import JobSpec

        told = None
        try:
            record = read_record(self.run_dir.job, recordtypes.Job, own=True) or {}
            spec = JobSpec.from_dict(record["spec"])
            conditions = Conditions(self.run_dir, spec, schedulers.get("local"), self.system.monotonic)
            while told is None and conditions.look().why:
                if not files.exists(self.run_dir.waiting):  # the job has been started before
                    write_text(self.run_dir.waiting, "")
                number = self.system.wait(conditions.pause)
                told = number if processes.is_end(number) else None
        except (GridtfError, LookupError) as error:
            self.system.log(f"cannot wait for other jobs: {error}")
        with contextlib.suppress(OSError):
            self.run_dir.waiting.unlink(missing_ok=True)
        return told

    def _goes_on(self) -> bool:
        """Whether the launcher has ended so that the script shall be started again: a script may have any exit code."""
        try:
            latest = self.run_dir.latest()
            verdict = read_record(latest.verdict, recordtypes.Verdict, own=True) if latest else None
        except RunDirError:
            return False
        return bool(verdict and verdict.get("again"))

    def _wait(self, script: int) -> tuple[int | None, int | None]:
        """Wait until the script has ended.

        Returns:
            Its exit code, or minus the number of the signal, None when it has ignored SIGTERM; and the signal that this
            process has received to end the job, None where there was none.
        """
        received, deadline = None, float("inf")
        while True:
            number = self.system.wait(min(_CHILD_PAUSE, max(0.0, deadline - self.system.monotonic())))
            if processes.is_end(number) and received is None:
                received = number
                # set-up lines have the grace alone; the launcher needs it for its tasks, and a margin
                margin = self.grace + _LAUNCHER_MARGIN if self._launched() else 0.0
                deadline = self.system.monotonic() + self.grace + margin
                self.system.signal([script], signal.SIGTERM)
            if number == signal.SIGUSR1 and self._launched():  # before that it would end the set-up lines
                self.system.signal([script], signal.SIGUSR1)
            ended = self.system.reap()
            if script in ended:
                return ended[script], received
            if self.system.monotonic() >= deadline:
                return None, received

    def _launched(self) -> bool:
        """Whether the script has reached the launcher."""
        try:
            return self.run_dir.latest() is not None
        except RunDirError:
            return False


# --- the agent supervisor

_GRACE = 5.0
_SEND_LIMIT = 5.0  # seconds for a message to reach the launcher


def supervise_agent(arguments: Sequence[str]) -> int:
    """Fork the agent of this host, and end the processes that it leaves behind.

    Args:
        arguments: ``HOST ARGUMENTS…`` as for agent.main; ``@NAME`` for HOST stands for the value of that variable.

    Returns:
        The agent's exit code, or one of exits.EXITS when it was killed.
    """
    from gridtf.bootstrap.agent import agent

    system = System()
    host = _resolve_host(arguments[0], system)
    processes.block_signals()
    processes.become_subreaper()
    supervisor = AgentSupervisor(host, arguments[1:], system)
    processes.die_with_parent(supervisor.parent, signal.SIGTERM)  # no other signal reports that slurmstepd was killed
    handle = fork_agent(host, arguments[1:], agent.main)
    system.collect_garbage()
    pipe = processes.signal_at_end_of(_STDIN)
    return supervisor.watch(handle, lambda: pipe and processes.at_end(_STDIN))


class AgentSupervisor:
    """The parent of the agent of a host.

    Args:
        host: This host, as the allocation calls it.
        arguments: The arguments of the agent, without the host.
        system: This host.
        link_of: Makes a stream to the launcher, from what listener.json holds.

    Attributes:
        parent: The id of the process that has started this one.
    """

    def __init__(
        self, host: str, arguments: Sequence[str], system: System, link_of: Callable[..., Link] = link_of
    ) -> None:
        self._link_of = link_of
        self.host = host
        self.system = system
        self.parent = system.parent()
        run, number, self._nonce, *_ = arguments
        self._attempt = RunDir(run).attempt(int(number))

    def watch(self, agent: ForkedAgent, launcher_gone: Callable[[], bool]) -> int:
        """Forward signals until the agent has ended.

        Args:
            agent: The agent.
            launcher_gone: Returns whether the launcher has closed its end of the pipe, or died.

        Returns:
            The agent's exit code, or one of exits.EXITS when it was killed.
        """
        from gridtf.bootstrap.agent.exits import KILLED, LEFTOVERS, ORPHANED

        terminated = False
        while (end := agent.poll()) is None:
            if not terminated and launcher_gone():
                terminated = True
                agent.terminate()
            number = self.system.wait(_CHILD_PAUSE)
            if number is not None and (processes.is_end(number) or number in processes.PASSED_ON):
                agent.send(signal.Signals(number) if self.system.parent() == self.parent else ORPHANED)
        if end.code >= 0:
            return end.code
        what = f"the agent on host {self.host} was killed by {signal_name(-end.code)}"
        self.system.log(what)
        local_dir.remove(local_dir.places(self.system.environ, self._nonce, self.host))
        gone = {"what": what, "why": "", "hint": "was it killed by hand?"}
        link = None
        with contextlib.suppress(GridtfError):
            link = self._link()
        if link is not None:  # tell the launcher, in the place of the agent
            link.send(messages.GONE, gone)
            link.drain(_SEND_LIMIT)
        survivors = Supervisor([], self.system).tear_down(_GRACE, lambda: None)
        if link is not None:
            if not survivors:
                link.send(messages.GONE, {**gone, "over": True})
                link.drain(_SEND_LIMIT)
            link.close()
        return LEFTOVERS if survivors else KILLED

    def _link(self) -> Link | None:
        """A stream to the launcher; None where that has ended."""
        listener = read_record(self._attempt.listener, recordtypes.Listener, nonce=self._nonce, own=True)
        return None if listener is None else self._link_of(listener, self.host, self.system)


def _resolve_host(word: str, system: System) -> str:
    if not word.startswith("@"):
        return word
    host = system.environ.get(word[1:])
    if not host:
        hint = "only the launcher starts this, through srun or qrsh"
        raise UsageError(f"{word[1:]} is not set on host {system.host}", hint=hint)
    return host
