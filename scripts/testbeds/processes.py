"""Processes identified by pid and start time, so that a reused pid is never mistaken for an earlier process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process. start: its start time in clock ticks since boot, field 22 of /proc/PID/stat (proc(5))."""

    pid: int
    start: int


def start_time(pid: int) -> int:
    """Start time of a process, in clock ticks since boot; 0 when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return 0 if fields[0] in "ZX" else int(fields[19])


def find(pid: int) -> Process:
    return Process(pid, start_time(pid))


def alive(process: Process) -> bool:
    return process.start != 0 and start_time(process.pid) == process.start


def children(pid: int) -> list[int]:
    """Children of a process's main thread; empty when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name(pid: int) -> str:
    """The first 15 characters of the name of a process's program; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(processes: list[Process], limit: float = 20) -> list[Process]:
    """Send SIGKILL, and wait up to ``limit`` seconds for each process; returns those that have not ended."""
    handles = {}
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            if alive(process):  # checked while the handle is open, hence true of the process that is killed
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                handles[process] = handle
            else:
                os.close(handle)
    late = []
    for process, handle in handles.items():
        if not select.select([handle], [], [], limit)[0]:
            late.append(process)
        os.close(handle)
    return late


@contextlib.contextmanager
def only_one(folder: Path, does: str, say: Callable[[str], None]) -> Iterator[int]:
    """One process at a time; yields the lock, which what it starts can hold as well, in case that it is killed.

    The lock is on the folder itself, so that no file is left behind.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another scripts/testbed that {does}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)
