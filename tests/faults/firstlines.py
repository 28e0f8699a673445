"""The expected first lines of tables of faults: text as a user reads it, in which some words stand for others."""

from __future__ import annotations

import re

# A word of an expected line -> the pattern of what it stands for.
_STANDS_FOR = {"HOST": r"[\w.-]+", "N": r"\d+", "…": ".*"}
# What MPICH has in memory in other tests at the moment: that is this user's, too, and a verdict names it.
_OF_OTHERS = re.compile(r" \(left on \S+: (/dev/shm/mpich_\w+ \([^()]*\)(, )?)+\)")
_WORDS = re.compile(r"(\bHOST\b|\bN\b|…)")


def fits(expected: str, line: object) -> bool:
    """Whether a line is the expected one.

    Args:
        expected: Text in which HOST stands for a host's name, N for a number and … for anything.
        line: What `gridtf status` shows.
    """
    pattern = "".join(_STANDS_FOR.get(part, re.escape(part)) for part in _WORDS.split(expected))
    return re.fullmatch(pattern, _OF_OTHERS.sub("", str(line))) is not None
