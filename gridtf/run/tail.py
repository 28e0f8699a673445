"""The last lines of a log."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from gridtf.errors import RunDirError
from gridtf.run.rundir import open_plain
from gridtf.text import log_line

_LINES = 20
_BYTES = 65536
_MOST_SHOWN = 500  # characters per line
_BLOCK = 1 << 16
LONGEST_LINE = 1 << 16  # bytes; a longer line counts as several
BREAK = re.compile(rb"\r\n|\n|\r")  # a progress bar ends its lines with \r
_PLACE = re.compile(r'[\s|+]*File ".+", line \d+')  # in a Python traceback


def last_lines(log: Path) -> list[str]:
    """The last lines of a log for a verdict, as a terminal shows them.

    Args:
        log: The log; it may be long, binary or absent.

    Returns:
        At most 20 lines of at most 500 characters each. When the message of the last Python exception begins above
        them, as when it contains a whole tensor, its place and the first line of its message come first.
    """
    try:
        with open_plain(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            text = file.read().decode(errors="replace")
    except (OSError, RunDirError):
        return []
    if not text.strip():
        return []
    lines = text.rstrip().split("\n")
    head = _exception(lines)
    return [_plain(line) for line in (*head, *lines[len(head) - _LINES :])]


def _exception(lines: Sequence[str]) -> list[str]:
    """Place and first line of the last exception, unless that line is among the last lines."""
    place = next((number for number in reversed(range(len(lines))) if _PLACE.match(lines[number])), None)
    if place is None:
        return []
    message = next((n for n in range(place + 1, len(lines)) if lines[n][:1].strip()), len(lines))
    return [*lines[place : min(place + 2, message)], lines[message], "…"] if message < len(lines) - _LINES else []


def _plain(line: str) -> str:
    last = line.rstrip().rsplit("\r", 1)[-1]  # each state of a progress bar begins with a carriage return
    text = log_line(last, colours=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def tail_start(file: BinaryIO, count: int) -> int:
    """Find where the last lines of a file begin.

    Reads block by block from the end: a log may be larger than memory, and have no line break at all.

    Args:
        file: A regular file.
        count: Number of lines; a line longer than LONGEST_LINE bytes counts as several of that length.

    Returns:
        An offset in bytes.
    """
    end = at = later = file.seek(0, io.SEEK_END)
    while at and count > 0:
        begin = max(0, at - _BLOCK)
        file.seek(begin)
        data = file.read(at - begin + 1)  # one byte more: a \r at the end may be half of a \r\n
        starts = [begin + match.end() for match in BREAK.finditer(data)]
        for start in [start for start in reversed(starts) if start <= at and start < end]:
            pieces = -(-(later - start) // LONGEST_LINE)
            if pieces >= count:
                return max(start, later - count * LONGEST_LINE)
            count -= pieces
            later = start
        if later - begin >= count * LONGEST_LINE:
            return later - count * LONGEST_LINE
        at = begin
    return at
