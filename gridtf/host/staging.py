"""Copies of files and folders, and unpacked archives, on a disk of this host, shared by the jobs of a user on it.

Each copy has a file beside it that is locked: alone by who makes or removes it, together by all who use it. The folder
of all copies is its user's alone; a lock ends with its process, so what a killed job leaves is seen to be unused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gridtf import archives, files
from gridtf.errors import GridtfError
from gridtf.text import size

_PAUSE = 0.5  # seconds between two tries to lock, and between two reports
_AT_ONCE = 4 << 20  # bytes
_LOCK, _PART = ".lock", ".part"

Say = Callable[[str], None]


def folder_of(parent: Path, host: str) -> Path | None:
    """The folder of this user's copies, for its owner alone; it is made if it does not exist.

    Args:
        parent: A folder of this host.
        host: The name of this host, since locks may not hold between hosts.

    Returns:
        None where it cannot be made, or something that is not this user's alone has its name.
    """
    folder = parent / f"gridtf-staged-{os.geteuid()}-{host}"
    return folder if _made(folder) else None


def _made(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_mode & 0o777 == 0o700 and status.st_uid == os.geteuid()
    return False


def held(source: Path, name: str, folder: Path, *, archive: bool, say: Say) -> tuple[Path, int]:
    """Make a copy, unless there is one, and hold it.

    Args:
        source: A file or folder.
        name: The name of the copy.
        folder: As folder_of returns it.
        archive: Whether a file is to be unpacked, into a folder of that name.
        say: Called all the time with what is done; raises an exception to end it.

    Returns:
        The copy; and the descriptor that holds it until it is closed.

    Raises:
        GridtfError: It cannot be made; nothing of it is left.
        OSError: The folder cannot be used.
    """
    told = _Told(name, say)
    try:
        key = _survey(source, told)
    except OSError as error:
        raise GridtfError(f"cannot read {error.filename or source}: {error.strerror}") from None
    place = folder / hashlib.sha256(f"{key}\0{name}\0{archive}".encode(errors="surrogateescape")).hexdigest()[:16]
    lock = Path(f"{place}{_LOCK}")
    while True:
        if not _made(folder):  # again: the last job that has used it removes it
            raise GridtfError(f"{folder} cannot be made, or is not yours alone")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        try:
            if _locked(descriptor, lock, fcntl.LOCK_SH, told):
                if place.exists():
                    return place / name, descriptor
                if _locked(descriptor, lock, fcntl.LOCK_EX, told) and not place.exists():
                    _make(source, name, place, archive=archive, told=told)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # all is looked at again, since a lock is not exchanged for another one at once


def clean(folder: Path) -> None:
    """Remove the copies that no process holds, and the folder where none is left."""
    with contextlib.suppress(OSError):
        for lock in folder.glob(f"*{_LOCK}"):
            with contextlib.suppress(OSError), open(lock, "rb+", opener=_no_link) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                place = lock.with_suffix("")
                for each in (place, Path(f"{place}{_PART}")):
                    _remove(each)
                lock.unlink()
        folder.rmdir()


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError), files.opened(folder) as descriptor:
        files.empty(descriptor)
        folder.rmdir()


class _Told:
    """Says twice a second how much is done."""

    def __init__(self, name: str, say: Say) -> None:
        self._name, self._say, self._last = name, say, float("-inf")
        self.total, self.done, self.count = 0, 0, 0

    def more(self, number: int) -> None:
        """More bytes were read."""
        self.done += number
        total = size(self.total)
        self.say(f"staging {self._name}: {size(min(self.done, self.total)).removesuffix(total[-4:])} of {total}")

    def seen(self) -> None:
        """Another file was seen."""
        self.count += 1
        self.say(f"looking at {self._name}: {self.count} files")

    def wait(self, since: float) -> None:
        """Another job has the lock since then."""
        self.say(f"another job of yours stages {self._name}, for {(time.monotonic() - since) // 10 * 10:.0f} s")

    def say(self, text: str) -> None:
        if time.monotonic() - self._last >= _PAUSE:
            self._last = time.monotonic()
            self._say(text)


def _locked(descriptor: int, lock: Path, how: int, told: _Told) -> bool:
    """Lock a file. Returns whether it still has its name: who removes a copy removes that."""
    since = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            break
        told.wait(since)
        time.sleep(_PAUSE / 5)
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), lock.lstat())
    return False


def _survey(source: Path, told: _Told) -> str:
    """What tells a file or folder from another one, and from what it was before it was changed."""
    status = source.stat()
    digest = hashlib.sha256(f"{source.resolve()}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "replace"))
    if stat.S_ISREG(status.st_mode):
        told.total = status.st_size
        return digest.hexdigest()
    if not stat.S_ISDIR(status.st_mode):
        raise GridtfError(f"{source} is neither a file nor a folder")
    for path, status in _entries(source):
        told.seen()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise GridtfError(f"{path} is neither a file nor a folder", hint="leave it out of what is staged")
        told.total += status.st_size if stat.S_ISREG(status.st_mode) else 0
        about = f"{path}\0{status.st_mode}\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(about.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All that is in a folder, a folder before what is in it."""

    def stop(error: OSError) -> None:
        raise error

    for above, folders, names in os.walk(folder, onerror=stop):
        folders.sort()
        for name in (*folders, *sorted(names)):
            path = Path(above, name)
            yield path, path.lstat()


def _make(source: Path, name: str, place: Path, *, archive: bool, told: _Told) -> None:
    part = Path(f"{place}{_PART}")
    try:
        _remove(part)
        part.mkdir(0o700)
        target, room = part / name, shutil.disk_usage(part).free
        if source.is_dir() or not archive:
            _need_room(source, told.total, room, place.parent)
            (_copy_folder if source.is_dir() else _copy_file)(source, target, told)
        else:
            target.mkdir(0o700)
            with _Counted(source, told) as file:
                unpack = _unpack_zip if re.search(r"\.zip$", source.name, re.IGNORECASE) else _unpack_tar
                unpack(file, source, target, room)
        part.rename(place)
    except OSError as error:
        hint = f"{place.parent} is on a disk of this host" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        at = f": {error.filename}" if _is_within(error.filename, source) else ""
        raise GridtfError(f"cannot stage {source}: {error.strerror or error}{at}", hint=hint) from None
    except archives.DamagedError as error:
        raise GridtfError(f"cannot unpack {source}: {error}", hint=error.hint) from None
    finally:
        with contextlib.suppress(OSError):
            _remove(part)


def _is_within(name: object, folder: Path) -> bool:
    return isinstance(name, str | os.PathLike) and folder in Path(name).parents


def _need_room(source: Path, needed: int, room: int, folder: Path) -> None:
    if needed > room:
        what = f"{source} needs {size(needed)} in {folder}, where {size(room)} are free"
        raise GridtfError(what, hint="stage less, or let TMPDIR name a larger disk of that host")


class _Counted(io.FileIO):
    """A file that tells how much of it is read."""

    def __init__(self, path: Path, told: _Told) -> None:
        super().__init__(path)
        self._told = told

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size)
        self._told.more(len(data or b""))
        return data or b""

    def readinto(self, buffer: object) -> int:
        count = super().readinto(buffer) or 0  # type: ignore[arg-type]
        self._told.more(count)
        return count


def _copy_file(source: Path, target: Path, told: _Told) -> None:
    """Copy a file; a job cannot change it for another one. An OSError names it."""
    try:
        with _Counted(source, told) as given, target.open("xb") as made:
            shutil.copyfileobj(given, made, _AT_ONCE)
            os.fchmod(made.fileno(), os.fstat(given.fileno()).st_mode & 0o555 | 0o400)
    except OSError as error:
        error.filename = error.filename or os.fspath(source)
        raise


def _copy_folder(source: Path, target: Path, told: _Told) -> None:
    """Copy a folder; its links as they are, and last: who changes it meanwhile has nothing written through one."""
    target.mkdir(0o700)
    links: dict[Path, Path] = {}
    for path, status in _entries(source):
        own = target / path.relative_to(source)
        if stat.S_ISLNK(status.st_mode):
            links[own] = path.readlink()
        elif stat.S_ISDIR(status.st_mode):
            own.mkdir(0o700)
        else:
            _copy_file(path, own, told)
    for own, text in links.items():
        own.symlink_to(text)


def _unpack_tar(file: _Counted, source: Path, target: Path, room: int) -> None:
    _need_room(source, os.fstat(file.fileno()).st_size, room, target.parents[1])  # that much at least
    archives.unpack_tar(file, target)


def _unpack_zip(file: _Counted, source: Path, target: Path, room: int) -> None:
    with archives.reading(), zipfile.ZipFile(file) as archive:
        _need_room(source, sum(each.file_size for each in archive.infolist()), room, target.parents[1])
        for each in archive.infolist():
            mode = each.external_attr >> 16
            archives.below(each.filename)
            if stat.S_ISLNK(mode):
                raise archives.RefusedError(f"{each.filename!r} is a link")
            made = Path(archive.extract(each, target))
            if mode and not each.is_dir():
                made.chmod(mode & 0o755 | 0o600)
