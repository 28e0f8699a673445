"""Processes known by pid and start time, so that a pid used again is never taken for the one meant."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """pid, and the start time in clock ticks since boot: field 22 of /proc/PID/stat (proc(5))."""

    pid: int
    start: int


def start_time(pid: int) -> int:
    """0 when there is no such process, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return 0 if fields[0] in "ZX" else int(fields[19])


def find(pid: int) -> Process:
    return Process(pid, start_time(pid))


def alive(process: Process) -> bool:
    return process.start != 0 and start_time(process.pid) == process.start


def children(pid: int) -> list[int]:
    """Empty when there is no such process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name(pid: int) -> str:
    """The name of its program, cut to 15 characters; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(processes: list[Process], limit: float = 20) -> list[Process]:
    """kill -9, and wait up to limit seconds until they are gone. Those that are not are returned."""
    handles = {}
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            if alive(process):  # asked with the handle held, hence true of what is killed
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
