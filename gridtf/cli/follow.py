"""gridtf submit --follow: the logs of all tasks as they come, and between them what happens to the job."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from gridtf.cli import output, show, wait
from gridtf.cli.logs import Shown
from gridtf.errors import RunDirError
from gridtf.observe import eventwords, history, logs
from gridtf.observe.watch import Watch
from gridtf.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridtf.cli.statusline import BottomLine
    from gridtf.login.job import Job
    from gridtf.run.rundir import RunDir

_LOOKED = 1.0  # seconds between two looks at the events
_SAID = 2.0  # seconds between two changes of the line at the bottom
_MOST = 1 << 16  # characters that are kept for one write to the terminal


def follow(job: Job) -> int:
    """Print the logs of a job to stdout and what happens to it to stderr until it ends, then its verdict to stdout.

    Ctrl-C leaves the job running.

    Returns:
        The job's exit code; 130 after Ctrl-C.
    """
    watch = Watch(job.run)
    with contextlib.ExitStack() as stack:
        bottom: BottomLine | None = None
        if output.redraws() and sys.stderr.isatty():
            from gridtf.cli.statusline import BottomLine

            bottom = stack.enter_context(BottomLine())
        try:
            Following(job.run, watch, bottom).run()
        except KeyboardInterrupt:
            stack.close()
            return wait.interrupted(job, ("to see its logs again:", f"gridtf logs -f {plain(job.id)}"))
    assert watch.latest is not None  # it has ended
    return wait.ended(watch.latest)


class Following:
    """Prints logs and what happens.

    Args:
        watch: Watches the job.
        bottom: The line at the bottom of the terminal that stdout and stderr are; None: lines go to each of them.
    """

    def __init__(self, run: RunDir, watch: Watch, bottom: BottomLine | None) -> None:
        self._run = run
        self._watch = watch
        self._bottom = bottom
        self._changes = wait.Changes()
        self._events = history.events(run)
        self._kept = ""  # for the next write to a terminal
        self._look = self._say = float("-inf")  # when to do it next

    def run(self) -> None:
        """Print until the job has ended."""
        for lines in printed(self._run, self._ended, output.rest, self._tell_events):
            self._changes.printed_at = time.monotonic()
            if self._bottom is None:
                output.write(lines, flush=False)
            else:
                self._kept += lines.decode(errors="replace")
                if len(self._kept) > _MOST:
                    self._flush()
        self._flush()

    def _ended(self) -> bool:
        """Whether the job has ended; prints what has happened since the last call."""
        over = self._watch.ended()
        self._flush()
        now = time.monotonic()
        view = self._watch.latest
        line = self._changes.line(view) if view else ""
        if over or line or now >= self._look:
            self._look = now + _LOOKED
            self._tell_events()
        if view:
            if line:
                self._tell(line)
                self._say = now
            if self._bottom is not None and now >= self._say:
                self._say = now + _SAID
                self._bottom.say(show.progress(self._watch.refreshed() or view, time.time()))
        return over

    def _tell_events(self) -> None:
        self._flush()
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
            self._bottom.write(line)

    def _flush(self) -> None:
        if self._bottom is None:
            output.write("")
        elif self._kept:
            self._bottom.write(self._kept)
            self._kept = ""


def printed(
    run: RunDir, ended: Callable[[], bool], sleep: Callable[[float], None], before: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    """The lines of a job's logs as a terminal, or any other file, gets them, as they come.

    Args:
        ended: Whether the job has ended; called before each look at the logs.
        sleep: Like time.sleep.
        before: Called before the heading of another attempt.
    """
    shown = Shown()
    for piece in logs.following(run, logs.Choice(), ended, sleep):
        if piece[0] is logs.HEADING:
            before()
        yield shown.encoded(piece)
