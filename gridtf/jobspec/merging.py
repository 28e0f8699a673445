"""How the layers of a configuration become one, and where a wrong value of it came from: the rules of config.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.errors import SpecError, UsageError, nearest
from gridtf.jobspec import options
from gridtf.jobspec.layers import ARGS, BINDS, COMMAND, COMMAND_LINE, File, Layer, Sourced
from gridtf.jobspec.options import Key
from gridtf.jobspec.primitives import check_strings, spell
from gridtf.text import plain

ENTRY = ("entry",)
SETUP, _SETUP_REPLACE = ("setup",), ("setup_replace",)
_ADDRESS, _INTERFACE = ("address",), ("interface",)
_CONTAINER, _CONTAINER_COMMAND = ("container",), ("container_command",)
# The first of a pair overrides the second in lower layers.
_MEM, _MEM_PER_TASK = ("mem",), ("mem_per_task",)
_PROFILE, PARTITION = ("profile",), ("partition",)
_CHIEF, _MASTER, _LEADER = ("tasks", "chief", "count"), ("tasks", "master", "count"), ("leader",)
_PAIRS = ((COMMAND, ENTRY), (_ADDRESS, _INTERFACE), (_LEADER, _CHIEF), (_LEADER, _MASTER), (_MEM, _MEM_PER_TASK))
_EXCLUSIVE = (*_PAIRS, *((other, one) for one, other in _PAIRS))


def located(error: SpecError, sources: Mapping[str, str]) -> UsageError:
    """Convert a SpecError to a UsageError that names the source of the value.

    Args:
        error: Its ``key`` names the value.
        sources: Dotted key -> source, as in Configured.
    """
    parts = error.key.split(".")
    upwards = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    below = (key for key in sources if key.startswith(f"{error.key}.") and len(parts) > 1)
    key = next((key for key in (*upwards, *below) if key in sources), None)
    hint = error.hint
    if key == "nodes" and sources[key] == "-N":
        hint += "; qsub's -N is --name"
    shown = "setup" if parts[0] == "setup" else error.key  # the number of a line counts those of all layers
    if key is None:
        # on a command line without a file the key is known as its option
        typed = sources.get("command") == COMMAND_LINE or sources.get("entry", "").startswith("-")
        what = f"{options.flag(error.key) if typed else shown}: {error.problem}"
    elif sources[key].startswith(("-", options.PREFIX)):
        what = f"{sources[key]}: {error.problem}"
    elif sources[key] == COMMAND_LINE:
        what = f"{shown}: {error.problem}"
    else:
        what = f"{sources[key]}: {shown}: {error.problem}"
    return UsageError(plain(what), why=error.why, hint=hint)  # keys can contain any character


def merge(general: Sequence[File], job: File, above: Sequence[Layer]) -> Layer:
    """Merge the files and the layers above them, with the tables for the job's profile and partition."""
    read = (*general, job)
    plain_layers = [file.layer for file in read]
    chosen = _highest(_PROFILE, [*plain_layers, *above])
    profile = [file.profiles[chosen.value] for file in read if chosen and chosen.value in file.profiles]
    if chosen and not profile:
        known = [*dict.fromkeys(name for file in read for name in file.profiles)]
        hint = nearest(str(chosen.value), known) or (f"known: {', '.join(known)}" if known else "no file has profiles")
        error = SpecError("profile", f"there is no profile {chosen.value!r}", hint=hint)
        raise located(error, {"profile": chosen.source})
    partition = _highest(PARTITION, [*plain_layers, *profile, *above])
    name = str(partition.value) if partition else ""
    below, own = (
        [layer for file in part for layer in (file.layer, file.partitions.get(name, {}))] for part in (general, (job,))
    )
    merged = _merged(below, [*own, *profile, *above])
    merged.pop(_PROFILE, None)
    return merged


def _highest(key: Key, layers: Sequence[Layer]) -> Sourced | None:
    """The value of a key in the highest layer that has it."""
    return next((layer[key] for layer in reversed(layers) if key in layer), None)


def _merged(general: Sequence[Layer], job_layers: Sequence[Layer]) -> Layer:
    """Merge the site and user files with the layers of this job, the lowest first."""
    merged: Layer = {}
    for layer in (*general, *job_layers):
        for one, other in _EXCLUSIVE:
            if one in layer:
                merged.pop(other, None)
        merged.update(_with_arguments(_of_master(layer, merged), merged))
    for read in (SETUP, _SETUP_REPLACE, ARGS):
        merged.pop(read, None)
    merged.update(_setup((*general, *job_layers)))
    needless = _needless(merged, general, job_layers)
    return {key: value for key, value in merged.items() if key not in needless}


def _of_master(layer: Layer, below: Layer) -> Layer:
    """A layer whose chief is the master where one below it has that name for it."""
    if _CHIEF not in layer or not any(key[:2] == _MASTER[:2] for key in below):
        return layer
    return {_MASTER if key == _CHIEF else key: value for key, value in layer.items()}


def _needless(merged: Layer, general: Sequence[Layer], job_layers: Sequence[Layer]) -> set[Key]:
    """Keys that only describe what the job does not have: a container, and tasks of a type that it does not request."""
    requested = {key[1] for layer in job_layers for key in layer if key[0] == "tasks"} | {"worker"}
    requested |= {key[1] for key in merged if key[0] == "tasks" and key[2:] == ("count",)}
    needless = {key for key in merged if key[0] == "tasks" and key[1] not in requested}
    command = merged.get(_CONTAINER_COMMAND)
    if _CONTAINER not in merged and (command is None or "{image}" in str(command.value)):
        described = {key: value for layer in general for key, value in layer.items()}
        needless |= {key for key in (BINDS, _CONTAINER_COMMAND) if key in merged and merged[key] is described.get(key)}
    return needless


def _setup(layers: Sequence[Layer]) -> Layer:
    """The set-up lines of all layers, as ("setup", "1") and so on, since each line has a source."""
    lines: list[Sourced] = []
    for layer in layers:
        replaces = layer.get(_SETUP_REPLACE)
        if replaces and replaces.value not in (0, 1):
            error = SpecError("setup_replace", f"{spell(replaces.value)} is neither true nor false")
            raise located(error, {error.key: replaces.source})
        if replaces and replaces.value:
            lines.clear()
        if SETUP in layer:
            lines += (Sourced(line, layer[SETUP].source) for line in strings(SETUP, layer))
    return {("setup", str(number)): line for number, line in enumerate(lines, 1)}


def _with_arguments(layer: Layer, below: Layer) -> Layer:
    """A layer whose ``args`` are added to its command, or else to the one below it."""
    if ARGS not in layer:
        return layer
    words, source = strings(ARGS, layer), layer[ARGS].source
    command = layer.get(COMMAND) or below.get(COMMAND)
    if command:
        strings(COMMAND, {COMMAND: command})
        return {**layer, COMMAND: Sourced((*command.value, *words), f"{command.source} and {source}")}
    if ENTRY in layer or ENTRY in below:
        error = SpecError("args", "an entry function takes no arguments", hint="pass values in variables: --env K=V")
    elif source == COMMAND_LINE:
        what = f"{words[0]!r} after -- begins with a dash, so it is an argument, and there is no command to add it to"
        raise UsageError(what, hint="write the program first, as in -- python train.py, or name a job file that does")
    else:
        hint = 'give a command as well: after --, or in the job file as command = ["python", "train.py"]'
        error = SpecError("args", "there is no command to add arguments to", hint=hint)
    raise located(error, {"args": source})


def strings(key: Key, layer: Layer) -> tuple[str, ...]:
    """A list of strings of a layer; a UsageError with its source if it is none."""
    try:
        return check_strings(key[0], layer[key].value)
    except SpecError as error:
        raise located(error, {key[0]: layer[key].source}) from None
