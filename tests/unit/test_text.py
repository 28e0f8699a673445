"""Characters that a terminal acts on are escaped in messages and removed from lines of logs."""

from __future__ import annotations

import random
import re

import pytest

from gridtf.text import log_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("été 数据 \N{PARTY POPPER}\ta\u00a0b", "été 数据 \N{PARTY POPPER}\ta\u00a0b"),
        ("a\nb\r\n", r"a\nb\r\n"),
        ("\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07"),
        ("\x9b2J\x7f\x00", r"\x9b2J\x7f\x00"),
        ("\u202eabc\u2028\u2066", r"\u202eabc\u2028\u2066"),
        ("/runs/\udcff\udce9", "/runs/\udcff\udce9"),  # bytes of a path, which could not be opened otherwise
        ("\udcc2\udc9b2J", "\udcc2\\udc9b2J"),  # which would be written as U+009B
    ],
)
def test_plain_escapes_control_characters(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("line", "coloured", "bare"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[m", "red"),
        ("\x1b[38;2;1;2;3mred", "\x1b[38;2;1;2;3mred\x1b[m", "red"),  # it ends with the line
        ("\x1b]0;title\x07text", "text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", "link"),
        ("\x1b]52;c;eA==", "", ""),  # without an end
        ("\x1bP+q544e\x1b\\a\x1b(0b\x1b[?1049hc\x1bcd", "abcd", "abcd"),
        ("\x1b\x1b[2J[2Ja", "[2Ja", "[2Ja"),  # what is left is not put together to a new one
        ("\x9b31m\x85a\x07\x08b\tc", "ab\tc", "ab\tc"),
        ("\x1b[31", "31", "31"),
    ],
)
def test_log_line_keeps_colours_only(line: str, coloured: str, bare: str) -> None:
    assert log_line(line, colours=True) == coloured
    assert log_line(line, colours=False) == bare


def test_random_text_is_free_of_control_characters() -> None:
    pieces = ["\x1b", "[", "]", "31", "m", "2J", "\x07", "\\", "\x9b", "a", ";", "\x1b[0m", "P", "\n", "\udc9b", "("]
    chosen = random.Random(1)
    for _ in range(5000):
        text = "".join(chosen.choices(pieces, k=chosen.randrange(12)))
        rest = re.sub(r"\x1b\[[0-9;:]*m", "", log_line(text, colours=True))
        for shown in (rest, log_line(text, colours=False), plain(text)):
            assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f\udc80-\udc9f]", shown), ascii(text)
