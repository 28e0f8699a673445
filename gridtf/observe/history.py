"""What has happened in a job, and what it has used: the events and samples of all of its attempts, as one chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gridtf.errors import RunDirError
from gridtf.run import recordtypes
from gridtf.run.jsonlines import Lines
from gridtf.run.reading import Reading, known
from gridtf.run.rundir import Attempt, Record, RunDir, damaged

if TYPE_CHECKING:
    from pathlib import Path

    from gridtf.run.recordtypes import Kind


class Chain:
    """Reads one file of JSON lines of each attempt, oldest attempt first, and again as it grows.

    Args:
        name: The file's name, such as ``events.jsonl``.
        kind: The kind of its records.
        reading: Takes note of files that are damaged; None: it is an error when one cannot be read.
    """

    def __init__(self, run: RunDir, name: str, kind: Kind, reading: Reading | None = None) -> None:
        self._run = run
        self._name = name
        self._kind = kind
        self._reading = reading
        self._files: dict[int, Lines] = {}

    def more(self) -> Iterator[Record]:
        """The records that were added since the last call, each with the number of its ``attempt``.

        Raises:
            RunDirError: They cannot be read.
        """
        for attempt in self._run.attempts():
            if attempt.number not in self._files:
                self._files[attempt.number] = Lines(attempt.path / self._name, self._kind, _nonce(attempt))
            lines = self._files[attempt.number]
            try:
                for record in lines.each():
                    yield {**record, "attempt": attempt.number}
            except RunDirError as error:
                if self._reading is None:
                    raise
                self._reading.note(lines.path, error)
            if self._reading and lines.damaged:
                self._reading.note(lines.path, damaged(lines.path, "some of its lines are left out"))


def events(run: RunDir, reading: Reading | None = None) -> Chain:
    """The events of a job. reading: as for Chain."""
    return Chain(run, _file(run, "events"), recordtypes.Event, reading)


def samples(run: RunDir, reading: Reading | None = None) -> Chain:
    """The samples of a job. reading: as for Chain."""
    return Chain(run, _file(run, "samples"), recordtypes.Sample, reading)


def _file(run: RunDir, which: str) -> str:
    path: Path = getattr(run.attempt(1), which)
    return path.name


def _nonce(attempt: Attempt) -> str | None:
    """The nonce of an attempt; None where this user may not read its plan."""
    return known(attempt.plan, recordtypes.Outline).get("nonce")
