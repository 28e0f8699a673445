"""The last lines of a log, for a verdict: short, and plain whatever the task has printed."""

from __future__ import annotations

import os
from pathlib import Path

from gridtf.errors import RunDirError
from gridtf.rundir import open_plain
from gridtf.terminal import log_line

_LINES = 20
_BYTES = 16384
_LONGEST_LINE = 500


def last_lines(log: Path) -> list[str]:
    """The last lines of a log that may be long, binary or not there, as a terminal would show them."""
    try:
        with open_plain(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            text = file.read().decode(errors="replace")
    except (OSError, RunDirError):
        return []
    return [_plain(line) for line in text.rstrip().split("\n")[-_LINES:]] if text.strip() else []


def _plain(line: str) -> str:
    last = line.rstrip().rsplit("\r", 1)[-1]  # each state of a progress bar begins with a carriage return
    text = log_line(last, colours=False)
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} …"
