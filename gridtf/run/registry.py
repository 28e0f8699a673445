"""The index of a user's runs, and the first records of a job.

The index has one symbolic link per run, named so that a listing alone finds a job:

``20251121-080712.123456,slurm,4711,digits`` -> the run directory: time (UTC), scheduler, job id and job name, none of
which can contain a comma. Every link has one writer, so no lock is needed; the home folder may be on NFS.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gridtf import __version__, files
from gridtf.errors import NotFoundError, ReplacedError, RunDirError, nearest
from gridtf.run.rundir import (
    BY_HAND,
    Record,
    RunDir,
    damaged,
    is_ours,
    listdir,
    owner,
    read_private,
    read_record,
    write_record,
)
from gridtf.text import some
from gridtf.values import Value, of_dict

TYPE_CHECKING = False  # typing and dataclasses would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable

    from gridtf.jobspec.spec import JobSpec
    from gridtf.jobspec.sweep import Sweep

_HOME = "set HOME or XDG_STATE_HOME"
_ENTRY = re.compile(r"\d{8}-\d{6}\.\d{6},[^,]+,[^,]+,[^,]+")
_RERUN = re.compile(r"rerun-([1-9]\d{0,8})")


class Entry(Value):
    """One run in the index.

    Attributes:
        scheduler: The scheduler's name.
        job_id: The scheduler's id of the job, as far as a file name can hold it.
        name: The job's name.
        link: The symbolic link to the run directory.
        stamp: When it was submitted, as the function ``stamp`` writes it.
    """

    scheduler: str
    job_id: str
    name: str
    link: Path
    stamp: str

    @property
    def target(self) -> Path | None:
        """The path of the run directory, which may no longer exist; None when the entry is not a link."""
        try:
            return self.link.readlink()
        except OSError:
            return None

    def run(self, target: Path) -> RunDir:
        """The run directory at ``target``, marked as belonging to this job (RunDir.mine)."""
        return RunDir(target, (self.scheduler, self.job_id))


def folder(environ: Mapping[str, str]) -> Path:
    """The folder of the index.

    Args:
        environ: The environment, for HOME and XDG_STATE_HOME.

    Raises:
        RunDirError: For a user without a home folder.
    """
    try:
        state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "~", ".local", "state").expanduser()
    except RuntimeError:
        raise RunDirError("there is no home folder for the index of runs", hint=_HOME) from None
    return Path(state, "gridtf", "runs")


def add(run_dir: Path, submitted: Record, environ: Mapping[str, str]) -> None:
    """Add a run to the index.

    Args:
        run_dir: Its run directory.
        submitted: The content of its submitted.json.
        environ: The environment, for HOME and XDG_STATE_HOME.

    Raises:
        RunDirError: When the index cannot be written.
    """
    words = (stamp(submitted["time"]), submitted["scheduler"], _word(submitted["job_id"]), submitted["name"])
    link = folder(environ) / ",".join(words)
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(run_dir)
    except OSError as error:
        raise RunDirError(f"cannot write {link}: {error.strerror}") from None


def forget(run_dir: Path, environ: Mapping[str, str]) -> None:
    """Remove a run from the index whose run directory is to be removed.

    Args:
        run_dir: Its run directory.
        environ: The environment, for HOME and XDG_STATE_HOME.

    Raises:
        RunDirError: When the index cannot be read.
    """
    for entry in entries(environ):
        if entry.target == run_dir:
            entry.link.unlink(missing_ok=True)


def entries(environ: Mapping[str, str]) -> Iterator[Entry]:
    """All runs in the index, newest first, including those whose run directory is gone.

    Args:
        environ: The environment, for HOME and XDG_STATE_HOME.

    Raises:
        RunDirError: When the index cannot be read.
    """
    home = folder(environ)
    names = listdir(home)
    there = None if names else next(filter(files.exists, (home, *home.parents)), None)
    if there and not files.is_folder(there):
        raise RunDirError(f"{there} is not a folder: it is in the way of the index of runs", hint=_HOME)
    for name in sorted(names, reverse=True):
        if _ENTRY.fullmatch(name):
            when, scheduler, job_id, title = name.split(",")
            yield Entry(scheduler, job_id, title, home / name, when)


def stamp(when: float) -> str:
    """A time in UTC as the index has it; the order of such texts is that of the times.

    Args:
        when: Seconds since the epoch.
    """
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(when)) + f".{int(when % 1 * 1e6):06}"


def runs(
    environ: Mapping[str, str],
    wanted: Callable[[Entry], bool] | None = None,
    known: Callable[[Path], bool] = lambda path: False,
) -> Iterator[RunDir]:
    """The run directories in the index that still exist, newest first, including unreadable ones.

    Args:
        environ: The environment, for HOME and XDG_STATE_HOME.
        wanted: Which entries of the index count; None: all.
        known: Whether a path is known to be a run directory, so that it is not looked at.

    Raises:
        RunDirError: When the index cannot be read.
    """
    seen = set()
    for entry in filter(wanted, entries(environ)):
        target = entry.target
        if target is not None and target not in seen and (known(target) or _exists(target)):
            seen.add(target)
            yield entry.run(target)


def elements(job_id: str, environ: Mapping[str, str]) -> dict[str, RunDir]:
    """Find the elements of a job array whose script was written by hand.

    Args:
        job_id: The scheduler's id of the array.
        environ: The environment, for HOME and XDG_STATE_HOME.

    Returns:
        Job id of an element, such as ``4711_3`` or ``4711.3`` -> its run directory, in the order of the elements.

    Raises:
        RunDirError: When the index cannot be read.
    """
    found: dict[str, RunDir] = {}
    for entry in entries(environ):
        target = entry.target
        number = entry.job_id.removeprefix(_word(job_id))
        if target is not None and number != entry.job_id and re.fullmatch(r"[._]\d{1,9}", number, re.ASCII):
            found.setdefault(entry.job_id, entry.run(target))
    return {name: found[name] for name in sorted(found, key=lambda name: int(re.split("[._]", name)[-1]))}


def find(
    job: str, environ: Mapping[str, str], cwd: Path, *, even_gone: bool = False, index: Sequence[Entry] | None = None
) -> RunDir:
    """Find the run directory of JOB, as given on a command line.

    Args:
        job: A run directory, a job id or a job name (the newest job of that name). Without a slash it is looked up in
            the index first: any user may have made a folder of that name in the working folder.
        environ: The environment, for HOME and XDG_STATE_HOME.
        cwd: The working folder.
        even_gone: Whether the run directory may have been removed, if the index still has the job.
        index: What entries returned, for one of many jobs; None: it is read.

    Returns:
        The run directory. One from the index must belong to this user (need_same), others may be any user's.

    Raises:
        NotFoundError: When there is no such job.
        RunDirError: When the run directory cannot be read, or that of the newest job is gone.
    """
    if not job.strip():
        raise NotFoundError("the name of the job is empty", hint="is the variable set, as in gridtf status $JOB?")
    path = cwd / job
    if "/" in job or job in (".", ".."):
        if even_gone and not files.exists(path):
            found = entries(environ) if index is None else index
            if gone := next((entry for entry in found if entry.target == path.absolute()), None):
                return gone.run(path.absolute())
        run = RunDir(path)
        need_run(run)
        return run
    index, word = list(entries(environ)) if index is None else index, _word(job)
    for matches in ([e for e in index if e.job_id == word], [e for e in index if e.name == job]):
        linked = [(entry, target) for entry in matches if (target := entry.target) is not None]
        if not linked:
            continue
        (entry, newest), *earlier = linked
        if even_gone or is_run(newest):
            return entry.run(newest)
        hint = next((f"the one before it still exists: {older}" for _, older in earlier if _exists(older)), "")
        raise RunDirError(
            f"the newest run called {entry.name} (job {entry.job_id}) is gone: {newest}",
            hint=hint or "`gridtf list` shows the jobs that still exist",
        )
    if is_run(path):
        if is_ours(path):
            return RunDir(path)
        hint = f"to use that folder, write ./{job}"
        raise NotFoundError(f"no job is called {job}, and the folder {job} here belongs to another user", hint=hint)
    if (element := _element(job, index)) is not None:
        return element
    if several := list(elements(job, environ)):
        raise NotFoundError(
            f"job {job} is an array of {len(several)} whose script was written by hand",
            hint=f"name one of its elements: {some(several)}",
        )
    known = list(dict.fromkeys(word for entry in index for word in (entry.name, entry.job_id)))
    hint = nearest(job, known) or "`gridtf list` shows the jobs; a run directory works as well"
    raise NotFoundError(f"no job is called {job}", hint=hint)


def _element(job: str, index: Sequence[Entry]) -> RunDir | None:
    """The element of an array that JOB names, such as ``4711_3``, ``4711.3`` or ``digits_3``; None where there is none.

    Raises:
        NotFoundError: When it has not begun.
    """
    array, number = re.fullmatch(r"(.+)[._](\d{1,9})|.*", job, re.DOTALL | re.ASCII).groups()  # type: ignore[union-attr]
    matches = [entry for entry in index if array and array in (entry.job_id, entry.name)]
    entry, target = next(((one, target) for one in matches if (target := one.target)), (None, None))
    if entry is None or target is None:
        return None
    found = RunDir(RunDir(target).elements / number)
    if entry.job_id != array and reruns(first := first_of(RunDir(target))):  # numbers are those of the table
        found = _newest(first).get(int(number), RunDir(first.elements / number))
    if not files.is_folder(found.path) or not is_ours(found.path):
        return None
    if is_run(found.path):
        return found
    raise NotFoundError(f"element {number} of job {array} has not begun", hint=f"its sweep: gridtf list {array}")


def is_run(path: Path) -> bool:
    """Whether a path is a run directory: it contains an attempt, or a job.json of gridtf's.

    Raises:
        RunDirError: When it cannot be read.
    """
    run, names = RunDir(path), listdir(path)
    if run.attempts(names):
        return True
    return run.job.name in names and (run.submitted.name in names or _describes_a_job(run))


def _describes_a_job(run: RunDir) -> bool:
    """Whether job.json is gridtf's: other programs have a file of that name too. One that is private may be."""
    from gridtf.run import recordtypes

    return not os.access(run.job, os.R_OK) or "spec" in (read_record(run.job, recordtypes.Job, listed=True) or {})


def need_run(run: RunDir) -> None:
    """Check that a run directory is one, and belongs to its job (need_same).

    Raises:
        NotFoundError: When it is not a run directory.
        ReplacedError: When it belongs to another user or another job.
    """
    if not is_run(run.path):
        why = "it contains neither a job.json of gridtf nor an attempt"
        if not files.is_folder(run.path):
            why = "it is a file" if files.exists(run.path) else "there is no such folder"
        raise NotFoundError(
            f"{run.path} is not a run directory", why=why, hint="`gridtf list` shows where the runs are"
        )
    need_same(run)


def need_same(run: RunDir) -> None:
    """Check that the run directory of this user's job was not replaced; one that is gone passes.

    Any user with write permission for the folder above it can replace it.

    Raises:
        ReplacedError: When it belongs to another user or another job.
    """
    if run.mine is None or not listdir(run.path):
        return
    _, job_id = run.mine
    if not is_ours(run.path):
        what = f"belongs to user {owner(run.path)}"
    else:
        from gridtf.run import reading, recordtypes

        other = reading.known(run.submitted, recordtypes.Submitted).get("job_id", job_id)
        if _word(str(other)) == _word(job_id):
            return
        what = f"belongs to job {other}"
    raise ReplacedError(
        f"the run directory of job {job_id} was replaced: {run.path} {what}",
        hint=f"any user with write permission for {run.path.parent} can do that: choose a --run-root of your own",
    )


def need_one_job(run: RunDir, command: str) -> None:
    """Check that a run directory is one (need_run), and no array's: its elements have logs and outputs of their own.

    Args:
        command: The gridtf command, such as ``logs``, for the hint.

    Raises:
        NotFoundError: When it is none; for a job array: the hint shows the command for one element.
        ReplacedError: As need_run does.
    """
    need_run(run)
    if elements := listdir(run.elements):
        first = min(elements, key=lambda name: (len(name), name))
        table = f"the sweep: gridtf list {run.path}; " if run.sweep.name in listdir(run.path) else ""
        raise NotFoundError(
            f"{run.path} is an array of {len(elements)} jobs, each with its own logs and output",
            hint=f"{table}one element: gridtf {command} {run.elements / first}",
        )


def whole(run: RunDir) -> RunDir:
    """The run directory of the job array that a run is an element of, which has its job.json; else the run itself."""
    array = run.path.parent
    above = RunDir(array.parent)
    return above if array == above.elements else run


def elements_of(run: RunDir) -> list[RunDir]:
    """The run directories of the elements of a job array that have begun, in their order; empty for any other job.

    Of an element of a sweep that was run again it is the newest run.

    Raises:
        RunDirError: When they cannot be listed.
    """
    newest = _newest(run)
    return [newest[number] for number in sorted(newest)]


def _newest(run: RunDir) -> dict[int, RunDir]:
    """Number of an element of a job array that has begun -> its newest run."""
    newest: dict[int, RunDir] = {}
    for each in (run, *reruns(run)):
        sweep = sweep_of(each)
        for name in listdir(each.elements):
            if name.isdecimal() and is_run(each.elements / name):
                number = sweep.number(name) if sweep and 0 < int(name) <= len(sweep.rows) else int(name)
                newest[number] = RunDir(each.elements / name)
    return newest


def sweep_of(run: RunDir, *, own: bool = False) -> Sweep | None:
    """The sweep in a run directory; None where it has none.

    Args:
        run: The run directory.
        own: Whether gridtf acts upon it.

    Raises:
        RunDirError: When it is damaged or, with ``own``, another user's.
    """
    from gridtf.jobspec.sweep import Sweep
    from gridtf.run import recordtypes

    kind = recordtypes.Sweep
    record = read_record(run.sweep, kind, own=True) if own else read_private(run.sweep, kind)
    if record is None:
        return None
    if not record["rows"] or len(record["numbers"]) not in (0, len(record["rows"])):
        raise damaged(run.sweep, f"it has {len(record['rows'])} rows and {len(record['numbers'])} numbers")
    return of_dict(Sweep, record)


def first_of(run: RunDir) -> RunDir:
    """The sweep that was submitted first, of which a run runs elements again; else the run itself."""
    above = RunDir(run.path.parent)
    return above if _RERUN.fullmatch(run.path.name) and above.sweep.name in listdir(above.path) else run


def reruns(run: RunDir) -> list[RunDir]:
    """The sweeps that run elements of a sweep again, oldest first."""
    matches = (_RERUN.fullmatch(name) for name in listdir(run.path))
    return [RunDir(run.path / f"rerun-{number}") for number in sorted(int(match[1]) for match in matches if match)]


def chosen(since: float | None, pattern: str | None) -> Callable[[Entry], bool] | None:
    """Which entries of the index fit; None where all do.

    Args:
        since: Seconds since the epoch; None: of any time.
        pattern: A shell pattern of the name; None: any.
    """
    if since is None and pattern is None:
        return None
    from fnmatch import fnmatchcase

    first = "" if since is None else stamp(max(0.0, since))
    return lambda entry: entry.stamp >= first and (pattern is None or fnmatchcase(entry.name, pattern))


def _exists(path: Path) -> bool:
    try:
        return is_run(path)
    except RunDirError:  # it exists
        return True


def _word(job_id: str) -> str:
    """A job id as the name of a link can contain it."""
    return re.sub(r"[,/\s]", "-", job_id) or "-"


def write_job(run: RunDir, spec: JobSpec, sources: Mapping[str, str], origin: Record | None = None) -> None:
    """Write job.json, readable for this user only: ``env`` may contain passwords.

    Args:
        spec: The job.
        sources: Dotted key -> source of its value, as in config.Configured.
        origin: What the job comes from, as in Plan.

    Raises:
        RunDirError: When it cannot be written.
    """
    record = {"gridtf": __version__, "spec": spec.to_dict(), "sources": dict(sources)}
    if origin:
        record["origin"] = dict(origin)
    write_record(run.job, record, mode=0o600)


def submitted(spec: JobSpec, scheduler: str, command: Sequence[str], identity: Record, begin: float) -> Record:
    """The content of submitted.json, with this user and host.

    Args:
        spec: The job.
        scheduler: Name of the scheduler.
        command: The command that submitted it.
        identity: ``job_id``, and the scheduler's other details of the job (JobIdentity.to_record).
        begin: When it was submitted, in seconds since the epoch: before the scheduler answers, since it may start then.
    """
    return {
        "scheduler": scheduler,
        "name": spec.title,
        **who(),
        "time": begin,
        "command": list(command),
        **identity,
    }


def own_script(submitted: Record) -> bool:
    """Whether gridtf wrote the job script: one written by hand may continue after gridtf_run.

    Args:
        submitted: submitted.json.
    """
    return list(submitted.get("command", ()))[:1] != [BY_HAND]


def who() -> Record:
    """This ``user`` (the user id where it has no name, as in containers) and ``host``, for a record."""
    return {"user": files.user_name(os.getuid()), "host": os.uname().nodename}
