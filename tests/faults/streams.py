"""Connections of other processes, closed by force."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PIDFD_GETFD = 438  # <asm/unistd.h>, of all architectures


def close_connections(pid: int, port: int) -> int:
    """Close all connections of a process at one of its own TCP ports by force; returns how many. Needs root."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        return sum(_close(process, descriptor, port) for descriptor in _sockets(pid))
    finally:
        os.close(process)


def _sockets(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # it has ended
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(path.readlink()).startswith("socket:"):
                    found.append(int(path.name))
    return found


def _close(process: int, descriptor: int, port: int) -> bool:
    copy = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, descriptor, 0)
    if copy < 0:
        return False
    with contextlib.suppress(OSError), socket.socket(fileno=copy) as connection:
        connection.getpeername()  # raises for one that listens
        if connection.family != socket.AF_UNIX and connection.getsockname()[1] == port:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


@contextmanager
def repeated(action: Callable[[], int], pause: float) -> Iterator[list[int]]:
    """Do something again and again in the background, with this pause in seconds; yields the list of the results."""
    over, results = threading.Event(), list[int]()

    def run() -> None:
        while not over.wait(pause):
            results.append(action())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield results
    finally:
        over.set()
        thread.join()
