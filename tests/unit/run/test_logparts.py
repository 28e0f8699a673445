"""Logs that a log_limit has split into two parts, read as one."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridtf.errors import RunDirError
from gridtf.run import logparts, rundir
from gridtf.run.logparts import LogParts, note_begins, older
from gridtf.run.tail import between, last_lines, tail_start


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def begin_part(log: Path, begin: int, data: bytes) -> None:
    """What the job does: the log becomes the older part, and a new one begins at this offset."""
    new = log.with_name("new")
    new.write_bytes(data)
    if log.exists():
        known = (logparts.begins_of(log) or {}).get(log.stat().st_ino, 0)
        note_begins(log, {log.stat().st_ino: known, new.stat().st_ino: begin})
        log.replace(older(log))
    new.replace(log)


def test_log_that_does_not_exist_is_empty(log: Path) -> None:
    assert LogParts(log).extent() == (0, 0)
    assert LogParts(log).read(0, 10) == (0, b"")
    assert LogParts(log).modified() == 0.0


def test_log_of_one_part_begins_at_0(log: Path) -> None:
    log.write_bytes(b"abc")
    assert LogParts(log).extent() == (0, 3)
    assert LogParts(log).read(1, 10) == (1, b"bc")


def test_two_parts_are_read_as_one(log: Path) -> None:
    begin_part(log, 0, b"0123456789")
    begin_part(log, 10, b"abc\n")
    parts = LogParts(log)
    assert parts.extent() == (0, 14)
    assert parts.read(8, 100) == (8, b"89")
    assert parts.read(10, 100) == (10, b"abc\n")
    assert between(parts, 0, 100) == b"0123456789abc\n"
    assert last_lines(log) == ["0123456789abc"]


def test_bytes_that_are_gone_are_left_out(log: Path) -> None:
    begin_part(log, 0, b"0123456789")
    begin_part(log, 10, b"abcdefghij")
    begin_part(log, 20, b"xyz")
    assert LogParts(log).extent() == (10, 23)
    assert LogParts(log).read(3, 100) == (10, b"abcdefghij")
    older(log).unlink()
    assert LogParts(log).extent() == (20, 23)
    assert LogParts(log).read(3, 100) == (20, b"xyz")


def test_last_lines_may_begin_in_the_older_part(log: Path) -> None:
    begin_part(log, 0, b"".join(b"%d\n" % number for number in range(10)))
    begin_part(log, 20, b"10\n11\n")
    assert last_lines(log) == [str(number) for number in range(12)]
    assert tail_start(LogParts(log), 4) == 16


def test_reader_that_has_opened_a_part_before_it_was_removed_reads_the_new_ones(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_part(log, 0, b"aaaaa")
    begin_part(log, 5, b"bbbbb")
    real = rundir.open_plain
    rotations: Iterator[tuple[int, bytes]] = iter([(10, b"ccccc"), (15, b"ddddd")])

    def slow(path: Path) -> object:
        file = real(path)
        for rotation in rotations:
            begin_part(log, *rotation)
        return file

    monkeypatch.setattr(logparts, "open_plain", slow)
    assert LogParts(log).read(10, 100) == (10, b"ccccc")


def test_log_that_another_program_has_begun_anew_is_read_from_its_beginning(log: Path) -> None:
    log.write_bytes(b"0123456789")
    log.write_bytes(b"ab")
    assert LogParts(log).read(10, 100) == (0, b"ab")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 5}', '{"1": 5', '{"5": "x"}'])
def test_log_with_an_unreadable_record_of_its_parts_has_one_part(text: str, log: Path) -> None:
    log.write_bytes(b"abc")
    log.with_name("worker-0.log.parts").write_text(text)
    assert LogParts(log).read(0, 100) == (0, b"abc")


@pytest.mark.parametrize(("number", "message"), [(errno.EIO, "Input/output error"), (errno.ESTALE, "")])
def test_log_that_cannot_be_read_is_named_unless_it_is_gone(
    number: int, message: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(b"abc")

    class Broken(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(logparts, "open_plain", lambda path: Broken(path))
    if not message:
        assert LogParts(log).read(0, 10) == (0, b"")
        return
    with pytest.raises(RunDirError, match=rf"cannot read .*worker-0\.log: {message}"):
        LogParts(log).read(0, 10)
    assert last_lines(log) == []


def test_log_that_is_no_regular_file_is_refused(log: Path) -> None:
    os.mkfifo(log)
    with pytest.raises(RunDirError, match="not a regular file"):
        LogParts(log).read(0, 100)
