"""Files of JSON lines: read from their beginning, and again as they grow. Each has one writer, which appends."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.errors import RunDirError
from gridtf.run import recordtypes
from gridtf.run.rundir import Record, cannot, listdir, open_plain

if TYPE_CHECKING:
    from gridtf.run.recordtypes import Kind

VERSION = 1  # of the files of JSON lines; a reader leaves out files of a newer one
_CHUNK = 1 << 20
_LONGEST = 4 << 20  # bytes of a line; that of a host with 1000 tasks has 1 MB


def head(nonce: str) -> str:
    """The first line of a file.

    Args:
        nonce: The nonce of its attempt.
    """
    return line({"version": VERSION, "nonce": nonce})


def line(record: Record) -> str:
    """A record as a line, with its newline."""
    return json.dumps(record, separators=(",", ":")) + "\n"


class Lines:
    """Reads a file of JSON lines as it grows.

    A line that is no such record is left out, and so is a last line without its end, until it has one. A file of
    another attempt counts as absent.

    Args:
        path: The file, which need not exist.
        kind: The kind of its records, from recordtypes.
        nonce: The nonce of its attempt; None: any.

    Attributes:
        path: The file.
        newer: Whether a newer gridtf has written it, so that nothing of it is read.
        damaged: Whether some of its lines are no such records, and were left out.
    """

    def __init__(self, path: Path, kind: Kind, nonce: str | None = None) -> None:
        self.path = path
        self._fits = recordtypes.check(kind)
        self._nonce = nonce
        self._offset = 0
        self._partial = b""
        self._begun = False
        self._foreign = False
        self.newer = False
        self.damaged = False

    def more(self) -> list[Record]:
        """The records that were added since the last call.

        Raises:
            RunDirError: The file cannot be read.
        """
        return list(self.each())

    def each(self) -> Iterator[Record]:
        """The same, one after the other: a long file never is in memory as a whole.

        Raises:
            RunDirError: The file cannot be read.
        """
        if not self._offset and self.path.name not in listdir(self.path.parent):
            return
        try:
            with open_plain(self.path) as file:
                file.seek(self._offset)
                while chunk := file.read(_CHUNK):
                    self._offset += len(chunk)
                    *lines, self._partial = (self._partial + chunk).split(b"\n")
                    if len(self._partial) > _LONGEST:  # its end will be no record either
                        self._partial, self.damaged = b"", True
                    for text in lines:
                        if (record := self._record(text)) is not None:
                            yield record
        except OSError as error:
            if error.errno in (errno.ESTALE, errno.ENOENT):
                return
            raise cannot("read", self.path, error) from None

    def _record(self, text: bytes) -> Record | None:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            self.damaged = True
            return None
        if not self._begun and isinstance(record, dict) and "version" in record:
            self._begun = True
            self.newer = not isinstance(record["version"], int) or record["version"] > VERSION
            self._foreign = self._nonce is not None and record.get("nonce") != self._nonce
            return None
        if self.newer or self._foreign:
            return None
        if self._fits(record):
            self.damaged = True
            return None
        return record  # type: ignore[no-any-return]


def read(path: Path, kind: Kind, nonce: str | None = None) -> Sequence[Record]:
    """All records of a file, none where it does not exist or cannot be read.

    Args:
        path: The file.
        kind: The kind of its records.
        nonce: As for Lines.
    """
    try:
        return Lines(path, kind, nonce).more()
    except RunDirError:
        return []
