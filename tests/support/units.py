"""Units of work, where scripts/test runs tests side by side: the tests of a file that use the same test bed, if any.

They stay together and in order. Units that take long begin first; how long is known from an earlier whole run.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.beds import beds_of

# Unit -> what each of its tests took in a whole run, on average: seconds; CPU-seconds, with all that it started; those
# of the daemons of its test bed among them. Written by `scripts/test --all --record`.
DURATIONS = Path(__file__).parents[1] / "durations.json"
_GUESS = {"unit": 0.02, "local": 2.0, "faults": 2.0, "cluster": 6.0}  # the same of others, by their folder


class Units:
    """Which unit a test is in, as told by the processes that run the tests: the one that distributes them has none.

    Attributes:
        path: Where they write it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gridtf-units-")
        self.path = Path(self._folder.name, "units.json")
        self._of: dict[str, str] = {}

    def of(self, test: str) -> str:
        """The unit of a test: BED:FILE, or FILE for tests without a bed."""
        if not self._of:
            self._of = json.loads(self.path.read_text(encoding="utf-8"))
        return self._of[test]


def arrange(items: list[pytest.Item], path: str) -> None:
    """Move the units that take longest to the front, and write down the unit of each test."""
    seconds = expected(Counter(map(_unit_of, items)))
    items.sort(key=lambda item: (-seconds[_unit_of(item)], _unit_of(item)))
    new = Path(f"{path}.{os.getpid()}")
    new.write_text(json.dumps({item.nodeid: _unit_of(item) for item in items}), encoding="utf-8")
    new.replace(path)


def expected(counts: Mapping[str, int]) -> dict[str, float]:
    """Unit -> the seconds that it will take.

    Args:
        counts: Unit -> number of its tests.
    """
    known: dict[str, list[float]] = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    return {
        unit: count * (known[unit][0] if unit in known else _GUESS.get(unit.rpartition(":")[2].split("/")[1], 0.5))
        for unit, count in counts.items()
    }


def record(took: Mapping[str, Sequence[float]], counts: Mapping[str, int]) -> None:
    """Write DURATIONS, without units that take little.

    Args:
        took: Unit -> what its tests took.
        counts: Unit -> number of its tests.
    """
    lasting = {unit: [round(one / counts[unit], 2) for one in all] for unit, all in sorted(took.items()) if all[0] >= 2}
    lines = ",\n".join(f" {json.dumps(unit)}: {json.dumps(means)}" for unit, means in lasting.items())
    DURATIONS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def bed_of(unit: str) -> str:
    """The kind of bed that a unit uses; empty: none."""
    return unit.rpartition(":")[0]


def _unit_of(item: pytest.Item) -> str:
    file, beds = str(item.path.relative_to(item.config.rootpath)), beds_of(item)
    return f"{beds[0]}:{file}" if beds else file
