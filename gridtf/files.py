"""Reading a file that somebody else may have made: a plain one, not too long, of whom it may be."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

from gridtf.errors import UsageError

MOST_BYTES = 1 << 22  # of a job file, a template or a program: real ones are a hundredth of it


def read(
    path: Path, name: str, *, plain: bool = True, trusted: Collection[int] | None = None, hint: str = ""
) -> tuple[bytes, int]:
    """What a file holds, and the id of the user that it belongs to.

    name: what to call it in messages. plain: a FIFO, which would hold us up, or a device, which has no end, is refused.
    trusted: user ids; the file must belong to one of them, to this user or to root, and not everybody may write it;
    None: it is taken from anybody. hint: what to do about one that is not. Raises UsageError for what is refused,
    OSError for what cannot be read; a name that no file can have is one that is not there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if plain else 0))
    except ValueError:  # a NUL, or half a character
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if plain and not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{name} is not a regular file")
        if trusted is not None:
            _refuse_strangers(path, found, name, trusted, hint)
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{name} has more than {MOST_BYTES >> 20} MiB")
    return data, found.st_uid


def _refuse_strangers(path: Path, found: os.stat_result, name: str, trusted: Collection[int], hint: str) -> None:
    """Raises UsageError for a file, or a symbolic link to it, that somebody else has put there, as git does for a
    repository. A group is no stranger: with it the file was shared on purpose, and so were the programs beside it."""
    for owner in (found.st_uid, os.lstat(path).st_uid):
        if owner not in {os.geteuid(), 0, *trusted}:
            raise UsageError(f"{name} belongs to user {user_name(owner)}", hint=hint)
    if found.st_mode & stat.S_IWOTH:
        raise UsageError(f"everybody may write {name}", hint=hint)


def user_name(uid: int) -> str:
    """The name of a user, or the number of one that has none here."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
