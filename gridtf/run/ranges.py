"""Between which numbers a value was that a task has reported several times. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence


def of_values(values: Mapping[str, object]) -> dict[str, list[float]]:
    """The ranges of values that were reported once; without those that are no finite numbers."""
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return {name: [value, value] for name, value in numbers.items() if abs(value) <= sys.float_info.max}


def together(*found: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The ranges that contain all of these: name -> the smallest and the largest value."""
    made: dict[str, list[float]] = {}
    for name, (low, high) in (item for ranges in found for item in ranges.items()):
        before = made.setdefault(name, [low, high])
        before[:] = min(before[0], low), max(before[1], high)
    return made
