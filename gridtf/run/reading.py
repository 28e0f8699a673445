"""Reading a run directory to show it: what is damaged is left out and named, and the rest counts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gridtf.errors import DamagedError, RunDirError
from gridtf.run.rundir import Record, RunDir, damaged, listdir, read_record, read_text

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Collection

    from gridtf.run.recordtypes import Kind


class Reading:
    """Reads records of a run.

    Args:
        run: The run directory.
        strict: Whether it is an error when a record that is there cannot be read, as while a file server restarts;
            otherwise it counts as damaged.

    Attributes:
        hidden: Files that only their owner may read: their paths below the run directory.
        damaged: Those that are damaged -> what is wrong with them.
    """

    def __init__(self, run: RunDir, *, strict: bool = False) -> None:
        self._top = run.path
        self._noted = DamagedError if strict else RunDirError
        self.hidden: set[str] = set()
        self.damaged: dict[str, str] = {}

    def record(
        self, path: Path, kind: Kind, nonce: str | None = None, names: Collection[str] | None = None
    ) -> Record | None:
        """A record; None when there is none, or none that is whole.

        Args:
            path: The file.
            kind: Its kind, from recordtypes.
            nonce: The nonce of its attempt; a record with another one counts as absent.
            names: The names in its folder, if they have just been listed.

        Raises:
            RunDirError: When its folder cannot be listed, or with ``strict`` it cannot be read.
        """
        if path.name not in (listdir(path.parent) if names is None else names):
            return None
        try:
            found = read_record(path, kind, listed=True)
        except self._noted as error:
            self.note(path, error)
            return None
        if found is None or nonce is None or found.get("nonce") == nonce:
            return found
        if not isinstance(found.get("nonce"), str):
            self.note(path, damaged(path, "it has no nonce"))
        return None

    def private(
        self, path: Path, kind: Kind, nonce: str | None = None, names: Collection[str] | None = None
    ) -> Record | None:
        """A record that counts as absent for users who may not read it; see record."""
        return self.record(path, kind, nonce, names) if self._readable(path) else None

    def text(self, path: Path) -> str | None:
        """A text; None when there is none, or none that this user may read."""
        try:
            return read_text(path) if self._readable(path) else None
        except self._noted as error:
            self.note(path, error)
            return None

    def name(self, path: Path) -> str:
        """The path of a file below the run directory, or its whole path."""
        return str(path.relative_to(self._top) if path.is_relative_to(self._top) else path)

    def note(self, path: Path, error: RunDirError) -> None:
        """Note what is wrong with a file, or that only its owner may read it."""
        if error.number != errno.EACCES:
            self.damaged[self.name(path)] = error.what
        else:
            self.hidden.add(self.name(path))

    def _readable(self, path: Path) -> bool:
        if os.access(path, os.R_OK):
            return True
        if path.name in listdir(path.parent):
            self.hidden.add(self.name(path))
        return False


def known(path: Path, kind: Kind) -> Record:
    """What a record says, as far as this user may read it and it is whole; else empty.

    Args:
        path: The file.
        kind: Its kind, from recordtypes.

    Raises:
        RunDirError: When its folder cannot be listed.
    """
    return Reading(RunDir(path.parent)).private(path, kind) or {}
