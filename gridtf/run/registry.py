"""The index of a user's runs, and the records that a job begins with.

The index has one symbolic link a run, named so that a listing alone finds a job:

``20251121-080712.123456,slurm,4711,digits`` -> the run directory: when (UTC), scheduler, job id, job name. None of the
four can hold a comma. One writer a link, so no lock is needed; the home folder may be on NFS.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gridtf import __version__
from gridtf.errors import NotFoundError, ReplacedError, RunDirError, nearest
from gridtf.files import user_name
from gridtf.run.rundir import Record, RunDir, is_ours, names, owner, read_private, write_record
from gridtf.text import some

TYPE_CHECKING = False  # typing and dataclasses would take longer to import than all of this
if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec

_ENTRY = re.compile(r"\d{8}-\d{6}\.\d{6},[^,]+,[^,]+,[^,]+")


class Entry:
    """One run in the index.

    Attributes:
        scheduler: The scheduler's name.
        job_id: The scheduler's id of the job, as far as a file name can hold it.
        name: The job's name.
        link: The symbolic link to the run directory.
    """

    def __init__(self, scheduler: str, job_id: str, name: str, link: Path) -> None:
        self.scheduler = scheduler
        self.job_id = job_id
        self.name = name
        self.link = link

    @property
    def target(self) -> Path | None:
        """Where the run directory is or was; None for something else that lies in the index."""
        try:
            return self.link.readlink()
        except OSError:
            return None

    def run(self, target: Path) -> RunDir:
        """The run directory in which this run must be found."""
        return RunDir(target, (self.scheduler, self.job_id))


def folder(environ: Mapping[str, str]) -> Path:
    """Where the index lies. Raises RunDirError for a user without a home."""
    try:
        state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "~", ".local", "state").expanduser()
    except RuntimeError:  # nor does the directory service know this user
        raise RunDirError("there is no home for the index of runs", hint="set HOME or XDG_STATE_HOME") from None
    return Path(state, "gridtf", "runs")


def add(run_dir: Path, submitted: Record, environ: Mapping[str, str]) -> None:
    """Put a run into the index, from what its submitted.json holds. Raises RunDirError when that cannot be."""
    when = submitted["time"]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(when)) + f".{int(when % 1 * 1e6):06}"
    link = folder(environ) / ",".join((stamp, submitted["scheduler"], _word(submitted["job_id"]), submitted["name"]))
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(run_dir)
    except OSError as error:
        raise RunDirError(f"cannot write {link}: {error.strerror}") from None


def entries(environ: Mapping[str, str]) -> Iterator[Entry]:
    """All runs, newest first, those too whose run directory is gone."""
    home = folder(environ)
    for name in sorted(names(home), reverse=True):
        if _ENTRY.fullmatch(name):
            _, scheduler, job_id, title = name.split(",")
            yield Entry(scheduler, job_id, title, home / name)


def runs(environ: Mapping[str, str]) -> Iterator[RunDir]:
    """The run directories that are still there, newest first, each once. Those that cannot be read are there too."""
    seen = set()
    for entry in entries(environ):
        target = entry.target
        if target is not None and target not in seen and _is_left(target):
            seen.add(target)
            yield entry.run(target)


def elements(job_id: str, environ: Mapping[str, str]) -> dict[str, RunDir]:
    """The elements of a job array whose script was written by hand, by their job ids, in their order."""
    found: dict[str, RunDir] = {}
    for entry in entries(environ):
        target = entry.target
        number = entry.job_id.removeprefix(_word(job_id))
        if target is not None and number != entry.job_id and re.fullmatch(r"[._]\d{1,9}", number, re.ASCII):
            found.setdefault(entry.job_id, entry.run(target))
    return {name: found[name] for name in sorted(found, key=lambda name: int(re.split("[._]", name)[-1]))}


def find(job: str, environ: Mapping[str, str], cwd: Path) -> RunDir:
    """The run directory of JOB: a run directory, a job id or a name (the newest).

    A word without a slash is looked for in the index first: anybody may have made a folder of that name here. What is
    found there must be this user's own (need_same); a run directory may be anybody's. Raises NotFoundError; RunDirError
    when it cannot be read, and when it is gone: an older job of the same name is not what was meant.
    """
    path = cwd / job
    if "/" in job or job in (".", ".."):
        run = RunDir(path)
        need_run(run)
        return run
    index = list(entries(environ))
    for wanted in ([e for e in index if e.job_id == _word(job)], [e for e in index if e.name == job]):
        found = [(entry, target) for entry in wanted if (target := entry.target) is not None]
        if not found:
            continue
        (entry, newest), *before = found
        if is_run(newest):
            return entry.run(newest)
        left = next((f"the one before it is there: {older}" for _, older in before if _is_left(older)), "")
        raise RunDirError(
            f"the newest run called {job} (job {entry.job_id}) is gone: {newest}",
            hint=left or "`gridtf list` shows the jobs that are there",
        )
    if is_run(path):
        if is_ours(path):
            return RunDir(path)
        hint = f"to mean it all the same: ./{job}"
        raise NotFoundError(f"no job is called {job}, and the folder {job} here is somebody else's", hint=hint)
    if several := list(elements(job, environ)):
        raise NotFoundError(
            f"job {job} is an array of {len(several)} whose script was written by hand",
            hint=f"name one of its elements: {some(several)}",
        )
    known = list(dict.fromkeys(word for entry in index for word in (entry.name, entry.job_id)))
    hint = nearest(job, known) or "`gridtf list` shows the jobs; a run directory is understood as well"
    raise NotFoundError(f"no job is called {job}", hint=hint)


def is_run(path: Path) -> bool:
    """Whether this is a run directory. Raises RunDirError when it cannot be read."""
    return RunDir(path).job.name in names(path) or bool(RunDir(path).attempts())


def need_run(run: RunDir) -> None:
    """Raises NotFoundError when this is no run directory, and what need_same does."""
    if not is_run(run.path):
        why = "there is no job.json and no attempt in it"
        raise NotFoundError(
            f"{run.path} is not a run directory", why=why, hint="`gridtf list` shows where the runs are"
        )
    need_same(run)


def need_same(run: RunDir) -> None:
    """Raises ReplacedError where somebody has put something else in the place of the run directory of a job of this
    user's, as who may write in the folder above it can. What is gone tells nothing, and so nothing wrong."""
    if run.mine is None or not names(run.path):
        return
    _, job_id = run.mine
    if not is_ours(run.path):
        what = f"belongs to user {owner(run.path)}"
    else:
        from gridtf.run import recordtypes

        told = (read_private(run.submitted, recordtypes.Submitted) or {}).get("job_id", job_id)
        if _word(str(told)) == _word(job_id):
            return
        what = f"is that of job {told}"
    raise ReplacedError(
        f"the run directory of job {job_id} was replaced: {run.path} {what}",
        hint=f"who may write in {run.path.parent} can do that: a --run-root of your own is safe from it",
    )


def need_one_job(run: RunDir, command: str) -> None:
    """Raises NotFoundError for a job array: what this command shows, each of its elements has for itself."""
    if elements := names(run.elements):
        first = min(elements, key=lambda name: (len(name), name))
        raise NotFoundError(
            f"{run.path} is an array of {len(elements)} jobs, each with logs and an output of its own",
            hint=f"one element: gridtf {command} {run.elements / first}",
        )


def _is_left(path: Path) -> bool:
    try:
        return is_run(path)
    except RunDirError:  # it is there
        return True


def _word(job_id: str) -> str:
    return re.sub(r"[,/\s]", "-", job_id) or "-"


def write_job(run: RunDir, spec: JobSpec, sources: Mapping[str, str]) -> None:
    """Write job.json: what was asked for, and where each value came from. Private: env may hold passwords."""
    record = {"gridtf": __version__, "spec": spec.to_dict(), "sources": dict(sources)}
    write_record(run.job, record, mode=0o600)


def submitted(spec: JobSpec, scheduler: str, command: Sequence[str], identity: Record) -> Record:
    """What submitted.json holds. identity: what the scheduler gave: job_id, and the rest."""
    return {
        "scheduler": scheduler,
        "name": spec.title,
        **who(),
        "time": time.time(),
        "command": list(command),
        **identity,
    }


def who() -> Record:
    """Who we are and where: ``user`` (the number where nobody knows the name, as in containers) and ``host``."""
    return {"user": user_name(os.getuid()), "host": os.uname().nodename}
