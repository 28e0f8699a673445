"""Other Python processes that import gridtf from this checkout."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Whether the kernel reports the exit status of a process to other processes than its parent (PIDFD_INFO_EXIT).
KERNEL_REPORTS_EXITS = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 15)


def python(code: str, *arguments: object) -> list[str]:
    """The command that runs this code."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """A copy of this process's environment in which gridtf of this checkout is imported."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def heed_signals() -> None:
    """In a new process, restore signals that nohup or a background job may ignore: shells cannot trap ignored ones."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
