"""TOML files with line numbers: tomllib for the values, a small scanner for where each key stands."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridtf.errors import GridtfError, UsageError

Lines = dict[tuple[str, ...], int]

_TOKEN = re.compile(
    r"""
      (?P<string> \"{3} (?:\\.|[^\\])*? \"{3,5} | '{3} .*? '{3,5} | " (?:\\.|[^"\\])* " | '[^']*' )
    | (?P<comment> \#[^\n]* )
    | (?P<space> [ \t\r]+ )
    | (?P<word> [A-Za-z0-9_-]+ )
    | (?P<mark> . | \n )
    """,
    re.VERBOSE | re.DOTALL,
)
_KEY = re.compile(r"\(('.*'),?\)")  # as the parser names one: ('tasks', 'ps')
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)|\s*\(at end of document\)")


def load(path: Path, name: str) -> tuple[dict[str, Any], Lines]:
    """A file's values, and the line of every key. name: what to call the file in messages.

    Raises FileNotFoundError, NotADirectoryError (of what is above it), GridtfError when it cannot be read, and
    UsageError naming the line for bad syntax.
    """
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        text = data.decode()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{number}: this is not UTF-8 text", hint="save the file as UTF-8") from None
    except OSError as error:
        raise GridtfError(f"cannot read {name}: {error.strerror}") from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text), locate(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = found[1] if found and found[1] else str(max(1, len(text.splitlines())))
        problem = _KEY.sub(lambda key: key[1].replace("', '", ".").strip("'"), _AT_LINE.sub("", str(error)))
        raise UsageError(f"{name}:{line}: {problem}", hint="see https://toml.io for how TOML is written") from None
    except (RecursionError, ValueError):
        raise UsageError(f"{name}: it is nested too deeply, or a number has thousands of digits") from None


def locate(text: str) -> Lines:
    """The line of every key and table header, counted from 1; keys of inline tables are left out.

    text must be valid TOML.
    """
    lines: Lines = {}
    table: tuple[str, ...] = ()
    for number, tokens in _statements(text):
        if tokens[0] == "[":
            table = _key(tokens[1 : tokens.index("]")])
            lines.setdefault(table, number)
        else:
            lines[table + _key(tokens[: tokens.index("=")])] = number
    return lines


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """(first line, pieces) of every statement: it ends with a line that closes all its brackets."""
    pieces: list[str] = []
    line = first = 1
    depth = 0
    for match in _TOKEN.finditer(text + "\n"):
        piece = match[0]
        if match.lastgroup == "mark" and piece == "\n" and depth == 0:
            if pieces:
                yield first, pieces
            pieces = []
        elif match.lastgroup in ("string", "word", "mark"):
            if not pieces:
                first = line
            pieces.append(piece)
            if match.lastgroup == "mark":
                depth += (piece in "[{") - (piece in "]}")
        line += piece.count("\n")


def _key(pieces: list[str]) -> tuple[str, ...]:
    """``["a", ".", '"b c"']`` -> ``("a", "b c")``."""
    return tuple(piece.strip("\"'") for piece in pieces if piece not in (".", "["))
