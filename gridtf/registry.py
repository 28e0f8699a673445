"""The index of a user's runs: one symbolic link a run, named so that a listing alone finds a job.

``20251121-080712.123456,slurm,4711,digits`` -> the run directory: when (UTC), scheduler, job id, job name. None of the
four can hold a comma. One writer a link, so no lock is needed; the home folder may be on NFS.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridtf.errors import NotFoundError, RunDirError, nearest
from gridtf.rundir import RunDir, names

_ENTRY = re.compile(r"\d{8}-\d{6}\.\d{6},[^,]+,[^,]+,[^,]+")


@dataclass(frozen=True)
class Entry:
    """One run in the index."""

    scheduler: str
    job_id: str
    name: str
    link: Path

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None when it is no longer there."""
        try:
            target = self.link.readlink()
        except OSError:
            return None
        return target if is_run(target) else None


def folder(environ: Mapping[str, str]) -> Path:
    """Where the index lies."""
    home = Path(environ.get("HOME") or "~").expanduser()
    return Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "gridtf" / "runs"


def add(run_dir: Path, *, scheduler: str, job_id: str, name: str, now: float, environ: Mapping[str, str]) -> None:
    """Put a run into the index. Raises RunDirError when that cannot be."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06}"
    link = folder(environ) / ",".join((stamp, scheduler, _word(job_id), name))
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


def find(job: str, environ: Mapping[str, str], cwd: Path) -> Path:
    """The run directory of JOB: a run directory, a job id or a name (the newest). Raises NotFoundError."""
    path = cwd / job
    if is_run(path):
        return path
    if "/" in job:
        raise NotFoundError(f"{job} is not a run directory", why="there is no job.json and no attempt in it")
    index = list(entries(environ))
    for wanted in ([e for e in index if e.job_id == _word(job)], [e for e in index if e.name == job]):
        for entry in wanted:
            if entry.run_dir:
                return entry.run_dir
        if wanted:
            gone = wanted[0].link.readlink()
            raise NotFoundError(f"the run directory of {job} is no longer there", why=f"it was {gone}")
    known = list(dict.fromkeys(word for entry in index for word in (entry.name, entry.job_id)))
    hint = nearest(job, known) or "`gridtf list` shows the jobs; a run directory is understood as well"
    raise NotFoundError(f"no job is called {job}", hint=hint)


def is_run(path: Path) -> bool:
    """Whether this is a run directory that can be read."""
    try:
        return RunDir(path).job.name in names(path) or bool(RunDir(path).attempts())
    except RunDirError:
        return False


def _word(job_id: str) -> str:
    return re.sub(r"[,/\s]", "-", job_id) or "-"
