"""What can go wrong, in three lines at most: what, why, what to do."""

from __future__ import annotations


class TestbedError(Exception):
    """Something that whoever brings a test bed up can understand and mend."""

    def __init__(self, what: str, *, why: str = "", hint: str = "", code: int = 1) -> None:
        super().__init__(what)
        self.lines = [line for part in (what, why, hint) if part for line in part.splitlines()]
        self.code = code

    def __str__(self) -> str:
        return "error: " + "\n       ".join(self.lines)
