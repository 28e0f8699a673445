"""The GPUs of a Grid Engine job on one host: as the site grants them there, else claimed under locks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, MutableMapping, Sequence

from gridtf.errors import PlacementError, SchedulerError
from gridtf.host import gpus
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.base import Wait
from gridtf.text import counted

SGE_GPU = "SGE_GPU"  # set by the prologs of some sites, such as 2,0,6


def grant(environ: MutableMapping[str, str], spec: JobSpec, count: int | None, owner: str, wait: Wait) -> gpus.Claim:
    """As Scheduler.grant. A site grants by resource maps, a prolog or a starter_method; else we claim, and those that
    have not asked Grid Engine for GPUs get none."""
    if count == 0:
        return gpus.Claim((), ())
    own = (f"SGE_HGR_{spec.gpu_resource}", SGE_GPU)
    carried = _take_out_carried(environ, (*gpus.SHOWING, *own))
    if gpus.VISIBLE in environ:
        environ[gpus.VISIBLE] = ",".join(_words(environ[gpus.VISIBLE]))  # with blanks in it CUDA would read one name
    elif mapped := resource_map(environ, spec.gpu_resource) or _words(environ.get(SGE_GPU, "")):
        environ[gpus.VISIBLE] = ",".join(mapped)
    given = gpus.granted(environ)
    if given:
        _need_there(given, environ)
        # A lock beside the site's word keeps those away who have to claim, such as this host's part of another job
        # whose prolog ran elsewhere; one that is held already does not weaken the site's word.
        locked = gpus.claim(len(given), gpus.present(environ) or given, owner, environ)
        return gpus.Claim(given, locked.descriptors if isinstance(locked, gpus.Claim) else ())
    if count is None:
        count = _asked_for_a_slot(environ, spec.gpu_resource)
    if not count:
        return gpus.Claim((), ())
    claim = _claim(environ, count, owner, 0.8 * spec.start_timeout, wait, carried)
    environ[gpus.VISIBLE] = ",".join(claim.gpus)
    return claim


def _take_out_carried(environ: MutableMapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    """Take out of environ what it has of these variables from the submitting shell (``-V``), where it meant that
    shell's host; gives the GPUs that they named.

    A site's own grant may happen to be the same, so these are the first to claim. Where nobody tells what the job was
    submitted with, all that is set counts as the site's.
    """
    if not any(name in environ for name in names):
        return ()
    from gridtf.schedulers.sge import query

    try:
        sent = query.submitted_variables(environ["JOB_ID"], limit=10)
    except SchedulerError:
        return ()
    carried = {name: environ.pop(name) for name in names if name in environ and environ[name] == sent.get(name)}
    return tuple(dict.fromkeys(gpu for text in carried.values() for gpu in _words(text)))


def _need_there(given: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raises PlacementError for GPUs that are granted, and not on this host."""
    missing = gpus.missing(given, environ)
    if missing:
        name = next((name for name in gpus.SHOWING if environ.get(name)), gpus.VISIBLE)
        raise PlacementError(
            f"host {os.uname().nodename} has no GPU {', '.join(missing)}, which {name} there grants",
            why=f"granted: {','.join(given)}; its GPUs: {','.join(gpus.known(environ))}",
            hint="the job script, a prolog or a starter_method has set it, or SGE_HGR_… or SGE_GPU",
        )


def _asked_for_a_slot(environ: Mapping[str, str], resource: str) -> int:
    from gridtf.schedulers.sge import query

    asked = query.job_requests(environ["JOB_ID"], limit=10).get(resource)
    return int(asked.amount) if asked is not None and asked.per == query.PER_SLOT else 0


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
    environ: Mapping[str, str], count: int, owner: str, limit: float, wait: Wait, first: Sequence[str]
) -> gpus.Claim:
    """Claim GPUs, these first, waiting for those of a job that is about to be gone. limit: seconds."""
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
    deadline = time.monotonic() + limit
    while True:
        claim = gpus.claim(count, gpus.idle_first(present), owner, environ)
        if isinstance(claim, gpus.Claim):
            return claim
        why = f"waiting for {counted(count, 'GPU')}, {claim.free} free; {'; '.join(claim.holders)}"
        if time.monotonic() > deadline:
            raise PlacementError(
                f"{count} GPUs are needed on host {host}, {claim.free} of its {len(present)} are free",
                why="; ".join(claim.holders),
                hint="have all jobs there asked Grid Engine for the GPUs that they use?",
            )
        wait(why, 0.3 + random.random() / 2)
