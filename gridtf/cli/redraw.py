"""gridtf status --watch: the state of a job, drawn in its place again on a terminal, one after another elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gridtf.cli import output, show
from gridtf.observe.detail import detailed
from gridtf.observe.watch import Watch
from gridtf.text import cut

if TYPE_CHECKING:
    from gridtf.login.job import Job
    from gridtf.observe.views import JobView

_REDRAWN = 3.0  # seconds between two pictures on a terminal
_APART = 10.0  # seconds between two pictures that stay
# ECMA-48: CPL; EL and ED from the cursor on; ED of the whole screen and CUP
_UP, _CLEAR_LINE, _CLEAR_BELOW, _CLEAR = "\x1b[{}F", "\x1b[K", "\x1b[J", "\x1b[2J\x1b[H"


def follow(job: Job) -> int:
    """Show the state of a job until it has ended.

    Returns:
        0. Ctrl-C leaves the job running.
    """
    watch, screen, due = Watch(job.run), Screen() if output.redraws() else None, float("-inf")
    drawn: tuple[str, str] | None = None
    while True:
        news = watch.look()
        view, over = news or watch.latest, news is not None and news.finished
        if view is not None and ((view.state, view.reason) != drawn or over or time.monotonic() >= due):
            _draw(view if over else watch.refreshed() or view, screen, last=over)
            drawn, due = (view.state, view.reason), time.monotonic() + (_REDRAWN if screen else _APART)
        if over:
            return 0
        time.sleep(min(watch.rest(), max(0.0, due - time.monotonic())))


def _draw(view: JobView, screen: Screen | None, *, last: bool) -> None:
    now = time.time()
    view = detailed(view, now)
    at = time.strftime("%H:%M:%S", time.localtime(now))
    size = output.screen() or (None, 0)
    text = show.job(view, now, size[0])
    if screen is None:
        output.write(f"--- {at}\n{text}\n")
    elif last:
        output.write(f"{screen.clear()}{text}\n")
    else:
        output.write(screen.draw([*text.splitlines(), "", f"{at}  Ctrl-C ends this; the job goes on"], *size))


class Screen:
    """Lines that take the place of those drawn before, below what else is on a terminal."""

    def __init__(self) -> None:
        self._drawn = 0
        self._size = (0, 0)

    def draw(self, lines: list[str], columns: int, rows: int) -> str:
        """What to write to the terminal.

        Args:
            lines: The lines, without control characters.
            columns: The width of the terminal, to which they are shortened.
            rows: Its height: lines that do not fit are left out, but for the last one.
        """
        if len(lines) >= rows:
            lines = [*lines[: max(0, rows - 2)], lines[-1]]
        up = self._up() if self._size in ((columns, rows), (0, 0)) else _CLEAR  # another width breaks lines elsewhere
        self._drawn, self._size = len(lines), (columns, rows)
        return up + "".join(f"{cut(line, columns)}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW

    def clear(self) -> str:
        """What removes the lines from the terminal."""
        return self._up() + _CLEAR_BELOW

    def _up(self) -> str:
        return _UP.format(self._drawn) if self._drawn else ""
