"""Placeholders in commands and variables, such as {task_index}. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "cluster": "host:port of all tasks in the cluster, by type, as JSON",
    "run_dir": "the run directory",
    "output_dir": "the folder that all tasks share for their results",
    "job_id": "the scheduler's id of the job",
}
OF_OWN_TYPES = "the same for a task type of the job's own"
NAMES = tuple(MEANINGS)
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")  # ${name} is the shell's
_NEAR = 0.8  # by difflib: task_id is close enough to task_index, run_id is the user's own
_NEAREST = 0.6  # of an unknown one: hosts is most like ps_hosts
_WHOLE = re.compile(r"(?:--?[\w-]+=)?\{[a-z_]+\}")
_LITERAL = re.compile(r"((?:--?[\w-]+=)?)\{(\{[a-z_]+\})\}")
_OF_AWK = ("exit", "getline", "next", "nextfile", "print")  # programs of one statement: awk '{print}'
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

    Returns:
        The text; an argument ``{{word}}``, or an option ``--x={{word}}``, becomes ``{word}``.
    """
    if literal := _LITERAL.fullmatch(text):
        return f"{literal[1]}{literal[2]}"
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


def placeholders(types: Iterable[str]) -> tuple[str, ...]:
    """The placeholders of a job.

    Args:
        types: The task types of its own, others are known.
    """
    return (*NAMES, *(f"{name}_hosts" for name in types if name not in TASK_TYPES))


def is_whole(text: str) -> bool:
    """Whether an argument is nothing but a word in braces, or an option set to one: ``--index={task_index}``."""
    return bool(_WHOLE.fullmatch(text))


def misspelt(text: str, names: Sequence[str], *, whole: bool) -> Iterator[tuple[str, str]]:
    """Find unknown placeholders.

    An argument that is nothing but a word in braces is one, except a statement of awk. Elsewhere only words that are
    like a placeholder count, with an underscore, or without that of the placeholder: other braces are the program's.

    Args:
        text: An argument of a command.
        names: The known placeholders.
        whole: Whether it is nothing but a word in braces.

    Yields:
        (name as written, the placeholder that it probably stands for; empty where none is similar).
    """
    joined = {name.replace("_", ""): name for name in names if "_" in name}
    for name in _PLACEHOLDER.findall(text):
        if name in names or (whole and name in _OF_AWK):
            continue
        if name in joined:
            yield name, joined[name]
        elif whole and name in _ELSEWHERE:
            yield name, _ELSEWHERE[name]
        elif whole or "_" in name:
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1, cutoff=_NEAREST if whole else _NEAR)
            if near or whole:
                yield name, "".join(near)


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
