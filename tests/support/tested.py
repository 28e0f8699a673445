"""Results of the conformance suite, of which scripts/reference.py makes a table in docs/reference.md."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from typing import Any

import gridtf
from tests.support.cluster import CHECKOUT

FOLDER = CHECKOUT / "tests/recorded/tested"
KEYS = {"scheduler", "version", "system", "python", "gridtf", "date", "passed", "failed"}


def check(result: dict[str, Any], *private: str) -> None:
    """It says what has passed, names nobody, and all has."""
    assert result.keys() == KEYS
    assert result["gridtf"] == gridtf.__version__
    assert result["failed"] == []
    assert {"test_live_exit_code_3_is_failed", "test_live_identity_and_allocation_inside_a_job"} <= {*result["passed"]}
    text = json.dumps(result)
    assert [word for word in private if word in text] == []


def record(result: dict[str, Any]) -> None:
    """Keep a result, with the commit, and show it in the reference; what is not committed does not count as tested."""
    git = ["git", "-C", str(CHECKOUT)]
    others = [":!tests/recorded/tested", ":!docs/reference.md", ":!tests/durations.json"]
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", ".", *others], capture_output=True, text=True, check=True
    )
    assert not changed.stdout, f"a result is that of a commit, but there are changes:\n{changed.stdout}"
    head = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    import reference  # of scripts, which is not on the path of all that use this module

    FOLDER.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9.]+", "-", f"{result['scheduler']} {result['version']}".lower()).strip("-")
    text = json.dumps({**result, "commit": head.stdout.strip()}, indent=1)
    (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    page = CHECKOUT / "docs/reference.md"
    with page.open(encoding="utf-8") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)  # the suite may pass on two schedulers at the same time
        page.write_text(reference.page(page.read_text(encoding="utf-8")), encoding="utf-8")
