"""What has happened in a job, and what it has used: the events and samples of all of its attempts, as one chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gridtf.run import recordtypes
from gridtf.run.jsonlines import Lines
from gridtf.run.rundir import Attempt, Record, RunDir, read_private

if TYPE_CHECKING:
    from pathlib import Path

    from gridtf.run.recordtypes import Kind


class Chain:
    """Reads one file of JSON lines of each attempt, oldest attempt first, and again as it grows.

    Args:
        name: The file's name, such as ``events.jsonl``.
        kind: The kind of its records.
    """

    def __init__(self, run: RunDir, name: str, kind: Kind) -> None:
        self._run = run
        self._name = name
        self._kind = kind
        self._files: dict[int, Lines] = {}

    def more(self) -> Iterator[Record]:
        """The records that were added since the last call, each with the number of its ``attempt``.

        Raises:
            RunDirError: They cannot be read.
        """
        for attempt in self._run.attempts():
            if attempt.number not in self._files:
                self._files[attempt.number] = Lines(attempt.path / self._name, self._kind, _nonce(attempt))
            for record in self._files[attempt.number].each():
                yield {**record, "attempt": attempt.number}


def events(run: RunDir) -> Chain:
    """The events of a job."""
    return Chain(run, _file(run, "events"), recordtypes.Event)


def samples(run: RunDir) -> Chain:
    """The samples of a job."""
    return Chain(run, _file(run, "samples"), recordtypes.Sample)


def _file(run: RunDir, which: str) -> str:
    path: Path = getattr(run.attempt(1), which)
    return path.name


def _nonce(attempt: Attempt) -> str | None:
    """The nonce of an attempt; None where this user may not read its plan."""
    plan = read_private(attempt.plan, recordtypes.Outline)
    return plan.get("nonce") if plan else None
