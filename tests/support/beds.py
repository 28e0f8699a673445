"""The session's test beds that a test uses; tests/cluster/conftest.py brings them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.cluster import Bed

UP: list[Bed] = []  # the beds that are up in this process
BEDS = (
    *("slurm", "laggy_slurm", "remote_slurm", "constrained_slurm", "two_network_slurm"),
    *("sge", "laggy_sge", "remote_sge", "two_network_sge"),
)

# For tests of all schedulers: the test runs once on each of these beds, passed as its argument ``bed``.
on_every_scheduler = pytest.mark.parametrize("bed", ["slurm", "sge"], indirect=True)
on_every_laggy_scheduler = pytest.mark.parametrize("bed", ["laggy_slurm", "laggy_sge"], indirect=True)
on_every_remote_scheduler = pytest.mark.parametrize("bed", ["remote_slurm", "remote_sge"], indirect=True)


def beds_of(item: pytest.Item) -> list[str]:
    """The beds that a test requests, as fixtures or as parameters."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*getattr(item, "fixturenames", ()), *(text for text in parameters if isinstance(text, str))}
    return [bed for bed in BEDS if bed in names]
