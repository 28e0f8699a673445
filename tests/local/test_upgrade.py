"""Jobs of the local scheduler go on while gridtf is replaced by its next version. On clusters: tests/cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster import CHECKOUT
from tests.support.jobs import until
from tests.support.localbed import LocalBed
from tests.support.mpi import need_open_mpi
from tests.support.releases import NEW, OLD, Site, outlive, released, unpack, wheel


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


@pytest.mark.parametrize(
    "options",
    [
        ("--mpi", "--log-limit", "1M"),
        (
            *("--log-limit", "1M", "--container-command", "env", "--stage", "stage.txt", "--host-setup", "umask 077"),
            *("--fence", "hosts", "--on", "true"),
        ),
    ],
    ids=["mpi", "features"],
)
def test_attempt_that_follows_an_upgrade_in_place_starts_its_tasks(
    tmp_path: Path, here: Path, options: tuple[str, ...]
) -> None:
    """What agents that a launcher of the last release forks import is that of the next one."""
    last = released()
    if last is None:
        pytest.skip("the history of this checkout dates no release")
    if "--mpi" in options:
        need_open_mpi()
    site = tmp_path / "site"
    site.mkdir()
    unpack(last[1], site)
    (here / "stage.txt").write_text("staged")
    program = 'echo "attempt $GRIDTF_ATTEMPT"; [ $GRIDTF_ATTEMPT = 2 ] || until [ -e go ]; do sleep 0.05; done; '
    program += "[ $GRIDTF_ATTEMPT = 2 ] || exit 3"
    own = {**os.environ, "PYTHONPATH": str(site)}
    words = ["submit", "--scheduler", "local", "--workers", "2", "--restarts", "1", "--run-dir", str(here / "run")]

    def gridtf(*command: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "gridtf", *command]
        return subprocess.run(argv, cwd=here, env=own, capture_output=True, text=True, timeout=240, check=False)

    submitted = gridtf(*words, *options, "--", "sh", "-c", program)
    assert submitted.returncode == 0, submitted.stderr
    logs = [here / f"run/attempt-1/logs/worker-{index}.log" for index in range(2)]
    until(lambda: all(log.exists() and log.read_text() for log in logs), "all tasks to run", 240)
    shutil.rmtree(site / "gridtf")
    shutil.copytree(CHECKOUT / "gridtf", site / "gridtf")
    (here / "go").touch()
    waited = gridtf("wait", str(here / "run"))
    job_log = (here / "run/job.log").read_text()
    assert "COMPLETED" in waited.stdout, (waited.stdout, waited.stderr, job_log)
    assert [(here / f"run/attempt-2/logs/worker-{index}.log").read_text() for index in range(2)] == ["attempt 2\n"] * 2
