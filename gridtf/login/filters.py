"""How values are written into a job script: the filters of its template."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from gridtf.errors import UsageError

_ESCAPES = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t", "\r": r"\r"}


def quote(value: object) -> str:
    """Quote a value as one shell word on one line.

    A value with unprintable characters is written as $'…'. So a newline in it cannot start a line that Grid Engine,
    which reads ``#$`` anywhere in the file, takes for an option, and control characters cannot deceive a reviewer.

    Args:
        value: A string, a number or a path.

    Returns:
        Text that bash expands to the same bytes as value.

    Raises:
        TypeError: For a value of another type.
    """
    if not isinstance(value, str | int | float | Path) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a string, a number or a path")
    text = str(value)
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_ESCAPES.get(char) or _printable(char, _octal) for char in text) + "'"


def quote_json(value: object) -> str:
    """Write a value as indented JSON, quoted as one shell word over several lines."""
    return shlex.quote(json_text(value))


def quote_rows(value: object) -> str:
    """Write a dict as JSON with one entry per line, quoted as one shell word."""
    rows = (value if isinstance(value, dict) else {}).items()
    lines = (f"  {json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}" for key, entry in rows)
    return shlex.quote(
        "{\n" + ",\n".join("".join(_printable(char, _json_escape) for char in line) for line in lines) + "\n}"
    )


def directive(value: object) -> str:
    """Return a value unchanged, for a directive line, which the scheduler reads and no shell.

    Raises:
        GridtfError: For a value that is not one non-empty printable line.
    """
    text = str(value)
    if not text.strip() or not text.isprintable():
        raise UsageError(f"{text!r} cannot stand in a directive line", why="it is empty or has unprintable characters")
    return text


def comment(value: object) -> str:
    """Write a value for a comment, with unprintable characters escaped, so that it stays on one line."""
    return "".join(_printable(char, _json_escape) for char in str(value))


FILTERS: dict[str, Callable[[object], str]] = {
    "quote": quote,
    "quote_json": quote_json,
    "quote_rows": quote_rows,
    "directive": directive,
    "comment": comment,
}


def json_text(value: object) -> str:
    """Write a value as indented JSON, with unprintable characters escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(char if char == "\n" else _printable(char, _json_escape) for char in text)


def _printable(char: str, escape: Callable[[str], str]) -> str:
    return char if char.isprintable() else escape(char)


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode(errors="surrogateescape"))


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]
