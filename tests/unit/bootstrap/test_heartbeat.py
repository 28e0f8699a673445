"""Signs of life: often enough to be believed, seldom enough for the network, and no clock but one's own."""

from __future__ import annotations

import pytest

from gridtf.bootstrap.wire.heartbeat import Watch, backoff, interval
from tests.support.system import FakeSystem


@pytest.fixture
def clock() -> FakeSystem:
    return FakeSystem()


def test_heartbeat_interval_grows_with_hosts_up_to_a_quarter_of_the_timeout() -> None:
    assert interval(1, 30.0) == 2.0
    assert interval(1024, 60.0) == 10.0
    assert interval(1024, 30.0) == 7.5
    for hosts in (1, 2, 16, 64, 200, 1024, 100_000):
        for timeout in (0.1, 1.0, 4.0, 30.0, 600.0):
            assert 0 < interval(hosts, timeout) <= min(10.0, timeout / 4)
            assert interval(hosts, timeout) <= interval(hosts + 1, timeout)


def test_watch_measures_silence_by_its_own_clock(clock: FakeSystem) -> None:
    watch = Watch(30.0, clock)
    clock.clock += 5
    assert watch.silence() == 5  # also before anything was heard
    watch.heard()
    assert watch.silence() == 0
    for second in range(1, 32):
        clock.clock += 1
        assert watch.silence() == second
    assert watch.lost()
    watch.heard()
    assert watch.silence() == 0
    assert not watch.lost()
    clock.clock += 7
    watch.heard()  # also when nobody has looked since
    assert watch.silence() == 0


def test_watch_counts_a_gap_between_two_calls_as_a_third_of_the_limit(clock: FakeSystem) -> None:
    watch = Watch(30.0, clock)
    clock.clock += 8
    assert watch.silence() == 8
    clock.clock += 29  # this process may have been stopped, and the watched one too
    assert watch.silence() == 18
    clock.clock += 1
    assert watch.silence() == 19


def test_watch_begins_anew_after_a_suspension_but_not_with_one_that_was_silent_before(clock: FakeSystem) -> None:
    watch = Watch(8.0, clock)
    clock.clock += 2
    assert watch.silence() == 2
    clock.clock += 26
    assert watch.silence() == 0
    for second in range(1, 5):
        clock.clock += 1
        assert watch.silence() == second
    clock.clock += 26
    assert 6 < watch.silence() < 8
    clock.clock += 2
    assert watch.lost()


def test_watch_with_an_excuse_resets_the_silence(clock: FakeSystem) -> None:
    excuses = [True, False]
    watch = Watch(4.0, clock, lambda: excuses.pop(0))
    lost = []
    for _ in range(10):
        clock.clock += 1
        lost.append(watch.lost())
    assert lost == [False] * 9 + [True]
    assert excuses == []


def test_backoff_is_a_small_part_of_the_wait_and_limits_the_file_server_s_load() -> None:
    waits = [backoff(waited) for waited in (0.0, 0.1, 1.0, 2.0, 600.0)]
    assert waits == [0.005, 0.005, 0.05, 0.1, 0.25]
