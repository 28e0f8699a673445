"""Jobs of the local scheduler go on while gridtf is replaced by its next version. On clusters: tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.localbed import LocalBed
from tests.support.releases import NEW, OLD, Site, outlive, wheel


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "in-place"])
def test_jobs_outlive_an_upgrade(tmp_path: Path, here: Path, beside: bool) -> None:
    for version in (OLD, NEW):
        wheel(version, tmp_path / "wheels")
    site = Site(LocalBed(tmp_path), str(tmp_path / "apps"))
    (tmp_path / "apps").mkdir()
    outlive(site, tmp_path / "wheels", here, str(here), beside=beside)
