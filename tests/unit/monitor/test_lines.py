"""Lines of the monitor: they have the columns that they should have, and nothing that a terminal acts on."""

from __future__ import annotations

import pytest

from gridtf.monitor import lines
from gridtf.text import columns

EVIL = "a\x1b]52;c;eA==\x07\x1b[2J\n\x9b1A\u202eb\tc"


@pytest.mark.parametrize("text", ["", "plain", "much longer than that", "数据数据数据", "e\u0301" * 9, EVIL])
@pytest.mark.parametrize("space", [1, 2, 7, 12])
def test_fitted_text_takes_exactly_its_columns(text: str, space: int) -> None:
    for right in (False, True):
        assert columns(lines.fit(text, space, right=right)) == space


@pytest.mark.parametrize("made", [lines.fit(EVIL, 80), lines.line(EVIL, 80)[0][0], lines.folded(EVIL, 80)[0]])
def test_nothing_that_a_terminal_acts_on_remains(made: str) -> None:
    assert made.isprintable()
    assert r"\x1b]52;c;eA==\x07" in made


def test_long_text_is_folded_between_words() -> None:
    text = "worker:0 on h0 has ended with exit code 1"
    assert lines.folded(text, 16) == ["worker:0 on h0 ", "has ended with ", "exit code 1"]
    assert "".join(lines.folded("x" * 50, 16)) == "x" * 50
    assert lines.folded(text, 16, most=2) == ["worker:0 on h0 ", "has ended with …"]
    assert lines.folded("", 16) == [""]


def test_wide_characters_are_folded_by_their_columns() -> None:
    assert lines.folded("数据数据数", 4) == ["数据", "数据", "数"]
    assert len(lines.folded("数" * 9, 1)) == 9


def test_charts_keep_their_shape_in_ascii() -> None:
    assert lines.to_ascii("▁▄█ ⠙⢦ │ é…▲") == ".=@ ** | ?~^"


def test_text_of_lines_has_no_blanks_at_their_ends() -> None:
    assert lines.text_of([(("a ", "bold"), ("b  ", "")), (), (("c", ""),)]) == "a b\n\nc"
