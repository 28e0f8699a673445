"""What a job has used, added up from its samples, however many there are. Pure."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gridtf.report.curves import Curve
from gridtf.run.rundir import Record
from gridtf.values import Fields

_WIDTH = 5.0  # seconds: the width of a place of a curve over time, to begin with; that between two samples
_LONGEST = 3600.0  # seconds between two samples, beyond which the host was silent, and not only sampled less often
_MOST_VALUES = 12  # of gridtf.progress that are shown
_NOT_FINITE = ("nan", "inf", "-inf")  # as gridtf.progress writes them

# Measures of tasks, and of GPUs; those of gridtf.progress have the name of the value behind "value:".
RATE, CPU, MEMORY, READ, WRITTEN = "rate", "cpu", "memory", "read", "written"
GPU, GPU_MEMORY, POWER = "gpu", "gpu_memory", "power"
VALUE = "value:"

Device = tuple[str, str]  # host, index of the GPU


class Used(Fields):
    """What a task, a GPU or a host has used.

    Attributes:
        seconds: How long it was measured.
        amount: Core seconds, or seconds of a GPU's use.
        peak: The most of it in any sample: cores, or a share of a GPU.
        memory: The most memory in any sample, in bytes.
        most_memory: The memory that there is, in bytes; 0 where that is not known.
        energy: Joule.
        spread: Tenths of a core -> how many samples have used as much.
    """

    seconds: float = 0.0
    amount: float = 0.0
    peak: float = 0.0
    memory: int = 0
    most_memory: int = 0
    energy: float = 0.0

    def __post_init__(self) -> None:
        self.spread: dict[int, int] = {}

    @property
    def mean(self) -> float | None:
        """Cores, or the share of a GPU, on average; None without a measurement."""
        return self.amount / self.seconds if self.seconds else None

    def cores(self, part: float) -> float:
        """How many cores this part of the samples has used at most; 0 without any."""
        left = math.ceil(sum(self.spread.values()) * part)
        for tenths, samples in sorted(self.spread.items()):
            left -= samples
            if left <= 0:
                return tenths / 10
        return 0.0

    def add(self, seconds: float, amount: float, memory: int, energy: float = 0.0) -> None:
        """Add a sample.

        Args:
            seconds: How long before it the sample before was.
            amount: Cores, or the share of a GPU, on average in this time.
            memory: Bytes.
            energy: Joule in this time.
        """
        self.seconds += seconds
        self.amount += seconds * amount
        self.peak = max(self.peak, amount)
        self.memory = max(self.memory, memory)
        self.energy += energy
        tenths = round(amount * 10)
        self.spread[tenths] = self.spread.get(tenths, 0) + 1


class Usage:
    """What a job has used.

    Args:
        curves: Whether to make curves, and so all that is known of steps and values.

    Attributes:
        samples: The number of samples.
        begin: The time of the first sample; None without one.
        end: The time of the last one.
        tasks: Task -> its cores and memory.
        hosts: Host -> its cores and memory.
        cpus: Host -> the number of its CPUs.
        gpus: (host, index) -> use and memory of a GPU.
        curves: Measure -> task, or (host, index) -> its curve over time.
        by_step: Name of a value -> its curve over steps, of all tasks.
        first_step: When a sample first had a step that was done in this job; None without.
        steps: Task -> (first step, last step) that samples had.
        odd: Name of a value -> (time, step, task) when it was no finite number for the first time.
    """

    def __init__(self, *, curves: bool = True) -> None:
        self.samples = 0
        self.begin: float | None = None
        self.end = 0.0
        self.tasks: dict[str, Used] = defaultdict(Used)
        self.hosts: dict[str, Used] = defaultdict(Used)
        self.cpus: dict[str, int] = {}
        self.gpus: dict[Device, Used] = defaultdict(Used)
        self.curves: dict[str, dict[Any, Curve]] = defaultdict(lambda: defaultdict(_curve))
        self.by_step: dict[str, Curve] = defaultdict(lambda: Curve(1.0))
        self.first_step: float | None = None
        self.steps: dict[str, tuple[int, int]] = {}
        self.odd: dict[str, tuple[float, int, str]] = {}
        self._before: dict[tuple[int, str], float] = {}
        self._curved = curves

    def add(self, sample: Record) -> None:
        """Add a sample, with the number of its ``attempt``; those of a host in the order in which they were taken."""
        time, host = sample["time"], sample["host"]
        key = sample.get("attempt", 1), host
        seconds = time - self._before.get(key, time)
        seconds = seconds if 0 < seconds <= _LONGEST else 0.0
        self._before[key] = time
        self.samples += 1
        self.begin = time if self.begin is None else min(self.begin, time)
        self.end = max(self.end, time)
        self.cpus[host] = sample["cpus"]
        of_host = self.hosts[host]
        of_host.add(seconds, sample["cpu"], sample["memory"])
        of_host.most_memory = sample["memory_total"]
        for index, gpu in sample["gpus"].items():
            self._add_gpu((host, index), gpu, time, seconds)
        for name, task in sample["tasks"].items():
            self._add_task(name, task, time, seconds)

    def _add_gpu(self, device: Device, gpu: Mapping[str, Any], time: float, seconds: float) -> None:
        used = self.gpus[device]
        memory = gpu.get("memory", 0)
        used.most_memory = gpu.get("memory_total", used.most_memory)
        if "use" in gpu:
            used.add(seconds, min(gpu["use"], 100.0) / 100, memory, gpu.get("power", 0.0) * seconds)
        else:
            used.memory = max(used.memory, memory)
        for measure, key in ((GPU, "use"), (GPU_MEMORY, "memory"), (POWER, "power")):
            if key in gpu and self._curved:
                self.curves[measure][device].add(time, gpu[key])

    def _add_task(self, name: str, task: Mapping[str, Any], time: float, seconds: float) -> None:
        self.tasks[name].add(seconds, task["cpu"], task["memory"])
        if not self._curved:
            return
        for measure in (CPU, MEMORY, READ, WRITTEN, RATE):
            if measure in task:
                self.curves[measure][name].add(time, task[measure])
        if "step" in task:
            self.report(name, task["step"], task.get("values", {}), time, task.get("ranges", {}))

    def report(
        self, name: str, step: int, values: Mapping[str, Any], time: float, ranges: Mapping[str, Any] = {}
    ) -> None:
        """Add what a task has reported by gridtf.progress, as a sample has it, or the task's record after the last one.

        Args:
            name: The task.
            step: Its step.
            values: Its values.
            time: When, in seconds since the epoch.
            ranges: Name of a value -> its smallest and its largest since the report before.
        """
        first, _ = self.steps.get(name, (step, step))
        self.steps[name] = first, step
        if step > 0 and (self.first_step is None or time < self.first_step):
            self.first_step = time
        for value, number in _numbers(values):
            if not math.isfinite(number):
                self.odd.setdefault(value, (time, step, name))
            elif f"{VALUE}{value}" in self.curves or len(self.by_step) < _MOST_VALUES:
                self.curves[f"{VALUE}{value}"][name].add(time, number, ranges.get(value, ()))
                self.by_step[value].add(step, number, ranges.get(value, ()))


def _curve() -> Curve:
    return Curve(_WIDTH)


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > sys.float_info.max
        if number or value in _NOT_FINITE:
            yield name, float(value)
