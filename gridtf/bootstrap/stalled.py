"""A launcher that is not heard of: on its own host an agent can tell whether it stands still, wake it, or end it.

Nobody else would. Its job would hold all hosts until the walltime, with nothing running on them.
"""

from __future__ import annotations

import contextlib
import signal
import time

from gridtf.errors import GridtfError
from gridtf.host import procfs
from gridtf.host.processes import signal_all, tell
from gridtf.run.rundir import Attempt, Record, names
from gridtf.schedulers.base import FAILED


def wake(launcher: Record) -> bool:
    """Let it go on if it was stopped, which is nothing to one that was not; gives whether it was.

    launcher: what it wrote last.
    """
    stopped = procfs.stopped(launcher["pid"])
    signal_all([launcher["pid"]], signal.SIGCONT)
    return stopped


def end(attempt: Attempt, launcher: Record, silence: float, *, stopped: bool) -> None:
    """End it, and write the verdict in its place. silence: seconds. stopped: whether it was when it was woken."""
    from gridtf.bootstrap.verdict import Verdict

    signal_all([launcher["pid"]], signal.SIGKILL)
    how = "it was stopped by a signal" if stopped else "it hung, as in a file system that does not answer"
    what = f"the launcher on host {launcher['host']} stood still for {silence:.0f} s, and an agent has ended it"
    verdict = Verdict(FAILED, what, why=how, hint="its hosts had ended their tasks before")
    tell(verdict.text())
    with contextlib.suppress(GridtfError):
        if attempt.verdict.name in names(attempt.path):  # that was its last act
            return
        attempt.write_verdict(verdict.record(launcher["nonce"], launcher.get("began", time.time()), time.time()))
