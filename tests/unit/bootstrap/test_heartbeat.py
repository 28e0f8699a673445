"""Signs of life: often enough to be believed, seldom enough for the file server, and no clock but one's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gridtf.bootstrap import heartbeat
from gridtf.bootstrap.heartbeat import Heartbeat, Watch, backoff, interval
from gridtf.errors import RunDirError
from gridtf.run import rundir
from gridtf.run.rundir import cannot, read_record
from tests.support.system import FakeSystem


@pytest.fixture
def clock() -> FakeSystem:
    return FakeSystem()


def test_heartbeat_interval_grows_with_hosts_up_to_a_quarter_of_the_timeout() -> None:
    assert interval(1, 30.0) == 1.0
    assert interval(1024, 60.0) == 10.0
    assert interval(1024, 30.0) == 7.5
    for hosts in (1, 2, 16, 64, 200, 1024, 100_000):
        for timeout in (0.1, 1.0, 4.0, 30.0, 600.0):
            assert 0 < interval(hosts, timeout) <= min(10.0, timeout / 4)
            assert interval(hosts, timeout) <= interval(hosts + 1, timeout)


def test_heartbeat_record_has_counter_and_time(tmp_path: Path, clock: FakeSystem) -> None:
    beats = Heartbeat(tmp_path / "b.json", lambda: {"nonce": "n", "tasks": {}}, 1, 30.0, clock)
    assert beats.beat()
    assert read_record(tmp_path / "b.json") == {"nonce": "n", "tasks": {}, "beat": 1, "time": 5000.0}
    clock.clock, clock.wall = 1000.5, 4000.0  # the host's clock was set back: no matter
    assert not beats.beat()
    assert (read_record(tmp_path / "b.json") or {})["beat"] == 1
    assert beats.beat(now=True)
    assert (read_record(tmp_path / "b.json") or {})["beat"] == 2
    clock.clock = 1001.2
    assert not beats.beat()  # the interval begins anew with every beat
    clock.clock = 1001.6
    assert beats.beat()
    assert (read_record(tmp_path / "b.json") or {})["beat"] == 3


def test_heartbeat_record_is_built_only_when_written(tmp_path: Path, clock: FakeSystem) -> None:
    made: list[int] = []

    def record() -> dict[str, object]:
        made.append(1)
        return {}

    beats = Heartbeat(tmp_path / "b.json", record, 1, 30.0, clock)
    for _ in range(5):
        beats.beat()
    assert len(made) == 1


def test_heartbeat_works_again_after_a_write_error(tmp_path: Path, clock: FakeSystem) -> None:
    beats = Heartbeat(tmp_path / "later" / "b.json", dict, 1, 30.0, clock)
    with pytest.raises(RunDirError):
        beats.beat()
    (tmp_path / "later").mkdir()
    clock.clock += 1.0
    assert beats.beat()


def refusing(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """From now on nothing can be written, for this reason, until the list is cleared."""
    refusals = [number]

    def write(path: Path, record: object, **how: object) -> None:
        if refusals:
            raise cannot("write", path, OSError(refusals[0], os.strerror(refusals[0])))
        rundir.write_record(path, record, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(heartbeat, "write_record", write)
    return refusals


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_patience_tolerates_temporary_errors_for_three_quarters_of_the_timeout(
    number: int, tmp_path: Path, clock: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = Heartbeat(tmp_path / "b.json", dict, 1, 30.0, clock)
    refusals = refusing(monkeypatch, number)
    for _ in range(20):
        assert not beats.beat()
        clock.clock += 1
    assert beats.trouble is not None
    assert [line.endswith("trying again for 22.5 s") for line in clock.logged] == [True]
    refusals.clear()
    assert beats.beat()
    assert not beats.trouble
    refusals.append(number)
    clock.clock += 1
    for _ in range(23):
        assert not beats.beat()
        clock.clock += 1
    with pytest.raises(RunDirError, match=os.strerror(number)):
        beats.beat()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT])
def test_patience_raises_permanent_errors_at_once(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, number)
    with pytest.raises(RunDirError, match=os.strerror(number)):
        Heartbeat(tmp_path / "b.json", dict, 1, 30.0, FakeSystem()).beat()


def test_watch_measures_silence_by_its_own_clock(clock: FakeSystem) -> None:
    watch = Watch(30.0, clock)
    clock.clock += 5
    assert watch.silence() == 5  # also before anything was heard
    watch.heard(None)
    assert watch.silence() == 5
    watch.heard(1)
    assert watch.silence() == 0
    for second in range(1, 32):
        clock.clock += 1
        watch.heard(1)  # the same beat again is no sign of life
        assert watch.silence() == second
    assert watch.lost()
    watch.heard(2)
    assert watch.silence() == 0
    clock.clock += 1
    watch.heard(1)  # a counter that is another one is heard, also when it began anew
    assert watch.silence() == 0


def test_watch_counts_a_gap_between_two_calls_as_a_third_of_the_limit(clock: FakeSystem) -> None:
    watch = Watch(30.0, clock)
    clock.clock += 8
    assert watch.silence() == 8
    clock.clock += 3600  # this process was stopped, and perhaps the watched one too
    assert watch.silence() == 18
    clock.clock += 1
    assert watch.silence() == 19


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
    for waited in (0.0, 0.1, 1.0, 600.0):
        assert backoff(waited) <= max(0.005, waited / 20)
        assert backoff(waited) <= backoff(waited, 1024) == 0.25
    assert 64 / backoff(0.0, 64) <= 1000
