"""Reads a job's records for the monitor, again and again; in a thread, since file servers and schedulers are slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.errors import GridtfError
from gridtf.monitor.history import History
from gridtf.monitor.snapshot import Snapshot
from gridtf.observe import history
from gridtf.observe.watch import Watch
from gridtf.run import recordtypes
from gridtf.run.logparts import LogParts
from gridtf.run.reading import known
from gridtf.run.rundir import RunDir, is_ours, owner
from gridtf.run.tail import BREAK, between, tail_start
from gridtf.text import cut, log_line

if TYPE_CHECKING:
    from gridtf.observe.views import JobView

_EVERY = 5.0  # seconds between two readings of what hosts report, which is when they report it
_SHOWN = 0.5  # seconds between two snapshots while samples of a long job are read
_LINES = 500  # of a log
_LENGTH = 1000  # characters of a line of it
_BYTES = 1 << 20


class Reader:
    """Reads the records of a job.

    Args:
        run: Its run directory.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._watch = Watch(run)
        self._events = history.events(run)
        self._samples = history.samples(run)
        self._history = History()
        self._read = float("-inf")  # when all was read last
        self.snapshot = Snapshot(run.path.name, at=time.monotonic())

    def look(self) -> Iterator[Snapshot]:
        """Look at the job, and read what is new where that is due; yields a snapshot after each part of it."""
        try:
            news = self._watch.look()
            if news is None and time.monotonic() - self._read < _EVERY:
                return
            yield from self._all(read_again=news is None)
        except (GridtfError, OSError) as error:
            self._read = time.monotonic()
            lines = (error.what, error.why, error.hint) if isinstance(error, GridtfError) else (str(error),)
            yield self._made(trouble="; ".join(filter(None, lines)), reading=False)

    @property
    def over(self) -> bool:
        """Whether the job has ended and all of its records were read."""
        view = self.snapshot.view
        return view is not None and view.finished and not self.snapshot.reading and not self.snapshot.trouble

    def _all(self, *, read_again: bool) -> Iterator[Snapshot]:
        view = self._watch.refreshed() if read_again else self._watch.latest
        if view is None:
            return
        self._history.see(view)
        private = "" if view.tasks or is_ours(self._run.path) else owner(self._run.path)
        about = {"view": view, "name": view.name, "private": private, **self._launcher(view)}
        yield self._made(**about, trouble="")  # also where its events or samples cannot be read
        yield self._made(events=(*self.snapshot.events, *self._events.more()))
        shown = time.monotonic()
        for sample in self._samples.more():
            self._history.add(sample)
            if time.monotonic() - shown > _SHOWN:
                yield self._made(reading=True)
                shown = time.monotonic()
        self._read = time.monotonic()
        yield self._made(reading=False)

    def _launcher(self, view: JobView) -> dict[str, float | None]:
        """The time by the clock of the launcher's host, and when the walltime will be over.

        The launcher's heartbeat may be some seconds old, and so may a sample: the newest of them counts.
        """
        attempt = self._run.latest()
        launcher = known(attempt.launcher, recordtypes.Launcher) if attempt else {}
        if not launcher:
            return {"clock": None, "ends": None}
        clock = max(launcher.get("time", 0.0), *(host.sample["time"] for host in view.hosts if host.sample), 0.0)
        return {"clock": clock, "ends": launcher.get("ends")}

    def _made(self, **changes: Any) -> Snapshot:
        recent, curves = self._history.recent(), self._history.curves()
        about = {"recent": recent, "curves": curves, "at": time.monotonic(), "now": time.time(), **changes}
        self.snapshot = self.snapshot.replace(**about)
        return self.snapshot


def end_of_log(log: Path) -> list[str]:
    """The last lines of a log, without anything that a terminal acts on.

    Args:
        log: The log, which may be long, binary, without a line break, or absent.

    Returns:
        At most 500 lines of at most 1000 characters, out of the last MiB.

    Raises:
        RunDirError: It cannot be read.
    """
    parts = LogParts(log)
    _, end = parts.extent()
    data = between(parts, max(tail_start(parts, _LINES), end - _BYTES), end)
    lines = BREAK.split(data)
    texts = (line.decode(errors="replace").expandtabs() for line in (lines if lines[-1] else lines[:-1]))
    return [cut(log_line(text, colours=False), _LENGTH) for text in texts]
