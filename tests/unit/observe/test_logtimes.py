"""The times of lines of logs, from lengths at known times."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.observe.logtimes import UNKNOWN, Known, LogTimes
from gridtf.run import jsonlines
from gridtf.run.rundir import Attempt, RunDir, write_record


def known(*lengths: tuple[float, int]) -> Known:
    made = Known()
    for time, end in lengths:
        made.add(time, end)
    return made


def split(times: Known, data: bytes, at: int = 0) -> list[tuple[float, bytes]]:
    return list(times.split(data, at, UNKNOWN))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], [(UNKNOWN, b"a\nbb\nccc\n")]),
        ([(1.0, 2), (2.0, 5), (3.0, 9)], [(1.0, b"a\n"), (2.0, b"bb\n"), (3.0, b"ccc\n")]),
        ([(1.0, 5), (3.0, 9)], [(1.0, b"a\nbb\n"), (3.0, b"ccc\n")]),
        ([(1.0, 3), (3.0, 9)], [(1.0, b"a\n"), (3.0, b"bb\nccc\n")]),  # a line counts when its end is there
        ([(1.0, 0), (2.0, 5)], [(2.0, b"a\nbb\n"), (UNKNOWN, b"ccc\n")]),
        ([(1.0, 7)], [(1.0, b"a\nbb\n"), (UNKNOWN, b"ccc\n")]),
    ],
)
def test_lines_count_at_the_first_time_at_which_they_were_complete(
    lengths: list[tuple[float, int]], expected: list[tuple[float, bytes]]
) -> None:
    assert split(known(*lengths), b"a\nbb\nccc\n") == expected


def test_lines_in_the_middle_of_a_log_have_their_own_times() -> None:
    times = known((1.0, 100), (2.0, 102), (3.0, 104))
    assert split(times, b"a\nb\n", at=100) == [(2.0, b"a\n"), (3.0, b"b\n")]


def test_carriage_returns_end_lines_and_stay_with_their_newlines() -> None:
    times = known((1.0, 3), (2.0, 7))
    assert split(times, b"1%\r2%\r\n3%\r") == [(1.0, b"1%\r"), (2.0, b"2%\r\n"), (UNKNOWN, b"3%\r")]
    assert split(known((1.0, 2), (2.0, 4)), b"a\r\nb\n") == [(1.0, b"a\r\n"), (UNKNOWN, b"b\n")]


def test_times_never_go_back() -> None:
    times = known((5.0, 10), (3.0, 20), (6.0, 15))
    assert times.before(6.0) == 20
    assert times.before(5.5) == 20
    assert times.before(5.0) == 0


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = RunDir(tmp_path).new_attempt()
    write_record(made.plan, {"nonce": "n", "tasks": []})
    return made


def test_index_is_read_with_its_differences(attempt: Attempt) -> None:
    lines = [
        {"task": "worker:0", "time": 10.0, "offset": 5, "then": [1500, 10, 500, 0]},
        {"task": "worker:1", "time": 20.0, "offset": 0, "then": []},
        {"task": "worker:0", "time": 70.0, "offset": 40, "then": [1000, 2]},
    ]
    attempt.log_times.write_text(jsonlines.head("n") + "".join(map(jsonlines.line, lines)))
    times = LogTimes(attempt).of("worker:0")
    assert [times.before(when) for when in (10.0, 10.1, 11.6, 70.1, 71.1)] == [0, 5, 15, 40, 42]
    assert not LogTimes(attempt).of("worker:2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        jsonlines.head("n") + '{"task": "worker:0", "ti',
        jsonlines.head("other") + jsonlines.line({"task": "worker:0", "time": 1.0, "offset": 5, "then": []}),
        jsonlines.head("n") + jsonlines.line({"task": "worker:0", "time": 1.0, "offset": -5, "then": []}),
        '{"version": 9, "nonce": "n"}\n' + jsonlines.line({"task": "worker:0", "time": 1.0, "offset": 5, "then": []}),
    ],
    ids=["empty", "cut", "stale", "damaged", "newer"],
)
def test_index_that_cannot_be_used_counts_as_absent(text: str, attempt: Attempt) -> None:
    attempt.log_times.write_text(text)
    assert not LogTimes(attempt).of("worker:0")
