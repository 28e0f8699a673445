"""Words of messages, and text of other users, such as logs, made safe for terminals. Pure."""

from __future__ import annotations

import re

# What a terminal acts upon or shows out of order: control characters except the tab, marks that change the direction of
# writing, line separators; and bytes of a path (as surrogates) that can form such characters.
_CONTROL = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]"
# ECMA-48: control sequences; strings such as a title, a link or the clipboard, with their content; other escapes.
_SEQUENCE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[P\]X^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"

_COLOUR = r"\x1b\[[0-9;:]*m"  # ECMA-48: SGR
_PLAIN_AGAIN = "\x1b[m"


def plain(text: str) -> str:
    """text on one line, with control characters written as in Python: ``\\x1b``, ``\\n``."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda char: char[0].encode("unicode_escape").decode(), text)


def log_line(line: str, *, colours: bool) -> str:
    """A line of a log with nothing in it that a terminal acts upon, except colours.

    Args:
        line: Without its line break.
        colours: Whether to keep them; they are reset at the end of the line.
    """
    if line.isprintable():
        return line

    def kept(found: re.Match[str]) -> str:
        return found[0] if colours and re.fullmatch(_COLOUR, found[0]) else ""

    shown = re.sub(f"{_SEQUENCE}|{_CONTROL}", kept, line)
    return shown + _PLAIN_AGAIN if "\x1b" in shown else shown


def some(names: list[str] | tuple[str, ...], *, most: int = 16) -> str:
    """Names with commas between them: at most ``most``, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 host``, ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def were(names: list[str] | tuple[str, ...]) -> str:
    """``was`` for one name, else ``were``."""
    return "was" if len(names) == 1 else "were"
