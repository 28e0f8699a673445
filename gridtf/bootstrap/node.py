"""What runs on a host above gridtf's own processes, and outlives them: as a subreaper it finds whatever they leave.

The agent supervisor is what srun or qrsh starts: an agent that is killed by kill -9 cannot say so, and schedulers often
do not notice either; a parent can do both. The job runner is what the local scheduler starts: it does for the job
script what slurmstepd or sge_shepherd does elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from gridtf.bootstrap.supervisor import Supervisor
from gridtf.errors import GridtfError, RunDirError, UsageError
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, RunDir, read_record, write_record
from gridtf.schedulers.agents import MINDER, fork_agent

# --- the job runner

# The launcher ends its hosts first, then what is left: both have their limits, this is for one that keeps neither.
_LAUNCHER_MARGIN = 30.0
_AGENT_MARGIN = 5.0


def run_job(arguments: Sequence[str]) -> int:
    """Run the script of a local job, pass on that it is to end, leave no process behind and write down how it ended.

    Args:
        arguments: ``RUN_DIR KILL_GRACE WALLTIME COMMAND…``: both in seconds, a walltime of 0 for none.

    Returns:
        The exit code of this process, always 0: run.ended has the script's.
    """
    path, kill_grace, walltime, *command = arguments
    run, grace = RunDir(path), float(kill_grace)
    processes.block_signals()
    processes.become_subreaper()
    end: Record = {"exit": None, "signal": None, "told": None, "error": None}
    try:
        script = _start(command, int(walltime))
    except OSError as error:
        end["error"] = f"{command[0]} cannot be started: {error.strerror}"
        processes.tell(end["error"])
    else:
        code, told = _watch_over(run, script, grace)
        # an agent whose launcher was killed has begun as well, and needs a moment more to write down what became of it
        patience = 0.0 if code is None else grace + (_AGENT_MARGIN if _launched(run) else 0.0)
        left = Supervisor([]).tear_down(patience, lambda: None)
        if left:
            processes.tell(f"processes that KILL did not end: {left}")
        code = -signal.SIGKILL if code is None else code
        end["exit" if code >= 0 else "signal"] = code if code >= 0 else processes.signal_name(-code)
        end["told"] = processes.signal_name(told) if told else None
    try:
        write_record(run.ended, end)
    except RunDirError as error:
        processes.tell(str(error))
    return 0


def _start(command: Sequence[str], walltime: int) -> int:
    """The pid of the script, in a session of its own."""
    parent = os.getpid()

    def child() -> None:
        processes.die_with_parent(parent, signal.SIGTERM)
        # An alarm outlives exec: it ends set-up lines that hang, and reaches the launcher after them.
        signal.alarm(walltime)
        processes.unblock_signals()

    script = subprocess.Popen(
        list(command),
        env={**os.environ, MINDER: str(parent)},
        start_new_session=True,
        preexec_fn=child,  # safe: this process has one thread
    )
    script.returncode = 0  # reaped here, not by Popen
    return script.pid


def _watch_over(run: RunDir, script: int, grace: float) -> tuple[int | None, int | None]:
    """Until the script has ended: its exit code or minus the signal, None when it did not heed that it is to end, and
    the signal that said so."""
    told, deadline = None, float("inf")
    while True:
        number = processes.wait_for_signal(min(5.0, max(0.0, deadline - time.monotonic())))
        if processes.is_end(number) and told is None:
            told = number
            # set-up lines know nothing of the grace, the launcher keeps it itself
            deadline = time.monotonic() + grace + (grace + _LAUNCHER_MARGIN if _launched(run) else 0.0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(script, signal.SIGTERM)
        ended = processes.reap()
        if script in ended:
            return ended[script], told
        if time.monotonic() >= deadline:
            return None, told


def _launched(run: RunDir) -> bool:
    """Whether the script has got as far as the launcher."""
    try:
        return run.latest() is not None
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

    gc.enable()  # off until now: modules load faster without
    host = _host(arguments[0])
    processes.block_signals()
    processes.become_subreaper()
    # when slurmstepd or sge_shepherd is killed, nobody else tells us that the job is over
    parent = os.getppid()
    processes.die_with_parent(parent, signal.SIGTERM)
    handle = fork_agent(host, arguments[1:], agent.main)
    told = not processes.signal_at_end_of(_STDIN)
    while (end := handle.poll()) is None:
        if not told and processes.at_end(_STDIN):  # the launcher's word, or its death
            told = True
            handle.terminate()
        number = processes.wait_for_signal(5.0)
        if number is not None and (processes.is_end(number) or number in processes.PASSED_ON):
            handle.send(signal.Signals(number) if os.getppid() == parent else agent.ORPHANED)
    if end.code >= 0:
        return end.code
    what = f"the agent on host {host} was killed by {processes.signal_name(-end.code)}"
    processes.tell(what)
    with contextlib.suppress(GridtfError):
        _write_down(host, arguments[1:], what)
    left = Supervisor([]).tear_down(_GRACE, lambda: None)
    return agent.LEFTOVERS if left else agent.KILLED


def _host(word: str) -> str:
    if not word.startswith("@"):
        return word
    host = os.environ.get(word[1:])
    if not host:
        raise UsageError(f"{word[1:]} is not set on host {os.uname().nodename}", hint="this is called by the launcher")
    return host


def _write_down(host: str, arguments: Sequence[str], what: str) -> None:
    """Say it in the agent's own record: it has no other writer any more. Raises RunDirError."""
    run, number, nonce, *_ = arguments
    path = RunDir(run).attempt(int(number)).host_state(host)
    record = read_record(path, recordtypes.HostState, nonce=nonce, own=True)
    if record is None:
        record = {"nonce": nonce, "host": host, "tasks": {}}
    with contextlib.suppress(RunDirError):
        write_record(path, {**record, "gone": {"what": what, "why": "", "hint": "was it killed by hand?"}})
