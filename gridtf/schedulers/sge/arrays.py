"""Job arrays: which elements ``-t`` asks for, qsub(1). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gridtf.errors import SpecError
from gridtf.schedulers.common import indices


def elements(native: Sequence[str]) -> tuple[str, ...]:
    """``-t 1-7:2`` -> 1 3 5 7; none without such an option. Raises SpecError."""
    text = ""
    for option in native:
        words = option.split()
        text = next((after for word, after in pairwise(words) if word == "-t"), text)
    if not text:
        return ()
    numbers: set[int] = set()
    for part in text.split(","):
        some = indices(part)
        if some is None or some.start == 0:
            raise SpecError(
                "native", f"'-t {text}': {part!r} is no range of tasks of an array", hint="such as -t 1-16, from 1 on"
            )
        numbers.update(some)
    return tuple(str(number) for number in sorted(numbers))
