"""What --like takes from a job that has run: memory, CPUs and walltime, as a layer of another one."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.jobspec.layers import Layer, Sourced
from gridtf.jobspec.options import Key
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime
from gridtf.login.job import Job
from gridtf.observe import history
from gridtf.report.gather import Material, gather
from gridtf.report.resources import percent, round_up, short
from gridtf.run import registry
from gridtf.states import JobState
from gridtf.text import counted, duration, size

MARGIN = 0.25  # of memory and walltime, above what was measured
_LEAST_MIB = 512  # of a task: gridtf's own processes need a part of it
_LEAST_MARGIN = 60.0  # seconds of walltime
_FEWEST = 5  # samples of a task, below which its memory and CPUs are not taken
_MOSTLY = 0.95  # of the samples of a task have used at most as many cores as are taken
_LAYOUT = ("nodes", "tasks_per_node", "gpus_per_node", "gpus", "gpus_per_task", "gpu_model", "slots")


class Like:
    """What a job has used.

    Args:
        job: The job.

    Attributes:
        run_dir: Its run directory.
        notes: What is not taken from it, and why, a line each.

    Raises:
        GridtfError: The job cannot be read, or is an array.
    """

    def __init__(self, job: Job) -> None:
        registry.need_run(job.run)
        registry.need_one_job(job.run, "submit --like")
        self.run_dir: Path = job.run_dir
        self.notes: list[str] = []
        self._name = f"{job.name} ({job.id})"
        self._material: Material = gather(job.run, time.time())
        self._cores: dict[str, list[float]] = defaultdict(list)
        for sample in history.samples(job.run).more():
            for task, used in sample["tasks"].items():
                self._cores[task].append(used["cpu"])

    def layer(self, spec: JobSpec) -> Layer:
        """The values for another job.

        Args:
            spec: That job, without them.
        """
        self.notes.clear()
        layer: Layer = {}
        alike = _layout(self._material.spec) == _layout(spec.to_dict())
        fewest = min(map(len, self._cores.values()), default=0)
        if fewest < _FEWEST:
            self._leave(
                "memory and CPUs are", f"a task was measured {counted(fewest, 'time')}, at least {_FEWEST} needed"
            )
        else:
            self._take_cpus(layer, spec)
            self._take_memory(layer, spec, alike=alike)
        self._take_time(layer, spec, alike=alike)
        return layer

    @property
    def runtime(self) -> tuple[float, int] | None:
        """How long it ran, in seconds, and on how many hosts; None for a job that did not complete in one attempt."""
        attempts = self._material.attempts
        if self._material.view.state != JobState.COMPLETED or len(attempts) != 1:
            return None
        return attempts[0].end - attempts[0].allocated, max(1, len(attempts[0].hosts))

    def _take(self, layer: Layer, key: Key, value: object, how: str) -> None:
        layer[key] = Sourced(value, f"measured in {self._name}: {how}")

    def _leave(self, what: str, why: str) -> None:
        self.notes.append(f"{what} not taken from {self._name}: {why}")

    def _groups(self, spec: JobSpec, key: str, general: str) -> dict[Key, list[str]]:
        """Key of the other job -> the tasks whose use it takes: a type with a value of its own keeps one."""
        groups: dict[Key, list[str]] = defaultdict(list)
        for task in self._cores:
            kind = task.partition(":")[0]
            own = getattr(spec.task(kind), key) is not None
            groups[("tasks", kind, key) if own else (general,)].append(task)
        return {group: tasks for group, tasks in groups.items() if group[0] != "tasks" or spec.count(group[1]) != 0}

    def _take_cpus(self, layer: Layer, spec: JobSpec) -> None:
        for key, tasks in self._groups(spec, "cpus", "cpus_per_task").items():
            most = max(_mostly(self._cores[task]) for task in tasks)
            self._take(layer, key, max(1, math.ceil(most)), f"{most:.1f} cores in {percent(_MOSTLY)} of the samples")

    def _take_memory(self, layer: Layer, spec: JobSpec, *, alike: bool) -> None:
        if self._material.view.state == JobState.OUT_OF_MEMORY:
            self._leave("memory is", "it has ended OUT_OF_MEMORY, and needs more than it had")
            return
        used = {task: self._material.usage.tasks[task].memory for task in self._cores}
        for key, tasks in self._groups(spec, "mem", "mem_per_task" if spec.mem is None else "mem").items():
            peak = max(used[task] for task in tasks)
            if key == ("mem",):
                if not alike:
                    self._leave("mem is", "its tasks or hosts are other ones, and so is the memory of a host")
                    continue
                hosts: dict[str, int] = defaultdict(int)
                for task in tasks:
                    hosts[self._material.tasks.get(task, "")] += used[task]
                peak = max(hosts.values())
            mib = max(_LEAST_MIB, round_up(peak * (1 + MARGIN) / (1 << 20)))
            least = f", at least {short(mib)}" if mib == _LEAST_MIB else ""
            self._take(layer, key, short(mib), f"{size(peak)} + {percent(MARGIN)}{least}")

    def _take_time(self, layer: Layer, spec: JobSpec, *, alike: bool) -> None:
        state, attempts = self._material.view.state, self._material.attempts
        if state != JobState.COMPLETED:
            self._leave("the walltime is", f"it is {state}, and only a COMPLETED job shows how long it takes")
        elif len(attempts) != 1:
            self._leave("the walltime is", f"it has had {len(attempts)} attempts")
        elif not alike:
            self._leave("the walltime is", "its tasks or hosts are other ones")
        else:
            took = attempts[0].end - attempts[0].allocated
            margin = max(took * MARGIN, _LEAST_MARGIN)
            minutes = math.ceil((took + margin + (spec.seconds_to_save or 0)) / 60)
            how = percent(MARGIN) if margin > _LEAST_MARGIN else duration(margin)
            save = " + checkpoint_before" if spec.seconds_to_save else ""
            self._take(layer, ("time",), format_walltime(minutes * 60), f"{duration(took)} + {how}{save}")


def _layout(spec: Mapping[str, Any]) -> tuple[object, ...]:
    """How many tasks and hosts a job asks for; no other job's where its specification is not known."""
    counts = {kind: table.get("count") for kind, table in spec.get("tasks", {}).items()}
    return (bool(spec), counts, *(spec.get(key) for key in _LAYOUT))


def _mostly(cores: Sequence[float]) -> float:
    return sorted(cores)[math.ceil(len(cores) * _MOSTLY) - 1]
