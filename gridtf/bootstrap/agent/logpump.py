"""Where agents of 0.1.0 that an upgrade in place has overtaken find what writes their logs. To go after 0.2.0."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from gridtf.wrappers import logcap

FILES = logcap.FILES


class LogPump(logcap.LogPump):
    """With the names that it had."""

    @property
    def pid(self) -> int | None:
        """The id of the process that writes."""
        return next(iter(self.pids), None)

    def output(self, name: str) -> BinaryIO:
        """As opened."""
        return self.opened(name, Path())

    def printed(self, name: str) -> int:
        """As counter."""
        return self.counter(name)()
