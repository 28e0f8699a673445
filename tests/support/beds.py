"""The session's test beds that a test uses; tests/cluster/conftest.py brings them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.versions import version_of

if TYPE_CHECKING:
    from tests.support.cluster import Bed

UP: list[Bed] = []  # the beds that are up in this process
# Fixture -> options of its bed.
BEDS: dict[str, dict[str, object]] = {
    "slurm": {},
    "laggy_slurm": {"shared": "laggy"},  # hosts cache the shared folder
    # hosts reach it over their links; given up is a host that is not reached after 45 s (at most sites it is 300 s)
    "remote_slurm": {"shared": "remote", "options": ["SlurmdTimeout=45"]},
    # a strict site: control groups limit a job to its own devices and the memory that it requests, and srun ends tasks
    # one second after the first task has ended
    "constrained_slurm": {"cgroups": True, "options": ["WaitTime=1"]},
    # srun listens on ports that no task has
    "two_network_slurm": {"second_network": True, "options": ["SrunPortRange=61001-62000"]},
    # a site that has grown: models of GPUs are types on some hosts, and features of others
    "models_slurm": {
        "options": [
            *("n1.Gres=gpu:a100:4", "n1.Feature=ib", "n2.Gres=gpu:a100:2,gpu:1g.10gb:2"),
            *("n3.Feature=v100,ib", "n4.Feature=v100", "Licenses=tensor:4"),
        ],
    },
    "accounting_slurm": {"accounting": True, "options": ["MinJobAge=2", "AccountingStorageEnforce=associations"]},
    "sge": {},
    "laggy_sge": {"shared": "laggy"},
    "remote_sge": {"shared": "remote"},
    "two_network_sge": {"second_network": True},
    "other_sge": {},  # installed elsewhere than Debian's
}

# For tests of all schedulers: the test runs once on each of these beds, passed as its argument ``bed``.
on_every_scheduler = pytest.mark.parametrize("bed", ["slurm", "sge"], indirect=True)
on_every_laggy_scheduler = pytest.mark.parametrize("bed", ["laggy_slurm", "laggy_sge"], indirect=True)
on_every_remote_scheduler = pytest.mark.parametrize("bed", ["remote_slurm", "remote_sge"], indirect=True)


def beds_of(item: pytest.Item) -> list[str]:
    """The beds that a test requests, as fixtures or as parameters; of another version of Slurm: slurm-24.11."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*getattr(item, "fixturenames", ()), *(text for text in parameters if isinstance(text, str))}
    return [of_version(bed, item) for bed in BEDS if bed in names]


def of_version(bed: str, item: pytest.Item) -> str:
    version = version_of(item)
    return f"{bed}-{version}" if version and "slurm" in bed else bed
