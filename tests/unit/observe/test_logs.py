"""Logs of tasks, read once and followed."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gridtf.errors import NotFoundError, RunDirError
from gridtf.login.job import Job
from gridtf.observe import logs
from gridtf.run import tail
from gridtf.run.rundir import Attempt, RunDir, write_record
from tests.support.topics import fast


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    return run


def planned(run: RunDir, *tasks: str) -> Attempt:
    """A new attempt with these tasks."""
    attempt = run.new_attempt()
    parts = [task.split(":") for task in tasks]
    write_record(attempt.plan, {"tasks": [{"type": kind, "index": int(index)} for kind, index in parts]})
    return attempt


def add(attempt: Attempt, task: str, text: str | bytes) -> None:
    kind, index = task.split(":")
    data = text.encode() if isinstance(text, str) else text
    with attempt.task_log(kind, int(index)).open("ab") as file:
        file.write(data)


def read(run: RunDir, *tasks: str, tail: int | None = None) -> str:
    return "".join(logs.read(run, tasks or None, tail))


# --- read once


def test_lines_of_several_tasks_are_prefixed_and_in_plan_order(run: RunDir) -> None:
    attempt = planned(run, "chief:0", "worker:2", "worker:10", "ps:0")
    add(attempt, "worker:10", "c\n")
    add(attempt, "worker:2", "b1\nb2")
    add(attempt, "chief:0", "a\n")
    assert read(run) == "chief:0 | a\nworker:2 | b1\nworker:2 | b2\nworker:10 | c\n"
    assert read(run, "worker") == "worker:2 | b1\nworker:2 | b2\nworker:10 | c\n"
    assert read(run, "worker:10", "chief:0") == "chief:0 | a\nworker:10 | c\n"
    assert read(run, "worker:2") == "b1\nb2\n"
    assert read(run, "ps:0") == ""


def test_lines_of_a_single_task_have_no_prefix(run: RunDir) -> None:
    add(planned(run, "worker:0"), "worker:0", "a\n")
    assert read(run) == "a\n"


def test_job_script_s_log_is_shown_until_a_task_has_one(run: RunDir) -> None:
    assert read(run) == ""
    run.log.write_text("setting up\n")
    assert read(run) == "setting up\n"
    attempt = planned(run, "worker:0", "worker:1")
    assert read(run) == "setting up\n"
    add(attempt, "worker:1", "a\n")
    assert read(run) == "worker:1 | a\n"
    assert read(run, "job") == "setting up\n"
    assert read(run, "job", "worker:1") == "job | setting up\nworker:1 | a\n"


def test_existing_logs_are_read_without_access_to_the_plan(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = planned(run, "worker:10", "worker:2", "ps:0")
    add(attempt, "worker:10", "c\n")
    add(attempt, "worker:2", "b\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert read(run) == "worker:2 | b\nworker:10 | c\n"
    assert read(run, "worker:10") == "c\n"


def test_logs_of_the_latest_attempt_are_read(run: RunDir) -> None:
    add(planned(run, "worker:0"), "worker:0", "old\n")
    add(planned(run, "worker:0"), "worker:0", "new\n")
    assert read(run) == "new\n"


def test_error_for_an_unknown_task_lists_the_known_ones(run: RunDir) -> None:
    for call in (lambda: read(run, "worker:0"), lambda: follow(run, Script(), ["worker:0"])):
        with pytest.raises(NotFoundError, match="the job has no tasks yet") as caught:
            call()
        assert caught.value.hint == "--task job shows the output of its script"
    planned(run, "chief:0", *(f"worker:{index}" for index in range(40)))
    with pytest.raises(NotFoundError) as caught:
        read(run, "wroker:0")
    assert "wroker:0" in caught.value.what
    assert "chief:0, worker:0" in caught.value.why
    assert len(caught.value.why) < 300
    assert "worker:0" in caught.value.hint
    for missing in ("worker:40", "work", "worker:", "evaluator"):
        with pytest.raises(NotFoundError):
            read(run, missing)


def test_error_for_an_unreadable_log_names_it(run: RunDir) -> None:
    planned(run, "worker:0").task_log("worker", 0).mkdir()
    with pytest.raises(RunDirError, match=r"worker-0\.log"):
        read(run)


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"10%\r50%\r100%\ndone\n", ["10%", "50%", "100%", "done"]),
        (b"\n\n", ["", ""]),
        (b"caf\xc3\xa9 \xff\xfe\nx", ["caf\u00e9 \udcff\udcfe", "x"]),
        (b"a\x0cb\x1cc\xe2\x80\xa8d\n", ["a\x0cb\x1cc\u2028d"]),
        (b"", []),
    ],
)
def test_bytes_of_logs_are_split_into_lines(raw: bytes, lines: list[str], run: RunDir) -> None:
    add(planned(run, "worker:0"), "worker:0", raw)
    expected = [f"{line}\n" for line in lines]
    assert list(logs.read(run)) == expected
    assert list(logs.read(run, tail=100)) == expected
    assert list(logs.follow(run, None, lambda: True, no_sleep)) == expected


@pytest.mark.parametrize("width", [1, 300])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "partial"])
def test_tail_returns_the_last_lines(width: int, end: str, last: str, run: RunDir) -> None:
    lines = [f"{number:0{width}}" for number in range(1000 - bool(last))]
    add(planned(run, "worker:0"), "worker:0", "".join(line + end for line in lines) + last)
    lines += [last] if last else []
    for count in (0, 1, 2, 3, 999, 1000, 1001):
        expected = lines[len(lines) - min(count, len(lines)) :]
        assert read(run, tail=count).splitlines() == expected, count


# --- followed


def no_sleep(seconds: float) -> None:
    raise AssertionError("slept although the job has ended")


class Script:
    """Plays a job: one step at every sleep, then it has ended."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.slept: list[float] = []

    def ended(self) -> bool:
        return not self.steps

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.steps.pop(0)()


def follow(run: RunDir, script: Script, tasks: Sequence[str] | None = None, tail: int | None = None) -> list[str]:
    return [line.rstrip("\n") for line in logs.follow(run, tasks, script.ended, script.sleep, tail)]


def test_follow_yields_every_added_line_once(run: RunDir) -> None:
    attempt = planned(run, "worker:0", "worker:1")
    add(attempt, "worker:0", "a1\n")
    script = Script(
        lambda: add(attempt, "worker:1", "b1\nb2\n"),
        lambda: None,
        lambda: add(attempt, "worker:0", "a2\na3\n"),
        lambda: add(attempt, "worker:1", "b3"),
    )
    expected = ["worker:0 | a1", "worker:1 | b1", "worker:1 | b2", "worker:0 | a2", "worker:0 | a3", "worker:1 | b3"]
    assert follow(run, script) == expected
    assert len(script.slept) == 4
    assert max(script.slept) <= 1.0


def test_follow_finds_new_logs_without_access_to_the_plan(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    attempt = planned(run, "worker:0", "worker:1")
    add(attempt, "worker:0", "a\n")
    assert follow(run, Script(lambda: add(attempt, "worker:1", "b\n"), lambda: None)) == ["a", "worker:1 | b"]
    add(attempt, "worker:0", "c\n")
    script = Script(lambda: None, lambda: add(attempt, "worker:2", "d\n"), lambda: None)
    assert follow(run, script, ["worker:2"]) == ["d"]


def test_host_of_a_log_is_told_once_it_is_known(run: RunDir) -> None:
    attempt = planned(run, "worker:0")
    attempt.plan.write_text("")  # as a slow shared folder may show it
    add(attempt, "worker:0", "a\n")
    chosen = logs.Chosen(run, logs.Choice())
    chosen.enter(attempt)
    assert [(source.host, data) for source, data, _ in chosen.more(over=False)] == [("", b"a\n")]
    write_record(attempt.plan, {"tasks": [{"type": "worker", "index": 0, "host": "n1"}]})
    add(attempt, "worker:0", "b\n")
    assert [(source.host, data) for source, data, _ in chosen.more(over=False)] == [("n1", b"b\n")]


def test_line_written_in_pieces_is_one_line(run: RunDir) -> None:
    attempt = planned(run, "worker:0")
    pieces = [b"caf\xc3", b"\xa9 1", b" 2\r", b"\nnext\r", b"50%\r100%", b"\n"]
    script = Script(*(lambda piece=piece: add(attempt, "worker:0", piece) for piece in pieces))
    assert follow(run, script) == ["caf\u00e9 1 2", "next", "50%", "100%"]


def test_long_line_without_a_line_break_is_passed_on(run: RunDir) -> None:
    attempt = planned(run, "worker:0")
    add(attempt, "worker:0", "x" * 70_000)
    seen: list[int] = []
    lines = logs.follow(run, None, lambda: bool(seen), lambda seconds: None)
    seen.append(len(next(lines)))
    assert seen == [70_001]
    assert list(lines) == []


def test_several_chunks_are_read_without_a_pause(run: RunDir) -> None:
    attempt = planned(run, "worker:0")
    add(attempt, "worker:0", "".join(f"{number:099}\n" for number in range(30_000)))
    script = Script()
    assert [int(line) for line in follow(run, script)] == list(range(30_000))


def test_follow_shows_the_job_script_s_log_until_tasks_have_logs(run: RunDir) -> None:
    attempts: list[Attempt] = []
    script = Script(
        lambda: run.log.write_text("setting up\n"),
        lambda: attempts.append(planned(run, "worker:0", "worker:1")),
        lambda: run.log.write_text("setting up\nwaiting\n"),
        lambda: add(attempts[0], "worker:1", "b\n"),
        lambda: run.log.write_text("setting up\nwaiting\nverdict\n"),
    )
    assert follow(run, script) == ["setting up", "waiting", "worker:1 | b"]


def test_a_job_that_fails_before_any_task_shows_its_script_s_log(run: RunDir) -> None:
    script = Script(lambda: run.log.write_text("module: command not found\nlast"))
    assert follow(run, script) == ["module: command not found", "last"]


def test_new_attempt_is_announced_after_the_rest_of_the_old_one(run: RunDir) -> None:
    first = planned(run, "worker:0", "worker:1")
    add(first, "worker:0", "a")

    def again() -> None:
        add(first, "worker:0", "b")
        add(planned(run, "worker:0", "worker:1"), "worker:0", "c\n")

    assert follow(run, Script(again)) == ["worker:0 | ab", "--- attempt 2 ---", "worker:0 | c"]


def test_follow_begins_with_the_tail_and_continues_from_there(run: RunDir) -> None:
    attempt = planned(run, "worker:0", "worker:1")
    add(attempt, "worker:0", "1\n2\n3\n")
    script = Script(lambda: add(attempt, "worker:0", "4\n"), lambda: add(attempt, "worker:1", "5\n6\n7\n"))
    expected = ["worker:0 | 2", "worker:0 | 3", "worker:0 | 4", "worker:1 | 5", "worker:1 | 6", "worker:1 | 7"]
    assert follow(run, script, tail=2) == expected


def test_follow_waits_for_a_plan_before_it_refuses_a_task(run: RunDir) -> None:
    attempts: list[Attempt] = []
    steps = (
        lambda: attempts.append(planned(run, "worker:0", "worker:1")),
        lambda: add(attempts[0], "worker:0", "a\n"),
        lambda: add(attempts[0], "worker:1", "b\n"),
    )
    assert follow(run, Script(*steps), ["worker:1"]) == ["b"]
    with pytest.raises(NotFoundError):
        follow(run, Script(), ["worker:2"])


def test_many_logs_are_followed_with_few_file_descriptors(run: RunDir) -> None:
    names = [f"worker:{index}" for index in range(200)]
    attempt = planned(run, *names)
    for name in names:
        add(attempt, name, "x\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        assert len(follow(run, Script())) == 200
        assert len(list(logs.read(run))) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_job_logs_replaces_bytes_that_are_not_utf_8(run: RunDir) -> None:
    add(planned(run, "worker:0"), "worker:0", b"caf\xc3\xa9 \xff\n")
    assert Job(run.path).logs() == "caf\u00e9 \ufffd\n"


@pytest.mark.parametrize("text", [b"", b"\na\n"])
def test_tail_of_a_huge_log_without_line_breaks_is_short_and_takes_no_memory(text: bytes, run: RunDir) -> None:
    add(planned(run, "worker:0"), "worker:0", b"a\n")
    with run.attempt(1).task_log("worker", 0).open("r+b") as file:
        file.truncate(1 << 33)  # a sparse file of 8 GiB
        file.seek(0, os.SEEK_END)
        file.write(text)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, limit[1]))
    try:
        lines = list(logs.read(run, tail=3))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert lines[1:] == (["a\n"] if text else [])
    assert 0 < sum(map(len, lines)) <= 3 * (1 << 16) + 4


@pytest.mark.thorough
@pytest.mark.parametrize("seed", fast(1, *range(9)))
def test_tail_equals_the_end_of_the_whole_log_at_any_block_boundary(
    seed: int, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_BLOCK", 7)
    chosen = random.Random(seed)
    for _ in range(20):
        text = "".join(chosen.choices(["a", "bc", "\n", "\r", "\r\n"], k=chosen.randrange(30)))
        add(planned(run, "worker:0"), "worker:0", text)
        whole = list(logs.read(run))
        for count in range(12):
            assert list(logs.read(run, tail=count)) == whole[len(whole) - min(count, len(whole)) :], ascii(text)
