"""The placeholders of commands and variables, such as {task_index}: which there are, and filling them in. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gridtf.jobspec.tasktypes import TASK_TYPES

# The ranks are empty for a task that does not train, {TYPE_hosts} is so for a type that the job does not have.
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
_NEAR = 0.8  # task_id is for task_index, as difflib counts; run_id is somebody's own


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace ``{name}`` by its value; other braces stay as they are, since programs have their own."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def misspelt(text: str) -> Iterator[tuple[str, str]]:
    """(name, the one that is probably meant) for each ``{name}`` that is none, but almost is.

    Others are the program's own, as in ``awk '{print}'``; all placeholders that can be mistaken have an underscore.
    """
    joined = {name.replace("_", ""): name for name in NAMES if "_" in name}
    for name in _PLACEHOLDER.findall(text):
        if name in joined:
            yield name, joined[name]
        elif "_" in name and name not in NAMES:
            from difflib import get_close_matches

            yield from ((name, near) for near in get_close_matches(name, NAMES, n=1, cutoff=_NEAR))
