"""Inside a Grid Engine job: the shepherd of its script is killed, the job is suspended, qrsh is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gridtf import schedulers
from gridtf.errors import GridtfError, SchedulerError
from gridtf.host import procfs
from gridtf.schedulers.sge import client, injob
from gridtf.schedulers.sge.injob import ShepherdWatch
from gridtf.schedulers.sge.query import Row, row_of


@pytest.fixture
def above(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The processes above this one, by pid, nearest first."""
    found = {30: "bash", 20: "sge_shepherd", 10: "sge_execd"}

    def ancestors(pid: int) -> Iterator[int]:
        assert pid == os.getpid()
        return iter(list(found))

    monkeypatch.setattr(injob, "_POLL_INTERVAL", 0.0)
    monkeypatch.setattr(procfs, "ancestors", ancestors)
    monkeypatch.setattr(procfs, "name", lambda pid: found.get(pid, ""))
    return found


@pytest.mark.parametrize("killed", [[20, 10], [30, 20, 10]], ids=["shepherd", "script"])
def test_a_script_without_its_shepherd_is_noticed(above: dict[int, str], killed: list[int]) -> None:
    watch = ShepherdWatch("n1")
    assert watch.poll() is None
    for pid in killed:
        del above[pid]
    end = watch.poll()
    assert end is not None
    assert isinstance(end.error, GridtfError)
    assert "the job script on host n1, or the sge_shepherd that had started it, was killed" in end.error.what


def test_who_runs_below_no_shepherd_misses_none(above: dict[int, str]) -> None:
    del above[20]
    watch = ShepherdWatch("n1")
    above.clear()
    assert watch.poll() is None


def test_a_shell_that_was_told_of_no_job(above: dict[int, str]) -> None:
    assert "qlogin" in schedulers.untold({"HOME": "/home/a"})
    assert schedulers.untold({"JOB_ID": "3", "SGE_TASK_ID": "undefined"}) == ""
    del above[20]
    assert schedulers.untold({}) == ""


@pytest.mark.parametrize("word", ["terminate", "kill"])
def test_at_the_end_nobody_waits_for_it(above: dict[int, str], word: str) -> None:
    watch = ShepherdWatch("n1")
    getattr(watch, word)()
    end = watch.poll()
    assert end is not None
    assert end.error is None


ROWS = [
    Row("7", "r"),
    Row("8", "s"),
    Row("9", "S"),
    Row("10", "T"),
    Row("11", "s", "3"),
    Row("12", "dr"),
    Row("13", "P"),
]


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [("7", False), ("8", True), ("9", True), ("10", True), ("11", False), ("11.3", True), ("12", False), ("13", True)],
)
def test_suspended_as_qstat_says(job_id: str, expected: bool) -> None:
    assert injob.is_suspended(row_of(ROWS, job_id)) == expected


def test_where_nobody_answers_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(*words: object, **more: object) -> None:
        raise SchedulerError("no answer")

    monkeypatch.setattr(client, "query", query)
    assert injob.suspended("7") is None


def test_qrsh_itself_was_killed() -> None:
    end = injob.agent_end("n2", "rr", -signal.SIGKILL, [])
    assert end.error is not None
    assert end.error.what == "qrsh, the connection to host n2, was killed by SIGKILL"
    assert injob.agent_end("n2", "rr", 128 + signal.SIGKILL, []).error is None  # its other half
