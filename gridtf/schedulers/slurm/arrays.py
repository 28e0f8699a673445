"""Job arrays: which elements ``--array`` asks for, sbatch(1). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gridtf.errors import SpecError
from gridtf.schedulers.common import indices

_OPTION = re.compile(r"(?:--array[= ]\s*|-a\s*)(\S+)")


def elements(native: Sequence[str]) -> tuple[str, ...]:
    """``--array=0-6:2,9%4`` -> 0 2 4 6 9; none without such an option. Raises SpecError."""
    found = [match for option in native if (match := _OPTION.fullmatch(option.strip()))]
    if not found:
        return ()
    text = found[-1][1].strip("'\"").partition("%")[0]  # %4: so many at a time
    numbers: set[int] = set()
    for part in text.split(","):
        some = indices(part)
        if some is None:
            raise SpecError("native", f"{found[-1][0]!r}: {part!r} is no array index", hint="such as --array=0-15%4")
        numbers.update(some)
    return tuple(str(number) for number in sorted(numbers))
