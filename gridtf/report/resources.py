"""What a job had requested, and what it has used of that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gridtf.jobspec.request import Request
from gridtf.jobspec.units import format_walltime
from gridtf.report.timeline import Attempt, AttemptData
from gridtf.report.usage import Usage, Used
from gridtf.text import duration, size
from gridtf.values import Value, grouped

_MIB = 1 << 20
UNKNOWN = Request("", "", (0, 0), 0, 0, 0, None, ())


class GpuHours(Value):
    """GPU-hours of a job.

    Attributes:
        allocated: While the job had its hosts.
        used: Of the measured ones: hours times utilisation.
        idle: The other measured ones.
        unknown: Those that were not measured, as before the tasks started.
    """

    allocated: float
    used: float
    idle: float
    unknown: float


class Line(Value):
    """One resource.

    Attributes:
        what: Such as ``CPUs of a worker``.
        requested: The request; empty where the job made none.
        mean: Its use on average; empty where that is not known.
        peak: The most that was used.
        share: The peak, as a part of the request; None without a request.
    """

    what: str
    requested: str
    mean: str
    peak: str
    share: float | None = None


def gpu_hours(told: Sequence[AttemptData], attempts: Sequence[Attempt], usage: Usage) -> GpuHours | None:
    """Add up the GPU-hours of all attempts; None for a job without GPUs."""
    of_hosts = grouped(usage.gpus)
    allocated = 0.0
    for one, attempt in zip(told, attempts, strict=True):
        allocated += _gpus(one, attempt, of_hosts) * max(0.0, attempt.end - attempt.allocated)
    if not allocated:
        return None
    measured = sum(used.seconds for used in usage.gpus.values())
    busy = sum(used.amount for used in usage.gpus.values())
    hours = (allocated, busy, measured - busy, max(0.0, allocated - measured))
    return GpuHours(*(seconds / 3600 for seconds in hours))


def _gpus(told: AttemptData, attempt: Attempt, measured: Mapping[str, Sequence[str]]) -> int:
    """How many GPUs an attempt had."""
    listed = {
        (host, index)
        for host, record in told.hosts.items()
        for indices in record.get("gpus", {}).values()
        for index in indices
    }
    listed |= {(host, index) for host in attempt.hosts for index in measured.get(host, ())}
    planned = told.plan.get("request", {}).get("gpus_per_node", 0) * len(attempt.hosts)
    return max(len(listed), int(planned))


def lines(request: Request, usage: Usage, attempts: Sequence[Attempt]) -> list[Line]:
    """Compare the request of a job with what it has used.

    Args:
        request: What it had requested; UNKNOWN where only its owner may read that.
        usage: What it has used.
        attempts: Its attempts.
    """
    return [*_of_gpus(usage), *_of_types(request, usage), *_of_hosts(request, usage), *_of_time(request, attempts)]


def percent(part: float) -> str:
    """Write a part of a whole, such as ``48 %``."""
    return f"{part * 100:.0f} %"


def _of_gpus(usage: Usage) -> Iterator[Line]:
    measured = [used for used in usage.gpus.values() if used.seconds]
    if not measured:
        return
    mean = sum(used.amount for used in measured) / sum(used.seconds for used in measured)
    peak = max(used.peak for used in measured)
    yield Line("GPUs", str(len(usage.gpus)), percent(mean), percent(peak), peak)
    memory, most = max((used.memory, used.most_memory) for used in usage.gpus.values())
    if memory:
        yield Line("Memory of a GPU", size(most) if most else "", "", size(memory), memory / most if most else None)


def _of_types(request: Request, usage: Usage) -> Iterator[Line]:
    types = grouped((name.partition(":")[0], used) for name, used in usage.tasks.items())
    for kind, all_used in types.items():
        role = request.role(kind)
        seconds = sum(used.seconds for used in all_used)
        cpus = role.cpus or (request.task_cpus if role.gpus != 0 else None)
        peak = max(used.peak for used in all_used)
        mean = f"{sum(used.amount for used in all_used) / seconds:.1f}" if seconds else ""
        yield Line(f"CPUs of a {kind}", str(cpus or ""), mean, f"{peak:.1f}", peak / cpus if cpus else None)
        yield _memory(f"Memory of a {kind}", role.mem, all_used)


def _of_hosts(request: Request, usage: Usage) -> Iterator[Line]:
    if usage.hosts and request.host_mem and not any(role.mem for role in request.roles):
        yield _memory("Memory of a host", request.host_mem, usage.hosts.values())


def _memory(what: str, mib: int | None, used: Iterable[Used]) -> Line:
    peak, asked = max(one.memory for one in used), (mib or 0) * _MIB
    return Line(what, size(asked) if asked else "", "", size(peak), peak / asked if asked else None)


def _of_time(request: Request, attempts: Sequence[Attempt]) -> Iterator[Line]:
    limit = request.walltime
    longest = max((attempt.end - attempt.allocated for attempt in attempts), default=0.0)
    if limit and longest:
        yield Line("Walltime", format_walltime(limit), "", duration(longest), longest / limit)


def round_up(mib: float) -> int:
    """A memory request in MiB, rounded up to whole GiB, or below 4 GiB to 256 MiB."""
    unit = 1024 if mib > 4096 else 256
    return max(1, math.ceil(mib / unit)) * unit


def short(mib: int) -> str:
    """A memory request as it is written in a job file, such as ``6G``."""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"
