"""gridtf report on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import recordedruns
from tests.support.disks import fill, small_disk
from tests.support.python import environment


def report(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gridtf", "report", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.root
def test_full_disk_is_a_clear_error_and_leaves_the_old_report(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)
    with small_disk(tmp_path / "disk", "2m") as disk:
        assert report(run.path, "-o", "a.html", cwd=disk).returncode == 0
        before = (disk / "a.html").read_text()
        big = fill(disk)
        for name in ("a.html", "b.html"):
            done = report(run.path, "-o", name, cwd=disk)
            assert done.returncode == 1
            assert done.stderr.startswith(f"gridtf: cannot write {name}: No space left on device\n  free some space")
        assert sorted(os.listdir(disk)) == ["a.html", big.name]
        assert (disk / "a.html").read_text() == before
