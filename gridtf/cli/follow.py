"""The logs of a job as they come; for gridtf submit --follow with what happens to the job between them."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from gridtf.cli import output, show, wait
from gridtf.cli.logs import Shown
from gridtf.cli.pace import Pace
from gridtf.cli.statusline import BottomLine
from gridtf.errors import RunDirError
from gridtf.observe import eventwords, history, logs
from gridtf.observe.watch import Watch
from gridtf.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridtf.login.job import Job
    from gridtf.run.rundir import RunDir

_LOOKED = 1.0  # seconds between two looks at the events
_SAID = 2.0  # seconds between two changes of the line at the bottom
_MOST = 1 << 16  # characters that are kept for one write to the terminal


def follow(job: Job, *, raw: bool | None = None) -> int:
    """Print the logs of a job to stdout and what happens to it to stderr until it ends, then its verdict to stdout.

    Ctrl-C leaves the job running.

    Args:
        raw: As for Shown.

    Returns:
        The job's exit code; 130 after Ctrl-C.
    """
    pace = Pace()
    following = Following(job.run, logs.Choice(times=True), Shown(raw=raw, see=pace.see), pace)
    try:
        following.run()
    except KeyboardInterrupt:
        return wait.interrupted(job, ("to see its logs again:", f"gridtf logs -f {plain(job.id)}"))
    assert following.watch.latest is not None  # it has ended
    return wait.ended(following.watch.latest)


class Following:
    """Prints logs, on a terminal above a line that says how the job stands.

    Args:
        choice: Which logs.
        shown: Makes what is printed of them.
        pace: What it lets see them.
        events: Whether to print what happens as well.

    Attributes:
        watch: Watches the job.
    """

    def __init__(self, run: RunDir, choice: logs.Choice, shown: Shown, pace: Pace, *, events: bool = True) -> None:
        self._run = run
        self._choice = choice
        self._shown = shown
        self._pace = pace
        self.watch = Watch(run)
        self._bottom = BottomLine() if output.redraws() and sys.stderr.isatty() else None
        self._changes = wait.Changes()
        self._events = history.events(run) if events else None
        self._kept = b""  # for the next write to a terminal
        self._look = self._say = float("-inf")  # when to do it next

    def run(self) -> None:
        """Print until the job has ended."""
        with self._bottom or contextlib.nullcontext():
            for lines in printed(self._run, self._choice, self._shown, self._ended, output.rest, self._tell_events):
                self._changes.printed_at = time.monotonic()
                self._kept += lines
                if len(self._kept) > _MOST:
                    self._flush()
            self._flush()
        self._shown.tell()

    def _ended(self) -> bool:
        """Whether the job has ended; prints what has happened since the last call."""
        over = self.watch.ended()
        self._flush()
        now = time.monotonic()
        view = self.watch.latest
        line = self._changes.line(view) if view and self._events else ""
        if over or line or now >= self._look:
            self._look = now + _LOOKED
            self._tell_events()
        if view:
            if line:
                self._tell(line)
                self._say = now
            if self._bottom is not None and now >= self._say:
                self._say, at = now + _SAID, time.time()
                self._bottom.say(show.progress(self.watch.refreshed() or view, at, self._pace.words(at)))
        return over

    def _tell_events(self) -> None:
        self._flush()
        if self._events is None:
            return
        with contextlib.suppress(RunDirError):  # the watch says so if it does not pass
            for event in self._events.more():
                if eventwords.is_news(event):
                    at = time.strftime("%H:%M:%S", time.localtime(event["time"]))
                    self._tell(f"{at}  {plain(eventwords.words([event]))}")

    def _tell(self, line: str) -> None:
        if self._bottom is None:
            output.write("")  # lines of logs that came before
            output.message(line)
        else:
            self._bottom.write(output.encoded(f"{line}\n"))

    def _flush(self) -> None:
        kept, self._kept = self._kept, b""
        if self._bottom is None:
            output.write(kept)
        elif kept:
            self._bottom.write(kept)


def printed(
    run: RunDir,
    choice: logs.Choice,
    shown: Shown,
    ended: Callable[[], bool],
    sleep: Callable[[float], None],
    before: Callable[[], None] = lambda: None,
) -> Iterator[bytes]:
    """The lines of a job's logs as a terminal, or any other file, gets them, as they come.

    Args:
        choice: Which logs.
        shown: Makes what is printed of them.
        ended: Whether the job has ended; called before each look at the logs.
        sleep: Like time.sleep.
        before: Called before the heading of another attempt.
    """
    for piece in logs.following(run, choice, ended, sleep):
        if piece[0] is logs.HEADING:
            yield shown.rest()
            before()
        if lines := shown.encoded(piece):
            yield lines
    yield shown.rest()
