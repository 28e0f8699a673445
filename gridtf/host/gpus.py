"""The GPUs that this process may use on this host: those the scheduler assigned, or those that it can lock.

Every GPU has a lock (locks.py), which all users of the host share. It lasts until the last process that inherited it
has ended: launcher, agent or task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from gridtf.values import Value

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ROCR = "ROCR_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"
_STEP = "SLURM_STEP_GPUS"
_OTHERS = ("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
# All variables that list the GPUs of a process.
SHOWING = (VISIBLE, _ROCR, _HIP, *_OTHERS, _STEP)

# Every claim first locks this folder, which all users can open and only root can replace. It waits so many
# seconds for its turn, enough on a busy host, and no longer, because signals are blocked meanwhile.
_TURN = Path("/run/lock")
_TURN_WAIT = 5.0
_TURN_PAUSE = 0.02

# Why a clock is low (nvml.h): hardware slowdown, heat found by software, by hardware, the power supply. The limit of
# its power (0x4) is no fault: most GPUs that are busy have reached it.
_FAULTS = 0x8 | 0x20 | 0x40 | 0x80
_IDLE_MEMORY = 512  # MiB that the driver takes at most on a GPU without processes


class GpuGrant(Value):
    """GPUs that the processes of a job may use on this host.

    Attributes:
        gpus: Their names in CUDA_VISIBLE_DEVICES on this host: indices or UUIDs.
        descriptors: File descriptors of their locks, which last while any process has them open.
        variables: The environment variables that make them visible; None: those of this process.
    """

    gpus: tuple[str, ...]
    descriptors: tuple[int, ...] = ()
    variables: Mapping[str, str] | None = None

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """A copy of an environment in which only these GPUs are visible."""
        if self.variables is None:
            return dict(environ)
        return {**{name: text for name, text in environ.items() if name not in SHOWING}, **self.variables}


class Refusal(Value):
    """A claim that failed because too few GPUs are free.

    Attributes:
        free: Number of free GPUs.
        holders: The other GPUs with their holders, one line each.
    """

    free: int
    holders: tuple[str, ...]


def present(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs of this host that this process may use.

    Args:
        environ: The environment. GRIDTF_LOCAL_GPUS, a comma-separated list, replaces what the NVIDIA driver reports;
            CUDA_VISIBLE_DEVICES restricts it.

    Returns:
        Their indices, in PCI order or as CUDA_VISIBLE_DEVICES lists them. MIG instances, and UUIDs when only indices
        are known, keep the names that they have there.
    """
    gpus = _of_host(environ)
    if VISIBLE not in environ or not gpus:
        return tuple(gpus)
    unchecked = _unchecked(gpus)
    named = (item if item.startswith(unchecked) else _index(item, gpus) for item in granted(environ))
    return tuple(dict.fromkeys(name for name in named if name is not None))


def known(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Indices of all GPUs of this host, including those hidden from this process; empty when none can be detected."""
    return tuple(_of_host(environ))


def missing(named: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that this host is known not to have.

    Args:
        named: Indices or UUIDs. MIG instances are not checked, nor are UUIDs when only indices are known.
        environ: The environment, for GRIDTF_LOCAL_GPUS.

    Returns:
        Those of ``named`` that the host does not have.
    """
    gpus = _of_host(environ)
    unchecked = _unchecked(gpus)
    return tuple(item for item in named if gpus and not item.startswith(unchecked) and _index(item, gpus) is None)


def declared(count: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs of a host on which none can be detected, as declared by the user.

    Args:
        count: The number of GPUs that the user declared.
        environ: The environment, for GRIDTF_LOCAL_GPUS and CUDA_VISIBLE_DEVICES.

    Returns:
        Those in CUDA_VISIBLE_DEVICES, if it is set; otherwise the indices from 0 to count - 1. Empty where GPUs can be
        detected: missing ones are hidden on purpose.
    """
    if "GRIDTF_LOCAL_GPUS" in environ or _from_driver():
        return ()
    return granted(environ) if VISIBLE in environ else tuple(str(index) for index in range(count))


def granted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that the scheduler assigned to this process.

    Args:
        environ: The environment. Slurm sets CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, unless the site has turned
            them off (gres.conf(5), Flags), and SLURM_STEP_GPUS, which has the node's indices even where a job sees only
            its own devices.

    Returns:
        Indices or UUIDs. As in CUDA, -1 or NoDevFiles ends the list.
    """
    for name in (VISIBLE, _ROCR, _STEP):
        items = takewhile(
            lambda item: item.lower() != "nodevfiles" and not item.startswith("-"), listed(environ.get(name, ""))
        )
        gpus = tuple(items)
        if gpus and name == _STEP:
            detected = tuple(_from_driver())
            return detected if len(detected) == len(gpus) else gpus
        if gpus:
            return gpus
    return ()


def visible(environ: Mapping[str, str], share: Sequence[str]) -> dict[str, str]:
    """Environment variables that make only a task's own GPUs visible to it.

    Args:
        environ: The environment, in which all GPUs of the job on this host are visible.
        share: The task's GPUs, of those that granted() returns.

    Returns:
        Variable -> value, to add to ``environ``.
    """
    others = [name for name in (_HIP, *_OTHERS) if name in environ]
    if not share:
        return dict.fromkeys((VISIBLE, _ROCR, _HIP, *others), "")
    grant = granted(environ)
    shown = {VISIBLE: ",".join(share), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the order in which NVML and Slurm count
    for name in (_ROCR, *others):
        items = listed(environ.get(name, ""))
        if items and len(items) == len(grant):
            shown[name] = ",".join(items[grant.index(gpu)] for gpu in share)
    if VISIBLE not in environ and _ROCR in shown:
        # ROCm applies it, like HIP_VISIBLE_DEVICES, to the devices that ROCR_VISIBLE_DEVICES leaves
        shown[VISIBLE] = ",".join(str(number) for number in range(len(share)))
    if _ROCR in shown and _HIP in environ:
        shown[_HIP] = ",".join(str(number) for number in range(len(share)))
    return shown


def listed(text: str) -> tuple[str, ...]:
    """The GPUs in a list such as ``0,1``. Blanks separate them as well: some sites and scripts write ``0 1``."""
    return tuple(text.replace(",", " ").split())


def _unchecked(gpus: Mapping[str, str]) -> tuple[str, ...]:
    """Beginnings of names that cannot be looked up among the GPUs of a host. gpus: index -> UUID."""
    return ("MIG-",) if any(gpus.values()) else ("MIG-", "GPU-")


def _index(item: str, gpus: Mapping[str, str]) -> str | None:
    """The index of a GPU from its index, its UUID or the beginning of its UUID. gpus: index -> UUID."""
    if item in gpus:
        return item
    return next((index for index, uuid in gpus.items() if item.startswith("GPU-") and uuid.startswith(item)), None)


def _of_host(environ: Mapping[str, str]) -> dict[str, str]:
    """Index -> UUID of the GPUs of this host, as declared (without UUIDs) or as the driver reports."""
    declared = environ.get("GRIDTF_LOCAL_GPUS")
    return dict.fromkeys(listed(declared), "") if declared is not None else _from_driver()


def _from_driver() -> dict[str, str]:
    """Index -> UUID, as the NVIDIA driver reports, without GPUs it has lost; empty without a driver."""
    gpus: dict[str, str] = {}
    with _driver() as nvml:
        for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
            with suppress(nvml.NVMLError):
                gpus[str(index)] = str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    return gpus


def idle_first(gpus: Sequence[str]) -> tuple[str, ...]:
    """Sort GPUs on which the NVIDIA driver reports no process first: not all programs take locks.

    Args:
        gpus: Indices.
    """
    busy = set()
    with _driver() as nvml:
        for gpu in gpus if nvml else ():
            with suppress(nvml.NVMLError, ValueError):
                handle = nvml.nvmlDeviceGetHandleByIndex(int(gpu))
                busy.update([gpu] if nvml.nvmlDeviceGetComputeRunningProcesses(handle) else [])
    return tuple(sorted(gpus, key=lambda gpu: gpu in busy))


def memory_in_use(gpus: Collection[str]) -> dict[str, int]:
    """The memory in use on GPUs, as the NVIDIA driver reports it.

    Args:
        gpus: Indices or UUIDs; others are left out.

    Returns:
        GPU -> MiB, for those with more than what the driver itself takes.
    """
    found: dict[str, int] = {}
    if not gpus:  # a job on CPUs: the driver takes a while to begin
        return found
    with _driver() as nvml:
        for gpu in gpus if nvml else ():
            with suppress(nvml.NVMLError, ValueError):
                mib = int(_memory(nvml, _device(nvml, gpu)).used) >> 20
                found.update({gpu: mib} if mib > _IDLE_MEMORY else {})
    return found


def use(gpus: Collection[str]) -> Iterator[dict[str, dict[str, float]]]:
    """What GPUs are doing, again and again. A reading may take for ever, as when a GPU has fallen off the bus.

    Args:
        gpus: Their indices or UUIDs.

    Yields:
        GPU -> use in percent, ``memory`` and ``memory_total`` in bytes, power in watts, ``clock`` of its processors in
        MHz, ``throttled``: 1 while heat or its power supply makes it slower, else 0; without what the driver does not
        tell. Nothing without an NVIDIA driver.
    """
    with _driver() as nvml:
        while nvml:
            found: dict[str, dict[str, float]] = {}
            for gpu in gpus:
                found[gpu] = of_gpu = {}
                with suppress(nvml.NVMLError, ValueError):
                    device = _device(nvml, gpu)
                    with suppress(nvml.NVMLError):
                        of_gpu["use"] = float(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
                    with suppress(nvml.NVMLError):
                        memory = _memory(nvml, device)
                        of_gpu["memory"], of_gpu["memory_total"] = int(memory.used), int(memory.total)
                    with suppress(nvml.NVMLError):
                        of_gpu["power"] = nvml.nvmlDeviceGetPowerUsage(device) / 1000  # it is in milliwatts
                    with suppress(nvml.NVMLError):
                        of_gpu["clock"] = float(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM))
                        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
                        of_gpu["throttled"] = float(bool(reasons & _FAULTS))
            yield found


def _memory(nvml: Any, device: Any) -> Any:
    """The memory of a GPU; in use is, where the driver tells it apart, not what it keeps for itself."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2)
    except nvml.NVMLError:  # a driver before 510
        return nvml.nvmlDeviceGetMemoryInfo(device)


def _device(nvml: Any, gpu: str) -> Any:
    """The driver's handle on a GPU, by index or UUID."""
    if gpu.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(gpu))


@contextmanager
def _driver() -> Iterator[Any]:
    """pynvml, initialized; None without a working NVIDIA driver."""
    if not Path("/dev/nvidiactl").exists():  # saves the import
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


def claim(count: int, candidates: Sequence[str], owner: str, environ: Mapping[str, str]) -> GpuGrant | Refusal:
    """Lock GPUs: the requested number of them, or none.

    Args:
        count: Number of GPUs.
        candidates: Indices, the preferred ones first.
        owner: A line about this job that other users can read, for their Refusal.
        environ: The environment. GRIDTF_LOCKS, if set, replaces ``gridtf`` as the prefix of the locks' names, and jobs
            with different prefixes do not exclude each other.

    Raises:
        GridtfError: When no lock can be made.
    """
    from gridtf.host import locks

    prefix = environ.get("GRIDTF_LOCKS") or "gridtf"
    with _one_at_a_time(), ExitStack() as ours:  # releases all, unless the claim succeeds
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
        descriptors = tuple(descriptor for held in taken.values() for descriptor in held)
        return GpuGrant(tuple(taken), descriptors, {VISIBLE: ",".join(taken)})


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process at a time claim GPUs: two that each got half of them would both fail.

    After _TURN_WAIT it proceeds anyway: the locks of the GPUs themselves exclude other jobs.
    """
    from filelock import lock_descriptor

    try:
        turn = os.open(_TURN, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # a host without it: concurrent claims may fail
        yield
        return
    try:
        latest = time.monotonic() + _TURN_WAIT
        while not lock_descriptor(turn, blocking=False) and time.monotonic() < latest:
            time.sleep(_TURN_PAUSE)
        yield
    finally:
        os.close(turn)
