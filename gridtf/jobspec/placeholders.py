"""Placeholders in commands and variables, such as {task_index}, {params.lr} and {{ lr }}. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from gridtf.jobspec.tasktypes import TASK_TYPES

# Placeholder -> what replaces it. Ranks are empty for a task that does not train, {TYPE_hosts} for a type that the job
# does not have.
MEANINGS = {
    **{f"{name}_hosts": f"host:port of every {name}, separated by commas" for name in TASK_TYPES},
    "task_type": "the type of the task, such as worker",
    "task_index": "its index among the tasks of its type, from 0 on",
    "address": "its own host:port",
    "port": "its own port",
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
# Those that a job has by its own task types and parameters.
OF_A_JOB = {
    "TYPE_hosts": "the same for a task type of the job's own",
    "params.NAME": "a parameter; {{ NAME }} is the same",
    "params": "all parameters as flags: --lr=0.01; --NAME for true, nothing for false",
}
NAMES = tuple(MEANINGS)
PARAMS = "params"
ALL = f"{{{PARAMS}}}"  # as an argument: all parameters, as flags
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")  # ${name} is the shell's
_NAME = r"[A-Za-z_][\w-]*"
# {params.lr}; {{ num-layers }} and {{lr}}, as RiseML has them
_PARAMETER = re.compile(rf"(?<!\$)(?:\{{params\.(?P<own>{_NAME})\}}|\{{\{{ *(?P<pair>{_NAME}) *\}}\}})")
_ANY = re.compile(f"{_PARAMETER.pattern}|{_PLACEHOLDER.pattern}")
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
        The text; an argument ``{{word}}``, or an option ``--x={{word}}``, becomes ``{word}`` unless it is a parameter.
    """
    if (literal := _LITERAL.fullmatch(text)) and not _known(literal[2][1:-1], values):
        return f"{literal[1]}{literal[2]}"
    return _ANY.sub(lambda match: _value(match, values), text)


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    word = match["own"] or match["pair"] or match[3]
    if match[3] or match["own"]:
        return values.get(word if match[3] else f"{PARAMS}.{word}", match[0])
    if key := _known(word, values):
        return values[key]
    return match[0].replace(f"{{{word}}}", values.get(word, f"{{{word}}}"))


def _known(name: str, keys: Collection[str]) -> str:
    """The parameter that ``{{ name }}`` is, where - and _ are alike, as ``params.NAME``; empty for none."""
    words = (f"{PARAMS}.{word}" for word in (name, name.replace("-", "_"), name.replace("_", "-")))
    return next((word for word in words if word in keys), "")


def parameters(params: Mapping[str, object]) -> dict[str, str]:
    """The placeholders of a job's parameters, and their values.

    Args:
        params: The parameters, by name.
    """
    return {f"{PARAMS}.{name}": _text(value) for name, value in params.items()}


def fixed(folder: str, params: Mapping[str, object]) -> str:
    """The folder that all runs with these parameters share; empty where each has one of its own.

    Args:
        folder: OUTPUT_DIR in ``env``; may be empty.
        params: The parameters, by name.
    """
    return "" if re.search(r"(?<!\$)\{(run_dir|job_id|output_dir)\}", folder) else fill(folder, parameters(params))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def flags(params: Mapping[str, object]) -> list[str]:
    """The arguments that ``{params}`` stands for: ``--lr=0.01``; ``--cache`` for true and nothing for false, since
    argparse's ``store_true`` takes no value.

    Args:
        params: The parameters, by name.
    """
    given = [(name, value) for name, value in params.items() if value is not False]
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given]


def filled(words: Sequence[str], values: Mapping[str, str], params: Mapping[str, object]) -> list[str]:
    """A command with its placeholders replaced.

    Args:
        words: The command.
        values: As for fill.
        params: The parameters of the job, for the argument ``{params}``.
    """
    return [made for word in words for made in (flags(params) if params and word == ALL else [fill(word, values)])]


def missing(text: str, params: Mapping[str, object], *, argument: bool) -> Iterator[str]:
    """Find parameters that a text names, and the job does not have.

    ``{params.x}`` and ``{{ x }}`` count where they are an argument or the value of an option, or the job has
    parameters; elsewhere they may be the program's own, unless there is a dash in ``{{ x-y }}``. A ``{{word}}``
    without spaces is the program's ``{word}``.

    Args:
        text: An argument of a command, or a variable's value.
        params: The parameters of the job, by name.
        argument: Whether it is an argument.

    Yields:
        The names.
    """
    keys = parameters(params)
    whole = argument and re.fullmatch(rf"(?:--?[\w-]+=)?{_PARAMETER.pattern}", text)
    for match in _PARAMETER.finditer(text):
        name = match["own"] or match["pair"]
        known = f"{PARAMS}.{name}" in keys if match["own"] else _known(name, keys)
        literal = match["pair"] and (match[0] == f"{{{{{name}}}}}" or name in _OF_AWK) and "-" not in name
        if not known and not literal and (whole or params or "-" in (match["pair"] or "")):
            yield name


def without_parameters(text: str, params: Mapping[str, object]) -> str:
    """A text in which misspelt need not look at what is a parameter.

    Args:
        text: As for missing, and so is ``params``.
    """
    keys = parameters(params)
    return _PARAMETER.sub(lambda match: "" if match["own"] or _known(match["pair"], keys) else match[0], text)


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
