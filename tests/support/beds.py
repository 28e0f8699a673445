"""Which of the session's test beds a test uses; tests/cluster/conftest.py brings them up."""

from __future__ import annotations

import pytest

BEDS = ("slurm", "laggy_slurm", "constrained_slurm", "sge", "laggy_sge")


def beds_of(item: pytest.Item) -> list[str]:
    """By their fixtures, asked for by name or as a parameter."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*getattr(item, "fixturenames", ()), *(text for text in parameters if isinstance(text, str))}
    return [bed for bed in BEDS if bed in names]
