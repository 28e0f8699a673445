"""The monitor on a terminal: Textual reads the keys and writes the lines that have changed; pages.py makes them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from threading import Thread, Timer
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gridtf.errors import GridtfError
from gridtf.monitor import pages
from gridtf.monitor.lines import Line, to_ascii
from gridtf.monitor.look import LOG, STACKS, Extent, Look, press
from gridtf.monitor.reader import Reader, end_of_log
from gridtf.run.rundir import RunDir
from gridtf.text import columns

# The terminal's own colours, so that they fit its background and take few bytes.
STYLES = {
    "": Style(),
    "bold": Style(bold=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "bad": Style(color="red", bold=True),
    "warn": Style(color="yellow"),
    "curve": Style(color="cyan"),
    "chosen": Style(reverse=True),
}
_TICK = 1.0  # seconds between two looks at the job, and at a log that is shown
_ENDED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESTORED = 2.0  # seconds in which the terminal is restored after one of them

Stacks = Callable[[RunDir], Sequence[str]]


class Came(Message):
    """A thread has read something.

    Args:
        apply: What is to be done with it.
    """

    def __init__(self, apply: Callable[[], object]) -> None:
        super().__init__()
        self.apply = apply


class Picture(Widget, can_focus=True):
    """Shows lines, and writes those alone that have changed.

    Args:
        draw: Makes the lines anew, for another size.
    """

    DEFAULT_CSS = "Picture { width: 100%; height: 100%; }"

    def __init__(self, draw: Callable[[], None]) -> None:
        super().__init__()
        self._draw = draw
        self._lines: tuple[Line, ...] = ()

    def on_resize(self) -> None:
        """Make the lines anew."""
        self._draw()

    def show(self, lines: tuple[Line, ...]) -> None:
        """Show these lines in place of the others."""
        before, self._lines = self._lines, lines
        for row, (old, new) in enumerate(zip(before, lines, strict=False)):
            if old != new:
                first, end = _changed(old, new)
                self.refresh(Region(first, row, end - first, 1))
        if len(before) != len(lines):
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """A line of the widget, as Textual asks for it."""
        parts = self._lines[y] if y < len(self._lines) else ()
        strip = Strip([Segment(text, STYLES[style]) for text, style in parts])
        return strip.adjust_cell_length(self.size.width)


class Monitor(App[int]):
    """The monitor of a job.

    Args:
        stacks: Asks for the stacks of the job's tasks, and returns them as lines.
        ascii_only: Whether the terminal shows ASCII alone.

    Attributes:
        snapshot: The job as it is shown.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
    ]

    def __init__(self, run: RunDir, stacks: Stacks, *, ascii_only: bool = False) -> None:
        super().__init__(ansi_color=True)
        self._run = run
        self._stacks = stacks
        self._ascii = ascii_only
        self._reader = Reader(run)
        self.snapshot = self._reader.snapshot
        self._look = Look()
        self._extent = Extent()
        self._text: Sequence[str] = ()  # of the log or of the stacks
        self._busy: set[str] = set()
        self._picture = Picture(self._draw)
        self._failure: Exception | None = None

    def compose(self) -> ComposeResult:
        """The only widget."""
        yield self._picture

    def on_mount(self) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        for number in _ENDED_BY:
            loop.add_signal_handler(number, self._end_by, number)
        self._picture.focus()
        self.set_interval(_TICK, self._tick)
        self._tick()

    def on_key(self, event: events.Key) -> None:
        """Do what a key says."""
        event.stop()
        event.prevent_default()  # such as moving the focus
        before, self._look = self._look, press(self._look, event.key, self._extent)
        if self._look.page != before.page:
            self._text = ()
            self._open()
        self._draw()

    def on_came(self, message: Came) -> None:
        """Show what a thread has read."""
        message.apply()
        self._draw()

    def run_until_quit(self) -> int:
        """Show the job until the user quits.

        Returns:
            The exit code: 128 and the number of a signal that has ended the monitor.

        Raises:
            Exception: What a reader failed with, if it was no error of gridtf.
        """
        code = self.run(mouse=False)  # the mouse selects text, as usual; its moves would be many bytes over ssh
        if self._failure is not None:
            raise self._failure
        return code or 0

    def _tick(self) -> None:
        if not self.is_headless and not os.isatty(0):  # it has gone, without a signal
            self._end_by(signal.SIGHUP)
        if "records" in self._busy:
            self._draw()  # says so if that takes too long
        elif not self._reader.over:
            self._in_thread("records", self._read)
        if self._look.page == LOG:
            self._in_thread("log", self._read_log)

    def _open(self) -> None:
        """Begin to read what a page needs."""
        if self._look.page == LOG:
            self._text = ["reading its log …"]
            self._in_thread("log", self._read_log)
        elif self._look.page == STACKS:
            self._text = ["asking the launcher of the job, which may take 20 s …"]
            self._in_thread("stacks", self._ask_for_stacks)

    def _read(self) -> None:
        for snapshot in self._reader.look():
            self._came(partial(setattr, self, "snapshot", snapshot))

    def _read_log(self) -> None:
        name = pages.selected_task(self.snapshot, self._look)
        tasks = self.snapshot.view.tasks if self.snapshot.view else ()
        log = next((task.log for task in tasks if task.name == name), None if tasks else self._run.log)
        lines = (log and end_of_log(log)) or ["nothing yet"]
        if name == pages.selected_task(self.snapshot, self._look):  # it has not changed meanwhile
            self._came(partial(self._show_text, LOG, lines))

    def _ask_for_stacks(self) -> None:
        self._came(partial(self._show_text, STACKS, self._stacks(self._run)))

    def _show_text(self, page: str, lines: Sequence[str]) -> None:
        if self._look.page == page:
            self._text = lines

    def _in_thread(self, name: str, work: Callable[[], None]) -> None:
        """Do work that may take long in a thread, unless the last such work still goes on. Quitting does not wait."""
        if name in self._busy:
            return
        self._busy.add(name)

        def run() -> None:
            try:
                work()
            except GridtfError as error:
                self._came(partial(self._show_error, name, error))
            except Exception as error:
                self._failure = error
                self._came(self.exit)
            finally:
                self._busy.discard(name)

        Thread(target=run, name=f"monitor-{name}", daemon=True).start()

    def _show_error(self, page: str, error: GridtfError) -> None:
        self._show_text(page, str(error).splitlines())

    def _came(self, apply: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the user has quit: the event loop is closed
            self.post_message(Came(apply))

    def _end_by(self, number: int) -> None:
        """End after a signal; at once if the terminal does not take what would restore it, since it is gone."""
        end = Timer(_RESTORED, os._exit, (128 + number,))
        end.daemon = True
        end.start()
        self.exit(128 + number)

    def _draw(self) -> None:
        columns, lines = self._picture.size
        made = pages.screen(self.snapshot, self._look, columns, lines, time.monotonic(), self._text)
        self._extent = made.extent
        shown = made.lines
        if self._ascii:
            shown = tuple(tuple((to_ascii(text), style) for text, style in parts) for parts in shown)
        self._picture.show(shown)


def _changed(old: Line, new: Line) -> tuple[int, int]:
    """The first column in which two lines differ, and the one after the last; all where they do not."""
    before, after = _cells(old), _cells(new)
    differ = [at for at, (one, two) in enumerate(zip_longest(before, after)) if one != two]
    return (differ[0], differ[-1] + 1) if differ else (0, len(after))


def _cells(parts: Line) -> list[tuple[str, str]]:
    """Each column of a line with its style; a wide character counts for the two that it takes."""
    return [(char, style) for text, style in parts for char in text for _ in range(columns(char))]
