"""gridtf monitor: where it refuses, and --once."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from tests.support import recordedruns


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return recordedruns.make(tmp_path / "digits", minutes=2.0, state="FAILED").path


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """All standard streams are a terminal."""
    monkeypatch.setattr("gridtf.cli.monitor._on_terminal", lambda: True)
    monkeypatch.setattr("gridtf.cli.output.on_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def test_once_prints_all_as_text(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert main(["monitor", str(run), "--once"]) == 0
    text = capsys.readouterr().out
    assert "FAILED after 2 min 1 s" in text
    assert "worker:3" in text
    assert "loss (1 of 2 values) of worker:0" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("name", "value"), [("LC_ALL", "C"), ("LC_CTYPE", "POSIX"), ("LANG", "de_DE")])
def test_once_is_ascii_where_the_locale_has_no_utf_8(
    name: str, value: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    assert main(["monitor", str(run), "--once"]) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    assert "***" in text


def test_once_does_not_need_textual(run: Path, without_textual: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", str(run), "--once"]) == 0
    assert "worker:3" in capsys.readouterr().out


def test_once_names_damaged_records(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "attempt-1" / "plan.json").write_text('{"tasks": 3}')
    assert main(["monitor", str(run), "--once"]) == 0
    assert "\ndamaged, so that what they say is missing here: attempt-1/plan.json\n" in capsys.readouterr().out


@pytest.fixture
def without_textual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual is not installed."""
    real = builtins.__import__

    def refused(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "textual" or name == "gridtf.monitor.app":
            raise ModuleNotFoundError("No module named 'textual'")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refused)


def test_without_textual_it_says_what_to_install(
    run: Path, terminal: None, without_textual: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", str(run)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "pip install textual" in lines[0]
    assert f"gridtf status {run} --watch" in lines[-1]
    assert len(lines) == 3


def test_output_that_is_no_terminal_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", str(run)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "gridtf: gridtf monitor needs a terminal"
    assert f"gridtf status {run} --watch" in lines[-1]


@pytest.mark.parametrize("term", ["dumb", None])
def test_terminal_that_cannot_move_the_cursor_is_refused(
    term: str | None, run: Path, terminal: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if term:
        monkeypatch.setenv("TERM", term)
    else:
        monkeypatch.delenv("TERM")
    assert main(["monitor", str(run)]) == 1
    assert f"TERM is {term or 'not set'}" in capsys.readouterr().err


def test_job_array_and_unknown_job_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "array" / "3").mkdir(parents=True)
    assert main(["monitor", str(run)]) == 2
    assert f"gridtf monitor {run}/array/3" in capsys.readouterr().err
    assert main(["monitor", "nosuch"]) == 2


def test_hint_quotes_a_path_for_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    path = recordedruns.make(folder / "digits", minutes=1.0).path
    assert main(["monitor", str(path)]) == 1
    assert f"`gridtf status '{path}' --watch`" in capsys.readouterr().err
