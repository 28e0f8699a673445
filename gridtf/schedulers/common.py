"""What the modules of batch schedulers share: what a host must offer, and which values a directive line can carry."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridtf.errors import MaybeSubmittedError, SchedulerError, SpecError
from gridtf.jobspec.layout import Component, Request, components
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.jobspec.units import parse_memory
from gridtf.run.rundir import Record
from gridtf.schedulers.base import Plan

_MOST_ELEMENTS = 4_000_001  # the largest MaxArraySize that Slurm takes; Grid Engine's arrays are smaller
_INDICES = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
# Quotes, backslashes and # mean something to the one scheduler or the other; whitespace ends a word.
_WORD = re.compile(r"""[^\s'"`\\#-][^\s'"`\\#]*""")


@dataclass(frozen=True)
class Needs:
    """What the user said that tasks on the job's own partition need. None: the user said nothing.

    task_cpus: CPUs of a training task. rider_cpus, host_rider_cpus: CPUs of all tasks that ride along (ps, evaluator),
    and of those on the fullest host. host_mem: MiB on the fullest host.
    """

    task_cpus: int | None
    rider_cpus: int
    host_rider_cpus: int
    host_mem: int | None


@dataclass(frozen=True)
class RiderNeeds:
    """What the tasks need that have a partition of their own. count: how many there are. cpus, mem: CPUs and MiB of
    the largest of them; None: the user said nothing."""

    count: int
    cpus: int | None
    mem: int | None


def unused(spec: JobSpec, keys: Iterable[str], scheduler: str) -> tuple[str, ...]:
    """A note on those of these keys that the user has set, although this kind of scheduler has no use for them."""
    words = [key for key in keys if getattr(spec, key)]
    return (f"{scheduler} has no use for {', '.join(words)}",) if words else ()


def needs(spec: JobSpec, asked: Request) -> Needs:
    """Add up the CPUs and the memory of the tasks. Raises SpecError when only some of them say their memory."""
    types = components(spec)[0].types
    training = [name for name in types if TASK_TYPES[name].takes_gpu]
    riders = [name for name in types if not TASK_TYPES[name].takes_gpu for _ in range(spec.count(name) or 0)]
    most_riders = -(-len(riders) // asked.nodes[0])
    cpus = {name: _cpus(spec.task(name), spec) for name in (*training, *riders)}
    rider_cpus = sorted((cpus[name] or 0 for name in riders), reverse=True)
    return Needs(
        task_cpus=max((cpus[name] or 1 for name in training), default=1) if any(cpus.values()) else None,
        rider_cpus=sum(rider_cpus),
        host_rider_cpus=sum(rider_cpus[:most_riders]),
        host_mem=spec.mem_mib or _mem_from_tasks(spec, asked, training, riders, most_riders),
    )


def rider_needs(spec: JobSpec, component: Component) -> RiderNeeds:
    """The same for one of the other components. Raises SpecError when only some of its types say their memory.

    The job's ``mem`` is not for them: it says what a host of the job's own partition needs.
    """
    cpus = [asked for name in component.types if (asked := _cpus(spec.task(name), spec)) is not None]
    sizes = _mem_of_types(spec, component.types)
    return RiderNeeds(
        count=sum(spec.count(name) or 0 for name in component.types),
        cpus=max(cpus, default=None),
        mem=max(sizes.values(), default=None),
    )


def _cpus(table: TaskSpec, spec: JobSpec) -> int | None:
    return table.cpus or spec.cpus_per_task


def _mem_from_tasks(
    spec: JobSpec, asked: Request, training: list[str], riders: list[str], most_riders: int
) -> int | None:
    sizes = _mem_of_types(spec, (*training, *riders))
    if not sizes:
        return None
    rider_sizes = sorted((sizes[name] for name in riders), reverse=True)
    return asked.tasks_per_node * max(sizes[name] for name in training) + sum(rider_sizes[:most_riders])


def _mem_of_types(spec: JobSpec, types: Iterable[str]) -> dict[str, int]:
    """MiB of a task by type; empty where none says it. Raises SpecError when only some do."""
    own = {name: spec.task(name).mem for name in types}
    said = {name: spec.mem_per_task if mem is None else mem for name, mem in own.items()}
    silent = [name for name, mem in said.items() if mem is None]
    if silent and len(silent) < len(said):
        raise SpecError(
            f"tasks.{silent[0]}.mem",
            "other task types say how much memory they need, this one does not",
            hint="say it for all with mem_per_task, or say what a host needs with mem",
        )
    return {name: parse_memory(mem) for name, mem in said.items() if mem is not None}


def word(key: str, value: str) -> str:
    """value for a directive line, which no shell reads and each scheduler parses in its own way. Raises SpecError."""
    if not value.isprintable() or not _WORD.fullmatch(value):
        raise SpecError(
            key,
            f"{value!r} cannot stand in a directive line",
            why="whitespace, quotes, backslashes and # there end a value or change it, and a dash begins an option",
            hint="if it has to be, give the whole option with native, written as the scheduler's manual says",
        )
    return value


def native(spec: JobSpec) -> tuple[str, ...]:
    """The user's raw options, one a line. Raises SpecError for what is not an option on a line of its own."""
    for option in spec.native:
        if not option.startswith("-") or not option.isprintable():
            raise SpecError("native", f"{option!r} is not an option", hint="one option a string, such as '--qos=high'")
    return tuple(spec.native)


def indices(text: str) -> range | None:
    """Elements of a job array as schedulers write them, ``3``, ``0-6`` or ``0-6:2``; None for anything else."""
    match = _INDICES.fullmatch(text)
    if match is None:
        return None
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low or high - low > _MOST_ELEMENTS or step < 1:
        return None
    return range(low, high + 1, step)


def whole(text: str) -> int | None:
    """A whole number as commands and files of schedulers have it, such as ``16``; None for anything else.

    ``²`` is a digit for Python, too, and numbers of thousands of digits are an error.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def looked_for(plan: Plan, scheduler: str, words: str, command: str, look: Callable[[], Record | None]) -> Record:
    """The job of a submission of which nobody knows what came, as Scheduler.submit gives it.

    look: finds it in the queue by what only this job has, such as the path of its script. scheduler, words, command: as
    maybe_submitted. Raises MaybeSubmittedError when it is not found there, or the queue cannot be asked.
    """
    with contextlib.suppress(SchedulerError):
        found = look()
        if found is not None:
            return found
    raise maybe_submitted(plan, scheduler, words, command)


def maybe_submitted(plan: Plan, scheduler: str, words: str, command: str) -> MaybeSubmittedError:
    """The error for a submission of which nobody knows what came. scheduler: its title. words: what was said of it.
    command: lists the user's jobs."""
    return MaybeSubmittedError(
        f"{scheduler} may have taken the job, or may not: {words}",
        why=f"its run directory is kept: {plan.run_dir}",
        hint=f"look for {plan.spec.title} in `{command}` before you submit it again",
    )


def on_path(program: str, environ: Mapping[str, str]) -> bool:
    """Whether PATH leads to this program (as shutil.which, at a fraction of its import)."""
    folders = environ.get("PATH", "").split(os.pathsep)
    return any(os.access(Path(folder, program), os.X_OK) for folder in folders if folder)
