"""The line at the bottom of a terminal that says how a job stands, below lines that scroll. Made by Rich."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from gridtf.text import cut

if TYPE_CHECKING:
    from types import TracebackType


class BottomLine:
    """A context in which stdout, a terminal, has a line at its bottom."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._spinner = Spinner("line")
        self._live = Live(
            self._spinner,
            console=self._console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> BottomLine:
        self._live.start()
        self._console.show_cursor(True)  # which a command that is killed could not do any more
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Change the line.

        Args:
            text: Without control characters; what does not fit is left out.
        """
        self._spinner.update(text=cut(text, self._console.width - len("- ")))

    def write(self, text: str) -> None:
        """Write lines above it.

        Args:
            text: Whole lines, without control characters but those of colours.
        """
        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)
