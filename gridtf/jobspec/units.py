"""Walltimes, memory sizes and node counts, as Slurm's manual pages spell them. Pure."""

from __future__ import annotations

import re

# Compiled where they are used: most commands parse none.
_MINUTES = r"(?a)(\d+)(?::(\d{1,2}))?"  # M, M:S
_HOURS = r"(?a)(\d+):(\d{1,2}):(\d{1,2})"  # H:M:S
_DAYS = r"(?a)(\d+)-(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?"  # D-H, D-H:M, D-H:M:S
_WORDS = r"(?a)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?"  # 1d12h, 90m
_MEMORY = r"(?ai)(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?"
_NODES = r"(?a)(\d+)(?:-(\d+))?"
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}

# Linux refuses any single environment string of 128 KiB or more (execve(2), MAX_ARG_STRLEN).
LONGEST_VARIABLE = 131071

MOST = 1_000_000  # of anything counted: tasks of a job, GPUs and CPUs of a host; no real cluster has as many
_LONGEST_WALLTIME = 2**31 - 1  # seconds; timers take no more
WALLTIME_FORMS = "minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, or with units such as 90m, 2h30m, 1d12h"


def parse_walltime(text: str | int) -> int:
    """Read a walltime.

    Args:
        text: In Slurm's spellings (sbatch(1), --time), a plain number being minutes, or with units such as 1d12h.

    Returns:
        Seconds.

    Raises:
        ValueError: When it is no walltime, zero or longer than 2**31 - 1 seconds.
    """
    word = str(text).strip()
    if match := re.fullmatch(_DAYS, word):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        small = (minutes < 60, seconds < 60)
    elif match := re.fullmatch(_HOURS, word):
        days, (hours, minutes, seconds) = 0, (int(part) for part in match.groups())
        small = (minutes < 60, seconds < 60)
    elif match := re.fullmatch(_MINUTES, word):
        days, hours, minutes, seconds = 0, 0, int(match[1]), int(match[2] or 0)
        small = (True, seconds < 60)
    elif word and (match := re.fullmatch(_WORDS, word)):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        small = (True, True)
    else:
        raise ValueError(f"{word!r} is not a walltime")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not all(small) or total == 0:
        raise ValueError(f"{word!r} is not a walltime")
    if total > _LONGEST_WALLTIME:
        raise ValueError(f"{word!r} is longer than {_LONGEST_WALLTIME // 86400} days, the maximum")
    return total


def format_walltime(seconds: int) -> str:
    """Spell seconds as [D-]HH:MM:SS, which Slurm reads."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def parse_memory(text: str | int) -> int:
    """Read a memory size.

    Args:
        text: Such as 16G, 500M or 4096 (MiB, as in Slurm).

    Returns:
        MiB, rounded up.

    Raises:
        ValueError: When it is no memory size, or zero.
    """
    match = re.fullmatch(_MEMORY, str(text).strip())
    if not match:
        raise ValueError(f"{str(text)!r} is not a memory size")
    mib = float(match[1]) * _MIB[match[2].upper()]
    if not 0 < mib < float("inf"):
        raise ValueError(f"{str(text)!r} is not a memory size")
    return -int(-mib // 1)


def parse_nodes(text: str | int) -> tuple[int, int]:
    """Read a node count.

    Args:
        text: Such as 4 or 2-4.

    Returns:
        (fewest, most).

    Raises:
        ValueError: When it is no node count.
    """
    match = re.fullmatch(_NODES, str(text).strip())
    if match:
        low, high = int(match[1]), int(match[2] or match[1])
        if 1 <= low <= high:
            return low, high
    raise ValueError(f"{str(text)!r} is not a node count")
