"""Characters that a terminal acts on are escaped in messages and removed from lines of logs."""

from __future__ import annotations

import random
import re

import pytest

from gridtf.text import cut, duration, hanging, log_line, plain, short_size, size, toml


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.9, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert duration(3 * 86400 + 4 * 3600 + 59) == "3 d 4 h"


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("words", 5, "words"),
        ("words", 4, "wor…"),
        ("words", 1, "…"),
        ("数据数据", 8, "数据数据"),
        ("数据数据", 7, "数据数…"),
        ("数据数据", 6, "数据…"),
        (
            "e\N{COMBINING ACUTE ACCENT}t\N{COMBINING ACUTE ACCENT}",
            2,
            "e\N{COMBINING ACUTE ACCENT}t\N{COMBINING ACUTE ACCENT}",
        ),
        ("", 3, ""),
    ],
)
def test_lines_are_cut_to_the_columns_of_a_terminal(line: str, width: int, shown: str) -> None:
    assert cut(line, width) == shown


def test_colours_take_no_columns_and_end_where_a_line_is_cut() -> None:
    line = "\x1b[31mFAILED\x1b[m x"
    assert cut(line, 8) == line
    assert cut(line, 7) == "\x1b[31mFAILED\x1b[m…\x1b[m"
    assert cut(line, 4) == "\x1b[31mFAI…\x1b[m"


def test_lines_are_broken_between_words_and_indented_where_there_is_room() -> None:
    line = "why            all tasks have ended with /a/path/that/is/not/broken"
    assert hanging(line, None, 15) == hanging(line, 80, 15) == line
    assert hanging(line, 40, 15).splitlines() == [
        "why            all tasks have ended with",
        "               /a/path/that/is/not/broken",
    ]
    assert hanging(line, 20, 15).splitlines() == [
        "why            all",
        "     tasks have",
        "     ended with",
        "     /a/path/that/is/not/broken",
    ]
    for width in range(1, 60):
        assert hanging(line, width, 15).split() == line.split()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 KiB"), (3000, "3 KiB"), (7 << 20, "7 MiB"), (1023 << 20, "1023 MiB"), (3 << 29, "1.5 GiB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "1.0K"),
        (1536, "1.5K"),
        (150 << 20, "150M"),
        (1023 << 20, "1.0G"),
        (9 << 60, "9.0E"),
    ],
)
def test_short_sizes(number: float, text: str) -> None:
    assert short_size(number) == text


def test_values_are_written_in_toml_as_a_person_would() -> None:
    value = {"läufe": ["größe", 2, True], "a-b": 'say "so"'}
    assert toml(value) == '{ "läufe" = ["größe", 2, true], a-b = "say \\"so\\"" }'
