"""Writes a report: as a whole or not at all, and over nothing but another report."""

from __future__ import annotations

import errno
from pathlib import Path

from gridtf import files
from gridtf.errors import OutputError, RunDirError, UsageError
from gridtf.run.rundir import open_plain, write_bytes

MARK = '<meta name="generator" content="gridtf '  # in every page, as templates/report/base.html.j2 has it
_BEGINNING = 1024  # bytes in which the mark is
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def save(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write a report, or an archive for its user alone, to a temporary file and rename it.

    Args:
        path: The file; one that exists is replaced if both are reports.
        content: The page, or the archive.
        force: Whether to replace any file.

    Raises:
        UsageError: When the file exists and is not to be replaced.
        OutputError: When it cannot be written.
    """
    if files.is_folder(path):
        raise UsageError(f"{path} is a folder", hint=f"name a file in it: -o {path / 'report.html'}")
    archive = isinstance(content, bytes)
    if (files.exists(path) or files.is_link(path)) and not force and (archive or not _is_report(path)):
        what = f"{path} exists{'' if archive else ', and is not a report of gridtf'}"
        raise UsageError(what, hint="name another file with -o, or replace it with --force")
    if files.exists(path) and not path.is_file():  # such as /dev/null, which root would replace for all
        raise UsageError(f"{path} is not a regular file", hint="name another one with -o; -o - is stdout")
    try:
        write_bytes(path, content if isinstance(content, bytes) else content.encode(), mode=0o600 if archive else 0o666)
    except RunDirError as error:
        hint = "free some space there, or name a file elsewhere with -o"
        raise OutputError(
            error.what, hint=hint if error.number in _NO_ROOM else "name a file elsewhere with -o"
        ) from None


def _is_report(path: Path) -> bool:
    try:
        with open_plain(path) as file:
            return MARK.encode() in file.read(_BEGINNING)
    except (OSError, RunDirError):
        return False
