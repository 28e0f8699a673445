"""Logs of several tasks merged by time, of several attempts, and what happens to logs that change meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gridtf.errors import NotFoundError
from gridtf.observe import logerrors, logs
from gridtf.observe.logs import ALL, Choice
from gridtf.run import jsonlines
from gridtf.run.logparts import note_begins, older
from gridtf.run.rundir import Attempt, RunDir, write_record

NONCE = "n"
HOSTS = {"worker:0": "h0", "worker:1": "h1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    return run


Times = dict[str, list[tuple[float, int]]]


def attempt_of(run: RunDir, times: Times | None = None, *, w0: str | None = None, w1: str | None = None) -> Attempt:
    """A new attempt of two workers whose logs had these lengths at these times."""
    attempt = run.new_attempt()
    tasks = [{"type": "worker", "index": index, "host": f"h{index}"} for index in (0, 1)]
    write_record(attempt.plan, {"nonce": NONCE, "tasks": tasks})
    for name, text in (("w0", w0), ("w1", w1)):
        if text is not None:
            log_of(attempt, name).write_text(text)
    lines = [
        {"task": task, "time": time, "offset": end, "then": []}
        for task, known in (times or {}).items()
        for time, end in known
    ]
    attempt.log_times.write_text(jsonlines.head(NONCE) + "".join(map(jsonlines.line, lines)))
    return attempt


def log_of(attempt: Attempt, name: str) -> Path:
    """The log of ``w0`` or ``w1``."""
    return attempt.task_log("worker", int(name[1:]))


def read(run: RunDir, **choice: object) -> list[str]:
    found = logs.pieces(run, Choice(**choice))  # type: ignore[arg-type]
    return [f"{source.name} {line}" for source, data, _ in found for line in data.decode().splitlines()]


TIMES: Times = {"worker:0": [(10.0, 3), (20.0, 6)], "worker:1": [(15.0, 3), (30.0, 6)]}
W0, W1 = "a1\na2\na3\n", "b1\nb2\n"
MERGED = ["worker:0 a1", "worker:1 b1", "worker:0 a2", "worker:1 b2", "worker:0 a3"]


def test_lines_are_in_the_order_of_their_times_and_unknown_ones_at_the_end(run: RunDir) -> None:
    attempt_of(run, TIMES, w0=W0, w1=W1)
    assert read(run) == MERGED
    assert [source.host for source, *_ in logs.pieces(run, Choice())][:2] == ["h0", "h1"]


def test_lines_without_a_break_at_the_end_have_their_place(run: RunDir) -> None:
    attempt_of(run, {"worker:0": [(10.0, 5)], "worker:1": [(15.0, 3)]}, w0="a1\na2", w1="b1\n")
    assert read(run) == ["worker:0 a1", "worker:0 a2", "worker:1 b1"]


def test_job_script_comes_first_and_its_verdict_last(run: RunDir) -> None:
    attempt = attempt_of(run, TIMES, w0=W0, w1=W1)
    run.log.write_text("gridtf: starts\n")
    assert read(run) == MERGED
    assert read(run, script=True) == ["job gridtf: starts", *MERGED]
    run.log.write_text("gridtf: starts\ngridtf: FAILED: worker:0 on h0: exit code 1\ngridtf: last lines\n")
    write_record(attempt.verdict, {"state": "FAILED"})
    assert read(run, script=True) == [
        "job gridtf: starts",
        *MERGED,
        "job gridtf: FAILED: worker:0 on h0: exit code 1",
        "job gridtf: last lines",
    ]
    attempt.verdict.write_text("[")
    assert read(run, script=True)[-1] == MERGED[-1]


def test_since_leaves_out_what_was_printed_before(run: RunDir) -> None:
    attempt_of(run, TIMES, w0=W0, w1=W1)
    run.log.write_text("gridtf: starts\n")
    os.utime(run.log, (5.0, 5.0))
    assert read(run, since=16.0, script=True) == ["worker:0 a2", "worker:1 b2", "worker:0 a3"]
    assert read(run, since=25.0) == ["worker:1 b2", "worker:0 a3"]
    assert read(run, since=15.0, tail=1) == ["worker:1 b2", "worker:0 a3"]


def test_since_shows_the_whole_line_that_a_known_length_has_cut(run: RunDir) -> None:
    attempt_of(run, {"worker:0": [(10.0, 8), (20.0, 12)]}, w0="first\nsecond\n")
    assert read(run, since=15.0, tasks=("worker:0",)) == ["worker:0 second"]


def test_log_without_times_counts_since_it_was_written_last(run: RunDir) -> None:
    attempt = attempt_of(run, w0=W0, w1=W1)
    os.utime(log_of(attempt, "w0"), (50.0, 50.0))
    os.utime(log_of(attempt, "w1"), (70.0, 70.0))
    assert read(run, since=60.0) == ["worker:1 b1", "worker:1 b2"]


def test_attempts_are_chosen_by_number(run: RunDir) -> None:
    for number in range(1, 4):
        attempt_of(run, w0=f"{number}\n")
    assert read(run) == ["worker:0 3"]
    assert read(run, attempt=2) == ["worker:0 2"]
    every = [" --- attempt 1 ---", "worker:0 1", " --- attempt 2 ---", "worker:0 2", " --- attempt 3 ---", "worker:0 3"]
    assert read(run, attempt=ALL) == every
    assert read(run, attempt=ALL, tail=1) == every
    assert [line for line in read(run, attempt=ALL, tail=0) if "worker" in line] == []
    found = logs.following(run, Choice(attempt=2), lambda: True, lambda _: None)
    assert [data for _, data, _ in found] == [b"2\n", b"--- attempt 3 ---\n", b"3\n"]
    with pytest.raises(NotFoundError, match="no such attempt: 4") as caught:
        read(run, attempt=4)
    assert caught.value.why == "attempts: 1, 2, 3"


def test_agents_are_shown_when_they_are_asked_for(run: RunDir) -> None:
    attempt = attempt_of(run, w0=W0, w1=W1)
    attempt.agents_log.write_text("srun: error\n")
    assert read(run, tasks=("agents",)) == ["agents srun: error"]
    assert read(run) == ["worker:0 a1", "worker:0 a2", "worker:0 a3", "worker:1 b1", "worker:1 b2"]


def test_many_lines_are_merged_as_sorting_would(run: RunDir) -> None:
    even, odd = ("".join(f"{number:>9}\n" for number in range(first, 40_000, 2)) for first in (0, 1))
    times = {
        f"worker:{index}": [(float(number), (number // 2 + 1) * 10) for number in range(index, 40_000, 200)]
        for index in (0, 1)
    }
    attempt_of(run, times, w0=even, w1=odd)
    seen = [int(line.split()[1]) for line in read(run)]
    assert sorted(seen) == list(range(40_000))
    assert [number for number in seen if not number % 2] == list(range(0, 40_000, 2))
    assert max(abs(number - place) for place, number in enumerate(seen)) <= 200


# --- followed


class Script:
    """Plays a job: one step at every sleep, then it has ended."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)

    def sleep(self, seconds: float) -> None:
        self.steps.pop(0)()

    def follow(self, run: RunDir) -> list[str]:
        found = logs.following(run, Choice(), lambda: not self.steps, self.sleep)
        return [line for _, data, _ in found for line in data.decode().splitlines()]


def rotate(log: Path, begin: int, text: str, last: str = "") -> None:
    """Begin a new part at this offset, after a last write to the one before."""
    append(log, last)
    new = log.with_name("new")
    new.write_text(text)
    note_begins(log, {log.stat().st_ino: begin - log.stat().st_size, new.stat().st_ino: begin})
    log.replace(older(log))
    new.replace(log)


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_follow_merges_what_there_is_and_goes_on(run: RunDir) -> None:
    attempt = attempt_of(run, TIMES, w0=W0, w1=W1)
    script = Script(lambda: append(log_of(attempt, "w1"), "b3\n"), lambda: append(log_of(attempt, "w0"), "a4\n"))
    assert script.follow(run) == ["a1", "b1", "a2", "b2", "a3", "b3", "a4"]


def test_follow_survives_rotations_without_losing_or_repeating_lines(run: RunDir) -> None:
    attempt = attempt_of(run, w0="1\n2\n")
    log = log_of(attempt, "w0")
    script = Script(
        lambda: rotate(log, 6, "4\n", last="3\n"),
        lambda: append(log, "5"),
        lambda: rotate(log, 12, "7\n", last="\n6\n"),
        lambda: rotate(log, 14, "8\n"),
    )
    assert script.follow(run) == [str(number) for number in range(1, 9)]


def test_follow_tells_of_lines_that_were_removed_before_it_could_read_them(run: RunDir) -> None:
    attempt = attempt_of(run, w0="1\n")
    log = log_of(attempt, "w0")

    def print_much() -> None:
        for begin, text in ((2, "2\n3\n"), (6, "4\n"), (8, "5\n")):
            rotate(log, begin, text)

    assert Script(print_much).follow(run) == [
        "1",
        "gridtf: 4 bytes are missing here: log_limit has removed them",
        "4",
        "5",
    ]


def test_follow_goes_on_with_a_log_that_was_truncated_or_replaced(run: RunDir) -> None:
    attempt = attempt_of(run, w0="1\n22222\n")
    log = log_of(attempt, "w0")
    script = Script(
        lambda: log.write_text("333\n"),  # it is noticed when a log is shorter
        log.unlink,
        lambda: log.write_text("4\n"),
        lambda: append(log, "5\n"),
    )
    assert script.follow(run) == ["1", "22222", "333", "4", "5"]


def test_binary_rubbish_is_passed_on(run: RunDir) -> None:
    attempt = attempt_of(run, w0="x")
    rubbish = bytes(range(256)) * 2000
    log_of(attempt, "w0").write_bytes(rubbish)
    shown = b"".join(data for _, data, _ in logs.pieces(run, Choice()))
    assert shown.replace(b"\n", b"") == rubbish.replace(b"\r", b"").replace(b"\n", b"")


# --- errors

TRACEBACK = """step 1
Traceback (most recent call last):
  File "train.py", line 41, in main
    fit(labels)
  File "data.py", line 7, in fit
    raise ValueError("bad label 11")
ValueError: bad label 11
2026-11-23 12:00:00 W tensorflow: shutting down
"""


def test_last_error_of_each_task_with_the_first_cause_first(run: RunDir) -> None:
    attempt = attempt_of(run, w0="step 1\nE0000 00:00 cuda_dnn.cc:8] Unable to register cuDNN factory\n", w1=TRACEBACK)
    assert [(source.name, lines) for source, lines in logerrors.errors(run, Choice())] == [
        (
            "worker:1",
            ["ValueError: bad label 11", '  File "data.py", line 7, in fit', '    raise ValueError("bad label 11")'],
        )
    ]
    append(log_of(attempt, "w0"), "some/file.cc:12] Check failed: x\nRuntimeError: lost\x1b[2J\nbye\n")
    cause = {"task": "worker:1", "host": "h1", "exit": 1, "signal": None, "log": "", "tail": []}
    assert [source.name for source, _ in logerrors.errors(run, Choice())] == ["worker:0", "worker:1"]
    write_record(attempt.verdict, {"state": "FAILED", "cause": cause})
    found = logerrors.errors(run, Choice())
    assert [source.name for source, _ in found] == ["worker:1", "worker:0"]
    assert found[1][1] == ["RuntimeError: lost"]


def test_logs_without_an_error_have_none(run: RunDir) -> None:
    attempt_of(run, w0="mirrored 5 errorless terrors\n", w1="")
    assert logerrors.errors(run, Choice()) == []
