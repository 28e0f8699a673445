"""The GPUs of a Grid Engine job on one host: as the site grants them there, else claimed under locks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, MutableMapping, Sequence

from gridtf.errors import PlacementError, SchedulerError
from gridtf.host import gpus
from gridtf.host.gpus import GpuGrant
from gridtf.schedulers.api import GpuNeed, Wait
from gridtf.schedulers.sge import query
from gridtf.text import counted

SGE_GPU = "SGE_GPU"  # set by the prologs of some sites, such as 2,0,6


def gpu_grant(environ: Mapping[str, str], resource: str, need: GpuNeed, wait: Wait) -> GpuGrant:
    """As Scheduler.gpu_grant. A site grants by resource maps, a prolog or a starter_method; where it does not, GPUs are
    claimed, and a job that has not asked Grid Engine for GPUs gets none.

    Args:
        environ: The environment of this process.
        resource: What the site calls its GPUs.
        need: The GPUs that are needed; without a count as many as a slot has asked for.
        wait: Called again and again while they are waited for.
    """
    if need.count == 0:
        return GpuGrant(())
    site = dict(environ)
    names = (f"SGE_HGR_{resource}", SGE_GPU)
    carried = _take_out_carried(site, (*gpus.SHOWING, *names))
    if gpus.VISIBLE in site:
        site[gpus.VISIBLE] = ",".join(_words(site[gpus.VISIBLE]))  # with blanks in it CUDA would read one name
    elif mapped := resource_map(site, resource) or _words(site.get(SGE_GPU, "")):
        site[gpus.VISIBLE] = ",".join(mapped)
    granted = gpus.granted(site)
    descriptors: tuple[int, ...] = ()
    if granted:
        _need_there(granted, site)
        # A lock beside the site's grant keeps jobs away that have to claim, such as this host's part of another job
        # whose prolog ran elsewhere; the grant holds even if a lock is taken.
        locked = gpus.claim(len(granted), gpus.present(site) or granted, need.owner, site)
        descriptors = locked.descriptors if isinstance(locked, GpuGrant) else ()
    elif count := _requested_for_a_slot(site, resource) if need.count is None else need.count:
        first = tuple(dict.fromkeys(gpu for text in carried.values() for gpu in _words(text)))
        claimed = _claim(site, count, need.owner, need.patience, wait, first)
        granted, descriptors = claimed.gpus, claimed.descriptors
        site[gpus.VISIBLE] = ",".join(granted)
    shown = {name: site[name] for name in gpus.SHOWING if name in site}
    corrected = {name: ",".join(granted) for name in names if name in carried}
    return GpuGrant(granted, descriptors, {**shown, **corrected})


def _take_out_carried(environ: MutableMapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Take out of environ, and return, what it has of these variables from the submitting shell (``-V``), where they
    meant that shell's host.

    A site's own grant may happen to be the same, so the GPUs that they name are the first to claim. Where it is not
    known what the job was submitted with, all that is set counts as the site's.
    """
    if not any(name in environ for name in names):
        return {}
    try:
        sent = query.submitted_variables(environ["JOB_ID"])
    except SchedulerError:
        return {}
    return {name: environ.pop(name) for name in names if name in environ and environ[name] == sent.get(name)}


def _need_there(given: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise PlacementError for GPUs that are granted, and not on this host."""
    missing = gpus.missing(given, environ)
    if missing:
        name = next((name for name in gpus.SHOWING if environ.get(name)), gpus.VISIBLE)
        raise PlacementError(
            f"host {os.uname().nodename} has no GPU {', '.join(missing)}, which {name} there grants",
            why=f"granted: {','.join(given)}; its GPUs: {','.join(gpus.known(environ))}",
            hint="the job script, a prolog or a starter_method has set it, or SGE_HGR_… or SGE_GPU",
        )


def _requested_for_a_slot(environ: Mapping[str, str], resource: str) -> int:
    requested = query.job_requests(environ["JOB_ID"]).get(resource)
    return int(requested.amount) if requested is not None and requested.per == query.PER_SLOT else 0


def resource_map(environ: Mapping[str, str], resource: str) -> tuple[str, ...]:
    """What SGE_HGR_gpu says where gpu is a resource map: ``0 2``, ``gpu0 gpu2`` or UUIDs -> as CUDA calls them.

    Where it is none, Open Cluster Scheduler gives the amount there: ``1.000000``.
    """
    words = _words(environ.get(f"SGE_HGR_{resource}", ""))
    if any(re.fullmatch(r"\d+\.\d+", word) for word in words):
        return ()
    named = (_device(word) for word in words if word.upper() not in ("NONE", "<NULL>"))
    return tuple(dict.fromkeys(named))  # one that jobs may share is there several times


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def _device(word: str) -> str:
    number = re.search(r"\d+$", word)
    return word if number is None or word.upper().startswith(("GPU-", "MIG-")) else number[0]


def _claim(
    environ: Mapping[str, str], count: int, owner: str, patience: float, wait: Wait, first: Sequence[str]
) -> GpuGrant:
    """Claim GPUs, these first, waiting for those of a job that is about to be gone. patience: seconds."""
    import random

    host = os.uname().nodename
    present = sorted(gpus.present(environ), key=lambda gpu: gpu not in first)
    if count > len(present):
        shown = environ.get(gpus.VISIBLE)
        raise PlacementError(
            f"{count} GPUs are needed on host {host}, which shows {len(present)}",
            why=f"CUDA_VISIBLE_DEVICES={shown} is set there" if shown is not None else "",
            hint="where no NVIDIA driver tells, GRIDTF_LOCAL_GPUS=0,1 in a starter_method does; see docs/sge.md",
        )
    deadline = time.monotonic() + patience
    while True:
        claim = gpus.claim(count, gpus.idle_first(present), owner, environ)
        if isinstance(claim, GpuGrant):
            return claim
        why = f"waiting for {counted(count, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
        if time.monotonic() > deadline:
            raise PlacementError(
                f"{count} GPUs are needed on host {host}, {claim.free} of its {len(present)} are free",
                why="; ".join(claim.holders),
                hint="have all jobs there asked Grid Engine for the GPUs that they use?",
            )
        wait(why, 0.3 + random.random() / 2)
