"""gridtf run: the launcher in a process of its own, whose logs this one prints until it has ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.cli import output
from gridtf.cli.follow import printed
from gridtf.cli.logs import Shown
from gridtf.host.processes import PASSED_ON, die_with_parent
from gridtf.observe.logs import Choice
from gridtf.run.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable


_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, *PASSED_ON)


def follow(launch: Callable[[Callable[[RunDir], None]], int], *, raw: bool | None = None) -> int:
    """Run a job in a new process, and print its logs in this one.

    Signals for the launcher are passed on. It has Ctrl-C from the terminal as well, and a second one does nothing.
    Before it waits for signals, it is not interrupted.

    Args:
        launch: Runs the job and returns its exit code; to be called with a function that is told the run directory.
        raw: As for Shown.

    Returns:
        The exit code of the job script.
    """
    ours, theirs = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    parent, pid = os.getpid(), os.fork()
    if not pid:
        os.close(ours)
        die_with_parent(parent, signal.SIGTERM)

        def begun(run: RunDir) -> None:
            os.write(theirs, os.fsencode(run.path))
            os.close(theirs)

        return launch(begun)
    os.close(theirs)
    for number in _PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with os.fdopen(ours, "rb") as pipe:
        path = pipe.read()
    ends: list[int] = []

    def ended() -> bool:
        output.write("")
        if not ends:
            there, status = os.waitpid(pid, os.WNOHANG)
            ends.extend([os.waitstatus_to_exitcode(status)] if there else [])
        return bool(ends)

    shown = Shown(raw=raw)
    if path:
        for line in printed(RunDir(Path(os.fsdecode(path))), Choice(), shown, ended, time.sleep):
            output.write(line, flush=False)
    while not ended():
        time.sleep(0.05)
    output.write("")
    shown.tell()
    return ends[0] if ends[0] >= 0 else 128 - ends[0]
