"""What the examples state: an accuracy, or their output."""

from __future__ import annotations

import json
import re
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def names() -> list[str]:
    """The examples with the job file of one job; that of a sweep has several."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/gridtf.toml") if "[sweep]" not in path.read_text())


def stated_accuracy(example: str) -> float:
    """The minimum accuracy that the README of an example states."""
    text = (EXAMPLES / example / "README.md").read_text()
    match = re.search(r"Accuracy on 360 held-out digits: at least (0\.\d+)", text)
    assert match, "the README states no accuracy"
    return float(match[1])


def stated_output(example: str) -> str:
    """The last line of the output that the README of an example states; empty where it states an accuracy."""
    text = (EXAMPLES / example / "README.md").read_text()
    match = re.search(r"^Expected output.*:\n\n((?: {4}.*\n)+)", text, re.MULTILINE)
    return match[1].splitlines()[-1].strip() if match else ""


def reached(example: str, folder: Path, output: str) -> str:
    """Check that an example has reached what its README states.

    Args:
        example: Its name.
        folder: OUTPUT_DIR.
        output: What its tasks have printed.

    Returns:
        The line of the output with the result.
    """
    line = stated_output(example)
    if not line:
        accuracy = json.loads((folder / "result.json").read_text())["accuracy"]
        assert stated_accuracy(example) <= accuracy <= 1, output
        line = f"accuracy on 360 held-out digits: {accuracy:.3f}"
    assert line in output, output
    return line
