"""Files of JSON lines, read as they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.run import jsonlines
from gridtf.run.jsonlines import Lines
from gridtf.run.rundir import Record

KIND = {"time": float, "event": str}
ONE, TWO = {"time": 1.0, "event": "one"}, {"time": 2.0, "event": "two"}


def write(path: Path, *records: Record, nonce: str = "n") -> None:
    path.write_text(jsonlines.head(nonce) + "".join(map(jsonlines.line, records)))


def test_records_come_as_they_are_added(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = Lines(path, KIND, "n")
    assert lines.more() == []
    write(path, ONE)
    assert lines.more() == [ONE]
    assert lines.more() == []
    with path.open("a") as file:
        file.write(jsonlines.line(TWO))
    assert lines.more() == [TWO]


def test_last_line_counts_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, ONE)
    text = jsonlines.line(TWO)
    with path.open("a") as file:
        file.write(text[:9])
    lines = Lines(path, KIND, "n")
    assert lines.more() == [ONE]
    with path.open("a") as file:
        file.write(text[9:])
    assert lines.more() == [TWO]


@pytest.mark.parametrize(
    "damage", [b"{\n", b"\xff\xfe\n", b"[]\n", b'{"time": "x", "event": "one"}\n', b"[" * 9999 + b"\n"]
)
def test_line_that_is_no_such_record_is_left_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "events.jsonl"
    write(path, ONE)
    path.write_bytes(path.read_bytes() + damage + jsonlines.line(TWO).encode())
    assert jsonlines.read(path, KIND, "n") == [ONE, TWO]


def test_file_of_another_attempt_counts_as_absent(tmp_path: Path) -> None:
    write(tmp_path / "x", ONE, nonce="other")
    assert jsonlines.read(tmp_path / "x", KIND, "n") == []
    assert jsonlines.read(tmp_path / "x", KIND) == [ONE]


def test_file_of_a_newer_gridtf_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"version": 2, "nonce": "n"}\n' + jsonlines.line(ONE))
    lines = Lines(tmp_path / "x", KIND, "n")
    assert lines.more() == []
    assert lines.newer
