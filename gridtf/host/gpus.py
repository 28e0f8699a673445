"""Which GPUs are ours on this host: the scheduler's grant, else a claim under locks that die with their holders.

Every GPU has a lock (locks.py) that is the same for all users of the host. It lasts until the last process that
inherited it is gone: launcher, agent and task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ROCR = "ROCR_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"
_STEP = "SLURM_STEP_GPUS"
_OTHERS = ("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
# All variables that say which GPUs a process has.
SHOWING = (VISIBLE, _ROCR, _HIP, *_OTHERS, _STEP)

# Every claim first takes a lock on this folder, which all users can open and only root can replace. How often it is
# tried within a second. No longer: while it waits, nobody is told, and a signal is held back.
_TURN = Path("/run/lock")
_TRIES = 50


@dataclass(frozen=True)
class Claim:
    """GPUs that are ours while any process holds the descriptors."""

    gpus: tuple[str, ...]
    descriptors: tuple[int, ...]


@dataclass(frozen=True)
class Refusal:
    """Too few GPUs are free. free: how many are; holders: who has the others, one line each."""

    free: int
    holders: tuple[str, ...]


def present(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs of this host, as indices in PCI order, that this process may use.

    GRIDTF_LOCAL_GPUS (a comma-separated list) overrides what the NVIDIA driver says; CUDA_VISIBLE_DEVICES narrows it.
    """
    found = _of_host(environ)
    visible = environ.get(VISIBLE)
    if visible is None or not found:
        return tuple(found)
    named = (_index(item, found) for item in granted(environ))
    return tuple(dict.fromkeys(index for index in named if index is not None))


def known(environ: Mapping[str, str]) -> tuple[str, ...]:
    """All GPUs of this host, also those that are hidden from this process; nothing where nobody tells."""
    return tuple(_of_host(environ))


def missing(named: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of these GPUs that this host does not have, as far as anybody tells: that is not so of MIG instances."""
    found = _of_host(environ)
    uuids = any(found.values())
    judged = (item for item in named if found and not item.startswith("MIG") and (uuids or not item.startswith("GPU")))
    return tuple(item for item in judged if _index(item, found) is None)


def declared(count: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """So many GPUs on a host where nobody tells how many there are, or those that CUDA_VISIBLE_DEVICES names there.

    No others where somebody does: then they are hidden on purpose.
    """
    if "GRIDTF_LOCAL_GPUS" in environ or _from_driver():
        return ()
    return granted(environ) if VISIBLE in environ else tuple(str(index) for index in range(count))


def granted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that the scheduler gave this process. As CUDA reads them, -1 or NoDevFiles ends the list.

    Slurm sets CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, or what a site has left of them (gres.conf(5), Flags), and
    SLURM_STEP_GPUS, which counts as the node does, also where a job sees no device but its own.
    """
    for name in (VISIBLE, _ROCR, _STEP):
        items = takewhile(
            lambda item: item.lower() != "nodevfiles" and not item.startswith("-"), _listed(environ.get(name, ""))
        )
        found = tuple(items)
        if found and name == _STEP:
            seen = tuple(_from_driver())
            return seen if len(seen) == len(found) else found
        if found:
            return found
    return ()


def visible(environ: Mapping[str, str], share: Sequence[str]) -> dict[str, str]:
    """What shows a task its GPUs and no others. environ: what shows this process all of them; share: of granted()."""
    others = [name for name in (_HIP, *_OTHERS) if name in environ]
    if not share:
        return dict.fromkeys((VISIBLE, _ROCR, _HIP, *others), "")
    grant = granted(environ)
    shown = {VISIBLE: ",".join(share), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the order in which all of us count
    for name in (_ROCR, *others):
        items = _listed(environ.get(name, ""))
        if items and len(items) == len(grant):
            shown[name] = ",".join(items[grant.index(gpu)] for gpu in share)
    if VISIBLE not in environ and _ROCR in shown:
        # ROCm takes CUDA_VISIBLE_DEVICES for a second choice, among those that are left
        shown[VISIBLE] = ",".join(str(number) for number in range(len(share)))
    if _ROCR in shown and _HIP in environ:
        shown[_HIP] = ",".join(str(number) for number in range(len(share)))  # it counts among those that are left
    return shown


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _index(item: str, found: Mapping[str, str]) -> str | None:
    """The index of a GPU that is called by its index, or by its UUID or the beginning of that. found: index -> UUID."""
    if item in found:
        return item
    return next((index for index, uuid in found.items() if item.startswith("GPU-") and uuid.startswith(item)), None)


def _of_host(environ: Mapping[str, str]) -> dict[str, str]:
    """Index -> UUID of the GPUs of this host, as declared (without UUIDs), or as the driver says."""
    declared = environ.get("GRIDTF_LOCAL_GPUS")
    return dict.fromkeys(_listed(declared), "") if declared is not None else _from_driver()


def _from_driver() -> dict[str, str]:
    """Index -> UUID, as the NVIDIA driver counts, without GPUs that it has lost; nothing where there is no driver."""
    found: dict[str, str] = {}
    with _driver() as nvml:
        for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
            with suppress(nvml.NVMLError):
                found[str(index)] = str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    return found


def idle_first(gpus: Sequence[str]) -> tuple[str, ...]:
    """The same, but first those on which nobody computes, as far as the NVIDIA driver says: not all take locks."""
    busy = set()
    with _driver() as nvml:
        for gpu in gpus if nvml else ():
            with suppress(nvml.NVMLError, ValueError):
                handle = nvml.nvmlDeviceGetHandleByIndex(int(gpu))
                busy.update([gpu] if nvml.nvmlDeviceGetComputeRunningProcesses(handle) else [])
    return tuple(sorted(gpus, key=lambda gpu: gpu in busy))


@contextmanager
def _driver() -> Iterator[Any]:
    """pynvml, ready to be asked; None where there is no NVIDIA driver, or it is broken."""
    if not Path("/dev/nvidiactl").exists():  # spares the import
        yield None
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    except pynvml.NVMLError:
        return
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def claim(count: int, candidates: Sequence[str], owner: str, environ: Mapping[str, str]) -> Claim | Refusal:
    """Claim that many of the candidates, or none of them. owner: one line that tells others who has them.

    GRIDTF_LOCKS, where it is set, is how the names of the locks begin: jobs with another one see nothing of these.
    """
    from gridtf.host import locks

    prefix = environ.get("GRIDTF_LOCKS") or "gridtf"
    with _one_at_a_time(), ExitStack() as ours:  # lets go of all, unless the claim succeeds
        taken: dict[str, tuple[int, ...]] = {}
        holders: list[str] = []
        for gpu in candidates:
            if len(taken) == count:
                break
            name = f"{prefix}-gpu-{gpu}"
            held = locks.hold(name, owner)
            if held is None:
                holders.append(f"GPU {gpu}: {locks.holder(name)}")
                continue
            taken[gpu] = held
            for descriptor in held:
                ours.callback(os.close, descriptor)
        if len(taken) < count:
            return Refusal(len(taken), tuple(holders))
        ours.pop_all()
        return Claim(tuple(taken), tuple(descriptor for held in taken.values() for descriptor in held))


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two that each get a half of the GPUs would both go without. Who lets nobody through for a second is passed by:
    the locks of the GPUs themselves are what excludes others."""
    from filelock import lock_descriptor

    try:
        turn = os.open(_TURN, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # a host without it, where claims that meet may have to be made again
        yield
        return
    try:
        for _ in range(_TRIES):
            if lock_descriptor(turn, blocking=False):
                break
            time.sleep(1 / _TRIES)
        yield
    finally:
        os.close(turn)
