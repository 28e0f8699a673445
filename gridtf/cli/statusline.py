"""The line at the bottom of a terminal that says how a job stands, below lines that scroll."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from gridtf.cli import output
from gridtf.errors import OutputError
from gridtf.text import cut

if TYPE_CHECKING:
    from types import TracebackType

_CLEAR = b"\r\x1b[2K"  # ECMA-48: EL
_TURNS = "-\\|/"


class BottomLine:
    """A context in which stdout, a terminal, has a line at its bottom."""

    def __init__(self) -> None:
        self._turns = itertools.cycle(_TURNS)
        self._line = b""

    def __enter__(self) -> BottomLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OutputError, BrokenPipeError):  # the terminal may be gone
            output.write(_CLEAR)

    def say(self, text: str) -> None:
        """Change the line.

        Args:
            text: Without control characters; what does not fit is left out.
        """
        columns, _ = output.screen() or (80, 24)  # it may have been resized
        self._line = output.encoded(cut(f"{next(self._turns)} {text}", columns - 1))
        output.write(_CLEAR + self._line)

    def write(self, lines: bytes) -> None:
        """Write lines above it.

        Args:
            lines: Whole lines, without control characters but those of colours.
        """
        output.write(_CLEAR + lines + self._line)
