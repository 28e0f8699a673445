"""Operations on the files of a folder, counted from outside by inotify(7)."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_OPEN, _MOVED_TO, _CREATE, _DELETE, _CLOSE_WRITE = 0x20, 0x80, 0x100, 0x200, 0x8
_FOLDER, _NONBLOCK = 0x40000000, os.O_NONBLOCK
_EVENT = struct.Struct("iIII")
_NAMES = {_OPEN: "opened", _MOVED_TO: "renamed", _DELETE: "deleted", _CREATE: "created"}


class FileWatch:
    """Counts what is done to a folder and all folders in it, those made later too.

    Args:
        folder: The folder.

    Attributes:
        counts: ``opened``, ``listed``, ``created``, ``renamed`` and ``deleted`` -> how often.

    Raises:
        OSError: The kernel allows no more watches.
    """

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, Path] = {}
        self.counts = dict.fromkeys((*_NAMES.values(), "listed"), 0)
        self._add(folder)

    def _add(self, folder: Path) -> None:
        watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), sum(_NAMES))
        if watch < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
        if watch in self._folders:
            return
        self._folders[watch] = folder
        inner = [path for path in folder.iterdir() if path.is_dir()]
        self.look()  # that listing was ours
        self.counts["listed"] -= 1
        for path in inner:
            self._add(path)

    def look(self) -> dict[str, int]:
        """Count what has happened since the last call. Returns counts."""
        while True:
            try:
                events = os.read(self._descriptor, 1 << 20)
            except BlockingIOError:
                return self.counts
            at = 0
            while at < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size
                name = events[at : at + length].rstrip(b"\0")
                at += length
                self._count(watch, mask, name)

    def _count(self, watch: int, mask: int, name: bytes) -> None:
        for bit, what in _NAMES.items():
            if mask & bit:
                if mask & _FOLDER and bit == _OPEN:
                    self.counts["listed"] += not name  # the folder above sees it as well
                else:
                    self.counts[what] += 1
        if mask & _FOLDER and mask & _CREATE:
            self._add(self._folders[watch] / os.fsdecode(name))

    def close(self) -> None:
        """Stop counting."""
        os.close(self._descriptor)
