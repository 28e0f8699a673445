"""Which GPUs are ours on this host: the scheduler's grant, else a claim under locks that die with their holders.

Every GPU has one lock file in a folder that is local to the host and the same for all its users. The lock is on an
open file description, so it lasts until the last process that inherited it is gone: launcher, agent and task.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from gridtf.errors import GridtfError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ROCR = "ROCR_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"
_STEP = "SLURM_STEP_GPUS"


# How often to try within a second for the lock that every claim takes first. No longer: while it waits, nobody is told,
# and a signal is held back.
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
    declared = environ.get("GRIDTF_LOCAL_GPUS")
    found = dict.fromkeys(_listed(declared), "") if declared is not None else _from_driver()
    visible = environ.get(VISIBLE)
    if visible is None or not found:
        return tuple(found)
    named = (_index(item, found) for item in granted(environ))
    return tuple(dict.fromkeys(index for index in named if index is not None))


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
    others = [name for name in (_HIP, "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK") if name in environ]
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


def lock_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the lock files: /run/lock where every user may write there, else /tmp; GRIDTF_LOCK_DIR overrides.

    Not TMPDIR: schedulers give every job its own.
    """
    override = environ.get("GRIDTF_LOCK_DIR")
    if override:
        return Path(override)
    for folder in (Path("/run/lock"), Path("/tmp")):  # noqa: S108 - the one folder that all users of a host share
        try:
            mode = folder.stat().st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode) and mode & stat.S_IWOTH:
            return folder
    raise GridtfError("no folder for the GPU lock files on this host", hint="name one with GRIDTF_LOCK_DIR")


def claim(count: int, candidates: Sequence[str], owner: str, folder: Path) -> Claim | Refusal:
    """Claim that many of the candidates, or none of them. owner: one line that tells others who has them."""
    from filelock import lock_descriptor

    def locked_soon(gate: int) -> bool:
        for _ in range(_TRIES):
            if lock_descriptor(gate, blocking=False):
                return True
            time.sleep(1 / _TRIES)
        return False

    with ExitStack() as ours:  # closes what was opened, unless the claim succeeds
        gate = _open(folder / "gridtf-gpus.lock")
        ours.callback(os.close, gate)
        if not locked_soon(gate):  # one at a time: two that each get a half would both go without
            return Refusal(0, ("another job has been claiming some for a second",))
        taken: dict[str, int] = {}
        holders: list[str] = []
        for gpu in candidates:
            if len(taken) == count:
                break
            descriptor = _open(folder / f"gridtf-gpu-{gpu.replace('/', '_')}.lock")
            ours.callback(os.close, descriptor)
            if lock_descriptor(descriptor, blocking=False):
                taken[gpu] = descriptor
            else:
                holders.append(f"GPU {gpu}: {_note(descriptor)}")
        if len(taken) < count:
            return Refusal(len(taken), tuple(holders))
        kept = {gpu: os.dup(descriptor) for gpu, descriptor in taken.items()}  # the same lock
        for descriptor in kept.values():
            _sign(descriptor, owner)
        return Claim(tuple(kept), tuple(kept.values()))


_FOLDER_HINT = "name another folder, the same for all users of this host, with GRIDTF_LOCK_DIR"


def _open(path: Path) -> int:
    # Opened without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on another user's file.
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        umask = os.umask(0)  # every user of the host must be able to lock it, from the moment it is there
        try:
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except (FileNotFoundError, FileExistsError):
            continue
        except OSError as error:
            raise GridtfError(
                f"cannot open the GPU lock file {path}: {error.strerror}",
                hint=_FOLDER_HINT,
            ) from None
        finally:
            os.umask(umask)
    if not path.parent.is_dir():
        raise GridtfError(f"the folder of the GPU lock files, {path.parent}, is not there", hint=_FOLDER_HINT)
    raise GridtfError(f"cannot open the GPU lock file {path}: it comes and goes")


def _sign(descriptor: int, owner: str) -> None:
    with suppress(OSError):  # a courtesy to others: a full disk does not make the lock any weaker
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(errors="replace") + b"\n", 0)


def _note(descriptor: int) -> str:
    """What the holder says of itself. Everybody can write there, so it is made one line that no terminal obeys."""
    text = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
    return "".join(char if char.isprintable() else "?" for char in text) or "held by another process"
