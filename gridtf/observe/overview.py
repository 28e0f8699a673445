"""A line for each of a user's jobs, as ``gridtf list`` shows them.

Those of jobs that ended long ago are kept in ``~/.local/state/gridtf/ended.json``, so that a list of a thousand runs
reads only the run directories of the others. A line counts as long as its run directory is the same, unchanged: another
start of the job makes a folder in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.errors import GridtfError, NotFoundError, RunDirError
from gridtf.observe import jobs
from gridtf.run import registry
from gridtf.run.recordtypes import kind_of
from gridtf.run.rundir import Record, RunDir, read_record, write_record
from gridtf.states import JobState
from gridtf.text import some
from gridtf.values import Value, as_dict, of_dict

if TYPE_CHECKING:
    import pwd
    from collections.abc import Callable, Sequence

    from gridtf.observe.views import JobView

_SETTLED = 3600.0  # seconds after which no scheduler starts a job again that has ended


class Row(Value):
    """What a list shows of a job; its fields are those of a JobView.

    Attributes:
        tasks: How many tasks it has.
        after: The names of the jobs that it waits for, as words; empty where it waits for none.
    """

    name: str
    job_id: str
    scheduler: str
    state: str
    reason: str
    tasks: int
    started: float | None
    run_dir: str
    after: str = ""


def row(view: JobView) -> Row:
    """The line of a job."""
    names = ("name", "job_id", "scheduler", "state", "reason", "started")
    others = [word.rpartition(" ")[0] for word in view.waits_for.values()]
    after = f"after {some(others, most=2)}" if others and view.state == JobState.PENDING else ""
    known = {name: getattr(view, name) for name in names}
    return Row(**known, tasks=len(view.tasks), run_dir=str(view.run_dir), after=after)


class Overview:
    """The lines of a user's jobs.

    Args:
        environ: The environment, for HOME and XDG_STATE_HOME.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._file = registry.folder(environ).parent / "ended.json"
        self._kept = self._read()

    def runs(self, wanted: Callable[[registry.Entry], bool] | None = None) -> Iterator[RunDir]:
        """The runs in the index that still exist, newest first.

        Args:
            wanted: Which of them; None: all.

        Raises:
            RunDirError: When the index cannot be read.
        """
        return registry.runs(self._environ, wanted, lambda path: self._known(path) is not None)

    def rows(self, runs: Sequence[RunDir]) -> list[Row]:
        """The lines of these runs, in their order."""
        found = {run: self._known(run.path) for run in runs}
        others = [run for run, known in found.items() if known is None]
        now = time.time()
        new: dict[str, object] = {}
        for run, view in zip(others, jobs.views(others), strict=True):
            found[run] = row(view)
            stamp = _stamp(run.path)
            if stamp and view.finished and not view.unexplained and view.ended and now - view.ended > _SETTLED:
                new[str(run.path)] = {"stamp": stamp, "row": as_dict(found[run])}
        if new:
            self._keep(new)
        return [line for line in found.values() if line is not None]

    def _known(self, path: Path) -> Row | None:
        kept = self._kept.get(str(path))
        return of_dict(Row, kept["row"]) if kept and kept["stamp"] == _stamp(path) else None

    def _read(self) -> Mapping[str, Record]:
        try:
            return read_record(self._file, {str: {"stamp": str, "row": kind_of(Row)}}, own=True) or {}
        except RunDirError:  # damaged, or another user's
            return {}

    def _keep(self, new: Mapping[str, object]) -> None:
        kept = {path: one for path, one in {**self._kept, **new}.items() if _stamp(Path(path))}
        try:
            write_record(self._file, kept, indent=None, mode=0o600)
        except RunDirError:  # the next list reads the run directories again
            return


def as_user(name: str, action: Callable[[], Any]) -> Any:
    """Run a function for the jobs of another user, as that user: no file or link there can make root do more.

    Args:
        name: The user.
        action: The function. What it imports should have been imported before, as here what it reads jobs with.

    Returns:
        What it returns, which must fit into JSON.

    Raises:
        NotFoundError: When there is no such user.
        GridtfError: For any other user than root, and what the function raises.
    """
    from gridtf.host.users import run_as_user

    user = account(name)
    if os.geteuid() != 0:
        hint = "without --user, `gridtf list` shows yours; status and report take any run directory that you may read"
        raise GridtfError(f"only root can list the jobs of {name}", hint=hint)
    for scheduler in schedulers.names():
        _ = schedulers.get(scheduler).login
    return run_as_user(user.pw_uid, user.pw_gid, action)


def account(name: str) -> pwd.struct_passwd:
    """The account of a user. Raises NotFoundError when there is none."""
    import pwd

    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise NotFoundError(f"no user is called {name} on this host") from None


def _stamp(path: Path) -> str:
    """What identifies the state of a folder; empty where it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_ino}.{status.st_mtime_ns}"
