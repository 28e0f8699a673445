"""Reads a job file: TOML with the line of every key. For what is not TOML it says what to write."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gridtf import files
from gridtf.errors import GridtfError, NotFoundError, UsageError, nearest
from gridtf.jobspec.options import Key

JOB_FILE = "gridtf.toml"
_OTHER_FORMATS = (".yaml", ".yml", ".json")
_MOST_LINES = 4  # of a file in another format, as an example
_EXAMPLE = '`command = ["python", "train.py"]`, `nodes = 2`'
_DIRECTIVE = rb"(?m)^#(?:SBATCH|PBS|\$) +-[!-~]+"

# Strings, which re compiles only when there is a file to read.
_PIECE = r"""(?xs)
      (?P<string> \"{3} (?:\\.|[^\\])*? \"{3,5} | '{3} .*? '{3,5} | " (?:\\.|[^"\\])* " | '[^']*' )
    | (?P<comment> \#[^\n]* )
    | (?P<space> [ \t\r]+ )
    | (?P<word> [A-Za-z0-9_-]+ )
    | (?P<mark> . | \n )
    """
_KEY = r"\(('.*'),?\)"  # as the parser names one: ('tasks', 'ps')
_AT_LINE = r"\s*\(at line (\d+), column \d+\)|\s*\(at end of document\)"


def load(
    path: Path, name: str, *, trusted: Collection[int] | None, hint: str
) -> tuple[dict[str, Any], dict[Key, int], int]:
    """Read a TOML file.

    Args:
        path: The file; may be a pipe if ``trusted`` is None.
        name: Its name in messages.
        trusted: As in files.read.
        hint: As in files.read.

    Returns:
        (its content, line of each key, id of the user it belongs to).

    Raises:
        FileNotFoundError, NotADirectoryError: When it does not exist.
        GridtfError: When it cannot be read.
        UsageError: When files.read refuses it, and, naming the line, for a syntax error.
    """
    try:
        data, owner = files.read(path, name, plain=trusted is not None, trusted=trusted, hint=hint)
        data = data.removeprefix(codecs.BOM_UTF8)
        text = data.decode()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{number}: it is not UTF-8 text", hint="save the file as UTF-8") from None
    except OSError as error:
        hint = "a file is expected there: move the folder away" if files.is_folder(path) else ""
        raise GridtfError(f"cannot read {name}: {error.strerror}", hint=hint) from None
    tomllib = toml_parser()
    try:
        return tomllib.loads(text), locate(text), owner
    except tomllib.TOMLDecodeError as error:
        place = re.search(_AT_LINE, str(error))
        line = place[1] if place and place[1] else str(max(1, len(text.splitlines())))
        problem = re.sub(_KEY, lambda key: key[1].replace("', '", ".").strip("'"), re.sub(_AT_LINE, "", str(error)))
        written = _in_toml("".join(text.split("\n")[int(line) - 1 : int(line)]))
        from gridtf.jobspec import synonyms

        told = next((text for words, text in synonyms.rows("toml").items() if words in problem), "")
        hint = f"write {written}" if written else told or "TOML is described at https://toml.io"
        raise UsageError(f"{name}:{line}: {problem}", hint=hint) from None
    except (RecursionError, ValueError):
        raise UsageError(f"{name}: it is nested too deeply, or a number has thousands of digits") from None


def toml_parser() -> Any:
    """The module tomllib, or tomli for Python 3.10."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib


def _in_toml(line: str) -> str:
    """The line in TOML, such as ``time = "2h"`` for ``time = 2h`` or ``time: 2h``; empty where that is not plain."""
    line = re.sub(r"\s#.*", "", line).strip()
    match = re.fullmatch(r"([\w-]+)\s*[=:]\s*([^,;].*?)[\s,;]*", line, re.ASCII)
    if match is None:
        return ""
    key, value = match.groups()
    value = value.lower() if value in ("True", "False") else value
    with contextlib.suppress(ValueError):
        toml_parser().loads(f"{key} = {value}")
        right = re.match(rf"{key}\s*=\s*{re.escape(value)}", line)  # it is wrong only where it stands
        return "" if right else f"{key} = {value}"
    listed = value[0] + value[-1] == "[]"
    words = [word.strip("\"' ") for word in (value[1:-1].split(",") if listed else [value])]
    if re.search(r"[][{}=\\\"']", "".join(words)):
        return ""
    from gridtf.jobspec import synonyms

    return synonyms.line(key, [word for word in words if word] if listed else words[0])


def locate(text: str) -> dict[Key, int]:
    """Find the lines of keys and table headers.

    Args:
        text: Valid TOML.

    Returns:
        Key -> line, counted from 1. Keys of inline tables are left out; a table without a header of its own has the
        line of its first key.
    """
    lines: dict[Key, int] = {}
    implied: dict[Key, int] = {}
    table: Key = ()
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
    """(first line, tokens) of each statement, which ends with the line that closes its last bracket."""
    pieces: list[str] = []
    line = first = 1
    depth = 0
    for match in re.finditer(_PIECE, text + "\n"):
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


def _key(pieces: list[str]) -> Key:
    """``["a", ".", '"b c"']`` -> ``("a", "b c")``."""
    return tuple(piece.strip("\"'") for piece in pieces if piece not in (".", "["))


# --- what is not a job file


def no_job_file(name: str, cwd: Path) -> NotFoundError:
    """The error for a job file that does not exist.

    Args:
        name: As the user named it.
        cwd: The working folder.
    """
    hint = f"a command goes after --: gridtf submit -- {shlex.quote(name)}"
    if name.endswith((".toml", *_OTHER_FORMATS)):
        others: list[str] = []
        with contextlib.suppress(OSError, ValueError):  # the latter for a name with a NUL
            others = [other for other in os.listdir((cwd / name).parent) if other.endswith(".toml")]
        near = nearest(Path(name).name, [other for other in others if other != Path(name).name])
        hint = near or "a job needs no job file: name its command after --, such as -- python train.py"
    if name.isdecimal():
        hint = only_a_number(name)
    elif name.upper() in ("K", "M", "G", "T", "KB", "MB", "GB", "TB", "MIN", "HOURS", "MINUTES", "DAYS"):
        hint = "a value has no spaces, such as --mem 16G and --time 2h"
    return NotFoundError(f"no such file: {name}", hint=hint)


def only_a_number(word: str) -> str:
    """What to write for a number that belongs to no option."""
    return f"for workers write --workers {word}, for parameter servers --ps {word}; --chief and --wait take no number"


def refuse_other_kinds(path: Path, name: str) -> None:
    """Check that a file may be a job file.

    Args:
        path: The file.
        name: As the user named it.

    Raises:
        UsageError: For a folder, for YAML and JSON, and for a program.
    """
    shown = shlex.quote(name)
    if not name.strip():
        hint = "is the variable set, as in gridtf submit $JOBFILE?"
        raise UsageError("the name of the job file is empty", hint=hint)
    if files.is_folder(path):
        inside = f"{shown.rstrip('/')}/{JOB_FILE}"
        hint = f"write: gridtf submit {inside}" if files.is_file(path / JOB_FILE) else ""
        raise UsageError(f"{name} is a folder, not a job file", hint=hint or "name a file, such as gridtf.toml")
    if not files.is_file(path) or name.endswith(".toml"):
        return
    try:
        data, _ = files.read(path, name)
    except OSError:  # reported when it is read as a job file
        return
    from gridtf.jobspec import synonyms

    if name.endswith(_OTHER_FORMATS):
        documents = _documents(data)
        if any(document.get("kind") == "TFJob" for document in documents):
            raise UsageError(f"{name} is a TFJob", hint=f"write: gridtf import tfjob {shown} > {JOB_FILE}")
        found = synonyms.lines(documents[0] if documents else {})
        lines = ", ".join(f"`{line}`" for line in islice(found, _MOST_LINES))
        hint = f"write {JOB_FILE}, a line each: {lines or _EXAMPLE}"
        raise UsageError(f"{name} is not TOML, the format of job files", hint=hint)
    if hint := synonyms.file(name):
        raise UsageError(f"{name} is not a job file", hint=hint)
    if data.startswith((b"#!", b"\x7fELF")):
        refuse_requests(path)
        hint = f"write: gridtf submit -- {shown if '/' in name else f'./{shown}'}"
        raise UsageError(f"{name} is a program, not a job file", hint=hint)


def _documents(data: bytes) -> list[dict[str, Any]]:
    """The tables of a file in YAML or JSON, with all values as text; none where it is neither."""
    import yaml

    try:
        return [part for part in yaml.load_all(data, yaml.BaseLoader) if isinstance(part, dict)]
    except (yaml.YAMLError, RecursionError):
        return []


def refuse_requests(script: str | Path) -> None:
    """Raise UsageError for a script with lines that sbatch or qsub would read."""
    try:
        if not files.is_file(script):  # a FIFO would block
            return
        with Path(script).open("rb") as file:
            head = file.read(1 << 16)
    except (OSError, ValueError):
        return
    if head.startswith(b"#!") and (found := re.search(_DIRECTIVE, head)):
        request = found[0].decode()
        by = "sbatch" if request.startswith("#SBATCH") else "qsub"
        raise UsageError(
            f"{script} is a job script: gridtf does not read its requests, such as {request}",
            hint=f"call gridtf_run in it and submit it with {by}; or write options and its program: "
            "gridtf submit --nodes 2 -- python train.py",
        )
