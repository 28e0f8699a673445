"""Reading files that another user may have made: only regular files of limited size with a trusted owner."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from gridtf.errors import UsageError

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from typing import BinaryIO

OF_A_HOST = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - each host has its own
MOST_BYTES = 1 << 22  # of a job file, a template or a program; real ones have a hundredth of that


def read(
    path: Path, name: str, *, plain: bool = True, trusted: Collection[int] | None = None, hint: str = ""
) -> tuple[bytes, int]:
    """Read a file.

    Args:
        path: The file.
        name: Its name in messages.
        plain: Whether to refuse anything but a regular file: a FIFO would block, a device may have no end.
        trusted: Ids of users besides this one and root who may own the file; it must not be writable by all users
            either. None: any user may own and write it.
        hint: What to do about a file that is refused for its owner or mode.

    Returns:
        (content, id of the owner).

    Raises:
        UsageError: For a file that is not regular, too long, or not trusted.
        OSError: When it cannot be read; FileNotFoundError also for a name that no file can have.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if plain else 0))
    except ValueError:  # a NUL, or half a character
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if plain and not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{name} is not a regular file")
        if trusted is not None:
            _need_trusted(path, status, name, trusted, hint)
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{name} has more than {MOST_BYTES >> 20} MiB")
    return data, status.st_uid


def _need_trusted(path: Path, status: os.stat_result, name: str, trusted: Collection[int], hint: str) -> None:
    """Raise UsageError for a file, or a symbolic link to it, of another user, as git does for a repository. A group may
    have write access: sharing with a group is intended."""
    for owner in (status.st_uid, os.lstat(path).st_uid):
        if owner not in {os.geteuid(), 0, *trusted}:
            raise UsageError(f"{name} belongs to user {user_name(owner)}", hint=hint)
    if status.st_mode & stat.S_IWOTH:
        raise UsageError(f"any user may write {name}", hint=hint)


def user_name(uid: int) -> str:
    """The name of a user; the id itself if it has no name on this host."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def opened(folder: str | Path) -> Iterator[int]:
    """A descriptor of a folder: the same one, whatever another user puts in its place. No link is followed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def empty(folder: int) -> None:
    """Remove all that is in a folder, given by its descriptor. No link in it is followed.

    Raises:
        OSError: When something in it cannot be removed.
    """
    for _, folders, names, place in os.fwalk(".", topdown=False, dir_fd=folder):
        for name in (*folders, *names):
            kind = os.lstat(name, dir_fd=place).st_mode
            (os.rmdir if stat.S_ISDIR(kind) else os.unlink)(name, dir_fd=place)


def unnamed(text: str) -> BinaryIO:
    """Make a file without a name that holds a text, for the stdin of a program that is to run it.

    Another user, who may exchange a folder above a path, cannot exchange it; unlike a pipe it can be read again.

    Raises:
        OSError: When it cannot be written.
    """
    import tempfile

    file = tempfile.TemporaryFile("w+b")  # noqa: SIM115
    file.write(text.encode("utf-8", "surrogateescape"))
    file.seek(0)
    return file


# False also where it cannot be found out: before Python 3.14, the methods of a Path raise for a folder that this user
# may not search.


def exists(path: str | Path) -> bool:
    """Whether there is something at a path."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: str | Path) -> bool:
    """Whether there is a regular file at a path."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder at a path."""
    return os.path.isdir(path)  # noqa: PTH112


def is_link(path: str | Path) -> bool:
    """Whether there is a symbolic link at a path."""
    return os.path.islink(path)  # noqa: PTH114
