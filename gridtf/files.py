"""Reading files that another user may have made: regular ones, not too long, with a trusted owner."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

from gridtf.errors import UsageError

MOST_BYTES = 1 << 22  # of a job file, a template or a program; real ones have a hundredth of it


def read(
    path: Path, name: str, *, plain: bool = True, trusted: Collection[int] | None = None, hint: str = ""
) -> tuple[bytes, int]:
    """Read a file.

    Args:
        path: The file.
        name: Its name in messages.
        plain: Whether to refuse anything but a regular file: a FIFO would block, a device may have no end.
        trusted: Ids of users besides this one and root who may own it; then it must not be writable by all users, too.
            None: any user may own it.
        hint: What to do about one that belongs to another user.

    Returns:
        (content, id of the user who owns it).

    Raises:
        UsageError: For a file that is refused.
        OSError: When it cannot be read; FileNotFoundError for a name that no file can have.
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
    """Raises UsageError for a file, or a symbolic link to it, of another user, as git does for a repository. A group
    may write it: sharing with a group is intended."""
    for owner in (found.st_uid, os.lstat(path).st_uid):
        if owner not in {os.geteuid(), 0, *trusted}:
            raise UsageError(f"{name} belongs to user {user_name(owner)}", hint=hint)
    if found.st_mode & stat.S_IWOTH:
        raise UsageError(f"any user may write {name}", hint=hint)


def user_name(uid: int) -> str:
    """The name of a user; the number where no name is known."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
