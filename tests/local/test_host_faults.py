"""Every fault of this host and of gridtf's own processes has the right first line; with jobs of the local scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.hosts import OF_HOSTS, OF_JOBS, of_scheduler, wrong_lines
from tests.support.disks import ext4
from tests.support.jobs import until
from tests.support.localbed import LocalBed


def all_right(bed: LocalBed, faults: list[str]) -> None:
    """Have these faults befall jobs; none of their processes is left."""
    chosen = [fault for fault in of_scheduler("local", (*OF_JOBS, *OF_HOSTS)) if fault.name in faults]
    assert len(chosen) == len(faults)
    assert wrong_lines(chosen, bed, "--run-root", str(bed.state)) == {}
    until(lambda: not bed.processes(), "the end of all processes")


def test_first_lines_are_right(here: Path) -> None:
    all_right(LocalBed(here), [fault.name for fault in of_scheduler("local", OF_JOBS)])


@pytest.mark.root
def test_first_line_is_right_where_the_disk_is_full(here: Path, tmp_path: Path) -> None:
    with ext4(tmp_path / "disk.img", here / "disk"):
        all_right(LocalBed(here / "disk"), ["folder-full"])
