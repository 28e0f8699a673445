"""Common code of the benchmarks: a temporary folder for jobs, medians, and a table."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, also the home folder of programs started meanwhile, so that no file is left elsewhere."""
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
    """Way -> median in seconds: a first round to warm up is not counted, and each round runs all ways in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def table(rows: Sequence[Sequence[object]]) -> None:
    """Print a table with the first column aligned to the left, the others to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())
