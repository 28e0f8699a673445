"""Parses walltimes, memory sizes and node counts in the formats of Slurm's manual pages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Compiled where they are used: most commands parse none.
_WALLTIMES = (
    r"(?a)(?P<minutes>\d+)(:(?P<seconds>[0-5]?\d))?",  # M, M:S
    r"(?a)(?P<hours>\d+):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)",  # H:M:S
    r"(?a)(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>[0-5]?\d))?(:(?P<seconds>[0-5]?\d))?",  # D-H, D-H:M, D-H:M:S
    r"(?a)((?P<days>\d+)d)?((?P<hours>\d+)h)?((?P<minutes>\d+)m)?((?P<seconds>\d+)s)?",  # 1d12h, 90m
)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_MEMORY = r"(?ai)(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B|i)?)?"
_NODES = r"(?a)(\d+)(?:-(\d+))?"
_GPUS = r"(?a)(?:(?:gres[:/])?gpu:)?(?:((?![0-9]+:)[A-Za-z0-9][\w.+-]*):)?(\d{1,18})(?:\(S:[\d,-]+\))?"
GPU_KEYS = ("gpus_per_node", "gpus_per_task", "gpus")  # whose values may name the model of the GPUs, too
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}

# Linux refuses any single environment string of 128 KiB or more (execve(2), MAX_ARG_STRLEN).
LONGEST_VARIABLE = 131071

MOST = 1_000_000  # maximum of any count: tasks of a job, GPUs and CPUs of a host; no real cluster has as many
_LONGEST_WALLTIME = 2**31 - 1  # seconds; the maximum of timers
WALLTIME_FORMS = "minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, or with units such as 90m, 2h30m, 1d12h"


def parse_walltime(text: str | int, noun: str = "a walltime") -> int:
    """Parse a walltime.

    Args:
        text: In Slurm's formats (sbatch(1), --time; a plain number is minutes), or with units such as 1d12h.
        noun: What it is, for the error.

    Returns:
        Seconds.

    Raises:
        ValueError: When it is not a walltime, zero, or longer than 2**31 - 1 seconds.
    """
    word = str(text).strip()
    match = next((match for form in _WALLTIMES if (match := re.fullmatch(form, word))), None)
    total = sum(int(value or 0) * _SECONDS[unit] for unit, value in match.groupdict().items()) if match else 0
    if total == 0:
        raise ValueError(f"{word!r} is not {noun}")
    if total > _LONGEST_WALLTIME:
        raise ValueError(f"{word!r} is longer than {_LONGEST_WALLTIME // 86400} days, the maximum")
    return total


def parse_duration(text: str | int) -> int:
    """Parse a duration, in the formats of a walltime.

    Args:
        text: As for parse_walltime.

    Returns:
        Seconds.

    Raises:
        ValueError: As parse_walltime does.
    """
    return parse_walltime(text, "a duration")


def parse_pause(text: str | int) -> int | None:
    """Parse a duration that may be switched off.

    Args:
        text: As for parse_walltime, or ``off`` or 0.

    Returns:
        Seconds; None: it is switched off.

    Raises:
        ValueError: As parse_walltime does.
    """
    return None if str(text).strip() in ("off", "0") else parse_duration(text)


def format_walltime(seconds: int) -> str:
    """Format seconds as [D-]HH:MM:SS, a format of Slurm's --time (sbatch(1))."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def parse_memory(text: str | int) -> int:
    """Parse a memory size.

    Args:
        text: Such as 16G, 500M or 4096 (MiB, as Slurm's --mem); K, M, G and T are powers of 1024.

    Returns:
        MiB, rounded up.

    Raises:
        ValueError: When it is not a memory size, or zero.
    """
    match = re.fullmatch(_MEMORY, str(text).strip())
    if not match:
        raise ValueError(f"{str(text)!r} is not a memory size")
    mib = float(match[1]) * _MIB[(match[2] or "").upper()]
    if not 0 < mib < float("inf"):
        raise ValueError(f"{str(text)!r} is not a memory size")
    return -int(-mib // 1)


def parse_nodes(text: str | int) -> tuple[int, int]:
    """Parse a node count.

    Args:
        text: Such as 4 or 2-4.

    Returns:
        (fewest, most).

    Raises:
        ValueError: When it is not a node count.
    """
    match = re.fullmatch(_NODES, str(text).strip())
    if match:
        low, high = int(match[1]), int(match[2] or match[1])
        if 1 <= low <= high:
            return low, high
    raise ValueError(f"{str(text)!r} is not a node count")


def split_gpus(values: Mapping[str, object]) -> dict[str, object]:
    """Split numbers of GPUs that name a model as well, such as ``a100:4`` or ``1g.10gb:2``; Slurm's ``gpu:`` may be
    before it.

    Args:
        values: Key -> value, of a job or of a task type.

    Returns:
        The values that change, as numbers, and ``gpu_model`` where one is named.

    Raises:
        ValueError: When they name different models.
    """
    made: dict[str, object] = {}
    model = values.get("gpu_model")
    for key in GPU_KEYS:
        value = values.get(key)
        match = re.fullmatch(_GPUS, value) if isinstance(value, str) and ":" in value else None
        if match is None:
            continue
        made[key] = int(match[2])
        if match[1] and model and str(model).lower() != match[1].lower():
            raise ValueError(f"{model} and {match[1]} are two models of GPUs")
        if model := match[1] or model:
            made["gpu_model"] = model
    return made
