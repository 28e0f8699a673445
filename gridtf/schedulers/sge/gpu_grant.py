"""The GPUs of a Grid Engine job on one host: granted by the site, else claimed under locks."""

from __future__ import annotations

import math
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


def gpu_grant(
    environ: Mapping[str, str], resource: str, need: GpuNeed, wait: Wait, variable: str | None = None
) -> GpuGrant:
    """The GPUs that this process may use on this host.

    A site may grant them by resource maps, a prolog or a starter_method. Otherwise gridtf claims them under locks, and
    a process that joins gets as many as its job requested per slot.

    Args:
        environ: The environment of this process.
        resource: The site's name for its GPU resource.
        need: The GPUs that it needs; without a count, as many as the job requested per slot.
        wait: Called again and again while it waits for GPUs.
        variable: The variable by which the site grants GPUs, which comes before all others; None: those known here.

    Raises:
        PlacementError: When this host has too few, or lacks GPUs that the site grants.
        SchedulerError: When the qmaster does not answer, for a need without a count.
    """
    if need.count == 0:
        return GpuGrant(())
    site = dict(environ)
    names = (*([variable] if variable and variable not in gpus.SHOWING else []), f"SGE_HGR_{resource}", SGE_GPU)
    carried = _take_out_carried(site, (*gpus.SHOWING, *names))
    lists = {name: granted_by(site, name) for name in (variable, *names) if name}
    by, mapped = next(((name, found) for name, found in lists.items() if found), ("", ()))
    if mapped and (by == variable or gpus.VISIBLE not in site):
        site[gpus.VISIBLE] = ",".join(mapped)
    elif gpus.VISIBLE in site:
        by, site[gpus.VISIBLE] = "", ",".join(gpus.listed(site[gpus.VISIBLE]))  # CUDA takes commas only
    granted = gpus.granted(site)
    descriptors: tuple[int, ...] = ()
    if granted:
        _need_there(granted, site, by)
        # Also lock GPUs that the site granted: jobs that rely on locks avoid them, such as the part on this host of a
        # job whose prolog ran elsewhere. The grant holds even if a lock is taken.
        locked = gpus.claim(len(granted), gpus.present(site) or granted, need.owner, site)
        descriptors = locked.descriptors if isinstance(locked, GpuGrant) else ()
    elif count := _requested_for_a_slot(site, resource) if need.count is None else need.count:
        first = tuple(dict.fromkeys(gpu for text in carried.values() for gpu in gpus.listed(text)))
        claimed = _claim(site, count, need.owner, need.patience, wait, first)
        granted, descriptors = claimed.gpus, claimed.descriptors
        site[gpus.VISIBLE] = ",".join(granted)
    shown = {name: site[name] for name in gpus.SHOWING if name in site}
    corrected = {name: ",".join(granted) for name in names if name in carried}
    return GpuGrant(granted, descriptors, {**shown, **corrected})


def _take_out_carried(environ: MutableMapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Remove from environ, and return, those of these variables that ``-V`` copied from the submitting shell.

    They name GPUs of that shell's host. A grant of the site may happen to be equal, so their GPUs are claimed first.
    Without an answer of the qmaster, all of them count as the site's.
    """
    if not any(name in environ for name in names):
        return {}
    try:
        sent = query.submitted_variables(environ["JOB_ID"])
    except SchedulerError:
        return {}
    return {name: environ.pop(name) for name in names if name in environ and environ[name] == sent.get(name)}


def _need_there(given: Sequence[str], environ: Mapping[str, str], by: str) -> None:
    """Raise PlacementError for granted GPUs that this host does not have. by: the site's variable; "" for CUDA's."""
    missing = gpus.missing(given, environ)
    if missing:
        name = by or next((name for name in gpus.SHOWING if environ.get(name)), gpus.VISIBLE)
        what = f"host {os.uname().nodename} has no GPU {', '.join(missing)}, which {name} there grants"
        hint = "set by the job script, a prolog or a starter_method"
        why = f"granted: {','.join(given)}; its GPUs: {','.join(gpus.known(environ))}"
        raise PlacementError(what, why=why, hint=hint)


def _requested_for_a_slot(environ: Mapping[str, str], resource: str) -> int:
    """GPUs of a slot; one where a slot has a part of a GPU, since a process then has the slots of a whole one."""
    requested = query.job_requests(environ["JOB_ID"]).get(resource)
    return math.ceil(requested.amount) if requested is not None and requested.per == query.PER_SLOT else 0


def granted_by(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The GPUs that a variable of the site grants, in CUDA's names.

    Args:
        environ: The environment of this process.
        name: The variable, such as SGE_GPU, or SGE_HGR_gpu for a resource map (RSMAP) ``gpu``; its value may be
            ``0 2``, ``gpu0,gpu2`` or UUIDs.

    Returns:
        Indices or UUIDs; empty where the resource is not a map: Open Cluster Scheduler then sets the variable to the
        amount, such as ``1.000000``.
    """
    words = gpus.listed(environ.get(name, ""))
    if any(re.fullmatch(r"\d+\.\d+", word) for word in words):
        return ()
    named = (_device(word) for word in words if word.upper() not in ("NONE", "<NULL>"))
    return tuple(dict.fromkeys(named))  # a GPU that jobs may share is listed several times


def _device(word: str) -> str:
    number = re.search(r"\d+$", word)
    return word if number is None or word.upper().startswith(("GPU-", "MIG-")) else number[0]


def _claim(
    environ: Mapping[str, str], count: int, owner: str, patience: float, wait: Wait, first: Sequence[str]
) -> GpuGrant:
    """Claim GPUs, those in first before others; wait up to patience seconds for a job that is about to end."""
    import random

    host = os.uname().nodename
    present = sorted(gpus.present(environ), key=lambda gpu: gpu not in first)
    if count > len(present):
        shown = environ.get(gpus.VISIBLE)
        raise PlacementError(
            f"{count} GPUs are needed on host {host}, which shows {len(present)}",
            why=f"CUDA_VISIBLE_DEVICES={shown} is set there" if shown is not None else "",
            hint="without an NVIDIA driver, set GRIDTF_LOCAL_GPUS=0,1 in a starter_method",
        )
    deadline = time.monotonic() + patience
    while True:
        claim = gpus.claim(count, gpus.idle_first(present), owner, environ)
        if isinstance(claim, GpuGrant):
            return claim
        why = f"waiting for {counted(count, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
        if time.monotonic() > deadline:
            what = f"{count} GPUs are needed on host {host}, {claim.free} of its {len(present)} are free"
            hint = "have all jobs there requested the GPUs that they use?"
            raise PlacementError(what, why="; ".join(claim.holders), hint=hint)
        wait(why, 0.3 + random.random() / 2)
