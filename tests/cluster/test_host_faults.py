"""Every fault of hosts, schedulers and gridtf's own processes has the right first line; with submitted jobs."""

from __future__ import annotations

import pytest

from tests.faults.hosts import OF_HOSTS, OF_JOBS, of_scheduler, wrong_lines, wrong_lines_of_hosts
from tests.support.beds import on_every_remote_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import no_process_left

pytestmark = pytest.mark.timeout(1800)  # a round of jobs that do not end (hosts.py) is reported, not cut off


@on_every_remote_scheduler
def test_first_lines_are_right(bed: Bed) -> None:
    assert wrong_lines(of_scheduler(bed.kind, OF_JOBS), bed) == {}
    no_process_left(bed)


@on_every_remote_scheduler
def test_first_lines_are_right_where_a_host_is_lost_or_lacks_something(bed: Bed) -> None:
    assert wrong_lines_of_hosts(of_scheduler(bed.kind, OF_HOSTS), bed) == {}
