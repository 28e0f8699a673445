"""The folder of an attempt on one host, on a disk of that host: what an agent and its tasks tell each other.

Tasks look into it after every step, which would be too much for a file system that all hosts share. The hook, which
every Python program of a task reads at its start, lies in it for the same reason, and because containers have it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from gridtf import files
from gridtf.contract import NOTICE, checkpoints_name, exception_name, progress_name
from gridtf.errors import RunDirError
from gridtf.run import recordtypes
from gridtf.run.rundir import NOBODY, Record, read_record

_HOOK = Path(__file__).resolve().parents[2] / "hook" / "sitecustomize.py"
_COMMON = "/tmp"  # noqa: S108 - the name of the folder cannot be guessed, and one that exists is not used
# Shared with forked processes alone, such as an agent, whose parent removes the folder where that is killed.
# Other users cannot see it, unlike the nonce.
_SECRET = os.urandom(8).hex()
_NAME = r"gridtf-[0-9a-f]{16}(-.+-)[0-9a-f]{16}"  # its group: the host
_LOCK_LIMIT = 60.0  # seconds after which the maker of a folder has locked it, where it still lives
_held: list[int] = []  # locks on the folders of this process, which end with it


def places(environ: Mapping[str, str], nonce: str, host: str) -> tuple[Path, ...]:
    """Where the folder may be: below TMPDIR, or else below /tmp, as where a job has the TMPDIR of another host.

    Not where another user may exchange a folder above it: Python programs of tasks import from it.

    Args:
        environ: The environment of a process of gridtf on that host.
        nonce: The nonce of the attempt.
        host: The host, as the allocation calls it; several may be one machine.
    """
    parents = dict.fromkeys((environ.get("TMPDIR") or _COMMON, _COMMON))
    return tuple(Path(parent, f"gridtf-{nonce}-{host}-{_SECRET}") for parent in parents if is_safe(parent))


def is_safe(folder: str | Path) -> bool:
    """Whether only this user and root may rename a folder, and those above it."""
    path = Path(os.path.abspath(folder))  # noqa: PTH100 - without a look at links
    for each in (path.resolve(), path):
        for above in (each, *each.parents):
            with contextlib.suppress(OSError):
                status = above.stat()
                shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
                if shared or status.st_uid not in (0, NOBODY, os.geteuid()):
                    return False
    return True


def make(folders: Iterable[Path]) -> Path | None:
    """Make the folder, for its owner alone, in the first of these places that allows it.

    Folders that other agents of this user have left in that place are removed: KILL to all of a job's processes on a
    host lets none of them do it.

    Returns:
        The folder; None where it cannot be made, as on a full disk: then no request for a checkpoint reaches tasks.
    """
    for folder in folders:
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)  # noqa: PTH102 - one that exists belongs to another user or attempt
            with contextlib.suppress(OSError):
                _held.append(_locked(folder))
                _remove_left(folder)
            return folder
    return None


def _locked(folder: Path) -> int:
    """A descriptor of a folder with a lock. Raises OSError where a process has one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left(own: Path) -> None:
    """Remove this user's folders beside an agent's own that no process holds.

    Of the same host only, since locks may not hold between hosts; and only where no other user can give a folder such a
    name. To move one of mode 0700 into a safe place, they would have to be able to write into it (rename(2)).
    """
    user, match = os.geteuid(), re.fullmatch(_NAME, own.name)
    if match is None or not is_safe(own.parent):
        return
    for name in os.listdir(own.parent):
        other = re.fullmatch(_NAME, name)
        if other is None or other[1] != match[1] or name == own.name:
            continue
        folder = own.parent / name
        with contextlib.suppress(OSError):
            status = folder.lstat()
            plain = stat.S_ISDIR(status.st_mode) and status.st_mode & 0o777 == 0o700
            if plain and status.st_uid == user and time.time() - status.st_mtime > _LOCK_LIMIT:
                lock = _locked(folder)
                remove([folder])
                os.close(lock)


def add_hook(folder: Path) -> Path | None:
    """Put the sitecustomize of tasks into the folder.

    Returns:
        What belongs on their PYTHONPATH; None where there is no space, or with a colon in the name of the folder.
    """
    hook = folder / "hook"
    if os.pathsep in str(hook):
        return None
    with contextlib.suppress(OSError):
        hook.mkdir()
        (hook / _HOOK.name).write_bytes(_HOOK.read_bytes())
        return hook
    return None


def notify(folder: Path) -> bool:
    """Request a checkpoint of all tasks of this host.

    Returns:
        Whether the tasks can see the request.
    """
    with contextlib.suppress(OSError):
        (folder / NOTICE).touch()
        return True
    return False


def progress(folder: Path, task: str) -> Record | None:
    """Read what a task has reported about its progress.

    Args:
        folder: The folder.
        task: Such as ``worker:0``.

    Returns:
        None where it has reported nothing, or something else has written the file.
    """
    return _read(folder / progress_name(*task.split(":")), recordtypes.Progress)


def checkpoints(folder: Path, task: str) -> str | None:
    """Read to which folder gridtf.training writes the checkpoints of a task.

    Args:
        folder: The folder.
        task: Such as ``worker:0``.

    Returns:
        Its absolute path, without symbolic links; None where none was noted.
    """
    noted = _read(folder / checkpoints_name(*task.split(":")), recordtypes.Checkpoints)
    return str(noted["folder"]) if noted else None


def exception(folder: Path, task: str) -> Record | None:
    """Read which exception has ended a program of a task, as gridtf/hook/sitecustomize.py has noted it.

    Args:
        folder: The folder.
        task: Such as ``worker:0``.

    Returns:
        None where none has, or something else has written the file.
    """
    return _read(folder / exception_name(*task.split(":")), recordtypes.Raised)


def forget_exception(folder: Path, task: str) -> None:
    """Remove what exception() reads: of a task that is about to be started again."""
    with contextlib.suppress(OSError):
        (folder / exception_name(*task.split(":"))).unlink()


def _read(path: Path, kind: recordtypes.Kind) -> Record | None:
    with contextlib.suppress(RunDirError):
        return read_record(path, kind, own=True)
    return None


def remove(folders: Iterable[Path]) -> None:
    """Remove the folder with all that is in it from all of these places; one that does not exist is no error.

    By descriptors, and only a folder of this user: nothing that somebody has put in its place meanwhile is followed.
    """
    for folder in folders:
        with contextlib.suppress(OSError), files.opened(folder) as descriptor:
            if os.fstat(descriptor).st_uid == os.geteuid():
                files.empty(descriptor)
                os.rmdir(folder)  # noqa: PTH106
