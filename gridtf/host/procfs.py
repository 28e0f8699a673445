"""Processes as /proc shows them (proc(5))."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gridtf.values import grouped


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None when it is gone. Distinguishes reused process ids."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def age(pid: int) -> float | None:
    """Seconds since a process started; None when it is gone."""
    started = start_time(pid)
    if started is None:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    """The kernel's id of this boot (random(4)); empty when unknown."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def alive(pid: int, started: int | None = None) -> bool:
    """Whether a process still runs and is not a zombie.

    Args:
        pid: Its process id.
        started: Its start_time; None: any process with this id.
    """
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and (started is None or int(fields[19]) == started)


def identity(pid: int) -> dict[str, Any]:
    """A record that identifies a process uniquely: ``host``, ``pid``, ``start`` (start_time) and ``boot`` (boot_id)."""
    return {"host": os.uname().nodename, "pid": pid, "start": start_time(pid), "boot": boot_id()}


def lives(record: Mapping[str, Any]) -> bool:
    """Whether a process runs on this host.

    Args:
        record: As identity() returns it; other keys are ignored.
    """
    pid, start = record.get("pid", 0), record.get("start")
    here = record.get("host") == os.uname().nodename and record.get("boot") == boot_id()
    return here and start is not None and alive(pid, start)


def stopped(pid: int) -> bool:
    """Whether a process is stopped, as after Ctrl-Z (state T) or by a debugger (t)."""
    return _stat(pid)[:1] in (["T"], ["t"])


def exiting(pid: int) -> bool:
    """Whether a process is ending or has ended: PF_EXITING of linux/sched.h, set before its files are closed."""
    fields = _stat(pid)
    return not fields or bool(int(fields[6]) & 4)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (SigCgt in /proc/PID/status)."""
    return _in_masks(f"/proc/{pid}/status", number, "SigCgt:")


def unhandled(pid: int, number: int) -> int:
    """In how many places a signal of a process is still to be handled, or is being handled: threads that block it, as
    each does while it runs the handler, and 1 while it is pending."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    blocking = sum(_in_masks(f"/proc/{pid}/task/{thread}/status", number, "SigBlk:", "SigPnd:") for thread in threads)
    return blocking + _in_masks(f"/proc/{pid}/status", number, "ShdPnd:")


def _in_masks(path: str, number: int, *masks: str) -> bool:
    values = (line.split()[1] for line in _text(path).splitlines() if line.startswith(masks))
    return any(int(value, 16) >> (number - 1) & 1 for value in values)


def state(pid: int) -> str:
    """The state of a process's main thread, a letter of proc_pid_stat(5); empty when it is gone."""
    return next(iter(_stat(pid)), "")


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):  # noqa: PTH116 - many of them
                    return True
    return False


def written(pid: int) -> tuple[str, ...]:
    """Where stdout and stderr of a process stand in their files (proc_pid_fdinfo(5)): they move with every write,
    also by other processes that have inherited them."""
    return tuple(_text(f"/proc/{pid}/fdinfo/{descriptor}").partition("\n")[0] for descriptor in (1, 2))


def parent(pid: int) -> int:
    """The parent of a process; 0 when the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def cpu_ticks() -> dict[int, tuple[int, int]]:
    """Process id -> its parent, and the clock ticks that it and the children that it has waited for have used."""
    return {pid: (int(fields[1]), sum(map(int, fields[11:15]))) for pid, fields in _all()}


def session(pid: int) -> int | None:
    """The session id of a process; None when it is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else None


def children(pid: int) -> list[int]:
    """Children of a process's main thread, from one read of /proc/PID/task/TID/children (proc(5)).

    May miss children while they end, and is empty on kernels without this file.
    """
    return [int(child) for child in _text(f"/proc/{pid}/task/{pid}/children").split()]


def name(pid: int) -> str:
    """The first 15 characters of the name of a process's program (/proc/PID/comm); empty when it is gone."""
    return _text(f"/proc/{pid}/comm").removesuffix("\n")


def mapped_files(pid: int, most: int) -> str:
    """The memory maps of a process and its descendants, which name the libraries that they have loaded.

    Args:
        pid: Its process id.
        most: How many processes are read, parents before children.

    Returns:
        The text of their /proc/PID/maps (proc_pid_maps(5)); without processes that are gone or other users'.
    """
    return "".join(_text(f"/proc/{member}/maps") for member in _relatives(pid, most))


def variables(pid: int, most: int) -> list[str]:
    """The environment variables with which a process and its descendants were started, such as ``PMI_RANK=0``.

    Args:
        pid: Its process id.
        most: How many processes are read, parents before children; without those that are gone or other users'.
    """
    return "".join(_text(f"/proc/{member}/environ") for member in _relatives(pid, most)).split("\0")


def open_files(pid: int, most: int) -> list[str]:
    """The names of what a process and its descendants have open; files that were removed have `` (deleted)`` added.

    Args:
        pid: Its process id.
        most: How many processes are read, parents before children; without those that are gone or other users'.
    """
    return [name for member in _relatives(pid, most) for _, name in descriptors(member)]


def descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """What a process has open: number of the descriptor, and the name that proc_pid_fd(5) gives it. Nothing when the
    process is gone or another user's."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                yield int(number), os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 - many of them


def _relatives(pid: int, most: int) -> Iterator[int]:
    """A process and its descendants, parents before children, at most so many."""
    family = [pid]
    for member in family:  # grows meanwhile
        family += children(member)[: most - len(family)]
        yield member


def ancestors(pid: int) -> Iterator[int]:
    """Process ids of the parent of a process, the parent's parent, and so on."""
    while (fields := _stat(pid)) and (pid := int(fields[1])):
        yield pid


def descendants(root: int) -> list[int]:
    """Process ids of all descendants, children before grandchildren, without zombies."""
    found = dict(_all())
    family = below(root, {pid: int(fields[1]) for pid, fields in found.items()})
    return [pid for pid in family if found[pid][0] not in "ZX"]  # whose children may have been listed before it died


def below(root: int, parents: Mapping[int, int]) -> list[int]:
    """All descendants of a process, children before grandchildren. Pure.

    Args:
        root: The process.
        parents: Process id -> its parent.
    """
    children = grouped((parent, pid) for pid, parent in parents.items())
    family = list(children.get(root, ()))
    for pid in family:  # grows meanwhile
        family += children.get(pid, ())
    return family


def family(root: int) -> Iterator[int]:
    """Process ids of all descendants: first those that children() finds at once, then those in a walk of /proc."""
    found = children(root)
    for pid in found:  # grows meanwhile
        yield pid
        found += children(pid)
    yield from (pid for pid in descendants(root) if pid not in found)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name (proc(5)): state, ppid, …, starttime is number 19."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _all() -> Iterator[tuple[int, list[str]]]:
    """All processes of this host that have not gone meanwhile: process id, fields as _stat returns them."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            yield int(name), fields


def _text(path: str) -> str:
    """The text of a file of /proc; empty when its process is gone or another user's."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


# struct pidfd_info of linux/pidfd.h: its size, the mask bit for the exit status, and the ioctl that fills it in.
_INFO_SIZE = 64
_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11


def ended_how(pidfd: int) -> int | None:
    """The exit status of a process, which need not be a child.

    Args:
        pidfd: Its pidfd (pidfd_open(2)).

    Returns:
        Its exit code, or minus the number of the signal that ended it. None until its parent has reaped it, and on
        kernels without PIDFD_INFO_EXIT (before Linux 6.15).
    """
    info = bytearray(struct.pack("=Q", _INFO_EXIT).ljust(_INFO_SIZE, b"\0"))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    if not struct.unpack_from("=Q", info)[0] & _INFO_EXIT:
        return None
    return os.waitstatus_to_exitcode(struct.unpack_from("=i", info, _INFO_SIZE - 4)[0])
