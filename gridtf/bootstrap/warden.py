"""What srun or qrsh starts on a host: it forks the agent and, whatever becomes of that, leaves nobody behind.

An agent that is killed by kill -9 cannot say so, and schedulers often do not notice either; a parent can do both. As a
subreaper it also inherits what the agent leaves, which not every scheduler finds and ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Sequence

from gridtf.bootstrap import agent
from gridtf.bootstrap.exits import KILLED, LEFTOVERS
from gridtf.bootstrap.supervisor import Supervisor
from gridtf.errors import GridtfError, RunDirError, UsageError
from gridtf.host import processes
from gridtf.run import recordtypes
from gridtf.run.rundir import RunDir, read_record, write_record
from gridtf.schedulers.agents import fork_agent

_GRACE = 5.0
_STDIN = 0


def main(arguments: Sequence[str]) -> int:
    """``warden HOST ARGUMENTS…`` with those of the agent; gives its exit code. ``@NAME`` stands for what that
    variable says."""
    gc.freeze()  # what is loaded by now stays: it need not be looked at again
    gc.enable()
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
    return LEFTOVERS if left else KILLED


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
