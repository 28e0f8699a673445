"""Another Python process that has gridtf, from this checkout."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Whether the kernel tells others than its parent how a process has ended (PIDFD_INFO_EXIT).
ENDS_ARE_TOLD = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 15)


def python(code: str, *arguments: object) -> list[str]:
    """The command that runs this code."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """This process's environment, in which gridtf can be imported."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def heed_signals() -> None:
    """For a new process: tests may run under nohup or in the background, where shells cannot trap what is ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
