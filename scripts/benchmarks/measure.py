"""What the benchmarks share: a temporary folder that a job may use, medians, and a table."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder that is also the home of whatever runs meanwhile, so that nothing is left elsewhere."""
    kept = {name: os.environ.get(name) for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    with tempfile.TemporaryDirectory(prefix="gridtf-bench-") as folder:
        os.environ.update(dict.fromkeys(kept, folder))
        try:
            yield Path(folder)
        finally:
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def interleaved(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each way in seconds: one uncounted round to warm up, then all ways in turn, again and again."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def table(rows: Sequence[Sequence[object]]) -> None:
    """Columns: the first to the left, the others to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())
