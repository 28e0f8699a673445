"""The last lines of a log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, takewhile
from pathlib import Path

from gridtf.errors import RunDirError
from gridtf.run.logparts import LogParts
from gridtf.run.noise import BAR, Noise
from gridtf.text import log_line

_LINES = 20
_BYTES = 65536
_SEARCHED = 1 << 18  # bytes in which an error is looked for
_MOST_SHOWN = 500  # characters per line
_BLOCK = 1 << 16
LONGEST_LINE = 1 << 16  # bytes; a longer line counts as several
BREAK = re.compile(rb"\r\n|\n|\r")  # a progress bar ends its lines with \r
_PLACE = re.compile(r'[\s|+]*File "(.+)", line (\d+)(?:, in |\s*$)')  # in a Python traceback
_MESSAGE = re.compile(r"(?:\w+\.)*([A-Z_]\w*)(?:: (.*))?")  # below it
_HARMLESS_ABOVE = ("Exception ignored ", "Error in ")  # of __del__ and atexit, which end no program
_OF_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")
_CRASH = "Fatal Python error: "  # of faulthandler, above the stacks
_MODULES = re.compile(r"^Extension modules: .*\(total: \d+\)$", re.MULTILINE)  # below them, up to hundreds of names
# What tells of an error: in words, as the level of absl's and glog's messages, or by a shell.
_ERROR = re.compile(
    r"(?i:\b(?:\w*error|fatal|failed|failure|\w+exception|segmentation fault|core dumped|out of memory)\b)"
    r"|^[EF]\d{4} |: [EF] |\b(?:Killed|Aborted)\b"
)
# What Keras prints below a message: the arguments of a layer, each with a bullet.
_ARGUMENTS, _ARGUMENT = re.compile(r" *(?:A|Call a)rguments received by "), re.compile(r" *•")
_NUMBERS = re.compile(r"(?=\D*\d)[\s\d.,e+\-\[\]()naif]+|\s*\.\.\.,?\s*|…")  # a row of a tensor, and what is left
_HARMLESS = re.compile(r"Unable to register cu\w+ factory|computation_placer already registered")  # of TensorFlow


def last_lines(log: Path, within: int = _BYTES, *, gpus: bool = True, left: bool = False) -> list[str]:
    """The last lines of a log for a verdict, as a terminal shows them.

    Args:
        log: The log; it may be long, binary or absent.
        within: How many bytes at its end are read.
        gpus: Whether the task may have GPUs.
        left: As of Noise.

    Returns:
        At most 20 lines of at most 500 characters each, without the noise of TensorFlow, the contents of tensors and
        the arguments of layers. When the message of the last Python exception or crash begins above them, its place
        and the first line of its message come first.
    """
    lines = _without_values([*Noise(gpus=gpus, left=left).without(last_text(log, within).rstrip().split("\n"))])
    if lines == ["…"] and within <= _BYTES:
        return last_lines(log, _BYTES << 6, gpus=gpus, left=left)
    head = _exception(lines)
    return [_plain(line) for line in (*head, *lines[len(head) - _LINES :])]


def _without_values(lines: Sequence[str]) -> list[str]:
    """The lines without the arguments of layers, and with "…" where there are contents of a tensor, in several rows."""
    short: list[str] = []
    for of_numbers, group in groupby(lines, lambda line: bool(_NUMBERS.fullmatch(line))):
        rows = list(group)
        brackets = [(row.count("["), row.count("]")) for row in rows]  # a list that a program prints has both in a row
        many = len(rows) >= _LINES and any(map(any, brackets))
        short += ["…"] if of_numbers and (many or any(left != right for left, right in brackets)) else rows
    kept, arguments = [], False
    for line in short:
        more = _ARGUMENT.match(line) or _NUMBERS.fullmatch(line)
        arguments = bool(_ARGUMENTS.match(line) or (arguments and more))
        kept += [] if arguments else [line]
    text = "\n".join(kept).rstrip()
    return text.split("\n") if text else []


def _exception(lines: Sequence[str]) -> list[str]:
    """Place and first line of the last exception, unless that line is among the last lines."""
    place, message = _raised(lines)
    shown = message < len(lines) - _LINES
    return [*lines[place : min(place + 2, message)], lines[message], "…"] if shown else []


def _raised(lines: Sequence[str]) -> tuple[int, int]:
    """The numbers of the lines with the place and the message of the last exception; of no line where there is none.

    Those of a crash are the same: its place is in the stacks that follow.
    """
    for place in reversed(range(len(lines))):
        if lines[place].startswith(_CRASH):
            return place, place
        if _PLACE.match(lines[place]):
            return place, next((n for n in range(place + 1, len(lines)) if lines[n][:1].strip()), len(lines))
    return len(lines), len(lines)


def exception(lines: Sequence[str]) -> dict[str, str]:
    """The Python exception that a log ends with.

    Args:
        lines: The last lines of the log, as last_lines returns them.

    Returns:
        Its ``type`` without the module, the first line of its ``message``, and its ``place`` in a file that is no
        library's, such as ``train.py:41``; nothing for a group of exceptions, and where something else follows.
    """
    place, message = _raised(lines)
    said = _MESSAGE.fullmatch(lines[message]) if place < message < len(lines) else None
    if said is None or any(line[:1].strip() or BAR.match(line) for line in lines[message + 1 :]):
        return {}
    stack = [*takewhile(lambda line: line[:1].isspace(), reversed(lines[: place + 1]))]
    above = lines[max(0, place - len(stack) - 1) : place + 1 - len(stack)]
    places = [match for line in stack if (match := _PLACE.match(line))]
    if not places or lines[place].lstrip()[0] == "|" or any(line.startswith(_HARMLESS_ABOVE) for line in above):
        return {}
    own = next((match for match in places if not _OF_LIBRARIES.search(match[1])), places[0])
    return {"type": said[1], "message": said[2] or "", "place": f"{Path(own[1]).name}:{own[2]}"}


def last_error(log: Path) -> list[str]:
    """The last error in the last lines of a log.

    Args:
        log: As for last_lines.

    Returns:
        The message of the last Python exception and its place, or that of a crash, else the last line that tells of an
        error; empty where there is none.
    """
    lines = last_text(log).rstrip().split("\n")
    place, message = _raised(lines)
    if message < len(lines):
        return [_plain(line) for line in (lines[message], *lines[place : min(place + 2, message)])]
    found = (line for line in reversed(lines) if _ERROR.search(line) and not _HARMLESS.search(line))
    return [_plain(line) for line in (next(found, None),) if line is not None]


def _plain(line: str) -> str:
    last = line.rstrip().rsplit("\r", 1)[-1]  # each state of a progress bar begins with a carriage return
    text = log_line(last, colours=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def last_text(log: Path, most: int = _SEARCHED) -> str:
    """The end of a log.

    Args:
        log: The log; it may be long, binary or absent.
        most: Number of bytes.

    Returns:
        Its text, without the names of extension modules that follow a crash; empty where it cannot be read.
    """
    parts = LogParts(log)
    try:
        begin, end = parts.extent()
        return _MODULES.sub("", between(parts, max(begin, end - most), end).decode(errors="replace"))
    except RunDirError:
        return ""


def between(parts: LogParts, begin: int, end: int) -> bytes:
    """The bytes of a log between two offsets; fewer where it has become shorter or some are gone.

    Raises:
        RunDirError: When it cannot be read.
    """
    found = []
    while begin < end:
        at, data = parts.read(begin, end - begin)
        if not data or at < begin:
            break
        found.append(data)
        begin = at + len(data)
    return b"".join(found)


def tail_start(parts: LogParts, count: int) -> int:
    """Find where the last lines of a log begin.

    Reads block by block from the end: a log may be larger than memory, and have no line break at all.

    Args:
        parts: The log.
        count: Number of lines; a line longer than LONGEST_LINE bytes counts as several of that length.

    Returns:
        An offset in bytes.

    Raises:
        RunDirError: When it cannot be read.
    """
    first, end = parts.extent()
    at = later = end
    while at > first and count > 0:
        begin = max(first, at - _BLOCK)
        data = between(parts, begin, at + 1)  # one byte more: a \r at the end may be half of a \r\n
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
