"""What is known of the code of a job and of the Python it runs with, and that in words."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf.run import recordtypes, registry
from gridtf.run.reading import Reading
from gridtf.run.rundir import RunDir
from gridtf.text import counted

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def code_of(run: RunDir, reading: Reading) -> dict[str, Any] | None:
    """What is known of the code and the Python of a job, as JobView has it; nothing for other users."""
    latest, whole = run.latest(), registry.whole(run)
    known = reading.private(whole.code, recordtypes.Code) or {}
    origin = (reading.private(whole.job, recordtypes.Job) or {}).get("origin", {})
    packages = (reading.private(latest.packages, recordtypes.Packages) if latest else None) or {}
    snapshot = {"snapshot": origin["snapshot"]} if "snapshot" in origin else {}
    pythons = {"pythons": packages["pythons"]} if packages else {}
    return {**known, **snapshot, **pythons} or None


def code_lines(known: Mapping[str, Any]) -> list[str]:
    """The code of a job, and the Python it runs with, a line each. Pure.

    Args:
        known: As in JobView; empty where nothing is known.
    """
    commit = f"{known.get('branch') or 'no branch'} at {(known.get('commit') or 'no commit')[:12]}"
    new = f"{counted(len(known['untracked']), 'file')} untracked" if known.get("untracked") else ""
    lines = [", ".join(filter(None, [commit, "with changes" if known.get("dirty") else "", new]))]
    lines = lines if "commit" in known else [known["unknown"]] if "unknown" in known else []
    if "snapshot" in known:
        lines.append(f"snapshot {known['snapshot']}")
    for name, one in known.get("pythons", {}).items():
        lines.append(f"{name}: {one['python']}, {counted(len(one['packages']), 'package')}")
    return lines
