"""Job arrays: their elements, and the status of the whole. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from gridtf.errors import SpecError
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState

_MOST_ELEMENTS = 4_000_001  # the largest MaxArraySize that Slurm accepts; Grid Engine's arrays are smaller
_INDICES = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
# The worst state of its parts is the state of a job.
WORST_FIRST = (
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.UNKNOWN,
    JobState.COMPLETED,
)


def indices(text: str) -> range | None:
    """Parse elements of a job array as schedulers write them, ``3``, ``0-6`` or ``0-6:2``; None for other text."""
    match = _INDICES.fullmatch(text)
    if match is None:
        return None
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low or high - low > _MOST_ELEMENTS or step < 1:
        return None
    return range(low, high + 1, step)


def array_elements(text: str, option: str, hint: str, *, least: int = 0) -> tuple[str, ...]:
    """Parse a list of array elements such as ``0-6:2,9``.

    Args:
        text: The list.
        option: The raw option that has it, for messages.
        hint: How to write it.
        least: Lowest index that the scheduler accepts.

    Returns:
        The elements in numerical order, each once.

    Raises:
        SpecError: For a part that is not an index or a range.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        span = indices(part)
        if span is None or span.start < least:
            raise SpecError("native", f"{option}: {part!r} is not an array index or a range", hint=hint)
        numbers.update(span)
    return tuple(str(number) for number in sorted(numbers))


def array_status(parts: Iterable[tuple[JobStatus, int]], known: str, *, always: bool = False) -> JobStatus:
    """Combine the status of an array's elements: RUNNING if one runs, PENDING if one is pending, else the worst state.

    Args:
        parts: (status, number of elements that have it).
        known: A phrase that limits which elements are counted, such as ``that Slurm still knows``, for the reason of an
            array that has ended.
        always: Put the phrase into the reason of an array that has not ended, too.

    Returns:
        The array's status; its reason has the number of elements by state.
    """
    parts = list(parts)
    counts: Counter[JobState] = Counter()
    for status, count in parts:
        counts[status.state] += count
    in_order = [JobState.RUNNING, JobState.PENDING, *WORST_FIRST]
    words = ", ".join(f"{counts[state]} {state}" for state in in_order if counts[state])
    worst = next(state for state in in_order if counts[state])
    why = next((status.reason for status, _ in parts if status.state == worst and status.reason), "")
    live = counts[JobState.RUNNING] or counts[JobState.PENDING]
    which = f" {known}" if always or not live else ""
    starts = [status.expected for status, _ in parts if status.expected is not None]
    first = min(starts, default=None) if worst == JobState.PENDING else None
    return JobStatus(worst, f"elements of the array{which}: {words}" + (f" ({why})" if why else ""), expected=first)
