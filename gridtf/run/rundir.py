"""The run directory: every path of a run, atomic writes, and reads that a lying file system cannot fool.

A shared file system may remember for seconds that a name did not exist, so a name is opened only after a listing of
its folder has shown it. Every record is one JSON object with one writer, written beside its place and renamed into it,
and has a type (recordtypes.py), which is checked when it is read. Only plain files are read; what is acted upon has to
be this user's own, whoever may write in the folders above.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path

from gridtf.errors import RunDirError
from gridtf.files import user_name

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from gridtf.run.recordtypes import Kind

Record = dict[str, "Any"]
ANY = {str: object}  # the kind of any record
RUN_ROOT = "gridtf-runs"  # the folder, in the working folder, where run directories are made unless the user says where
JOINED = "join-"  # begins the name of the folder in which tasks that join by themselves meet
OPENED = "opened.json"  # in that folder: which attempt rank 0 has opened there, and of which job
BY_HAND = "gridtf_run"  # the command, in submitted.json, of a job that gridtf did not submit
_ATTEMPT = re.compile(r"attempt-([1-9]\d*)")
_RESERVED = ".verdict.reserved"
_MOST_BYTES = 64 << 20  # of a record: a plan of 100 000 tasks has 20 MB
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_NUMBER = 65534  # the owner of what is root's, in a container that knows no number for root
_FOLDER = 0o755  # whatever the umask, or a default ACL, would give: nobody else is to swap what lies in a run's folders
_RESERVED_BYTES = 131072  # more than a verdict with the longest tail of a log needs, six bytes a character


class RunDir:
    """Paths below one run directory. Making one touches nothing.

    mine: the scheduler and the id of the job of this user's that it must be (registry.need_same); None: it may be
    anybody's.
    """

    def __init__(self, path: str | Path, mine: tuple[str, str] | None = None) -> None:
        self.path = Path(path)
        self.mine = mine
        self.job = self.path / "job.json"
        self.script = self.path / "job.sh"
        self.log = self.path / "job.log"
        self.submitted = self.path / "submitted.json"
        self.cancelled = self.path / "cancelled.json"
        self.ended = self.path / "ended.json"  # how the script ended, where no other scheduler knows it
        self.output = self.path / "output"
        self.elements = self.path / "array"  # a job array's: a run directory each

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def own(self, job_id: str) -> bool:
        """Make this run directory the job's; False when it is another job's.

        The mark is a symbolic link to nothing: made in one step, with what it says, on every file system.
        """
        mark = self.path / ".owner"
        try:
            return _marked(mark, job_id) or str(mark.readlink()) == job_id
        except OSError as error:
            raise cannot("write", mark, error) from None

    def begin(self, start: str) -> bool:
        """Use this run directory in this start of its job; False when it has been used in it already."""
        mark = self.path / f".start-{start}"
        try:
            return _marked(mark, start)
        except OSError as error:
            raise cannot("write", mark, error) from None

    def attempt(self, number: int) -> Attempt:
        return Attempt(self, number)

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""
        found = (_ATTEMPT.fullmatch(name) for name in names(self.path))
        return [Attempt(self, number) for number in sorted(int(match[1]) for match in found if match)]

    def latest(self) -> Attempt | None:
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    def new_attempt(self) -> Attempt:
        """Make the folder of the next attempt; mkdir is exclusive on every file system, so no two share one."""
        latest = self.latest()
        number = latest.number + 1 if latest else 1
        while True:
            attempt = Attempt(self, number)
            if not new_folder(attempt.path):
                number += 1
                continue
            for folder in (attempt.hosts, attempt.state, attempt.logs):
                make_folder(folder)
            return attempt


class Attempt:
    """Paths of one start of all tasks."""

    def __init__(self, run: RunDir, number: int) -> None:
        self.run = run
        self.number = number
        self.path = run.path / f"attempt-{number}"
        self.plan = self.path / "plan.json"
        self.hosts = self.path / "hosts"
        self.rendezvous = self.path / "rendezvous.json"
        self.state = self.path / "state"
        self.logs = self.path / "logs"
        self.agents_log = self.path / "agents.log"
        self.environment = self.path / "environment.json"
        self.stop = self.path / "stop.json"
        self.verdict = self.path / "verdict.json"
        self.launcher = self.state / "launcher.json"

    def __repr__(self) -> str:
        return f"Attempt({str(self.path)!r})"

    def host_record(self, host: str) -> Path:
        return self.hosts / f"{host}.json"

    def host_error(self, host: str) -> Path:
        return self.hosts / f"{host}.error.json"

    def host_state(self, host: str) -> Path:
        # "@" keeps a host that is called "launcher" apart from the launcher's own record
        return self.state / f"@{host}.json"

    def task_log(self, task_type: str, index: int) -> Path:
        return self.logs / f"{task_type}-{index}.log"

    def reserve_verdict(self) -> None:
        """Take the room for the verdict now, so that a disk that fills up later cannot swallow it."""
        write_text(self.path / _RESERVED, " " * _RESERVED_BYTES)

    def write_verdict(self, record: Record) -> None:
        """Write the verdict into the room reserved for it, then give it its name."""
        reserved = self.path / _RESERVED
        data = json.dumps(record, indent=1).encode()
        if _RESERVED not in names(self.path):
            write_record(self.verdict, record)
            return
        try:
            if len(data) >= _RESERVED_BYTES:  # the room that is let go is room for a part of it
                reserved.unlink()
                write_record(self.verdict, record)
                return
            with os.fdopen(os.open(reserved, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "r+b") as file:
                file.write(data + b"\n")
                file.flush()
                file.truncate()
                os.fsync(file.fileno())
            reserved.replace(self.verdict)
        except OSError as error:
            raise cannot("write", self.verdict, error) from None


def _marked(mark: Path, text: str) -> bool:
    """Make a symbolic link to nothing; False when the name is taken. Raises OSError."""
    try:
        mark.symlink_to(text)
    except FileExistsError:
        return False
    return True


def here() -> Path:
    """The present folder."""
    try:
        return Path.cwd()
    except OSError:
        raise RunDirError("the present folder is no longer there", hint="go to another one with cd") from None


def names(folder: Path) -> list[str]:
    """The names in a folder; none when the folder is not there (yet)."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot("list", folder, error) from None


def shown(path: Path, root: Path) -> bool:
    """Whether listings show this path, step by step from root; asks for no name that a listing has not shown."""
    folder = root
    for part in path.relative_to(root).parts:
        if part not in names(folder):
            return False
        folder = folder / part
    return True


def read_text(path: Path, *, own: bool = False) -> str | None:
    """The text of a plain file that a listing shows; None when it is not there. own: as open_plain."""
    if path.name not in names(path.parent):
        return None
    return read_listed(path, own=own)


def read_listed(path: Path, *, own: bool = False) -> str | None:
    """As read_text, for a name that a listing has just shown."""
    for _ in range(3):
        try:
            with open_plain(path, own=own) as file:
                data = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS: replaced while we read; open it anew
                raise cannot("read", path, error) from None
        else:
            if len(data) > _MOST_BYTES:
                raise RunDirError(f"{path} is larger than any record of gridtf's")
            return data.decode(errors="replace")  # a file half written may end within a character
    return None


def open_plain(path: Path, *, own: bool = False) -> BinaryIO:
    """Open a plain file to read it. A link may lead anywhere, a FIFO would hold us up, and a device has no end.

    own: for what is acted upon: it has to be this user's, and nobody else's to write. Raises OSError, and RunDirError
    for anything else than such a file.
    """
    return _plain(path, os.O_RDONLY, own)


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to it, and make it where it is not there. Raises as open_plain with own."""
    return _plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, own=True)


def _plain(path: Path, flags: int, own: bool) -> BinaryIO:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a FIFO or a socket
            raise _no_plain_file(path) from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _no_plain_file(path)
        if own and not _is_ours(found, path.parent):
            raise _not_ours(path, found)
        os.set_blocking(descriptor, True)  # tasks inherit that of a log
        return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "ab", buffering=0 if flags else -1)
    except BaseException:
        os.close(descriptor)
        raise


def _no_plain_file(path: Path) -> RunDirError:
    return RunDirError(f"{path} is not a regular file", hint="gridtf has not made it: who has put it there?")


def _not_ours(path: Path, found: os.stat_result) -> RunDirError:
    if found.st_uid == os.geteuid():
        hint = "if it is as you have left it: chmod go-w"
        return RunDirError(f"{path} can be written by others (its mode is {stat.S_IMODE(found.st_mode):o})", hint=hint)
    hint = "gridtf acts only on what you have written yourself"
    return RunDirError(f"{path} belongs to user {user_name(found.st_uid)}", hint=hint)


def is_ours(path: Path) -> bool:
    """Whether a folder is this user's own, whoever else may write in it. Raises RunDirError."""
    try:
        found = path.stat().st_uid
    except OSError as error:
        raise cannot("read", path, error) from None
    if found == os.geteuid():
        return True
    like = _file_of_ours(path)
    return like is not None and found == like.st_uid


def owner(path: Path) -> str:
    """The user to whom it belongs. Raises RunDirError."""
    try:
        return user_name(path.stat().st_uid)
    except OSError as error:
        raise cannot("read", path, error) from None


def need_ours(run_dir: Path) -> None:
    """Raises RunDirError for a run directory that somebody else has made."""
    if not is_ours(run_dir):
        raise RunDirError(
            f"{run_dir} belongs to user {owner(run_dir)}",
            hint="choose another place with --run-dir or --run-root",
        )


def need_safe(root: Path) -> None:
    """Raises RunDirError for a run root, or a folder above it, where anybody may rename what lies there, and so put
    something else in the place of a run directory.

    Further up it is the site's business, and a group's own folder is the group's.
    """
    for folder in (root, root.parent):
        try:
            found = folder.stat()
        except OSError:  # it is still to be made, and who makes it can say why not
            continue
        kept = found.st_mode & stat.S_ISVTX and found.st_uid in (0, os.geteuid(), _NO_NUMBER)
        if kept or not found.st_mode & stat.S_IWOTH:
            continue
        like = _file_of_ours(folder)
        if like is None or not like.st_mode & stat.S_IWOTH:  # else modes mean nothing there
            raise RunDirError(
                f"{folder} is no safe place for a run: anybody may rename what lies there",
                hint="choose a folder of yours with --run-root, or let its owner set the sticky bit: chmod +t",
            )


def _is_ours(found: os.stat_result, folder: Path) -> bool:
    """folder: where a file of ours shows which owner and mode ours have there: NFS may call root nobody, and users
    otherwise than this host does, and some file systems know no modes."""
    if found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE:
        return True
    like = _file_of_ours(folder)
    return like is not None and found.st_uid == like.st_uid and not found.st_mode & _OTHERS_WRITE & ~like.st_mode


def _file_of_ours(folder: Path) -> os.stat_result | None:
    """What a file that we make there shows; None where we cannot."""
    path = folder / f".{os.urandom(8).hex()}.tmp"
    try:
        descriptor = os.open(path, _NEW, 0o644)
    except OSError:
        return None
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def read_record(
    path: Path, kind: Kind = ANY, *, nonce: str | None = None, listed: bool = False, own: bool = False
) -> Record | None:
    """One JSON object; None when it is not there or not (yet) readable as one.

    kind: its type, as in recordtypes. nonce: its attempt's: a record with another one is as good as absent. own: as
    open_plain. Raises RunDirError when it is there, but of another type.
    """
    text = read_listed(path, own=own) if listed else read_text(path, own=own)
    return parsed(text, kind, path, nonce) if text else None


def parsed(text: str, kind: Kind, path: Path, nonce: str | None = None) -> Record | None:
    """As read_record, of the text that was read from this path."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or (nonce is not None and record.get("nonce") != nonce):
        return None
    return need_kind(record, kind, path)


def need_kind(record: Record, kind: Kind, path: Path) -> Record:
    """The record, which was read from this path. Raises RunDirError when it is of another type."""
    from gridtf.run.recordtypes import check  # not part of `gridtf list` where there are no jobs

    if wrong := check(kind)(record):
        hint = "was it written by hand, or by another version of gridtf?"
        raise RunDirError(f"{path} is damaged: {wrong}", hint=hint)
    return record


def read_private(path: Path, kind: Kind = ANY) -> Record | None:
    """As read_record, for what may be only its owner's to read; to others it is as good as absent."""
    readable = path.name in names(path.parent) and os.access(path, os.R_OK)
    return read_record(path, kind, listed=True) if readable else None


def write_record(path: Path, record: Record, *, indent: int | None = 1, mode: int = 0o666) -> None:
    """Write one JSON object atomically. mode: as write_text."""
    write_text(path, json.dumps(record, indent=indent) + "\n", mode=mode)


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a file beside its place and rename it: readers see the old text or the new one, never a part.

    mode: who may read it and run it, less the umask; nobody else may write it.
    """
    # a name that nobody can have put something at before
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        descriptor = os.open(temporary, _NEW, mode & ~_OTHERS_WRITE)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            temporary.replace(path)
        except BaseException:  # Ctrl-C too leaves nothing lying about
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot("write", path, error) from None


def new_folder(path: Path) -> bool:
    """Make a folder; False when the name is taken. mkdir is exclusive on every file system: one of two makes it."""
    try:
        path.mkdir(_FOLDER)
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot("make", path, error) from None
    return True


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make a folder; that it is there already is no error."""
    try:
        for folder in (*reversed(path.parents), path) if parents else (path,):
            folder.mkdir(_FOLDER, exist_ok=True)
    except OSError as error:
        raise cannot("make", path, error) from None


_HINTS = {  # of what cannot be made or written
    errno.ENOSPC: "free some space there, or choose another place with --run-dir",
    errno.EDQUOT: "your quota there is used up: free some space, or choose another place with --run-dir",
    errno.EACCES: "choose a folder of yours with --run-dir or --run-root",
    errno.EPERM: "choose a folder of yours with --run-dir or --run-root",
    errno.EROFS: "that file system is mounted read-only: choose another place with --run-dir or --run-root",
    errno.ENOENT: "make the folder above it first, or choose another place with --run-dir",
}


def _closed(path: Path) -> str:
    """What to do about a path that may not be read. Of what lies in a closed folder not even the owner is known."""
    for place in (path, *path.parents):
        try:
            found = place.stat().st_uid
        except OSError:
            continue
        return f"it is yours: chmod u+rwX {place}" if found == os.geteuid() else "ask its owner to let you read it"
    return ""


def _closed_to_us(path: Path) -> str:
    """What to do where something cannot be written because a folder of ours is closed; empty if none is."""
    for place in path.parents:
        try:
            status = place.stat()
        except OSError:
            continue
        closed = status.st_uid == os.geteuid() and status.st_mode & 0o300 != 0o300
        return f"it is yours: chmod u+rwX {place}" if closed else ""
    return ""


def cannot(verb: str, path: Path, error: OSError) -> RunDirError:
    """The error of something in a run directory that could not be done, with what to do about it."""
    hint = _HINTS.get(error.errno or 0, "")
    if verb in ("list", "read"):
        hint = _closed(path) if isinstance(error, PermissionError) else ""
    elif error.errno == errno.EACCES:
        hint = _closed_to_us(path) or hint
    problem = RunDirError(f"cannot {verb} {path}: {error.strerror or error}", hint=hint)
    problem.number = error.errno
    return problem


# What a disk that is full for a moment says, and a file server that is busy or just being restarted.
_MOMENTARY = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})


def may_pass(error: RunDirError) -> bool:
    """Whether what was refused may be granted a little later."""
    return error.number in _MOMENTARY
