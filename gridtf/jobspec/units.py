"""Walltimes, memory sizes and node counts, as Slurm's manual pages spell them. Pure."""

from __future__ import annotations

import re

_MINUTES = re.compile(r"(\d+)(?::(\d{1,2}))?", re.ASCII)  # M, M:S
_HOURS = re.compile(r"(\d+):(\d{1,2}):(\d{1,2})", re.ASCII)  # H:M:S
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)  # D-H, D-H:M, D-H:M:S
_WORDS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)  # 1d12h, 90m
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_NODES = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}

# Linux refuses any single environment string of 128 KiB or more (execve(2), MAX_ARG_STRLEN).
LONGEST_VARIABLE = 131071

MOST = 1_000_000  # of anything that is counted: tasks of a job, or GPUs and CPUs of a host; nothing real has as many
_LONGEST_WALLTIME = 2**31 - 1  # seconds: no timer of this machine is set to more
WALLTIME_FORMS = "minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, or with units such as 90m, 2h30m, 1d12h"


def parse_walltime(text: str | int) -> int:
    """A walltime in Slurm's spellings (sbatch(1), --time) or with units, in seconds.

    Raises ValueError when it is none of them, zero or too long.
    """
    word = str(text).strip()
    if match := _DAYS.fullmatch(word):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        small = (minutes < 60, seconds < 60)
    elif match := _HOURS.fullmatch(word):
        days, (hours, minutes, seconds) = 0, (int(part) for part in match.groups())
        small = (minutes < 60, seconds < 60)
    elif match := _MINUTES.fullmatch(word):
        days, hours, minutes, seconds = 0, 0, int(match[1]), int(match[2] or 0)
        small = (True, seconds < 60)
    elif word and (match := _WORDS.fullmatch(word)):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        small = (True, True)
    else:
        raise ValueError(f"{word!r} is not a walltime")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not all(small) or total == 0:
        raise ValueError(f"{word!r} is not a walltime")
    if total > _LONGEST_WALLTIME:
        raise ValueError(f"{word!r} is longer than {_LONGEST_WALLTIME // 86400} days, the most there can be")
    return total


def format_walltime(seconds: int) -> str:
    """Seconds as [D-]HH:MM:SS, which Slurm reads."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def parse_memory(text: str | int) -> int:
    """A memory size such as 16G, 500M or 4096 (MiB, as in Slurm), in MiB, rounded up. Raises ValueError."""
    match = _MEMORY.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{str(text)!r} is not a memory size")
    mib = float(match[1]) * _MIB[match[2].upper()]
    if not 0 < mib < float("inf"):
        raise ValueError(f"{str(text)!r} is not a memory size")
    return -int(-mib // 1)


def parse_nodes(text: str | int) -> tuple[int, int]:
    """A node count such as 4 or 2-4: (fewest, most). Raises ValueError."""
    match = _NODES.fullmatch(str(text).strip())
    if match:
        low, high = int(match[1]), int(match[2] or match[1])
        if 1 <= low <= high:
            return low, high
    raise ValueError(f"{str(text)!r} is not a node count")
