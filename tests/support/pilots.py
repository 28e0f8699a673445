"""What `gridtf doctor --conformance` has printed and written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NAME = "gridtf-conformance.json"
# of `gridtf doctor --probe --json` and the conformance suite as well; then those of a pilot
KEYS = {"scheduler", "version", "system", "python", "gridtf", "date", "passed", "failed"}
OWN_KEYS = {"tensorflow", "hosts", "tasks", "gpus", "trials"}


def levels(printed: str) -> dict[str, str]:
    """Row -> ok, warning or failure."""
    return {row: level for level, row in re.findall(r"^(ok|warning|failure) +(\w+)  ", printed, re.MULTILINE)}


def result(folder: Path) -> dict[str, Any]:
    """Take the file that can be sent, which has no text but versions and names of rows."""
    file = folder / NAME
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    assert found.keys() == KEYS | OWN_KEYS
    assert {frozenset(row) for row in found["trials"]} == {frozenset(("name", "outcome", "seconds"))}
    assert {row["name"] for row in found["trials"] if row["outcome"] == "passed"} == {*found["passed"]}
    assert {row["name"] for row in found["trials"] if row["outcome"] == "failed"} == {*found["failed"]}
    return found
