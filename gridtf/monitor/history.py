"""What the monitor keeps of a job's samples: recent use of each task and host, and curves of the values reported.

Samples come twice: those of samples.jsonl, written once a minute, and the newest of each host, read in between. A later
line of the file takes the place of the newest samples that it covers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf.monitor.charts import Curve, Point
from gridtf.observe.gpus import mean_use
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.observe.views import JobView

_RECENT = 24  # samples of each task and host that are kept for its sparklines
_MOST = 1e300  # of a value that is drawn; an int may be larger than any float


class Use(Value):
    """What a task or a host used at a time: CPUs, and its GPUs in percent (None where it has none)."""

    cpu: float
    gpu: float | None


class History:
    """Keeps what is needed of the samples of a job, which come in the order of time for each host."""

    def __init__(self) -> None:
        self._gpus: Mapping[str, Sequence[str]] = {}
        self._filed: dict[str, float] = {}  # host -> time of its last sample in the file
        self._newest: dict[str, list[Mapping[str, Any]]] = {}  # host -> its samples after that
        self._recent: dict[str, deque[Use]] = {}
        self._curves: dict[tuple[str, str], Curve] = {}

    def see(self, view: JobView) -> None:
        """Take the newest samples out of a view of the job."""
        self._gpus = {task.name: task.gpus for task in view.tasks}
        tasks = {task.name: task.sample for task in view.tasks if task.sample}
        for host in view.hosts:
            known = self._newest.setdefault(host.name, [])
            last = known[-1]["time"] if known else self._filed.get(host.name, 0.0)
            if host.sample and host.sample["time"] > last:
                mine = {name: tasks[name] for name in host.tasks if name in tasks}
                known.append({**host.sample, "host": host.name, "tasks": mine})
                del known[:-_RECENT]

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take a line of samples.jsonl."""
        host, time = sample["host"], sample["time"]
        self._filed[host] = time
        self._newest[host] = [newer for newer in self._newest.get(host, ()) if newer["time"] > time]
        for name, use in used(sample, self._gpus).items():
            self._recent.setdefault(name, deque(maxlen=_RECENT)).append(use)
        for key, (step, value) in reported(sample).items():
            self._curves.setdefault(key, Curve()).add(step, value)

    def recent(self) -> dict[str, tuple[Use, ...]]:
        """Task or host -> its use at the last times, oldest first."""
        uses = {name: list(kept) for name, kept in self._recent.items()}
        for sample in self._after_file():
            for name, use in used(sample, self._gpus).items():
                uses.setdefault(name, []).append(use)
        return {name: tuple(kept[-_RECENT:]) for name, kept in uses.items()}

    def curves(self) -> dict[tuple[str, str], tuple[Point, ...]]:
        """(task, name of a value) -> what it reported."""
        curves = {key: list(curve.points) for key, curve in self._curves.items()}
        for sample in self._after_file():
            for key, (step, value) in reported(sample).items():
                curves.setdefault(key, []).append((step, value, value))
        return {key: tuple(points) for key, points in curves.items()}

    def _after_file(self) -> Iterable[Mapping[str, Any]]:
        return (sample for samples in self._newest.values() for sample in samples)


def used(sample: Mapping[str, Any], gpus: Mapping[str, Sequence[str]]) -> dict[str, Use]:
    """What the host of a sample and each of its tasks used.

    Args:
        sample: As in docs/seeing.md.
        gpus: Task -> its GPUs.
    """
    devices = sample["gpus"]
    uses = {name: Use(task["cpu"], mean_use(devices, gpus.get(name, ()))) for name, task in sample["tasks"].items()}
    return {**uses, sample["host"]: Use(sample["cpu"], mean_use(devices, devices))}


def reported(sample: Mapping[str, Any]) -> dict[tuple[str, str], tuple[float, float]]:
    """(task, name of a value) -> the step and the value that the task reported; finite numbers alone."""
    return {
        (name, key): (task["step"], value)
        for name, task in sample["tasks"].items()
        if "step" in task
        for key, value in task.get("values", {}).items()
        if type(value) in (int, float) and abs(value) < _MOST
    }
