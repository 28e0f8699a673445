"""How many slots a job needs, and how many of them a training task has. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gridtf.errors import SpecError
from gridtf.jobspec.layout import Request, request
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.common import Needs, needs


@dataclass(frozen=True)
class Slots:
    """(fewest, most) slots of the job, how many of them a training task has, and all tasks that ride along."""

    low: int
    high: int
    per_task: int
    riders: int = 0


def slots(spec: JobSpec, asked: Request, needed: Needs) -> Slots:
    """Without GPUs a slot is a CPU; with GPUs it is a task, because GPUs count by slot. Raises SpecError."""
    fewest = asked.training or asked.nodes[0] * asked.tasks_per_node
    most = asked.training or asked.nodes[1] * asked.tasks_per_node
    if spec.slots is not None:
        low, _, high = str(spec.slots).partition("-")
        per_task = int(low) // asked.training if asked.training else 1
        found = Slots(int(low), int(high or low), max(1, per_task))
        _check(found, asked)
        return found
    if asked.gpus_per_task and not asks_itself(spec, spec.gpu_resource):
        if (needed.task_cpus or 1) > 1 or needed.rider_cpus:
            raise SpecError(
                "cpus_per_task",
                "Grid Engine counts GPUs by slot: with GPUs a slot is a task, and CPUs cannot be asked for",
                hint=f"leave out CPUs, give slots, or ask for GPUs yourself: native = ['-l {spec.gpu_resource}=1']",
            )
        return Slots(fewest, most, 1)
    cpus = needed.task_cpus or 1
    return Slots(fewest * cpus + needed.rider_cpus, most * cpus + needed.rider_cpus, cpus, needed.rider_cpus)


def in_job(spec: JobSpec) -> Slots:
    """The same for a job that is there. Where it was not gridtf that asked for it, low and high are not the job's."""
    asked = request(spec)
    try:
        return slots(spec, asked, needs(spec, asked))
    except SpecError:  # it could not have been asked for so, but it was not gridtf that asked
        return Slots(1, 1, spec.cpus_per_task or 1)


def asks_itself(spec: JobSpec, resource: str) -> bool:
    """Whether the user's own options ask for this resource already."""
    return any(re.search(rf"[\s,]{re.escape(resource)}=", option) for option in spec.native)


def _check(found: Slots, asked: Request) -> None:
    if found.low > found.high:
        raise SpecError("slots", f"{found.low}-{found.high} is an empty range", hint="write the smaller number first")
    if asked.training and found.low < asked.training:
        raise SpecError("slots", f"{found.low} slots for {asked.training} training tasks", hint="a task needs a slot")
