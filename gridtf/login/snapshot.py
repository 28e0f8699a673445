"""Snapshots: the working folder as it is at a submission, copied, so that what is edited later does not run.

A snapshot is a folder in RUN_ROOT/.snapshots, which only this user may enter, and a record beside it. No file in it has
an inode in common with the working folder. Equal files of successive snapshots are linked with each other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf import files
from gridtf.contract import OUTPUT_DIR
from gridtf.errors import RunDirError, SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import code
from gridtf.observe.git import answer, git
from gridtf.run import recordtypes
from gridtf.run.rundir import RUN_ROOT, Record, cannot, is_ours, listdir, read_record, write_record
from gridtf.schedulers.api import Plan
from gridtf.text import counted, size, some
from gridtf.values import Fields, Value

STORE = ".snapshots"
IGNORE = ".gridtfignore"
_MOST = {"GRIDTF_SNAPSHOT_MB": 500, "GRIDTF_SNAPSHOT_FILES": 20_000}  # variables that set them -> limits
_ROUNDS = 4  # of copying: files that change meanwhile are copied again
_GIT_SECONDS = 30.0
_DAY = 86400.0
_FICLONE = 0x40049409  # ioctl_ficlonerange(2)
_BLOCK = 1 << 20
# Times of file systems are exact to two seconds at worst: what is as young as that may change without a trace.
_YOUNG = 2_000_000_000
# Neither copied nor linked: git would mix up two work trees, Python the modules; run directories would contain this.
_NEVER = frozenset({".git", "__pycache__", RUN_ROOT, STORE})
_VIRTUAL, _RUN = frozenset({"pyvenv.cfg", "conda-meta"}), frozenset({"job.json", "job.sh"})


Known = Callable[[], tuple[Record, str]]


class Chosen(Fields):
    """What a snapshot of a folder contains.

    Attributes:
        top: The folder: the top of the git work tree, or the working folder itself.
        by: Who told the files: ``git`` or ``the folder``.
        files: The files and symbolic links that are copied, as paths below it -> status.
        links: What is left out; a link leads to it.
        cut: Whether there is more than was looked at.
    """

    top: Path
    by: str
    files: dict[str, os.stat_result]
    links: list[str]
    cut: bool = False

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(status.st_size for status in self.files.values() if stat.S_ISREG(status.st_mode))

    def described(self) -> str:
        """What would be copied, and the first entries that would not, in words."""
        left = f"; left out, and linked: {some(self.links, most=8)}" if self.links else ""
        return f"{counted(len(self.files), 'file')}, {size(self.bytes)}, of {self.top} (as {self.by} lists them){left}"


def choose(plan: Plan) -> Chosen:
    """Choose the files of a job's snapshot.

    Args:
        plan: The job; its run root and OUTPUT_DIR are left out.

    Raises:
        SpecError: For a folder that is too large, or has a part that cannot be read.
    """
    folder = Path(os.path.realpath(plan.spec.chdir or "."))
    top = code.work_tree(folder)
    listed = _listed(top) if top else None
    if top is None or not listed or (folder != top and str(folder.relative_to(top)) not in listed):
        top, listed = folder, None
    named = plan.spec.env.get(OUTPUT_DIR, "")
    own = (plan.run_dir,) if plan.spec.run_dir else (plan.run_dir, plan.run_dir.parent)
    walk = _Walk(
        chosen=Chosen(top, "the folder" if listed is None else "git", {}, []),
        ignored=ignored_by(_text_of(top / IGNORE)),
        never={os.path.realpath(path) for path in own} - {str(top)},
        output=os.path.realpath(folder / named) if named else "",
        most=4 * _most("GRIDTF_SNAPSHOT_FILES"),
    )
    walk.enter("", listed)
    _need_room(walk.chosen)
    return walk.chosen


def _listed(top: Path, below: str = "") -> set[str] | None:
    """The files that git knows or does not ignore, and all folders above them; None where git does not tell."""
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    told = answer(git(top / below, *words), _GIT_SECONDS)
    if told is None:
        return None
    paths = {f"{below}{name.rstrip('/')}" for name in os.fsdecode(told).split("\0") if name}
    for path in [*paths]:
        while (path := path.rpartition("/")[0]) and path not in paths:
            paths.add(path)
    return paths


class _Walk(Fields):
    """Looks through a folder."""

    chosen: Chosen
    ignored: Callable[[str, bool], bool]
    never: Collection[str]
    output: str
    most: int

    def enter(self, path: str, listed: set[str] | None) -> bool:
        """Look at a folder; whether there is more in it than what is left out without a link.

        Args:
            path: Its path, which is empty or ends in a slash.
            listed: The files and folders that count; None: all.
        """
        chosen, top = self.chosen, self.chosen.top
        try:
            with os.scandir(top / path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(top / path, error) from None
        names = {entry.name for entry in entries}
        if path and names >= _RUN:
            return False
        before, linked = len(chosen.files), len(chosen.links)
        whole = not names or (path and names & _VIRTUAL)
        more = bool(whole) or sum(self._look(entry, path, listed) for entry in entries) > 0
        if path and len(chosen.files) == before:
            chosen.links[linked:] = [path.rstrip("/")] if more else []  # nothing in it is copied: one link for all
        return more

    def _look(self, entry: os.DirEntry[str], above: str, listed: set[str] | None) -> bool:
        chosen, path = self.chosen, f"{above}{entry.name}"
        real = f"{chosen.top}/{path}"
        chosen.cut = chosen.cut or len(chosen.files) + len(chosen.links) > self.most
        if entry.name in _NEVER or real in self.never or chosen.cut:
            return False
        folder = entry.is_dir(follow_symlinks=False)
        known = listed is None or path in listed
        if not known or code.is_secret(entry.name) or real == self.output or self.ignored(path, folder):
            chosen.links.append(path)
        elif folder:
            if listed is not None and os.path.lexists(f"{real}/.git"):  # a submodule, or a repository of its own
                listed = _listed(chosen.top, f"{path}/")
            return self.enter(f"{path}/", listed)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                chosen.files[path] = entry.stat(follow_symlinks=False)
        else:
            chosen.links.append(path)
        return True


def ignored_by(text: str) -> Callable[[str, bool], bool]:
    """Read an ignore file: the patterns of gitignore(5), ``*``, ``?``, ``[a-z]``, ``**``, ``/`` and ``!``. Pure.

    Args:
        text: Its content.

    Returns:
        A function that tells of a path, and of whether it is a folder's, if it is ignored.
    """
    rules = []
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").rstrip("/")
            regex = "" if "/" in pattern else "(.*/)?"
            for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern.removeprefix("/")):
                known = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
                regex += known.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part))
            rules.append((re.compile(regex, re.DOTALL), line.endswith("/"), not line.startswith("!")))

    def ignored(path: str, folder: bool) -> bool:
        fitting = (out for rule, folders, out in reversed(rules) if folder >= folders and rule.fullmatch(path))
        return next(fitting, False)

    return ignored


def _text_of(path: Path) -> str:
    try:
        return os.fsdecode(files.read(path, str(path))[0])
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unreadable(path, error) from None


def _most(name: str) -> int:
    """A limit. Raises SpecError for a variable that is not a number."""
    text = os.environ.get(name) or str(_MOST[name])
    if not re.fullmatch("[0-9]{1,9}", text):
        raise SpecError("snapshot", f"{name} is {text!r}, not a whole number", hint=f"write {name}={_MOST[name]}")
    return int(text)


def _need_room(chosen: Chosen) -> None:
    """Raise SpecError for what is too large, and name the three largest parts of it."""
    count, total = len(chosen.files) + len(chosen.links), chosen.bytes
    most_files, most_bytes = _most("GRIDTF_SNAPSHOT_FILES"), _most("GRIDTF_SNAPSHOT_MB") << 20
    if count <= most_files and total <= most_bytes:
        return
    parts: Counter[str] = Counter()
    by_count = total <= most_bytes
    for path in [*chosen.files, *(chosen.links if by_count else ())]:
        large = not by_count and chosen.files[path].st_size > most_bytes // 10
        parts[path if large else f"{path.rpartition('/')[0] or '.'}/"] += 1 if by_count else chosen.files[path].st_size
    largest = [f"{name} ({counted(n, 'file') if by_count else size(n)})" for name, n in parts.most_common(3)]
    found = f"{'more than ' if chosen.cut else ''}{counted(count, 'file')}, {size(total)}"
    raise SpecError(
        "snapshot",
        f"{chosen.top} has {found}: a snapshot takes at most {most_files} files and {size(most_bytes)}",
        why=f"the largest: {', '.join(largest)}",
        hint=f"name data in {chosen.top / IGNORE}, such as data/: a link leads to it; or set {' or '.join(_MOST)}",
    )


def _unreadable(path: Path, error: OSError) -> SpecError:
    hint = f"make it readable, or name it in {IGNORE} at the top of the folder"
    return SpecError("snapshot", f"cannot read {path}: {error.strerror}", hint=hint)


# --- the copy


class Snapshot(Value):
    """A snapshot.

    Attributes:
        path: Its folder.
        top: The folder of which it is a copy.
        files: The paths of its files below both.
        code: The record of its code, and the diff, as code.asked tells them.
        temporary: Where it still is before publish; None: nowhere.
    """

    path: Path
    top: Path
    files: Collection[str]
    code: tuple[Record, str] = ({}, "")
    temporary: Path | None = None

    def publish(self) -> None:
        """Give a new snapshot its name: the record of a job that needs it is written, so that it is not removed.

        Raises:
            RunDirError: When an older one has been removed before.
        """
        if self.temporary is None:
            existing(self.path)
        else:
            try:
                self.temporary.rename(self.path)
            except OSError as error:
                raise cannot("make", self.path, error) from None

    def inside(self, spec: JobSpec) -> JobSpec:
        """The specification with which the job runs in the snapshot. Pure but for symbolic links, which are followed.

        Args:
            spec: The user's; its ``chdir`` is absolute.

        Raises:
            SpecError: When its working folder is not in the folder of the snapshot.
        """
        chdir = self._moved(spec.chdir or "/")
        if chdir is None:
            what = f"{spec.chdir} is not in {self.top}, the folder of the snapshot"
            raise SpecError("chdir", what, hint="choose a folder in that one, or run the code as it is now")

        def env(table: Mapping[str, str]) -> dict[str, str]:
            made, output = dict(table), table.get(OUTPUT_DIR, "")
            if output and not output.startswith("{"):
                made[OUTPUT_DIR] = str(Path(spec.chdir or "/", output))
            if path := table.get("PYTHONPATH"):
                made["PYTHONPATH"] = ":".join(self._moved(folder) or folder for folder in path.split(":"))
            return made

        def words(command: Sequence[str]) -> tuple[str, ...]:
            return tuple(self._moved(word, files_only=True) or word for word in command)

        tasks = {
            name: task.replace(env=env(task.env), command=task.command and words(task.command))
            for name, task in spec.tasks.items()
        }
        binds = (str(self.top), str(self.path)) if spec.contained else ()
        return spec.replace(
            chdir=chdir,
            env=env(spec.env),
            command=words(spec.command),
            tasks=tasks,
            container_binds=(*spec.container_binds, *binds),
        )

    def _moved(self, path: str, *, files_only: bool = False) -> str | None:
        """The path in the snapshot for one in the folder; None for another one, and for what was not copied."""
        if not path.startswith("/"):
            return None
        folder, name = os.path.split(path) if files_only else (path, "")
        real = Path(os.path.realpath(folder), name)
        if not real.is_relative_to(self.top) or (files_only and str(real.relative_to(self.top)) not in self.files):
            return None
        return str(self.path / real.relative_to(self.top))


def existing(path: Path) -> Snapshot:
    """A snapshot that another job has made.

    Args:
        path: Its folder.

    Raises:
        RunDirError: When it does not exist any more, or is not this user's.
    """
    hint = "submit the job anew, with the code as it is now"
    record = read_record(_record_of(path), recordtypes.Snapshot, own=True)
    if record is None or path.is_symlink() or not files.is_folder(path):
        raise RunDirError(f"the snapshot of the code, {path}, does not exist any more", hint=hint)
    if not is_ours(path):
        raise RunDirError(f"the snapshot {path} is not yours", hint=hint)
    known = record.get("code", {}), record.get("diff", "")
    return Snapshot(path, Path(record["top"]), record["files"], known)


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def store_of(root: Path) -> Path:
    """The folder of this user's snapshots in a folder for run directories, which may be a group's."""
    store = root / STORE
    if os.path.lexists(store) and (store.is_symlink() or not is_ours(store)):
        return root / f"{STORE}-{files.user_name(os.geteuid())}"
    return store


@contextlib.contextmanager
def of(plan: Plan, about: Known) -> Iterator[tuple[Known, Snapshot]]:
    """The snapshot of a job: the one that its plan names, or a new one, of which nothing remains after an error.

    Args:
        plan: The job, whose run directory has been made.
        about: As code.asked yields it.

    Yields:
        What is known of the code in the snapshot, and the snapshot.

    Raises:
        SpecError, RunDirError: As existing and taken do.
    """
    with contextlib.ExitStack() as stack:
        named = plan.origin.get("snapshot")
        snapshot = existing(Path(named)) if named else stack.enter_context(taken(plan, about))
        yield (lambda: snapshot.code), snapshot


@contextlib.contextmanager
def taken(plan: Plan, about: Known) -> Iterator[Snapshot]:
    """Take a snapshot. After an error, also of what follows, nothing of it remains.

    Args:
        plan: The job, whose run directory has been made.
        about: As code.asked yields it.

    Yields:
        The snapshot, which has its name once it is published.

    Raises:
        SpecError: For a folder that is too large, cannot be read or changes all the time.
        RunDirError: When the copy cannot be written.
    """
    chosen = choose(plan)
    store = store_of(plan.run_dir.parent)
    taken_names, name = set(listdir(store)), plan.run_dir.name
    # of a run that was removed, but another job needs it
    while {name, f"{name}.json"} & taken_names or name.endswith(".json"):
        name += "+"
    path, temporary = store / name, store / f".{name}.{os.urandom(4).hex()}.tmp"
    try:
        try:
            store.mkdir(0o700, exist_ok=True)
            try:
                temporary.mkdir(0o700)
            except FileNotFoundError:  # a submission that was refused has just removed it
                store.mkdir(0o700, exist_ok=True)
                temporary.mkdir(0o700)
            kept = _copied(chosen, temporary, *_newest(store, chosen.top))
        except OSError as error:
            raise cannot("write", temporary, error) from None
        known = about()
        record = {"top": str(chosen.top), "files": kept, "code": known[0], "diff": known[1]}
        write_record(_record_of(path), record, mode=0o600, indent=None)
        yield Snapshot(path, chosen.top, kept, known, temporary)
    except BaseException as error:
        from gridtf.errors import MaybeSubmittedError

        if not isinstance(error, MaybeSubmittedError):
            for folder in (temporary, path):
                shutil.rmtree(folder, ignore_errors=True)
            _record_of(path).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                store.rmdir()
        raise


def _newest(store: Path, top: Path) -> tuple[Path, Mapping[str, str]]:
    """The newest of the last snapshots that is of the same folder, and its files."""
    found = sorted((_age(path), path) for path in map(store.joinpath, listdir(store)) if path.suffix == ".json")
    for _, path in found[:8]:
        with contextlib.suppress(RunDirError):
            record = read_record(path, recordtypes.Snapshot, listed=True, own=True)
            if record is not None and record["top"] == str(top):
                return path.with_suffix(""), record["files"]
    return store, {}


def _age(path: Path) -> float:
    """Seconds since something was changed; none where it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _copied(chosen: Chosen, folder: Path, earlier: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Copy the files. Returns each -> what identifies its content in the working folder; empty where nothing does."""
    made: dict[str, str] = {}
    began, top = folder.stat().st_ctime_ns, str(chosen.top)
    above = {path.rpartition("/")[0] for path in (*chosen.files, *chosen.links)}
    for path in above:
        (folder / path).mkdir(parents=True, exist_ok=True)
    todo = dict(chosen.files)
    for _ in range(_ROUNDS):
        for path, status in todo.items():
            source, target = f"{top}/{path}", f"{folder}/{path}"
            if stat.S_ISLNK(status.st_mode):
                _link(Path(source), Path(target), chosen.top)
                made[path] = ""
                continue
            same = _identity(status, began) if stat.S_ISREG(status.st_mode) else ""
            if not (same and known.get(path) == same and _linked(f"{earlier}/{path}", target, status)):
                _copy(source, target)
            made[path] = same
        todo = {
            path: now for path, then in todo.items() if (now := _changed(f"{top}/{path}", f"{folder}/{path}", then))
        }
        if not todo:
            break
    else:
        hint = f"wait until it is written; or name it in {chosen.top / IGNORE}: a link leads to it then"
        raise SpecError("snapshot", f"{top}/{min(todo)} changes while it is copied", hint=hint)
    for path in chosen.links:
        (folder / path).symlink_to(f"{top}/{path}")
    return {path: made[path] for path in made if os.path.lexists(folder / path)}


def _identity(status: os.stat_result, began: int) -> str:
    """What no edit leaves as it is: it sets ctime, whatever becomes of mtime. Empty for what has just changed."""
    if status.st_ctime_ns > began - _YOUNG:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _changed(source: str, target: str, then: os.stat_result) -> os.stat_result | None:
    """The status of a file that was changed after ``then``, whose copy is removed; None for any other one."""
    now = None
    with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
        now = os.lstat(source)
        names = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
        if not stat.S_ISDIR(now.st_mode) and all(getattr(now, name) == getattr(then, name) for name in names):
            return None
    Path(target).unlink(missing_ok=True)
    return now


def _linked(old: str, target: str, status: os.stat_result) -> bool:
    """Link a file of an earlier snapshot, if it is still as it was copied. False also where no further link can be."""
    try:
        kept = os.lstat(old)
        unchanged = stat.S_ISREG(kept.st_mode) and not kept.st_mode & 0o222 and kept.st_uid == os.geteuid()
        if not unchanged or (kept.st_size, kept.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            return False
        os.link(old, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def _link(source: Path, target: Path, top: Path) -> None:
    """Make a symbolic link like another one: what it led to in the folder, it leads to in the snapshot."""
    text = source.readlink()
    leads = Path(os.path.normpath(source.parent / text))
    if text.is_absolute():
        leads = Path(os.path.realpath(leads.parent), leads.name)
        text = Path(os.path.relpath(leads, source.parent)) if leads.is_relative_to(top) else text
    elif not leads.is_relative_to(top):
        text = Path(os.path.normpath(Path(os.path.realpath(source.parent), text)))
    target.symlink_to(text)


def _copy(source: str, target: str) -> None:
    """Copy a file, with its time. A name that is gone, or no file any more, is left to the look at what has changed."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return
        raise _unreadable(Path(source), error) from None
    try:
        status = os.fstat(descriptor)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if stat.S_ISREG(status.st_mode):
                _fill(descriptor, copy, status.st_size)
            os.fchmod(copy, 0o555 if status.st_mode & stat.S_IXUSR else 0o444)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)
    except OSError as error:
        raise cannot("write", Path(target), error) from None
    finally:
        os.close(descriptor)


def _fill(source: int, copy: int, length: int) -> None:
    """Share the blocks of a file, where its file system can do that; otherwise copy them, without the holes."""
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.ioctl(copy, _FICLONE, source)
        return
    place = 0
    while place < length:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a hole up to the end
                raise
            break
        end = min(os.lseek(source, place, os.SEEK_HOLE), length)
        while place < end and (data := os.pread(source, min(_BLOCK, end - place), place)):
            place += os.pwrite(copy, data, place)
        if place < end:  # it was cut meanwhile
            break
    os.ftruncate(copy, length)


# --- what is not needed any more


def needed(job: Mapping[str, Any] | None) -> str:
    """The snapshot that a job needs, from its job.json; empty without one."""
    return os.path.realpath(found) if (found := (job or {}).get("origin", {}).get("snapshot")) else ""


def unneeded(stores: Collection[Path], kept: Collection[str]) -> Iterator[Path]:
    """The snapshots of this user that no job needs, and what submissions left that were killed a day ago.

    Args:
        stores: Folders of snapshots.
        kept: The paths of those that are needed, links followed.
    """
    for store in sorted(stores):
        if store.is_symlink() or not files.is_folder(store) or not is_ours(store):
            continue
        for path in map(store.joinpath, sorted(listdir(store))):
            if path.name.startswith(".") and path.suffix == ".tmp":
                over = _age(path) > _DAY
            elif path.suffix == ".json":
                over = not os.path.lexists(path.with_suffix("")) and _age(path) > _DAY
            else:
                over = os.path.realpath(path) not in kept
            if over:
                yield path


def remove(path: Path) -> None:
    """Remove a snapshot, its record, and the folder of snapshots if no other one is in it.

    Raises:
        RunDirError: When it cannot be removed.
    """
    doomed = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")  # what is left is taken for no snapshot
    try:
        path.rename(doomed)
        with contextlib.suppress(FileNotFoundError):
            _record_of(path).unlink()
        shutil.rmtree(doomed) if files.is_folder(doomed) else doomed.unlink()
    except OSError as error:
        raise RunDirError(f"cannot remove {path}: {error.strerror}") from None
    with contextlib.suppress(OSError):
        path.parent.rmdir()
