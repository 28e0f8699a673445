"""Lines of text with named styles, which the monitor's pages are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gridtf.text import columns, cut, plain

Part = tuple[str, str]  # text, and its style: "", or one that STYLES of app.py names
Line = tuple[Part, ...]

# What stands for the characters of charts and marks where the locale has no UTF-8.
_ASCII = {
    **dict(zip(map(ord, "▁▂▃▄▅▆▇█"), ".:-=+*#@", strict=True)),
    **dict.fromkeys(range(0x2801, 0x2900), "*"),  # braille patterns with dots
    **str.maketrans({"\u2800": " ", "…": "~", "▲": "^", "▼": "v", "│": "|", "─": "-", "—": "-"}),
}


_MOST = 100  # lines of a text that is folded


def to_ascii(text: str) -> str:
    """Text in ASCII: charts keep their shape, other characters become ``?``."""
    return text if text.isascii() else text.translate(_ASCII).encode("ascii", "replace").decode()


def one_line(text: str) -> str:
    """Text without anything that a terminal acts on, so that its columns can be counted."""
    return plain(text).replace("\t", " ")


def fit(text: str, space: int, *, right: bool = False) -> str:
    """Text in exactly so many columns, safe for a terminal.

    Args:
        text: Text of any origin; control characters are escaped.
        space: The columns.
        right: Whether to align it on the right.
    """
    text = cut(one_line(text), space)
    blanks = " " * (space - columns(text))
    return blanks + text if right else text + blanks


def line(text: str, space: int, style: str = "") -> Line:
    """A line with one style, cut at so many columns."""
    return ((cut(one_line(text), space), style),)


def folded(text: str, space: int, *, most: int = _MOST) -> list[str]:
    """Text in lines of at most so many columns.

    Args:
        text: Text of any origin; control characters are escaped.
        space: The columns of a line.
        most: Lines, the last of which ends with ``…`` if there is more.
    """
    rest = one_line(text)
    lines: list[str] = []
    while len(lines) < most - 1 and len(first := _beginning(rest, space)) < len(rest):
        lines.append(first)
        rest = rest[len(first) :]
    return [*lines, cut(rest, space)]


def _beginning(text: str, space: int) -> str:
    """What of a text is in the first of its lines; a word in its second half is not divided."""
    first = text[: max(0, space)]
    while first and columns(first) > space:
        first = first[:-1]
    blank = first.rfind(" ", space // 2) + 1 if len(first) < len(text) else 0
    return first[:blank] or first or text[:1]


def text_of(lines: Iterable[Line]) -> str:
    """The text of lines, without styles and without blanks at their ends."""
    return "\n".join("".join(text for text, _ in parts).rstrip() for parts in lines)
