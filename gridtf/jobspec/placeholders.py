"""Placeholders in commands and variables, such as {task_index}. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from gridtf.jobspec.tasktypes import TASK_TYPES

# Placeholder -> what replaces it. Ranks are empty for a task that does not train, {TYPE_hosts} for a type that the job
# does not have.
MEANINGS = {
    **{f"{name}_hosts": f"host:port of every {name}, separated by commas" for name in TASK_TYPES},
    "task_type": "the type of the task, such as worker",
    "task_index": "its index among the tasks of its type, from 0 on",
    "rank": "its rank among the training tasks, from 0 on",
    "world_size": "number of training tasks",
    "local_rank": "its rank among the training tasks of its host",
    "master_addr": "address of the host of rank 0",
    "master_port": "a port on that host",
    "cluster": "host:port of all tasks, by type, as JSON",
    "run_dir": "the run directory",
    "output_dir": "the folder that all tasks share for their results",
    "job_id": "the scheduler's id of the job",
}
NAMES = tuple(MEANINGS)
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")  # ${name} is the shell's
_NEAR = 0.8  # by difflib: task_id is close enough to task_index, run_id is the user's own
_WHOLE = re.compile(r"(?:--?[\w-]+=)?\{([a-z_]+)\}")  # an argument that is one placeholder, or an option set to one
# Names that other launchers and TensorFlow's own examples have for them.
_ELSEWHERE = {
    "job_name": "task_type",
    "type": "task_type",
    "index": "task_index",
    "ps": "ps_hosts",
    "worker": "worker_hosts",
    "workers": "worker_hosts",
}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders by their values.

    Args:
        text: An argument of a command, or a variable's value.
        values: Placeholder, without braces -> text. Other braces stay as they are: programs have their own.
    """
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


# In `container_command`.
CONTAINER_NAMES = ("image", "bind", "env", "chdir")

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

    Only words with an underscore, placeholders without theirs, and arguments that are nothing but a placeholder count;
    other braces, as in ``awk '{print}'``, are the program's.

    Yields:
        (name as written, the placeholder it probably stands for).
    """
    joined = {name.replace("_", ""): name for name in NAMES if "_" in name}
    whole = _WHOLE.fullmatch(text)
    for name in _PLACEHOLDER.findall(text):
        if name in NAMES:
            continue
        if name in joined:
            yield name, joined[name]
        elif whole and name in _ELSEWHERE:
            yield name, _ELSEWHERE[name]
        elif whole or "_" in name:
            from difflib import get_close_matches

            yield from ((name, near) for near in get_close_matches(name, NAMES, n=1, cutoff=_NEAR))


def without_braces(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Find options whose value is the bare name of a placeholder: tcsh removes the braces of ``{ps_hosts}``.

    Names that are ordinary words (``--metric rank``) count only for an option of the same name.

    Args:
        words: A command.

    Yields:
        (the option with its value as written, the placeholder).
    """
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if not equals:
            value = following
        if option.startswith("-") and value in NAMES and ("_" in value or option.lstrip("-") == value):
            yield f"{option}{equals or ' '}{value}", value
