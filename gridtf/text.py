"""Helpers for messages, and for showing text of other origin, such as logs, safely on terminals. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

# Characters that a terminal acts on or shows out of order: control characters except the tab, marks that change the
# direction of writing, line separators; and bytes of a path (as surrogates) that can form such characters.
_CONTROL = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]"
# ECMA-48: control sequences; strings such as a title, a link or the clipboard, with their content; other escapes.
_SEQUENCE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[P\]X^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"

_COLOUR = r"\x1b\[[0-9;:]*m"  # ECMA-48: SGR
_PLAIN_AGAIN = "\x1b[m"
_UNITS = "BKMGTPE"  # of bytes, each 1024 times the one before


def plain(text: str) -> str:
    """Escape control characters as Python does (``\\x1b``, ``\\n``), so that text is one line and safe to print."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda char: char[0].encode("unicode_escape").decode(), text)


def log_line(line: str, *, colours: bool) -> str:
    """Remove everything from a line of a log that a terminal would act on, except colours.

    Args:
        line: The line, without its line break.
        colours: Whether to keep colours, and reset them at the end of the line.
    """
    if line.isprintable():
        return line

    def colour(match: re.Match[str]) -> str:
        return match[0] if colours and re.fullmatch(_COLOUR, match[0]) else ""

    shown = re.sub(f"{_SEQUENCE}|{_CONTROL}", colour, line)
    return shown + _PLAIN_AGAIN if "\x1b" in shown else shown


def cut(line: str, width: int) -> str:
    """Shorten a line to a number of columns of a terminal, with ``…`` at its end.

    Args:
        line: The line, without control characters but those of colours.
        width: Columns; characters of East Asian scripts take two of them, combining ones and colours none.
    """
    if len(line) <= width and line.isascii():
        return line
    parts = re.findall(f"{_COLOUR}|.", line, re.DOTALL) if "\x1b" in line else line
    at = [0, *accumulate(map(_columns, parts))]
    if at[-1] <= width:
        return line
    kept = "".join(parts[: max(0, bisect_right(at, width - 1) - 1)]) + "…"
    return kept + _PLAIN_AGAIN if "\x1b" in kept else kept


def hanging(line: str, width: int | None, indent: int) -> str:
    """Break a line between its words, and indent all lines but the first.

    Args:
        line: The line.
        width: Columns of the terminal, which only a longer word exceeds; None: the line is not broken.
        indent: Columns, if the terminal has room for them.
    """
    if width is None or len(line) <= width:
        return line
    from textwrap import fill

    indented = " " * (indent if indent <= width * 2 // 5 else width // 4)
    return fill(line, width, subsequent_indent=indented, break_long_words=False, break_on_hyphens=False)


def _columns(char: str) -> int:
    """Of a character, or of the control sequence of a colour."""
    from unicodedata import combining, east_asian_width

    return 0 if char[0] == "\x1b" or combining(char) else 2 if east_asian_width(char) in "WF" else 1


def some(names: list[str] | tuple[str, ...], *, most: int = 16) -> str:
    """Join names with commas: at most ``most`` of them, and the number of the others."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 host``, ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(part: float) -> str:
    """Write a part of a whole as ``3.2 %``; above 999 % there is nothing more to tell."""
    return f"{min(999.0, 100 * part):.3g} %"


def were(names: list[str] | tuple[str, ...]) -> str:
    """``was`` for one name, else ``were``."""
    return "was" if len(names) == 1 else "were"


def duration(seconds: float) -> str:
    """Write seconds as ``45 s``, ``3 min 20 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    whole = int(max(0.0, seconds))
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole} s"


def size(number: int) -> str:
    """Write a number of bytes, such as ``1.5 GiB``."""
    if number >= 1 << 30:
        return f"{number / (1 << 30):.1f} GiB"
    return f"{number / (1 << 20):.0f} MiB" if number >= 1 << 20 else f"{number / 1024:.0f} KiB"


def short_size(number: float) -> str:
    """Write a number of bytes for a column of a table, in binary units as Slurm writes them: ``21.3G``."""
    power = 0
    while number >= 999.5 and power < len(_UNITS) - 1:
        number, power = number / 1024, power + 1
    text = f"{number:.0f}" if power == 0 or number >= 99.95 else f"{number:.1f}"
    return text + _UNITS[power]


def toml(value: object) -> str:
    """Write a value in TOML's inline form; its strings take the escapes that JSON writes."""
    import json

    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(str(key))} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value, ensure_ascii=False)
    return str(value)  # a date or a time of day


def toml_key(name: str) -> str:
    """Write a key, in quotes if TOML needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def columns(text: str) -> int:
    """The columns of a terminal that text without control characters takes, as cut counts them."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def whole(text: str) -> int | None:
    """Parse a whole number in a scheduler's output or files, such as ``16``; None for other text.

    Stricter than int(), which accepts digits of other scripts and fails on numbers of thousands of digits.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
