"""The log of a task as one sequence of bytes, also where a log_limit has split it into two parts.

``worker-0.log`` has the newest bytes, ``worker-0.log.1`` those just before. Offsets count what the log has received
since the start of the attempt; ``worker-0.log.parts`` has those at which the parts begin, by inode, because the names
change at different times. Without it a log has one part, which begins at 0.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from gridtf.errors import DamagedError
from gridtf.run import recordtypes
from gridtf.run.rundir import cannot, open_plain, read_record, write_record

TYPE_CHECKING = False  # the job side needs this as well
if TYPE_CHECKING:
    from typing import BinaryIO

_TRIES = 5  # of a reader, while the parts are renamed
_GONE = (errno.ENOENT, errno.ESTALE)
_AT_FDCWD, _AT_STATX_FORCE_SYNC, _STATX_SIZE = -100, 0x2000, 0x200  # statx(2)
_STATX = 256  # bytes of a struct statx


def older(log: Path) -> Path:
    """The part with the bytes before those of a log."""
    return log.with_name(f"{log.name}.1")


def note_begins(log: Path, begins: Mapping[int, int]) -> None:
    """Record where the parts of a log begin, before a new part takes its name.

    Args:
        log: The log.
        begins: Inode -> offset in bytes.

    Raises:
        RunDirError: When it cannot be written.
    """
    write_record(begins_file(log), {str(inode): begin for inode, begin in begins.items()})


def begins_of(log: Path) -> dict[int, int] | None:
    """Where the parts of a log begin.

    Args:
        log: The log.

    Returns:
        Inode -> offset in bytes; None while there is one part, and where the record is damaged.

    Raises:
        RunDirError: When the record cannot be read.
    """
    found = None
    with contextlib.suppress(DamagedError):
        found = read_record(begins_file(log), recordtypes.LogParts, listed=True)
    return None if found is None else {int(inode): begin for inode, begin in found.items() if inode.isdecimal()}


def begins_file(log: Path) -> Path:
    """The record of where the parts of a log begin."""
    return log.with_name(f"{log.name}.parts")


def refresh(log: Path) -> None:
    """Have the kernel ask the file server how long a log is, so that all that other hosts have appended can be read.

    A file system in user space (FUSE) may go by an answer of some seconds ago, also when the log is opened anew. No
    effect on a log that does not exist, or without statx(2).

    Args:
        log: The log.
    """
    import ctypes

    with contextlib.suppress(AttributeError):  # glibc before 2.28
        found = ctypes.create_string_buffer(_STATX)
        ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(log), _AT_STATX_FORCE_SYNC, _STATX_SIZE, found)


class LogParts:
    """Reads a log. Opens it anew each time: network file systems show new data only then.

    Args:
        path: The log, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def extent(self) -> tuple[int, int]:
        """The offsets of its first byte and of its end; (0, 0) where it does not exist.

        Raises:
            RunDirError: When it cannot be read.
        """
        newest = self._open(self._path)
        if newest is None:
            return 0, 0
        file, begin, status = newest
        file.close()
        before = self._open(older(self._path)) if begin else None
        if before is None:
            return begin, begin + status.st_size
        before[0].close()
        return min(begin, before[1]), begin + status.st_size

    def modified(self) -> float:
        """When it was last written, in seconds since the epoch; 0 where it does not exist.

        Raises:
            RunDirError: When it cannot be read.
        """
        newest = self._open(self._path)
        if newest is None:
            return 0.0
        file, _, status = newest
        file.close()
        return status.st_mtime

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Read bytes.

        Args:
            offset: Where.
            most: How many at most; fewer than there are come from the end of the older part.

        Returns:
            (the offset of these bytes, these bytes). It is a later one where older bytes are gone, and an earlier one
            where the log has become shorter: another program has begun it anew.

        Raises:
            RunDirError: When it cannot be read.
        """
        for _ in range(_TRIES):
            newest = self._open(self._path)
            if newest is None:
                break
            file, begin, status = newest
            with file:
                if offset >= begin:
                    return self._read(file, begin, offset if offset <= begin + status.st_size else begin, most)
            before = self._open(older(self._path))
            if before is not None:
                file, first, _ = before
                with file:
                    at, data = self._read(file, first, max(first, offset), most)
                if data or first > offset:
                    return at, data
            offset = begin
        return offset, b""

    def _open(self, path: Path) -> tuple[BinaryIO, int, os.stat_result] | None:
        """Open a part. Returns it, the offset at which it begins, and its status; None where it does not exist."""
        for number in range(_TRIES):
            try:
                file = open_plain(path)
                status = os.fstat(file.fileno())
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise cannot("read", path, error) from None
            try:
                begins = begins_of(self._path)
            except BaseException:
                file.close()
                raise
            begin = 0 if begins is None else begins.get(status.st_ino)
            if begin is None and number == _TRIES - 1:
                begin = 0  # another program has put it there
            if begin is not None:
                return file, begin, status
            file.close()  # it was renamed, and removed, since it was opened
        return None

    def _read(self, file: BinaryIO, begin: int, offset: int, most: int) -> tuple[int, bytes]:
        try:
            file.seek(offset - begin)
            return offset, file.read(most)
        except OSError as error:
            if error.errno in _GONE:
                return offset, b""
            raise cannot("read", self._path, error) from None
