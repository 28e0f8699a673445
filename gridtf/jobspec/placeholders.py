"""Placeholders in commands and variables, such as {task_index}. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gridtf.jobspec.tasktypes import TASK_TYPES

# Ranks are empty for a task that does not train, {TYPE_hosts} for a type that the job does not have.
NAMES = (
    *(f"{name}_hosts" for name in TASK_TYPES),
    "task_type",
    "task_index",
    "rank",
    "world_size",
    "local_rank",
    "master_addr",
    "master_port",
    "cluster",
    "run_dir",
    "output_dir",
    "job_id",
)
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")  # ${name} is the shell's
_NEAR = 0.8  # by difflib: task_id is close enough to task_index, run_id is the user's own


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders by their values.

    Args:
        text: An argument of a command, or a variable's value.
        values: Placeholder, without braces -> text. Other braces stay as they are: programs have their own.
    """
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


# In the pattern of `address`.
HOST_NAMES = ("host", "short")


def host_address(pattern: str, host: str) -> str:
    """The address of a host, by the pattern of ``address``.

    Args:
        pattern: Such as ``{host}i``.
        host: The scheduler's name of the host.
    """
    return fill(pattern, {"host": host, "short": host.partition(".")[0]})


def misspelt(text: str) -> Iterator[tuple[str, str]]:
    """Find likely misspelt placeholders.

    Only words with an underscore, or placeholders without theirs, count; other braces, as in ``awk '{print}'``, are the
    program's.

    Yields:
        (name as written, the placeholder it probably stands for).
    """
    joined = {name.replace("_", ""): name for name in NAMES if "_" in name}
    for name in _PLACEHOLDER.findall(text):
        if name in joined:
            yield name, joined[name]
        elif "_" in name and name not in NAMES:
            from difflib import get_close_matches

            yield from ((name, near) for near in get_close_matches(name, NAMES, n=1, cutoff=_NEAR))
