"""What the jobs of a user have asked for and used, added up: figures of resources, and nothing else of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gridtf.errors import RunDirError
from gridtf.observe.views import JobView
from gridtf.report import figures
from gridtf.report.gather import Material, gather_all
from gridtf.run.reduced import requested_cpus
from gridtf.run.rundir import RunDir

# What of a resource counts as used, and of what as asked for.
MEANING = {
    "GPU-hours": "busy, of GPUs while jobs had them",
    "core-hours": "CPU time, of cores while jobs had them",
    "GiB-hours of memory": "the peak, of memory while jobs had it",
    "hours of walltime": "with hosts, of walltimes requested",
}


def totals(runs: Iterable[tuple[RunDir, JobView]], now: float) -> dict[str, Any]:
    """Add up jobs, and the elements of arrays.

    Args:
        runs: Their run directories and states.
        now: Seconds since the epoch.

    Returns:
        ``states``: state -> how many jobs; ``totals``: resource -> what jobs have ``asked`` for, ``used`` by these, and
        how many ``jobs`` these are. Where it is not known of any what it asked for, that is None, and all count.
    """
    states: dict[str, int] = {}
    pairs: dict[str, list[tuple[float | None, float]]] = {}
    for run, view in runs:
        try:
            for material in gather_all(run, now, view):
                states[material.view.state] = states.get(material.view.state, 0) + 1
                for what, asked, used in _of_job(material):
                    pairs.setdefault(what, []).append((asked, used))
        except RunDirError:
            states["unreadable"] = states.get("unreadable", 0) + 1
    made = {}
    for what, found in pairs.items():
        known = [asked for asked, _ in found if asked is not None]
        amounts = [used for asked, used in found if asked is not None or not known]
        made[what] = {"asked": sum(known) if known else None, "used": sum(amounts), "jobs": len(amounts)}
    return {"states": states, "totals": made}


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
