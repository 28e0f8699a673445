"""``gridtf.progress``: how far a task has come, for `gridtf status`. Without TensorFlow."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import SupportsFloat, SupportsInt

from gridtf import contract
from gridtf.errors import GridtfError, UsageError
from gridtf.run import ranges
from gridtf.run.rundir import write_record

_PERIOD = 1.0  # seconds between two writes
_KEPT = 3.0  # seconds for which ranges are written again: the agent of up to 128 hosts reads every two seconds

Number = float | SupportsFloat  # also a scalar of NumPy or TensorFlow


def progress(step: int | SupportsInt, **values: Number) -> None:
    """Report how far this task has come: the step, and values such as the loss. `gridtf status` shows it.

    ::

        gridtf.progress(step, loss=loss, accuracy=accuracy)

    A call takes a few microseconds, so it may follow every step. At most once a second the last report is written, to
    a disk of this host; only then are the values of tensors read, which waits for a GPU. The last report before the
    program exits is written as well, unless a signal ends it. The smallest and the largest value in between are written
    too, those of floats of every report. Outside a gridtf task it does nothing.

    Args:
        step: The number of steps so far.
        values: Plain numbers, or scalars of NumPy or TensorFlow. nan and inf are reported as ``"nan"``, ``"inf"`` and
            ``"-inf"``, which JSON has no numbers for.

    Raises:
        UsageError: The step or a value is no number.
    """
    for name, value in values.items():
        if not hasattr(value, "__float__"):
            raise _no_number(name, value)
    if _reporter.file is None and not _reporter.begin(os.environ):
        return
    _reporter.report(step, values)


def also(name: str, about: Callable[[], Mapping[str, object]]) -> None:
    """Have something written with each report of this process.

    Args:
        name: Its key.
        about: Returns it.
    """
    _reporter.more[name] = about


def finish(step: int) -> None:
    """Write the last report, at the end of the program.

    Args:
        step: The number of steps where the program has reported none.
    """
    if _reporter.file is not None or _reporter.begin(os.environ):
        _reporter.finish(step)


class _Reporter:
    """The reports of this process.

    Attributes:
        file: Where they are written; None before the first one, and outside a gridtf task.
    """

    def __init__(self) -> None:
        self.file: Path | None = None
        self.more: dict[str, Callable[[], Mapping[str, object]]] = {}
        self._step: int | SupportsInt = 0
        self._reported = False
        self._values: Mapping[str, Number] = {}
        self._time = 0.0
        self._written = True
        self._next = 0.0
        self._lately: list[tuple[float, dict[str, list[float]]]] = []  # (until when, the ranges) of the last writes
        self._now: dict[str, list[float]] = {}  # those since then

    def begin(self, environ: Mapping[str, str]) -> bool:
        """Look for the place of the reports. Returns whether there is one."""
        folder, kind, index = (
            environ.get(key) for key in (contract.LOCAL_DIR, contract.TASK_TYPE, contract.TASK_INDEX)
        )
        if not (folder and kind and index):
            return False
        self.file = Path(folder, contract.progress_name(kind, index))
        atexit.register(self.end)
        return True

    def report(self, step: int | SupportsInt, values: Mapping[str, Number]) -> None:
        self._step, self._values, self._written, now = step, values, False, time.monotonic()
        self._reported = True
        for name, value in values.items():
            if isinstance(value, float) and math.isfinite(value):
                both = self._now.setdefault(name, [value, value])
                if not both[0] <= value <= both[1]:
                    both[value > both[0]] = value
        if now >= self._next:
            self._next = now + _PERIOD
            self._write()

    def end(self) -> None:
        """At the end of the program."""
        if not self._written:
            with contextlib.suppress(Exception):  # the training is over, whatever became of the values
                self._write()

    def finish(self, step: int) -> None:
        """Write the last report, with this step where there was none."""
        self._step = self._step if self._reported else step
        self._written = False
        self.end()

    def _write(self) -> None:
        self._written = True
        values = {name: _plain(name, value) for name, value in self._values.items()}
        record = {"step": _whole(self._step), "values": values, "time": time.time()}
        now = time.monotonic()
        self._lately = [*(one for one in self._lately if now - one[0] < _KEPT), (now, self._now)]
        self._now = {}
        record["ranges"] = ranges.together(*(found for _, found in self._lately))
        record.update({name: about() for name, about in self.more.items()})
        if self.file is not None:
            with contextlib.suppress(GridtfError):  # a full disk must not end a training
                write_record(self.file, record, indent=None)


_reporter = _Reporter()


def _plain(name: str, value: Number) -> float | str:
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return "inf" if value > 0 else "-inf"  # type: ignore[operator]
    except (TypeError, ValueError):
        raise _no_number(name, value) from None
    return number if math.isfinite(number) else str(number)


def _whole(step: int | SupportsInt) -> int:
    try:
        return int(step)
    except (TypeError, ValueError, OverflowError):  # None, "a", nan
        raise UsageError(f"gridtf.progress: the step {str(step)[:40]!r} is not a number of steps") from None


def _no_number(name: str, value: object) -> UsageError:
    hint = f"report one number, such as {name}=float(…)"
    return UsageError(f"gridtf.progress: {name} is not a number but {type(value).__name__}", hint=hint)
