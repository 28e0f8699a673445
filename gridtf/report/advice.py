"""What a job could ask for instead, from what it has used: for --like, `gridtf advise` and the report. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf.errors import SpecError
from gridtf.jobspec.options import Key
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import DATA_WORKER, LEADERS
from gridtf.jobspec.units import format_walltime, parse_memory, parse_walltime
from gridtf.report.resources import percent, round_up, short
from gridtf.report.usage import Used
from gridtf.states import JobState, TaskState
from gridtf.text import columns, counted, duration, size, some, toml
from gridtf.values import Value, as_dict

if TYPE_CHECKING:
    from gridtf.report.gather import Material

MARGIN = 0.25  # of memory and walltime, above what was measured
_LEAST_MIB = 512  # of a task: gridtf's own processes need a part of it
_LEAST_MARGIN = 60.0  # seconds of walltime
_FEWEST = 5  # samples of a task, below which its memory and CPUs tell nothing
_MOSTLY = 0.95  # of the samples of a task have used at most as many cores as are proposed
_WORTH = 0.75  # of the request: a proposal above it would save little
_CLOSE = 0.9  # of the request: more use than that is close to its limit
_SHORTEST = 300.0  # seconds of measurement below which nothing is said of what was idle: a start is
_OFTEN = 0.75  # of the samples: CPUs that were all busy in as many are too few
_UNUSED = 0.05  # of a GPU, or of a core, on average
_WAITING = 0.5  # of a GPU, on average: less use than that, beside busy CPUs, is waiting for data
_SMALL = 0.1  # of a GPU's memory
Measured = Mapping[str, Used]  # task -> what it has used
_LAYOUT = ("nodes", "tasks_per_node", "gpus_per_node", "gpus", "gpus_per_task", "gpu_model", "slots")


class Advice(Value):
    """What a job could ask for.

    Attributes:
        key: The key of the job file.
        value: Its value there; None for advice that is a sentence.
        why: What was measured, or the sentence.
        amount: The value in CPUs, MiB or seconds; of a sentence, how much it is about.
        asked: What the job asked for; empty where that is not known, or nothing.
        right: Whether that is about right.
        taken: Whether --like takes it.
    """

    key: Key
    value: Any
    why: str
    amount: float
    asked: str = ""
    right: bool = False
    taken: bool = False


class Advised:
    """The advice from a job, or the largest from the elements of an array.

    Args:
        materials: The job, or the elements.
        spec: The job that the values are for, without them; None: for the same job again.

    Attributes:
        found: What it could ask for, by key.
        left: What cannot be told -> why.
    """

    def __init__(self, materials: Sequence[Material], spec: JobSpec | None = None) -> None:
        self.found: dict[Key, Advice] = {}
        self.left: dict[str, str] = {}
        self._states = {material.view.state for material in materials}
        self._all = self._states | {attempt.state for material in materials for attempt in material.attempts}
        idle = [self._add(material, spec) for material in materials]
        for key in idle[0]:  # what some elements have used is not idle
            if all(key in other for other in idle):
                self._put(max((other[key] for other in idle), key=lambda one: one.amount))
        for one in self.found.values():  # elements that tell nothing are not missed where others do
            if one.taken:
                self.left.pop("the walltime" if one.key == ("time",) else "memory and CPUs", None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        advice = [as_dict(one) | {"key": ".".join(one.key)} for one in self.found.values()]
        return {"advice": advice, "not_advised": self.left}

    def lines(self) -> list[str]:
        """The advice as lines of a job file, in TOML, with the reasons as comments."""
        wrong = [one for one in self.found.values() if not one.right]
        right = [f"{'.'.join(one.key)} ({one.asked})" for one in self.found.values() if one.right]
        width = max((columns(_setting(one)) for one in wrong if one.value is not None), default=0)
        asked = {one.key: f"; {one.asked} requested" if one.asked else "" for one in wrong}
        return [
            *(f"{_setting(one):<{width}}  # {one.why}{asked[one.key]}" for one in wrong if one.value is not None),
            *(f"# {one.why}" for one in wrong if one.value is None),
            *([f"# about right: {', '.join(right)}"] if right else []),
            *(f"# nothing is advised on {what}: {why}" for what, why in self.left.items()),
        ]

    def _add(self, material: Material, spec: JobSpec | None) -> dict[Key, Advice]:
        """Add what a job or an element tells; returns what is said of what was idle."""
        own, idle = _own(material), dict[Key, Advice]()
        alike = spec is None or _layout(material.spec) == _layout(spec.to_dict())
        measured = {name: used for name, used in material.usage.tasks.items() if used.spread}
        fewest = min((sum(used.spread.values()) for used in measured.values()), default=0)
        if fewest < _FEWEST:
            self.left["memory and CPUs"] = f"a task was measured {counted(fewest, 'time')}, at least {_FEWEST} needed"
        elif material.view.state == JobState.FAILED:
            self.left["memory and CPUs"] = "it is FAILED, and might have needed more later"
        else:
            self._add_cpus(own, measured, spec or own)
            self._add_memory(own, measured, spec or own, material.tasks if alike else None)
            idle = {one.key: one for one in (*_of_gpus(material, own), *_idle_tasks(measured))}
        self._add_time(own, material, spec or own, alike=alike)
        for one in _of_saving(material, own):
            self._put(one)
        return idle

    def _put(self, advice: Advice) -> None:
        """Keep the largest advice of all elements."""
        before = self.found.get(advice.key)
        if before is None or before.amount < advice.amount:
            self.found[advice.key] = advice

    def _take(self, own: JobSpec, key: Key, value: Any, why: str, amount: float, used: float) -> None:
        """Add a value. used: what was used of the request, in the unit of the amount."""
        text, asked = _asked(own, key)
        right = _WORTH * asked < amount and used <= _CLOSE * asked
        self._put(Advice(key, value, why, amount, text, right, taken=True))

    def _add_cpus(self, own: JobSpec, measured: Measured, spec: JobSpec) -> None:
        for key, tasks in _groups(measured, spec, "cpus", "cpus_per_task").items():
            most = max(measured[task].cores(_MOSTLY) for task in tasks)
            why, could = f"{most:.1f} cores in {percent(_MOSTLY)} of the samples", max(1, math.ceil(most))
            if busy := [task for task in tasks if _is_busy(own, task, measured[task])]:
                why += f", {_cpus(own, busy[0])} in {percent(_OFTEN)}: more may be faster"
            self._take(own, key, could, why, could, math.inf if busy else could * _CLOSE)

    def _add_memory(self, own: JobSpec, measured: Measured, spec: JobSpec, hosts: Mapping[str, str] | None) -> None:
        """hosts: task -> its host; None where those of the other job are not alike."""
        if JobState.OUT_OF_MEMORY in self._all:
            self.left["memory"] = "it has ended OUT_OF_MEMORY, and needs more than it had"
            return
        general = "mem_per_task" if spec.mem is None else "mem"
        for key, tasks in _groups(measured, spec, "mem", general).items():
            used: dict[str, int] = defaultdict(int)
            for task in tasks:
                used[(hosts or {}).get(task, "") if key == ("mem",) else task] += measured[task].memory
            if key == ("mem",) and hosts is None:
                self.left["mem"] = "its tasks or hosts are other ones, and so is the memory of a host"
                continue
            peak = max(used.values())
            mib = max(_LEAST_MIB, round_up(peak * (1 + MARGIN) / (1 << 20)))
            least = f", at least {short(mib)}" if mib == _LEAST_MIB else ""
            self._take(own, key, short(mib), f"{size(peak)} + {percent(MARGIN)}{least}", mib, peak / (1 << 20))

    def _add_time(self, own: JobSpec, material: Material, spec: JobSpec, *, alike: bool) -> None:
        attempts = material.attempts
        state = JobState.TIMEOUT if JobState.TIMEOUT in self._states else material.view.state
        took = sum(attempt.end - attempt.allocated for attempt in attempts)
        if state != JobState.COMPLETED:
            self.left["the walltime"] = f"it is {state}, and only a COMPLETED job shows how long it takes"
        elif len(attempts) != 1:
            in_all = f", {duration(took)} in all" if {one.state for one in attempts[:-1]} == {JobState.SAVED} else ""
            self.left["the walltime"] = f"it has had {len(attempts)} attempts{in_all}"
        elif not alike:
            self.left["the walltime"] = "its tasks or hosts are other ones"
        else:
            margin = max(took * MARGIN, _LEAST_MARGIN)
            seconds = math.ceil((took + margin + (spec.seconds_to_save or 0)) / 60) * 60
            how = percent(MARGIN) if margin > _LEAST_MARGIN else duration(margin)
            why = f"{duration(took)} + {how}{' + checkpoint_before' if spec.seconds_to_save else ''}"
            self._take(own, ("time",), format_walltime(seconds), why, seconds, took)


def _own(material: Material) -> JobSpec:
    """The specification of the job; the defaults where this user may not read it, or another version has made it."""
    try:
        return JobSpec.from_dict(material.spec)
    except SpecError:
        return JobSpec()


def _setting(advice: Advice) -> str:
    return f"{'.'.join(advice.key)} = {toml(advice.value)}"


def _asked(own: JobSpec, key: Key) -> tuple[str, float]:
    """What a job has asked for, as text and in the unit of the advice; nothing where it has not."""
    value = getattr(own.task(key[1]), key[2]) if key[0] == "tasks" else getattr(own, key[0])
    if value is None:
        return "", 0
    if "mem" in key[-1]:
        return short(parse_memory(value)), parse_memory(value)
    return (str(value), value) if "cpus" in key[-1] else (format_walltime(parse_walltime(value)), parse_walltime(value))


def _groups(tasks: Iterable[str], spec: JobSpec, key: str, general: str) -> dict[Key, list[str]]:
    """Key of a job -> the tasks whose use it takes: a type with a value of its own keeps one."""
    groups: dict[Key, list[str]] = defaultdict(list)
    for task in tasks:
        kind = _kind(task)
        own = getattr(spec.task(kind), key) is not None
        groups[("tasks", kind, key) if own else (general,)].append(task)
    return {group: named for group, named in groups.items() if group[0] != "tasks" or spec.count(group[1]) != 0}


def _kind(task: str) -> str:
    return task.partition(":")[0]


def _layout(spec: Mapping[str, Any]) -> tuple[object, ...]:
    """How many tasks and hosts a job asks for; no other job's where its specification is not known."""
    counts = {kind: table.get("count") for kind, table in spec.get("tasks", {}).items()}
    return (bool(spec), counts, *(spec.get(key) for key in _LAYOUT))


# --- what was idle, or had to wait


def _cpus(own: JobSpec, task: str) -> int | None:
    return own.task(_kind(task)).cpus or own.cpus_per_task


def _is_busy(own: JobSpec, task: str, used: Used) -> bool:
    """Whether a task had too few CPUs: it used all of them most of the time."""
    cpus = _cpus(own, task)
    return cpus is not None and used.seconds >= _SHORTEST and used.cores(1 - _OFTEN) >= _CLOSE * cpus


def _idle_tasks(measured: Measured) -> Iterator[Advice]:
    tasks = {name: used for name, used in measured.items() if _kind(name) == "worker" and used.seconds >= _SHORTEST}
    if idle := [name for name, used in tasks.items() if (used.mean or 0) < _UNUSED]:
        why = f"fewer workers: {some(idle)} of {counted(len(tasks), 'worker')} used less than {_UNUSED} cores"
        yield Advice(("tasks",), None, why, len(idle))


def _of_gpus(material: Material, own: JobSpec) -> Iterator[Advice]:
    usage, busy = material.usage, {*material.tasks.values()}  # a spare host is idle on purpose
    there = {one: used for one, used in usage.gpus.items() if one[0] in busy or not own.spare_nodes}
    gpus = {one: used for one, used in there.items() if used.seconds >= _SHORTEST}
    unused = [device for device, used in gpus.items() if (used.mean or 0) < _UNUSED]
    if not gpus:
        return
    if unused:
        hosts = {host for host, _ in unused} - {host for host, _ in gpus.keys() - {*unused}}
        less = f"{counted(len(hosts), 'host')} less" if hosts and len(unused) < len(gpus) else "fewer GPUs"
        where = some([f"{index} on {host}" for host, index in unused])
        why = f"{less}: {len(unused)} of {counted(len(gpus), 'GPU')} used less than {percent(_UNUSED)}: {where}"
        yield Advice(("gpus",), None, why, len(unused))
    most = max(used.memory for used in gpus.values())
    whole = min(used.most_memory for used in gpus.values())
    if 0 < most < _SMALL * whole:
        why = f"GPU memory: at most {size(most)} of {size(whole)} used: a larger batch, or a smaller GPU, may do"
        yield Advice(("gpu_memory",), None, why, most)
    mean = sum(used.amount for used in gpus.values()) / sum(used.seconds for used in gpus.values())
    before = [name for name in usage.tasks if _kind(name) == DATA_WORKER]
    feeders = before or [name for name in usage.tasks if _kind(name) in ("worker", *LEADERS)]
    if mean < _WAITING and not unused and feeders and all(_is_busy(own, name, usage.tasks[name]) for name in feeders):
        count = len(before) + min(len(feeders), math.ceil(len(feeders) * (1 / mean - 1)))
        why = f"GPUs idle {percent(1 - mean)}, all CPUs of {some(feeders, most=2)} busy: they waited for data; try more"
        yield Advice(("tasks", DATA_WORKER, "count"), count, why, count, str(len(before) or ""))


def _of_saving(material: Material, own: JobSpec) -> Iterator[Advice]:
    """How long before its end a job should be asked to save: from what it left of the time that it had for that."""
    before, key = own.seconds_to_save, ("checkpoint_before",)
    for told, attempt in zip(material.told, material.attempts, strict=True):
        ends = told.launcher.get("ends")
        if before is None or ends is None or not told.launcher.get("checkpoint"):
            continue
        if attempt.state == JobState.TIMEOUT:
            yield Advice(key, None, f"checkpoint_before: {duration(before)} were too little to save", math.inf)
        saved = [one.end for tasks in attempt.tasks.values() for one in tasks if one.state == TaskState.SAVED]
        took = max(saved, default=0) - (ends - before)
        if attempt.state == JobState.SAVED and took > _CLOSE * before:
            minutes = math.ceil(took * (1 + MARGIN) / 60)
            how = f"{duration(took)} to save + {percent(MARGIN)}"
            yield Advice(key, f"{minutes}m", how, minutes * 60, format_walltime(before))
