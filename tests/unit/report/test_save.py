"""Reports are written as a whole, and over nothing but reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridtf.errors import OutputError, UsageError
from gridtf.report.save import MARK, save

TEXT = f'<!doctype html>\n{MARK}1.0">\n'


def test_report_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    save(path, TEXT)
    save(path, TEXT + "new")
    assert path.read_text() == TEXT + "new"
    assert os.listdir(tmp_path) == ["a.html"]


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import x\n")
    (tmp_path / "link.html").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    for name in ("train.py", "link.html", "fifo"):
        with pytest.raises(UsageError, match="is not a report of gridtf"):
            save(tmp_path / name, TEXT)
    assert (tmp_path / "train.py").read_text() == "import x\n"
    with pytest.raises(UsageError, match="is a folder"):
        save(tmp_path, TEXT)
    with pytest.raises(UsageError, match="is not a regular file"):  # a device even with --force
        save(tmp_path / "fifo", TEXT, force=True)
    assert (tmp_path / "fifo").is_fifo()


def test_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file") as caught:
        save(tmp_path / "none" / "a.html", TEXT)
    assert "--run-dir" not in str(caught.value)


def test_error_while_writing_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.html"
    save(path, TEXT)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError) as caught:
        save(path, TEXT + "new")
    assert caught.value.hint.startswith("free some space")
    assert os.listdir(tmp_path) == ["a.html"]
    assert path.read_text() == TEXT
