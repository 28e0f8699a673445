"""The run directory: every path of a run, atomic writes, and reads that do not trust cached directory entries.

A shared file system may remember for seconds that a name did not exist, so a file is opened only after a listing of
its folder has shown its name. Every record is one JSON object with one writer, written to a temporary file that is then
renamed, and has a kind (recordtypes.py) that readers check. Only regular files are read. A record that gridtf acts upon
must belong to this user, even if other users may write in the folders above it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path

from gridtf.errors import DamagedError, RunDirError
from gridtf.files import user_name

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, BinaryIO

    from gridtf.run.recordtypes import Kind

Record = dict[str, "Any"]
ANY = {str: object}  # the kind of any record
RUN_ROOT = "gridtf-runs"  # the default folder for run directories, in the working folder
JOINED = "join-"  # prefix of the folder in which the tasks of gridtf_join meet
OPENED = "opened.json"  # in that folder: the attempt that rank 0 has opened, and its job
REQUEST, EXEC = ".request.json", "exec-"  # what the names of requests end with; what those of gridtf exec begin with
BY_HAND = "gridtf_run"  # the command, in submitted.json, of a job that gridtf did not submit
_ATTEMPT = re.compile(r"attempt-([1-9]\d*)")
_RESERVED = ".verdict.reserved"
_BY_OTHERS = "was it written by hand, or by another version of gridtf?"
_MOST_BYTES = 64 << 20  # of a file that is read whole: state/hosts.json of 70 000 tasks
_MOST_VALUES = 2 << 20  # in a record, as far as commas tell: each takes up to 300 bytes of memory
_SMALLER = {  # the plan of 100 000 tasks has 16 MB
    **dict.fromkeys(("plan.json", "rendezvous.json"), 20 << 20),
    **dict.fromkeys(("job.json", "submitted.json", "code.json", "packages.json", "result.json"), 8 << 20),
    **dict.fromkeys(("cancelled.json", "launcher.json", "listener.json", "stop.json", "verdict.json"), 1 << 20),
}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ADD = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
NOBODY = 65534  # the owner of root's files in a container that does not map root
_FOLDER = 0o755  # despite umask and default ACLs: other users must not replace files of a run
_RESERVED_BYTES = 131072  # enough for a verdict with the longest tail of a log, at six bytes per character


class RunDir:
    """Paths below one run directory. The constructor accesses no file.

    Args:
        path: The run directory.
        mine: (scheduler, job id) of this user's job that it must belong to, as registry.need_same checks; None: it may
            be any user's.

    Attributes:
        job: job.json: the JobSpec, and the sources of its values.
        script: job.sh: the job script.
        log: job.log: output of the job script.
        submitted: submitted.json: the scheduler's id of the job, and the user who submitted it.
        cancelled: cancelled.json: the user who cancelled the job.
        ended: ended.json: how the script of a local job ended.
        code: code.json: the commit of the code that runs, and whether files differ from it.
        diff: code.diff: how they differ.
        hooks_log: hooks.log: what the commands have printed that a job runs at its events.
        output: The folder that tasks share for checkpoints and exports.
        elements: A folder with a run directory for each element of a job array.
        sweep: sweep.json: the parameters of each element of a sweep.
        result: result.json: how an element of a sweep has ended, in place of its attempts.
        archive: attempts.tar.gz: the attempts of that element.
        waiting: waiting: there while a local job waits for others to end.
        steps: steps.json: the jobs of a job file with steps, in the run directory of the first.
    """

    def __init__(self, path: str | Path, mine: tuple[str, str] | None = None) -> None:
        self.path = Path(path)
        self.mine = mine
        self.job = self.path / "job.json"
        self.script = self.path / "job.sh"
        self.log = self.path / "job.log"
        self.submitted = self.path / "submitted.json"
        self.cancelled = self.path / "cancelled.json"
        self.ended = self.path / "ended.json"
        self.code = self.path / "code.json"
        self.diff = self.path / "code.diff"
        self.hooks_log = self.path / "hooks.log"
        self.output = self.path / "output"
        self.elements = self.path / "array"
        self.sweep = self.path / "sweep.json"
        self.result = self.path / "result.json"
        self.archive = self.path / "attempts.tar.gz"
        self.waiting = self.path / "waiting"
        self.steps = self.path / "steps.json"

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def claim(self, job_id: str) -> bool:
        """Claim this run directory for a job.

        Args:
            job_id: The scheduler's id of the job.

        Returns:
            False when another job has claimed it.

        Raises:
            RunDirError: When it cannot be written.
        """
        path = self.path / ".owner"
        try:
            return mark(path, job_id) or str(path.readlink()) == job_id
        except OSError as error:
            raise cannot("write", path, error) from None

    def mark_started(self, start: str) -> bool:
        """Record that a start of the job uses this run directory.

        Args:
            start: Differs between the starts of a job (JobIdentity.restarts).

        Returns:
            False when this start has used it already.

        Raises:
            RunDirError: When it cannot be written.
        """
        return mark(self.path / f".start-{start}", start)

    def attempt(self, number: int) -> Attempt:
        """The paths of one attempt, counted from 1."""
        return Attempt(self, number)

    def attempts(self, names: Iterable[str] | None = None) -> list[Attempt]:
        """All attempts, oldest first.

        Args:
            names: The names in the run directory, if they have just been listed.

        Raises:
            RunDirError: When the run directory cannot be read.
        """
        matches = (_ATTEMPT.fullmatch(name) for name in (listdir(self.path) if names is None else names))
        return [Attempt(self, number) for number in sorted(int(match[1]) for match in matches if match)]

    def latest(self, names: Iterable[str] | None = None) -> Attempt | None:
        """The newest attempt; None before the first.

        Args:
            names: As for attempts.

        Raises:
            RunDirError: When the run directory cannot be read.
        """
        attempts = self.attempts(names)
        return attempts[-1] if attempts else None

    def new_attempt(self) -> Attempt:
        """Make the folders of the next attempt; concurrent processes get different ones.

        Raises:
            RunDirError: When they cannot be made.
        """
        latest = self.latest()
        number = latest.number + 1 if latest else 1
        while True:
            attempt = Attempt(self, number)
            if not new_folder(attempt.path):
                number += 1
                continue
            for folder in (attempt.state, attempt.logs):
                make_folder(folder)
            return attempt


class Attempt:
    """Paths of one attempt: one start of all tasks.

    Attributes:
        number: Counted from 1.
        plan: plan.json: hosts, tasks, and the host of each task.
        ranks: A folder with a record of each rank of gridtf_join.
        rank_error: ranks/error.json: why rank 0 has given up.
        rendezvous: rendezvous.json: the cluster, with host and port of each task.
        state: A folder with the launcher's record and that of all hosts.
        summary: state/hosts.json: what all hosts have reported, in one record, with their newest samples.
        events: events.jsonl: what has happened, a line each.
        samples: samples.jsonl: what hosts and tasks have used, a line for each host and time.
        log_times: logtimes.jsonl: when the logs of the tasks had which length.
        logs: A folder with the log of each task.
        agents_log: Output of the agents.
        host_setup: A folder with what the set-up lines of each host have printed.
        mpi: A folder with what mpirun reads, and with what it and its daemons print, for each host.
        listener: listener.json: where the launcher listens, and the secret that its agents share with it.
        check: check.json: what the hosts have measured before the tasks started, and which of them are bad.
        packages: packages.json: the Python of the tasks, and what is installed there, on the first host.
        stop: stop.json: why the launcher has all agents end their tasks.
        stacks_request: stacks.request.json: a user's request for all stacks, until the launcher sees it.
        stacks: stacks.json: the answer to the last request.
        verdict: verdict.json: how the attempt ended.
        data: The folder of the journal of the tf.data service's dispatcher.
        distributed: An empty file, from the first dataset on that a task has given to the data workers.
        launcher: state/launcher.json: the launcher's heartbeat.
    """

    def __init__(self, run: RunDir, number: int) -> None:
        self.run = run
        self.number = number
        self.path = run.path / f"attempt-{number}"
        self.plan = self.path / "plan.json"
        self.ranks = self.path / "ranks"
        self.rank_error = self.ranks / "error.json"
        self.rendezvous = self.path / "rendezvous.json"
        self.state = self.path / "state"
        self.logs = self.path / "logs"
        self.agents_log = self.path / "agents.log"
        self.mpi = self.path / "mpi"
        self.host_setup = self.path / "host_setup"
        self.listener = self.path / "listener.json"
        self.check = self.path / "check.json"
        self.packages = self.path / "packages.json"
        self.stop = self.path / "stop.json"
        self.stacks_request = self.path / f"stacks{REQUEST}"
        self.stacks = self.path / "stacks.json"
        self.verdict = self.path / "verdict.json"
        self.launcher = self.state / "launcher.json"
        self.summary = self.state / "hosts.json"
        self.events = self.path / "events.jsonl"
        self.samples = self.path / "samples.jsonl"
        self.log_times = self.path / "logtimes.jsonl"
        self.data = self.path / "data_dispatcher"
        self.distributed = self.path / "distributed"

    def __repr__(self) -> str:
        return f"Attempt({str(self.path)!r})"

    def host_state(self, host: str) -> Path:
        """What an agent writes at its end if no launcher hears it any more; ``@`` distinguishes it from the others."""
        return self.state / f"@{host}.json"

    def rank_state(self, rank: str) -> Path:
        """The record of a rank of gridtf_join, such as rank-0: the state of its task."""
        return self.ranks / f"{rank}.json"

    def exec_files(self, name: str) -> tuple[Path, Path]:
        """A user's request to run a command beside a task, until the launcher sees it, and the answer."""
        return self.path / f"{EXEC}{name}{REQUEST}", self.path / f"{EXEC}{name}.json"

    def task_log(self, task_type: str, index: int) -> Path:
        """The log of a task, such as worker-0.log."""
        return self.logs / f"{task_type}-{index}.log"

    def reserve_verdict(self) -> None:
        """Reserve disk space for the verdict, so that it can be written when the disk is full.

        Raises:
            RunDirError: When it cannot be reserved.
        """
        write_text(self.path / _RESERVED, " " * _RESERVED_BYTES)

    def write_verdict(self, record: Record) -> None:
        """Write the verdict, into the space reserved for it if there is one.

        Args:
            record: Its content, of the kind recordtypes.Verdict.

        Raises:
            RunDirError: When it cannot be written.
        """
        reserved = self.path / _RESERVED
        data = json.dumps(record, indent=1).encode()
        if _RESERVED not in listdir(self.path):
            write_record(self.verdict, record)
            return
        try:
            if len(data) >= _RESERVED_BYTES:
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


def run_dirs_of(log: Path) -> list[Path]:
    """The run directories that the log of a job may lie in: that of a job array first, then its folder. Pure."""
    folder = log.parent
    return [*([folder.parents[1]] if folder.parent.name == RunDir(folder).elements.name else []), folder]


def mark(path: Path, text: str) -> bool:
    """Make a dangling symbolic link, which every file system creates atomically, together with its content.

    Returns False when the name is taken.
    """
    try:
        path.symlink_to(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot("write", path, error) from None
    return True


def here() -> Path:
    """The current folder.

    Raises:
        RunDirError: When it has been removed.
    """
    try:
        return Path.cwd()
    except OSError:
        raise RunDirError("the current folder no longer exists", hint="change to another one with cd") from None


def listdir(folder: Path) -> list[str]:
    """The names in a folder; an empty list when it does not exist (yet).

    Raises:
        RunDirError: When it cannot be read.
    """
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot("list", folder, error) from None


def is_listed(path: Path, root: Path) -> bool:
    """Whether a path exists, found by listings alone, which are newer than cached names.

    Args:
        path: A path below ``root``.
        root: A folder that need not exist.

    Raises:
        RunDirError: When a folder cannot be read.
    """
    folder = root
    for part in path.relative_to(root).parts:
        if part not in listdir(folder):
            return False
        folder = folder / part
    return True


def read_text(path: Path, *, own: bool = False) -> str | None:
    """Read a regular file, if a listing of its folder shows it.

    Args:
        path: The file.
        own: As in open_plain.

    Returns:
        Its text; None when it does not exist.

    Raises:
        DamagedError: When it is not such a file, or is larger than such a record can be.
        RunDirError: When it cannot be read.
    """
    if path.name not in listdir(path.parent):
        return None
    return read_listed(path, own=own)


def read_listed(path: Path, *, own: bool = False) -> str | None:
    """Read a regular file whose name a listing has just shown; see read_text."""
    most = _SMALLER.get(path.name, _MOST_BYTES)
    for _ in range(3):
        try:
            with open_plain(path, own=own) as file:
                data = file.read(most + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS: the file was replaced meanwhile; open it again
                raise cannot("read", path, error) from None
        else:
            if len(data) > most or (path.suffix in (".json", ".parts") and data.count(b",") > _MOST_VALUES):
                raise damaged(path, "it is larger than any such file of gridtf")
            return data.decode(errors="replace")  # it may be incomplete, and end within a character
    return None


def open_plain(path: Path, *, own: bool = False) -> BinaryIO:
    """Open a file for reading, only if it is a regular file: a link may point anywhere, a FIFO would block.

    Args:
        path: The file.
        own: Whether it must belong to this user and be writable by no other user, as records that gridtf acts upon.

    Returns:
        The file, in binary mode.

    Raises:
        OSError: When it cannot be opened.
        DamagedError: When it is no regular file.
        RunDirError: When it is another user's, or others may write it.
    """
    return _plain(path, os.O_RDONLY, own)


def open_log(path: Path) -> BinaryIO:
    """Open a log of this user for unbuffered appending, and create it if needed.

    Raises:
        OSError: When it cannot be opened.
        RunDirError: When it is not a regular file, belongs to another user or is writable by other users.
    """
    return _plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, own=True)


def _plain(path: Path, flags: int, own: bool) -> BinaryIO:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a FIFO or a socket
            raise _no_plain_file(path) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _no_plain_file(path)
        if own and not _is_ours(status, path.parent):
            raise _not_ours(path, status)
        os.set_blocking(descriptor, True)  # a log is inherited by tasks
    except BaseException:
        os.close(descriptor)
        raise
    # From here the file closes it, also where Ctrl-C comes at once: a second close would fail in place of Ctrl-C.
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "ab", buffering=0 if flags else -1)


def _no_plain_file(path: Path) -> DamagedError:
    hint = "gridtf did not create it, but another program or user"
    return damaged(path, "it is not a regular file", hint)


def damaged(path: Path, what: str, hint: str = _BY_OTHERS) -> DamagedError:
    """The error for a file that is not what gridtf has written."""
    return DamagedError(f"{path} is damaged: {what}", hint=hint)


def _not_ours(path: Path, status: os.stat_result) -> RunDirError:
    if status.st_uid == os.geteuid():
        hint = f"if you trust its content: chmod go-w {path}"
        return RunDirError(f"{path} is writable by other users (mode {stat.S_IMODE(status.st_mode):o})", hint=hint)
    hint = "gridtf acts only on files that you have written yourself"
    return RunDirError(f"{path} belongs to user {user_name(status.st_uid)}", hint=hint)


def is_ours(path: Path) -> bool:
    """Whether a folder belongs to this user, even if other users may write in it.

    Raises:
        RunDirError: When it cannot be read.
    """
    try:
        uid = path.stat().st_uid
    except OSError as error:
        raise cannot("read", path, error) from None
    if uid == os.geteuid():
        return True
    probe = _probe(path)
    return probe is not None and uid == probe.st_uid


def owner(path: Path) -> str:
    """The name of the user a path belongs to.

    Raises:
        RunDirError: When it cannot be read.
    """
    try:
        return user_name(path.stat().st_uid)
    except OSError as error:
        raise cannot("read", path, error) from None


def allowed(user: str) -> str:
    """Who may act upon what belongs to a user."""
    return user if user == "root" else f"{user} and root"


def need_ours(run_dir: Path) -> None:
    """Check that a run directory belongs to this user.

    Raises:
        RunDirError: When it belongs to another user.
    """
    if not is_ours(run_dir):
        raise RunDirError(
            f"{run_dir} belongs to user {owner(run_dir)}",
            hint="choose another folder with --run-dir or --run-root",
        )


def need_safe(root: Path) -> None:
    """Check that other users cannot replace a run directory made in a folder.

    Args:
        root: The folder for run directories. It and the folder above it are checked; folders further up are the site's
            responsibility, and write permission for a group is intended.

    Raises:
        RunDirError: When all users may rename entries of one of them.
    """
    for folder in (root, root.parent):
        try:
            status = folder.stat()
        except OSError:  # it does not exist yet
            continue
        sticky = status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid(), NOBODY)
        if sticky or not status.st_mode & stat.S_IWOTH:
            continue
        probe = _probe(folder)
        if probe is None or not probe.st_mode & stat.S_IWOTH:  # otherwise that file system has no modes
            raise RunDirError(
                f"{folder} is not safe for a run directory: any user may rename entries of it",
                hint="choose a folder of your own with --run-root, or let its owner set the sticky bit: chmod +t",
            )


def _is_ours(status: os.stat_result, folder: Path) -> bool:
    """Whether a file in this folder belongs to this user and is writable by no other user."""
    if status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE:
        return True
    probe = _probe(folder)
    return probe is not None and status.st_uid == probe.st_uid and not status.st_mode & _OTHERS_WRITE & ~probe.st_mode


def _probe(folder: Path) -> os.stat_result | None:
    """Status of a new file in a folder; None if none can be made.

    It shows the owner and mode of this user's files there: NFS may map users, and some file systems have no modes.
    """
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
    """Read a record: one JSON object.

    Args:
        path: The file.
        kind: Its kind, from recordtypes.
        nonce: The nonce of its attempt; whatever is without it counts as absent.
        listed: Whether a listing has just shown its name.
        own: As in open_plain.

    Returns:
        The record; None when it does not exist or has another nonce.

    Raises:
        DamagedError: When it is no JSON, or of another kind.
        RunDirError: When it cannot be read.
    """
    text = read_listed(path, own=own) if listed else read_text(path, own=own)
    if text is None:
        return None
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if nonce is not None and (not isinstance(record, dict) or record.get("nonce") != nonce):
        return None
    from gridtf.run.recordtypes import checked  # not needed by `gridtf list` without jobs

    if wrong := "it is not a JSON object" if not isinstance(record, dict) else checked(kind)(record):
        raise damaged(path, wrong)
    return record  # type: ignore[no-any-return]


def read_private(path: Path, kind: Kind = ANY) -> Record | None:
    """Read a record that counts as absent for users who may not read it; see read_record."""
    readable = path.name in listdir(path.parent) and os.access(path, os.R_OK)
    return read_record(path, kind, listed=True) if readable else None


def write_record(path: Path, record: Record, *, indent: int | None = 1, mode: int = 0o666) -> None:
    """Write a record atomically.

    Args:
        path: The file.
        record: Its content.
        indent: As in json.dumps.
        mode: As in write_text.

    Raises:
        RunDirError: When it cannot be written.
    """
    write_text(path, json.dumps(record, indent=indent) + "\n", mode=mode)


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a temporary file and rename it: readers see the old text or the new one, never a part.

    Args:
        path: The file.
        text: Its new content.
        mode: Permission bits, less the umask and less write permission for other users.

    Raises:
        RunDirError: When it cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file as write_text does, of any content."""
    # a random name, which no other user can have taken before
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        descriptor = os.open(temporary, _NEW, mode & ~_OTHERS_WRITE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(path)
        except BaseException:  # also after Ctrl-C
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot("write", path, error) from None


def append_text(path: Path, text: str) -> None:
    """Add lines to a file that has no other writer: all of them, or none, as on a full disk.

    Args:
        path: The file, which is made if it does not exist.
        text: Whole lines.

    Raises:
        RunDirError: When they cannot be written.
    """
    try:
        descriptor = os.open(path, _ADD, 0o666 & ~_OTHERS_WRITE)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            before = file.seek(0, os.SEEK_END)
            try:
                file.write(text)
                file.flush()
            except OSError:
                os.ftruncate(descriptor, before)
                raise
    except OSError as error:
        raise cannot("write", path, error) from None


def new_folder(path: Path) -> bool:
    """Make a folder; of several processes, only one succeeds.

    Returns:
        False when the name is taken.

    Raises:
        RunDirError: When it cannot be made.
    """
    try:
        path.mkdir(_FOLDER)
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot("make", path, error) from None
    return True


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make a folder unless it exists.

    Args:
        path: The folder.
        parents: Whether to make the folders above it as well.

    Raises:
        RunDirError: When it cannot be made.
    """
    try:
        for folder in (*reversed(path.parents), path) if parents else (path,):
            folder.mkdir(_FOLDER, exist_ok=True)
    except OSError as error:
        raise cannot("make", path, error) from None


_HINTS = {  # for files and folders that cannot be made or written
    errno.ENOSPC: "free some space there, or choose another folder with --run-dir",
    errno.EDQUOT: "your quota there is used up: free some space, or choose another folder with --run-dir",
    errno.EACCES: "choose a folder of your own with --run-dir or --run-root",
    errno.EPERM: "choose a folder of your own with --run-dir or --run-root",
    errno.EROFS: "that file system is mounted read-only: choose another folder with --run-dir or --run-root",
    errno.ENOENT: "make the folder above it first, or choose another folder with --run-dir",
}


def _permission_hint(path: Path, *, reading: bool) -> str:
    """The chmod for a path that this user may not access, if the nearest accessible file or folder is this user's."""
    for place in (path, *path.parents) if reading else path.parents:
        try:
            status = place.stat()
        except OSError:
            continue
        if status.st_uid != os.geteuid():
            named = f"{place} belongs to user {user_name(status.st_uid)}"
            return f"{named}: ask for permission to read it" if reading else ""
        return f"it is yours: chmod u+rwX {place}" if reading or status.st_mode & 0o300 != 0o300 else ""
    return ""


def cannot(verb: str, path: Path, error: OSError) -> RunDirError:
    """Convert an OSError to a RunDirError with a hint.

    Args:
        verb: The failed operation: list, read, write or make.
        path: The file or folder.
        error: Its error.
    """
    reading = verb in ("list", "read")
    hint = "" if reading else _HINTS.get(error.errno or 0, "")
    if isinstance(error, PermissionError):
        hint = _permission_hint(path, reading=reading) or hint
    problem = RunDirError(f"cannot {verb} {path}: {error.strerror or error}", hint=hint)
    problem.number = error.errno
    return problem


# A disk that is full temporarily; a file server that is busy or restarts.
_TEMPORARY = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})


def may_pass(error: RunDirError) -> bool:
    """Whether an error may be temporary, so that trying again a little later may succeed."""
    return error.number in _TEMPORARY
