"""Errors of a test bed, in three lines: what, why, what to do."""

from __future__ import annotations

UNAVAILABLE = 69  # exit code where this machine cannot have what a test bed needs, as EX_UNAVAILABLE in sysexits.h


class TestbedError(Exception):
    """An error that the user of a test bed can understand and fix.

    Args:
        what: What is wrong.
        why: The cause; may be empty or have several lines.
        hint: What to do about it; may be empty.
        code: Exit code of scripts/testbed.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", code: int = 1) -> None:
        super().__init__(what)
        self.lines = [line for part in (what, why, hint) if part for line in part.splitlines()]
        self.code = code

    def __str__(self) -> str:
        return "error: " + "\n       ".join(self.lines)
