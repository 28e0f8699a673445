"""What a script asks of Slurm, read back from the lines of its head. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import parse_memory, parse_nodes, parse_walltime

_SHORT = {"p": "partition", "t": "time", "N": "nodes", "A": "account", "q": "qos", "c": "cpus-per-task", "n": "ntasks"}
# sbatch(1), INPUT ENVIRONMENT VARIABLES: they win over the lines of a script.
_VARIABLES = {
    "SBATCH_PARTITION": "partition",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
}
_LONG = re.compile(r"--([a-z][a-z-]*)(?:=(.*))?")
# 2, gpu:2, a100:2, gpu:2080ti:2, gpu:1g.10gb:1; gres/gpu:2
_GPUS = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:([^:,]+):)?(\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class Asked:
    """What one component asks for: nodes (the fewest), and of each node gpus, cpus and mem (MiB).

    partitions: empty for the default one. time: seconds. kind: the GPUs' type, mostly empty. keys: option -> the key of
    the specification, or the variable, that it comes from. options: which there are.
    """

    partitions: tuple[str, ...]
    nodes: int
    gpus: int
    kind: str
    cpus: int
    mem: int
    time: int | None
    keys: Mapping[str, str]
    options: frozenset[str] = frozenset()

    def key(self, option: str) -> str:
        """The key to blame for this option of sbatch."""
        return self.keys.get(option, option.replace("-", "_"))


def asked_for(
    lines: Sequence[str], spec: JobSpec, types: Sequence[str], environ: Mapping[str, str]
) -> tuple[Asked, ...]:
    """What each component asks for.

    lines: the options in the script's head, ``hetjob`` between components. types: of each component after the first, a
    task type that lives there. environ: sbatch's.
    """
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == "hetjob":
            parts.append([])
        else:
            parts[-1].append(line)
    variables = {option: (name, environ[name]) for name, option in _VARIABLES.items() if environ.get(name)}
    found = []
    first: dict[str, str] = {}
    for number, part in enumerate(parts):
        options = _options(part)
        for handed_on in ("time", "account", "qos", "mem"):
            if number and handed_on in first:
                options.setdefault(handed_on, first[handed_on])
        options.update({option: text for option, (_, text) in variables.items()})
        first = first or options
        keys = _first_keys(spec) if number == 0 else _rider_keys(types[number - 1], spec)
        if number == 0:
            keys.update(dict.fromkeys(_options(spec.native), "native"))
        keys.update({option: name for option, (name, _) in variables.items()})
        found.append(_asked(options, keys))
    return tuple(found)


def _options(lines: Iterable[str]) -> dict[str, str]:
    """Option -> value; of one given twice, the last. sbatch takes ``--x=1``, ``--x 1``, ``-x 1`` and ``-x1``."""
    found: dict[str, str] = {}
    waiting = ""
    for word in (word for line in lines for word in line.split()):
        match = _LONG.fullmatch(word)
        if match:
            found[match[1]] = match[2] or ""
            waiting = "" if match[2] is not None else match[1]
        elif re.match(r"-[A-Za-z]", word):
            name = _SHORT.get(word[1], word[1])
            found[name] = word[2:].removeprefix("=")
            waiting = "" if word[2:] else name
        elif waiting:
            found[waiting] = word
            waiting = ""
    return found


def _first_keys(spec: JobSpec) -> dict[str, str]:
    """Which key has led to each option."""
    gpus = next((key for key in ("gpus_per_node", "gpus_per_task") if getattr(spec, key) is not None), "tasks")
    return {
        "nodes": "nodes" if spec.nodes is not None else "tasks",
        "gpus-per-node": gpus,
        "cpus-per-task": next((key for key in ("cpus_per_task", "tasks_per_node") if getattr(spec, key)), "tasks"),
        "mem": "mem" if spec.mem is not None else "mem_per_task",
    }


def _rider_keys(task_type: str, spec: JobSpec) -> dict[str, str]:
    table = spec.task(task_type)
    return {
        "partition": f"tasks.{task_type}.partition",
        "nodes": f"tasks.{task_type}.count",
        "cpus-per-task": f"tasks.{task_type}.cpus" if table.cpus else "cpus_per_task",
        "mem": f"tasks.{task_type}.mem" if table.mem else "mem_per_task",
    }


def _asked(options: Mapping[str, str], keys: Mapping[str, str]) -> Asked:
    kind, gpus, option = "", 0, "gpus-per-node"
    for name in ("gres", "gpus-per-node"):
        match = _GPUS.fullmatch(options.get(name, ""))
        if match and (name != "gres" or "gpu" in options[name]):
            kind, gpus, option = match[1] or "", int(match[2]), name
    cpus = (_number(options.get("ntasks-per-node")) or 1) * (_number(options.get("cpus-per-task")) or 1)
    mem = max(
        _mib(options.get("mem")), gpus * _mib(options.get("mem-per-gpu")), cpus * _mib(options.get("mem-per-cpu"))
    )
    return Asked(
        partitions=tuple(name for name in options.get("partition", "").split(",") if name),
        nodes=_nodes(options.get("nodes", "")),
        gpus=gpus,
        kind=kind,
        cpus=cpus,
        mem=mem,
        time=_seconds(options.get("time", "")),
        keys={**keys, "gpus": keys.get(option, option.replace("-", "_"))},
        options=frozenset(options),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# What stands in native and is none of these is sbatch's to judge.


def _mib(text: str | None) -> int:
    try:
        return parse_memory(text or "")
    except ValueError:
        return 0


def _nodes(text: str) -> int:
    try:
        return parse_nodes(text)[0]
    except ValueError:
        return 1


def _seconds(text: str) -> int | None:
    try:
        return parse_walltime(text)
    except ValueError:  # UNLIMITED
        return None
