"""Hostlists and counts as Slurm writes them: scontrol(1), "show hostnames", and sbatch(1), OUTPUT ENVIRONMENT. Pure."""

from __future__ import annotations

import itertools
import re
from typing import NoReturn

from gridtf.errors import SchedulerError

# Slurm's own limit for one range; no cluster has as many hosts.
MOST_HOSTS = 65536

_HOST = re.compile(r"[\s,]*((?:[^\s,\[\]]+|\[[^\[\]]*\])+)")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
# No host has a longer number, and Python converts longer ones slowly.
_DIGITS = 18


def expand(text: str) -> list[str]:
    """Expand a hostlist.

    Args:
        text: A hostlist as in SLURM_JOB_NODELIST (scontrol(1), "show hostnames"); hosts are separated by commas, spaces
            or newlines.

    Returns:
        The hosts in the order of the text; a host that it names twice is returned twice:
        ``n[008-011],n3`` n008 n009 n010 n011 n3 (a range is padded to the width of its first number)
        ``n[3,1-2]-ib``   n3-ib n1-ib n2-ib
        ``r[1-2]n[1-2]``  r1n1 r1n2 r2n1 r2n2 (the last bracket counts fastest)

    Raises:
        SchedulerError: For text that is not a hostlist, with the position of the error, or more than MOST_HOSTS hosts.
    """
    hosts: list[str] = []
    at = 0
    while match := _HOST.match(text, at):
        hosts += _expand_one(text, match, MOST_HOSTS - len(hosts))
        at = match.end()
    if bracket := re.compile(r"[^\s,]").search(text, at):  # a host ends at a separator, or else at a stray bracket
        _refuse_bracket(text, bracket.start())
    return hosts


def counts(text: str) -> list[int]:
    """Expand the short form of SLURM_JOB_CPUS_PER_NODE and SLURM_TASKS_PER_NODE.

    Args:
        text: Such as ``8(x2),4`` (sbatch(1), OUTPUT ENVIRONMENT VARIABLES); may be empty.

    Returns:
        One number per host: 8 8 4.

    Raises:
        SchedulerError: For any other text, or for more than MOST_HOSTS numbers.
    """
    numbers: list[int] = []
    for part in text.strip().split(",") if text.strip() else []:
        match = _COUNT.fullmatch(part)
        if match is None or len(part) > 2 * _DIGITS:
            raise SchedulerError(f"{_shown(text)} is not a list of counts: {_shown(part)}", hint="such as 8(x2),4")
        times = int(match[2] or 1)
        if times > MOST_HOSTS - len(numbers):
            raise SchedulerError(f"{_shown(text)} is a list of more than {MOST_HOSTS} counts")
        numbers += [int(match[1])] * times
    return numbers


def _expand_one(text: str, host: re.Match[str], room: int) -> list[str]:
    """Expand one name with brackets. room: most hosts that it may expand to."""
    if room < 1:
        _refuse(text, host.start(1), f"there are more than {MOST_HOSTS} hosts")
    parts: list[list[str]] = []
    for part in _PART.finditer(text, *host.span(1)):
        if part[2] is not None:
            parts.append([part[2]])
            continue
        parts.append(_numbers(text, part, room))
        room //= len(parts[-1])
    return ["".join(words) for words in itertools.product(*parts)]


def _numbers(text: str, bracket: re.Match[str], room: int) -> list[str]:
    """Expand the content of one bracket, such as 3,1-2. room: most numbers that it may expand to."""
    numbers: list[str] = []
    at = bracket.start(1)
    for word in bracket[1].split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            _refuse(text, at, f"{_shown(word)} is neither a number nor a range")
        if len(word) > 2 * _DIGITS:
            _refuse(text, at, f"{_shown(word)} has too many digits")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            _refuse(text, at, f"{word} runs backwards")
        if last - first + 1 > room - len(numbers):
            _refuse(text, at, f"with {word} it has more than {MOST_HOSTS} hosts")
        width = len(match[1])
        numbers += [f"{number:0{width}}" for number in range(first, last + 1)]
        at += len(word) + 1
    return numbers


def _refuse_bracket(text: str, at: int) -> NoReturn:
    if text[at] == "]":
        _refuse(text, at, "] without a [ before it")
    inner = text.find("[", at + 1)
    end = text.find("]", at + 1)
    _refuse(text, at, "[ is not closed" if end < 0 or not at < inner < end else "[ within brackets")


def _refuse(text: str, at: int, why: str) -> NoReturn:
    raise SchedulerError(f"{_shown(text)} is not a hostlist: at character {at + 1}: {why}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}…")
