"""What a script asks of Grid Engine, read back from the lines of its head. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.common import whole
from gridtf.schedulers.sge.directives import MEMORY


@dataclass(frozen=True)
class Asked:
    """pe: its name, or a pattern such as ``mpi*``; empty without one. low, high: slots. resources: hard requests,
    name -> amount as it is written. queues: patterns; empty: any. keys: option, or name of a resource -> the key of
    the specification to blame."""

    pe: str = ""
    low: int = 1
    high: int = 1
    resources: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)

    def key(self, option: str) -> str:
        """The key to blame for this option of qsub, or this resource."""
        return self.keys.get(option, "native")


def asked_for(lines: Iterable[str], spec: JobSpec) -> Asked:
    """lines: the options in the script's head. Of an option given twice qsub takes the last, of ``-l`` all."""
    gpus = next((key for key in ("gpus_per_task", "gpus_per_node") if getattr(spec, key) is not None), "tasks")
    counts = ("slots", "nodes", "tasks_per_node")
    keys = {
        "pe": "pe",
        "slots": next((key for key in counts if getattr(spec, key) is not None), "tasks"),
        "q": "partition",
        "P": "account",
        "h_rt": "time",
        MEMORY: "mem" if spec.mem is not None else "mem_per_task",
        spec.gpu_resource: gpus,
    }
    options, resources = _options(lines)
    own, own_resources = _options(spec.native)
    keys.update(dict.fromkeys([*own, *own_resources, *(["slots"] if "pe" in own else [])], "native"))
    pe, _, slots = options.get("pe", "").partition(" ")
    low, _, high = slots.partition("-")
    return Asked(
        pe=pe,
        low=_number(low, 1),
        high=_number(high, 9_999_999 if slots.endswith("-") else _number(low, 1)),
        resources=resources,
        queues=tuple(name for name in options.get("q", "").split(",") if name),
        keys=keys,
    )


def _options(lines: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(option -> value, hard resource -> amount). ``-pe`` has two words; ``-soft`` holds until ``-hard``."""
    options: dict[str, str] = {}
    resources: dict[str, str] = {}
    soft = False
    words = iter([word for line in lines for word in line.split()])
    for word in words:
        name = word.removeprefix("-")
        if name in ("hard", "soft"):
            soft = name == "soft"
        elif name == "pe" and word != name:
            options["pe"] = f"{next(words, '')} {next(words, '')}".strip()
        elif name == "l" and word != name:
            pairs = (part.partition("=") for part in next(words, "").split(","))
            if not soft:
                resources.update({resource: amount or "1" for resource, _, amount in pairs if resource})
        elif name in ("q", "P") and word != name and not soft:
            options[name] = next(words, "")
    return options, resources


def _number(text: str, otherwise: int) -> int:
    number = whole(text)
    return otherwise if number is None else number
