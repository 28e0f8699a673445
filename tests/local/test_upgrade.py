"""Jobs of the local scheduler go on while gridtf is replaced by its next version. On clusters: tests/cluster."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.localbed import LocalBed
from tests.support.releases import NEW, OLD, Site, outlive, wheel


@pytest.mark.parametrize("gone", ["gridtf", "gridtf/bootstrap"], ids=["all", "the launcher"])
def test_job_starts_while_the_files_are_replaced(tmp_path: Path, here: Path, gone: str) -> None:
    built = wheel(OLD, tmp_path / "wheels")
    site = Site(LocalBed(tmp_path), str(tmp_path / "apps"))
    (tmp_path / "apps").mkdir()
    site.install(str(built), OLD)
    site.choose(OLD)
    script = here / "job.sh"
    script.write_text(site.gridtf("render", "--run-dir", str(here / "run"), "--", "true").stdout)
    (files,) = (tmp_path / "apps" / OLD).glob("lib/python3.*/site-packages")
    (files / gone).rename(files / "aside")
    own = {**os.environ, "PYTHONPATH": ""}  # not that of the checkout
    pipe = subprocess.PIPE
    with subprocess.Popen(["bash", script], env=own, stdout=pipe, stderr=subprocess.STDOUT, text=True) as job:
        time.sleep(3)  # pip takes less
        assert job.poll() is None
        (files / "aside").rename(files / gone)
        said, _ = job.communicate(timeout=240)
    assert job.returncode == 0, said


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "in-place"])
def test_jobs_outlive_an_upgrade(tmp_path: Path, here: Path, beside: bool) -> None:
    for version in (OLD, NEW):
        wheel(version, tmp_path / "wheels")
    site = Site(LocalBed(tmp_path), str(tmp_path / "apps"))
    (tmp_path / "apps").mkdir()
    outlive(site, tmp_path / "wheels", here, str(here), beside=beside)
