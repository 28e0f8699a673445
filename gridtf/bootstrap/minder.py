"""What the local scheduler starts for a job, as other schedulers do on a host: it runs the script, passes on that the
job is to end, leaves nobody behind and writes down how it ended.

As a subreaper it also gets what the set-up lines leave behind, daemons included, however the script ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from gridtf.bootstrap.supervisor import Supervisor
from gridtf.errors import RunDirError
from gridtf.host import processes
from gridtf.run.rundir import Record, RunDir, write_record
from gridtf.schedulers.agents import MINDER

# The launcher ends its hosts first, then what is left: both have their limits, this is for one that keeps neither.
_LAUNCHER_MARGIN = 30.0
_AGENT_MARGIN = 5.0


def main(arguments: Sequence[str]) -> int:
    """``minder RUN_DIR KILL_GRACE WALLTIME COMMAND…``: both in seconds, a walltime of 0 for none."""
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
