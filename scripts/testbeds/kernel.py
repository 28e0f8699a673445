"""The system calls that make a host, which Python has only since 3.12 or not at all."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWPID = 0x20000000
NEWNET = 0x40000000
NAMESPACES = {"net": NEWNET, "uts": NEWUTS, "ipc": NEWIPC, "pid": NEWPID, "mnt": NEWNS}  # as in /proc/PID/ns

_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def unshare(*names: str) -> None:
    """Leave these namespaces for new ones; a new pid namespace begins with the next child (unshare(2))."""
    _call("unshare", sum(NAMESPACES[name] for name in names))


def open_namespaces(pid: int, names: Iterable[str]) -> dict[str, int]:
    """Namespace -> file descriptor, of a process's namespaces, for enter(). OSError when the process is gone."""
    return {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names}


def enter(namespaces: dict[str, int]) -> None:
    """Enter namespaces, the mount namespace last, since /proc changes with it (setns(2))."""
    for name in NAMESPACES:
        if name in namespaces:
            _call("setns", namespaces[name], NAMESPACES[name])


def mount(source: str, target: str | Path, kind: str, options: str = "") -> None:
    """mount(2) of a new file system."""
    _call("mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(0), options.encode())


def bind(source: int, target: str | Path) -> None:
    """Show an open file or folder, and what is mounted in it, at another place. source: a file descriptor."""
    origin = f"/proc/self/fd/{source}".encode()  # the path it was opened by may be hidden by now
    _call("mount", origin, os.fsencode(target), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)


def unmount(target: str) -> None:
    """Remove the topmost mount from a place; files that are open in it stay open (umount2(2))."""
    _call("umount2", target.encode(), _MNT_DETACH)


def keep_mounts_inside() -> None:
    """Hide later mounts of this mount namespace from other namespaces."""
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)


def set_hostname(name: str) -> None:
    _call("sethostname", name.encode(), len(name))


def set_process_name(name: str) -> None:
    _call("prctl", _PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent() -> None:
    """Have this process killed when its parent dies (prctl(2)). A later change of user would undo it."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
