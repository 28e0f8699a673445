"""How far a job has come, so that nothing is started again and again that gets no further."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gridtf import contract
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import Record, RunDir
from gridtf.values import Value, as_dict, fields, of_dict

MOST_IDLE = 2  # attempts in a row without progress, after which a job is not started again
_CHECKPOINTS = "checkpoints"  # as gridtf.training.checkpoint names its folder in OUTPUT_DIR
_FINISHED = re.compile(r"step-(\d{1,18})")
_NO_CHECKPOINTS = re.compile(r"events\.out\.tfevents\..*|.*\.log|\..*")  # written by an attempt that gets nowhere, too
_MOST_FILES = 10_000  # of OUTPUT_DIR are looked at; its first levels come first


class Progress(Value):
    """How far a job has come, by all that is known.

    Attributes:
        step: The largest step that a task has reported (gridtf.progress); None where none has reported any.
        checkpoint: The step of the newest finished checkpoint of gridtf.training.checkpoint; None where there is none.
        written: When the newest file in OUTPUT_DIR was written that may be a checkpoint of another kind, by the clock
            of the file system; None where the job has checkpoints of gridtf.training.checkpoint, or no file.
    """

    step: int | None = None
    checkpoint: int | None = None
    written: float | None = None

    def beyond(self, before: Progress) -> bool:
        """Whether the job has come further than before: a larger step, or a newer checkpoint.

        A file says nothing where steps are reported: a program may save the same step again.

        Args:
            before: How far it had come.
        """
        written = self.written if self.step is None else None
        pairs = ((self.step, before.step), (self.checkpoint, before.checkpoint), (written, before.written))
        return any(now is not None and (then is None or now > then) for now, then in pairs)

    def farthest(self, other: Progress) -> Progress:
        """The farthest of both, each of the three by itself."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in fields(Progress))
        return Progress(*(max(filter(_is_known, pair), default=None) for pair in pairs))

    def to_record(self) -> Record:
        """The entries of a record, without what is not known."""
        return {name: value for name, value in as_dict(self).items() if _is_known(value)}

    @classmethod
    def from_record(cls, record: Record) -> Progress:
        """Read what to_record has written."""
        return of_dict(cls, record)


def _is_known(value: float | None) -> bool:
    return value is not None


def output_dir(run: RunDir, spec: JobSpec) -> Path:
    """The folder that the tasks have as OUTPUT_DIR.

    Args:
        spec: The specification of the job, which is run in its working folder.
    """
    return Path.cwd() / spec.env[contract.OUTPUT_DIR] if spec.env.get(contract.OUTPUT_DIR) else run.output


def reached(output: Path, records: Mapping[str, Record]) -> Progress:
    """Determine how far a job has come.

    Args:
        output: Its OUTPUT_DIR, which need not exist.
        records: Task name -> its record, as its host has reported it last.
    """
    steps = [record["progress"]["step"] for record in records.values() if record.get("progress")]
    checkpoint = _newest_checkpoint(output / _CHECKPOINTS)
    written = _newest_file(output) if checkpoint is None else None
    return Progress(max(steps, default=None), checkpoint, written)


def _newest_checkpoint(folder: Path) -> int | None:
    """The largest step of a finished checkpoint in this folder: one that is not finished has another name."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    return max((int(match[1]) for name in names if (match := _FINISHED.fullmatch(name))), default=None)


def _newest_file(output: Path) -> float | None:
    newest, looked = None, 0
    folders = [output]
    while folders and looked < _MOST_FILES:
        with contextlib.suppress(OSError), os.scandir(folders.pop(0)) as entries:
            for entry in entries:
                looked += 1
                if _NO_CHECKPOINTS.fullmatch(entry.name):
                    continue
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        newest = max(newest or 0.0, entry.stat(follow_symlinks=False).st_mtime)
    return newest
