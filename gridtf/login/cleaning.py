"""Removing old run directories: which may go, why others are kept, and how one is removed."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from gridtf import files
from gridtf.errors import RunDirError
from gridtf.login.submission import remove_default_root
from gridtf.observe import jobs
from gridtf.observe.views import JobView
from gridtf.run import following, recordtypes, registry
from gridtf.run.reading import Reading
from gridtf.run.rundir import RunDir, is_ours, listdir, owner, read_record
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState
from gridtf.values import Value


class Choice(Value):
    """What a user wants to remove.

    Attributes:
        named: Only these run directories; None: any.
        older_than: Only jobs that ended at least so many seconds ago; None: at any time.
        keep: How many of the newest runs are kept.
        states: Only jobs in these states; empty: in any.
        keep_output: Whether ``output`` stays where it is.
    """

    named: frozenset[Path] | None = None
    older_than: float | None = None
    keep: int = 0
    states: frozenset[str] = frozenset()
    keep_output: bool = False


class Found(Value):
    """A run of this user's index.

    Attributes:
        run: Its run directory.
        view: Its state.
        queue: What its scheduler says; None where there is none to ask.
        used: When its job ended; where that is not known, when its run directory last changed. Seconds since the epoch.
        array: Whether it is a job array, with the run directories of its elements in it.
        needs: The run directories of the steps that it is one of, until it has ended: it may read their results.
    """

    run: RunDir
    view: JobView
    queue: JobStatus | None
    used: float
    array: bool = False
    needs: frozenset[str] = frozenset()


def found(environ: Mapping[str, str], since: float) -> list[Found]:
    """All runs of this user's index that exist, newest first.

    Args:
        environ: The environment, for HOME and XDG_STATE_HOME.
        since: The earliest time (time.monotonic()) at which their schedulers may have been asked.

    Raises:
        RunDirError: When the index cannot be read.
    """
    runs = list(registry.runs(environ))
    return [_found(run, seen) for run, seen in zip(runs, jobs.looks(runs, since), strict=True)]


def _found(run: RunDir, seen: jobs.Seen) -> Found:
    needs: frozenset[str] = frozenset()
    try:
        used, array = run.path.stat().st_mtime, bool(listdir(run.elements))
        if not seen.view.finished:
            reading = Reading(run)
            needs = frozenset(following.steps(run, reading.private(run.job, recordtypes.Job), reading).values())
    except (OSError, RunDirError):  # then its state is not known either
        used, array = time.time(), False
    return Found(run, seen.view, seen.queue, seen.view.ended or used, array, needs)


def choose(runs: Sequence[Found], choice: Choice, now: float) -> list[tuple[Found, str]]:
    """Choose the runs to remove. Pure.

    Args:
        runs: All runs, newest first.
        choice: What the user wants.
        now: Seconds since the epoch.

    Returns:
        Each run that was chosen, and why it is kept all the same; empty for one that can be removed.
    """
    fitting = [one for one in runs[choice.keep :] if _fits(one, choice, now)]
    chosen = {one.run: why_kept(one, keep_output=choice.keep_output) for one in fitting}
    staying = [one for one in runs if chosen.get(one.run, "kept")]
    chosen = {run: why or _used_by(run, staying, choice) for run, why in chosen.items()}
    return [(one, chosen[one.run]) for one in fitting]


def _fits(one: Found, choice: Choice, now: float) -> bool:
    return (
        (choice.named is None or one.run.path in choice.named)
        and (not choice.states or one.view.state in choice.states)
        and (choice.older_than is None or now - one.used >= choice.older_than)
    )


def why_kept(one: Found, *, keep_output: bool) -> str:
    """Why a run directory has to stay; empty where it can be removed. Pure.

    Args:
        one: The run. Where its scheduler did not answer, a job that has failed may be about to start again.
        keep_output: As in Choice.
    """
    view, queue = one.view, one.queue if one.queue and not one.queue.purged else None
    silent = queue is not None and queue.state == JobState.UNKNOWN
    if view.state == JobState.UNKNOWN or (silent and view.state != JobState.COMPLETED):
        return f"its state is not known: {queue.reason if queue and silent and queue.reason else view.reason}"
    if not view.finished:
        return f"it is {view.state}"
    if queue is not None and not silent and not queue.state.ended:
        return "its scheduler still has the job"
    return "it is a job array, and the output of its elements is in it" if keep_output and one.array else ""


def _used_by(run: RunDir, others: Sequence[Found], choice: Choice) -> str:
    """Why a run directory stays in which another job that stays has its OUTPUT_DIR, as one that was resumed has, whose
    end another job waits for, or which is a step of the same file."""
    staying = [one.view for one in others]
    waiting = [view.job_id for view in staying if str(run.path) in view.waits_for and not view.finished]
    if waiting:
        return f"job {waiting[0]} starts after it"
    if steps := [one.view.job_id for one in others if one.run != run and str(run.path) in one.needs]:
        return f"job {steps[0]} is a step of the same file, and has not ended"
    if choice.keep_output:
        return ""
    users = [view.job_id for view in staying if view.run_dir != run.path and view.output_dir.is_relative_to(run.path)]
    return f"job {users[0]} has its output in it" if users else ""


def snapshots(runs: Sequence[Found], going: Collection[Path], more: Collection[Path] = ()) -> list[Path]:
    """The snapshots of code that no run directory needs once some are removed, and what is left of interrupted ones.

    Args:
        runs: All runs of this user's index; those beside their run directories count as well.
        going: The run directories that are to be removed.
        more: Folders of snapshots, besides those that are found.
    """
    from gridtf.login import snapshot

    roots = {one.run.path.parent for one in runs}
    try:
        beside = {root / name for root in roots for name in listdir(root)} | {one.run.path for one in runs}
        there = [path for path in beside if files.is_file(RunDir(path).job) and is_ours(path)]
        known = {path: read_record(RunDir(path).job, recordtypes.Job, own=True) for path in there}
    except RunDirError:  # what that one needs is not known
        return []
    needed = {path: snapshot.needed(record) for path, record in known.items()}
    stores = {
        *more,
        *(snapshot.store_of(root) for root in roots),
        *(Path(one).parent for one in needed.values() if one),
    }
    return [*snapshot.unneeded(stores, {one for path, one in needed.items() if path not in going})]


def size(folder: Path) -> int:
    """Bytes that a folder takes on its disk; 0 where it may not be listed or does not exist. No link is followed."""
    total = 0
    with contextlib.suppress(OSError):  # it does not exist, or may not be listed
        for _, _, names, descriptor in os.fwalk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
    return total


def remove(run: RunDir, environ: Mapping[str, str], *, keep_output: bool = False) -> str:
    """Remove a run directory, and its entry in the index. No link in it is followed.

    It is renamed first, so that what is left after a failure is never taken for a run.

    Args:
        run: A run of this user's index.
        environ: The environment, for HOME and XDG_STATE_HOME.
        keep_output: As in Choice.

    Returns:
        What could not be removed, and why, in one line; empty after success.

    Raises:
        RunDirError: When it is not this user's, or cannot be renamed; nothing has been removed then.
    """
    registry.need_same(run)
    if run.path.is_symlink() or not is_ours(run.path):
        raise RunDirError(f"{run.path} is not a folder of yours, but {owner(run.path)}'s, or a link")
    doomed = run.path.with_name(f".{run.path.name}.{os.urandom(8).hex()}.removed")
    try:
        if keep_output:
            doomed.mkdir(0o700)
            for name in sorted({*listdir(run.path)} - {run.output.name}):
                (run.path / name).rename(doomed / name)
        else:
            run.path.rename(doomed)
    except OSError as error:
        raise RunDirError(f"cannot remove {run.path}: {error.strerror}") from None
    registry.forget(run.path, environ)
    problems = list(_removed(doomed))
    remove_default_root(run.path.parent)
    return f"{problems[0]}; what is left is in {doomed}" if problems else ""


def _removed(top: Path) -> Iterator[str]:
    """Remove a folder and all that is in it; yields what cannot be removed, the cause before its consequences."""
    closed: list[OSError] = []
    for folder, folders, names, descriptor in os.fwalk(top, topdown=False, onerror=closed.append):
        for name in (*names, *folders):
            try:
                kind = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                (os.rmdir if stat.S_ISDIR(kind) else os.unlink)(name, dir_fd=descriptor)
            except OSError as error:
                cause = next((other for other in closed if other.filename == name), error)
                yield f"cannot remove {Path(folder, name)}: {cause.strerror}"
    try:
        top.rmdir()
    except OSError as error:
        yield f"cannot remove {top}: {error.strerror}"
