"""The run directory: every path of a run, atomic writes, and reads that a lying file system cannot fool.

A shared file system may remember for seconds that a name did not exist, so a name is opened only after a listing of
its folder has shown it. Every record is one JSON object with one writer, written beside its place and renamed into it.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from gridtf.errors import RunDirError

Record = dict[str, Any]
RUN_ROOT = "gridtf-runs"  # the folder, in the working folder, where run directories are made unless the user says where
JOINED = "join-"  # begins the name of the folder in which tasks that join by themselves meet
BY_HAND = "gridtf_run"  # the command, in submitted.json, of a job that gridtf did not submit
_ATTEMPT = re.compile(r"attempt-([1-9]\d*)")
_RESERVED = ".verdict.reserved"
_RESERVED_BYTES = 131072  # more than a verdict with the longest tail of a log needs, six bytes a character


class RunDir:
    """Paths below one run directory. Making one touches nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
            with reserved.open("r+b") as file:
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


def read_text(path: Path) -> str | None:
    """The text of a file that a listing shows; None when it is not there."""
    if path.name not in names(path.parent):
        return None
    return read_listed(path)


def read_listed(path: Path) -> str | None:
    """As read_text, for a name that a listing has just shown."""
    for _ in range(3):
        try:
            return path.read_text(encoding="utf-8", errors="replace")  # a file half written may end within a character
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS: replaced while we read; open it anew
                raise cannot("read", path, error) from None
    return None


def read_record(path: Path, *, listed: bool = False) -> Record | None:
    """One JSON object; None when it is not there or not (yet) readable as one."""
    text = read_listed(path) if listed else read_text(path)
    if not text:
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_private(path: Path) -> Record | None:
    """As read_record, for what may be only its owner's to read; to others it is as good as absent."""
    readable = path.name in names(path.parent) and os.access(path, os.R_OK)
    return read_record(path, listed=True) if readable else None


def write_record(path: Path, record: Record, *, indent: int | None = 1, mode: int = 0o666) -> None:
    """Write one JSON object atomically. mode: as write_text."""
    write_text(path, json.dumps(record, indent=indent) + "\n", mode=mode)


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a file beside its place and rename it: readers see the old text or the new one, never a part.

    mode: who may read it and run it, less the umask.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
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
        path.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot("make", path, error) from None
    return True


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make a folder; that it is there already is no error."""
    try:
        path.mkdir(exist_ok=True, parents=parents)
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


def cannot(verb: str, path: Path, error: OSError) -> RunDirError:
    """The error of something in a run directory that could not be done, with what to do about it."""
    hint = _HINTS.get(error.errno or 0, "")
    if verb in ("list", "read"):
        hint = "ask its owner to let you read it" if isinstance(error, PermissionError) else ""
    problem = RunDirError(f"cannot {verb} {path}: {error.strerror or error}", hint=hint)
    problem.__cause__ = error
    return problem
