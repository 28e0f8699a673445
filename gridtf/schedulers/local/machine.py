"""What this machine offers to a job, and the process that stands for a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gridtf.errors import PlacementError
from gridtf.host import gpus, procfs
from gridtf.jobspec.request import Request
from gridtf.schedulers.api import JobIdentity


def gpu_count(request: Request, present: int) -> int:
    """Number of GPUs of the job. present: number of GPUs of this host."""
    if (per_node := request.chosen("gpus_per_node")) is not None:
        return int(per_node)
    default = 1 if present else 0
    count, per_task = request.gpus_in_all(default), request.most_gpus(default)
    if count is None:  # as many workers as fit
        return present - present % per_task if per_task else 0
    return count


def candidates(count: int, present: Sequence[str], environ: Mapping[str, str]) -> Sequence[str]:
    """The GPUs from which count GPUs can be claimed. Raises PlacementError when they are too few."""
    candidates = present or gpus.declared(count, environ)
    if count > len(candidates):
        host, visible = os.uname().nodename, environ.get(gpus.VISIBLE)
        raise PlacementError(
            f"{count} GPUs are requested, but {host} has {len(candidates)}",
            why="" if visible is None else f"{gpus.VISIBLE} is {visible!r}",
            hint="request fewer with --gpus-per-node or --workers",
        )
    return candidates


def one_worker(request: Request) -> bool:
    """Whether, without GPUs, the job has one worker: nobody has asked for all cores, which others may be using."""
    return request.training is None and request.chosen("tasks_per_node") is None


def slots(request: Request) -> int:
    """Number of training tasks that fit on this machine if GPUs do not limit it."""
    if one_worker(request):
        return sum(role.takes_gpu for role in request.roles)  # and a leader
    per_task = next((role.cpus for role in reversed(request.roles) if role.takes_gpu), None) or 1
    return int(request.chosen("tasks_per_node") or max(1, len(os.sched_getaffinity(0)) // per_task))


def identity(pid: int, **more: str) -> JobIdentity:
    process = procfs.identity(pid)
    host = str(process.pop("host"))
    return JobIdentity(f"{pid}.{host}", {**process, **more}, host=host)
