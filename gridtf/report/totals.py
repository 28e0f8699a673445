"""What the jobs of a user have asked for and used, added up: figures of resources, and nothing else of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gridtf.report import figures
from gridtf.report.gather import Material
from gridtf.run.reduced import requested_cpus
from gridtf.values import Value


class Total(Value):
    """One resource.

    Attributes:
        asked: What the jobs have asked for, those that asked for nothing left out; None where that is not known of any.
        used: What these jobs have used; all, where it is not known what they asked for.
        jobs: How many these are.
    """

    asked: float | None
    used: float
    jobs: int


def totals(materials: Iterable[Material]) -> tuple[dict[str, int], dict[str, Total]]:
    """Add up jobs.

    Returns:
        (state -> how many jobs, resource -> its total).
    """
    states: dict[str, int] = {}
    pairs: dict[str, list[tuple[float | None, float]]] = {}
    for material in materials:
        states[material.view.state] = states.get(material.view.state, 0) + 1
        for what, asked, used in _of_job(material):
            pairs.setdefault(what, []).append((asked, used))
    made = {}
    for what, found in pairs.items():
        known = [one for one, _ in found if one is not None]
        amounts = [amount for one, amount in found if one is not None or not known]
        made[what] = Total(sum(known) if known else None, sum(amounts), len(amounts))
    return states, made


def _of_job(material: Material) -> Iterator[tuple[str, float | None, float]]:
    """(resource, asked, used); asked is None where only the owner may read it, or the job has not."""
    attempts, request, spec, tasks = material.attempts, material.request, material.spec, material.usage.tasks.values()
    hours = sum(one.end - one.allocated for one in attempts) / 3600
    of_hosts = sum((one.end - one.allocated) * len(one.hosts) for one in attempts) / 3600
    if (gpus := figures.hours(material)) is not None:
        yield "GPU-hours", gpus.allocated, gpus.used
    cpus = requested_cpus(spec, material.tasks) * hours if spec else None
    yield "core-hours", cpus, sum(one.amount for one in tasks) / 3600
    memory = request.host_mem / 1024 * of_hosts if request.host_mem else None
    yield "GiB-hours of memory", memory, sum(one.memory for one in tasks) / (1 << 30) * hours
    yield "hours of walltime", request.walltime * len(attempts) / 3600 if request.walltime else None, hours
