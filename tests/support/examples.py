"""The accuracies that the examples state."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def names() -> list[str]:
    """The examples with a job file."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/gridtf.toml"))


def stated_accuracy(example: str) -> float:
    """The minimum accuracy that the README of an example states."""
    text = (EXAMPLES / example / "README.md").read_text()
    match = re.search(r"Accuracy on 360 held-out digits: at least (0\.\d+)", text)
    assert match, "the README states no accuracy"
    return float(match[1])
