"""Counts what processes do in a folder of this machine, also those on the hosts of a test bed that see it elsewhere."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from pathlib import Path

# inotify(7), <sys/inotify.h>
_MODIFY, _CLOSE_NOWRITE, _OPEN = 0x2, 0x10, 0x20
_MOVED_TO, _CREATE, _DELETE = 0x80, 0x100, 0x200
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_WATCHED = _MODIFY | _CLOSE_NOWRITE | _OPEN | _MOVED_TO | _CREATE | _DELETE
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_libc = ctypes.CDLL(None, use_errno=True)

FILES, FOLDERS, WRITES, RENAMES, REMOVALS = "files opened", "folders listed", "writes", "renames", "files removed"


class Watch:
    """A watch on a folder and all folders that are in it.

    Calls that open nothing, such as stat, are not seen. The kernel reports two equal events as one while the first has
    not been read; ends of reads are watched as well, so that two opens rarely follow each other.
    """

    def __init__(self, top: Path) -> None:
        folders = [folder for folder, _, _ in os.walk(top)]
        self._descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        for folder in folders:
            if _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _WATCHED) < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def count(self, seconds: float, ignored: str = "/") -> dict[str, int]:
        """Operation -> how often it is done within the next ``seconds``.

        Args:
            seconds: How long to count.
            ignored: Files whose names end so do not count; no name ends with a slash.
        """
        counts = dict.fromkeys((FILES, FOLDERS, WRITES, RENAMES, REMOVALS), 0)
        end = time.monotonic() + seconds
        while select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
            data = os.read(self._descriptor, 65536)
            while data:
                _, mask, _, length = _HEAD.unpack_from(data)
                name, data = data[_HEAD.size :][:length], data[_HEAD.size + length :]
                if name.rstrip(b"\0").endswith(ignored.encode()):
                    continue
                if operation := _operation(mask, named=bool(name)):
                    counts[operation] += 1
        return counts


def _operation(mask: int, *, named: bool) -> str:
    """The operation that an event stands for; empty when another event stands for it."""
    if mask & _OVERFLOW:
        raise SystemExit("more operations than the kernel can report")
    if mask & _OPEN and mask & _IS_FOLDER:
        return "" if named else FOLDERS  # with a name: reported by the folder above it, too
    known = {_OPEN: FILES, _MODIFY: WRITES, _MOVED_TO: RENAMES, _DELETE: REMOVALS}
    return next((operation for flag, operation in known.items() if mask & flag), "")
