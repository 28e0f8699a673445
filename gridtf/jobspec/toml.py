"""TOML files with line numbers: tomllib for the values, a small scanner for where each key stands."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridtf import files
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


@dataclass(frozen=True)
class Loaded:
    """What a file says. lines: where every key stands; owner: the id of the user whom the file belongs to."""

    data: dict[str, Any]
    lines: Lines
    owner: int


def load(path: Path, name: str, *, trusted: Collection[int] | None = None, hint: str = "") -> Loaded:
    """Read a file. name: what to call it in messages. trusted, hint: as files.read; without them it may be a pipe.

    Raises FileNotFoundError, NotADirectoryError (of what is above it), GridtfError when it cannot be read, and
    UsageError for a file that is refused and, naming the line, for bad syntax.
    """
    try:
        data, owner = files.read(path, name, plain=trusted is not None, trusted=trusted, hint=hint)
        data = data.removeprefix(codecs.BOM_UTF8)
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
        return Loaded(tomllib.loads(text), locate(text), owner)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = found[1] if found and found[1] else str(max(1, len(text.splitlines())))
        problem = _KEY.sub(lambda key: key[1].replace("', '", ".").strip("'"), _AT_LINE.sub("", str(error)))
        raise UsageError(f"{name}:{line}: {problem}", hint="see https://toml.io for how TOML is written") from None
    except (RecursionError, ValueError):
        raise UsageError(f"{name}: it is nested too deeply, or a number has thousands of digits") from None


def locate(text: str) -> Lines:
    """The line of every key and table header, counted from 1; keys of inline tables are left out. A table that nothing
    but its keys tell of is where the first of them is.

    text must be valid TOML.
    """
    lines: Lines = {}
    implied: Lines = {}
    table: tuple[str, ...] = ()
    for number, tokens in _statements(text):
        if tokens[0] == "[":
            key = table = _key(tokens[1 : tokens.index("]")])
            lines.setdefault(table, number)
        else:
            key = table + _key(tokens[: tokens.index("=")])
            lines[key] = number
        for end in range(1, len(key)):
            implied.setdefault(key[:end], number)
    return implied | lines


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
