"""Between which numbers a value was that a task has reported several times. Pure."""

from __future__ import annotations

import math

TYPE_CHECKING = False  # a task needs this as well
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Ranges = Mapping[str, Sequence[float]]  # name -> the smallest and the largest value


def of_values(values: Mapping[str, Any]) -> dict[str, list[float]]:
    """The ranges of values that were reported once; without those that are no finite numbers."""
    numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
    return {name: [value, value] for name, value in numbers.items() if math.isfinite(value)}


def together(*found: Ranges) -> dict[str, list[float]]:
    """The ranges that contain all of these."""
    made: dict[str, list[float]] = {}
    for name, (low, high) in (item for ranges in found for item in ranges.items()):
        before = made.setdefault(name, [low, high])
        before[:] = min(before[0], low), max(before[1], high)
    return made
