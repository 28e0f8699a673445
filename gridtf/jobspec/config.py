"""Merges defaults, files, environment and flags into a JobSpec, and records the source of each value.

Layers, each overriding the one before: defaults < site file < user file < job file < environment < flags.

- Tables (``env``, ``tasks``, ``tasks.TYPE``, ``tasks.TYPE.env``) merge key by key; any other value, even a list, is
  replaced as a whole. Within one command line a repeated flag adds to its list.
- A command in a higher layer overrides a lower layer's entry, and vice versa; so do an address and an interface.
- ``[tasks.ps]`` without ``count`` in the site or user file describes a ps, but does not request one.
- ``./gridtf.toml`` is read without being named only when the command line has neither a command nor an entry, and when
  it belongs to this user or root: a job file decides what runs.
- Relative paths in a file are resolved against that file's folder, others against the working folder. A ``python``
  with a slash in it is such a path.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from gridtf import files
from gridtf.errors import GridtfError, NotFoundError, SpecError, UsageError, nearest
from gridtf.jobspec import options
from gridtf.jobspec.arguments import Parser, add_job_options, split_command
from gridtf.jobspec.options import OPTIONS, Key, Option, Table, aliases
from gridtf.jobspec.spec import JobSpec, TaskSpec, need_program, spell
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.text import plain

JOB_FILE = "gridtf.toml"
SITE_FILE = "/etc/gridtf/config.toml"
_SITE_VARIABLE = "GRIDTF_SITE_CONFIG"
_PATHS = ("chdir", "template", "run_dir", "run_root")
_COMMAND, _ENTRY, _TEMPLATE = ("command",), ("entry",), ("template",)
_ADDRESS, _INTERFACE = ("address",), ("interface",)
# The first of a pair overrides the second in lower layers.
_EXCLUSIVE = ((_COMMAND, _ENTRY), (_ENTRY, _COMMAND), (_ADDRESS, _INTERFACE), (_INTERFACE, _ADDRESS))
_CHIEF, _MASTER = ("tasks", "chief", "count"), ("tasks", "master", "count")

Given = Sequence[tuple[Option, str, "str | None"]]  # option, the flag as typed, its value


class Value(NamedTuple):
    """A value and its source, such as ``gridtf.toml:12``, ``--nodes`` or ``GRIDTF_SUBMIT_NODES``."""

    value: Any
    source: str


Layer = dict[Key, Value]


class Configured(NamedTuple):
    """A job and the sources of its values.

    Attributes:
        spec: The job.
        sources: Dotted key -> source, for every value that is not a default.
        trusted: Ids of the users, besides this one and root, who may own the template; None: any user, since this user
            has named the template.
        notes: Messages for the user, one line each.
    """

    spec: JobSpec
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None
    notes: tuple[str, ...] = ()


def from_arguments(argv: Sequence[str], environ: Mapping[str, str], cwd: Path, table: Table = OPTIONS) -> Configured:
    """Parse a command line ``[JOBFILE] [options] [-- command]`` and merge it with all layers below it.

    Args:
        argv: Its arguments.
        environ: The environment, for GRIDTF_SUBMIT_ variables and the paths of the site and user files.
        cwd: The working folder.
        table: All options.

    Raises:
        UsageError: For an invalid value in any layer, naming its source.
        NotFoundError: When the job file, or a site file that is named, does not exist.
        GridtfError: When a file cannot be read.
    """
    words, command = split_command(argv)
    parser = Parser("gridtf_run", usage="gridtf_run [JOBFILE] [options] -- command")
    add_job_options(parser, table)
    arguments = parser.parse(words)
    return configure(arguments.jobfile, arguments.given, command, environ, cwd, table)


def configure(
    jobfile: str | None,
    given: Given,
    command: Sequence[str] | None,
    environ: Mapping[str, str],
    cwd: Path,
    table: Table = OPTIONS,
) -> Configured:
    """Merge all layers into a JobSpec.

    Args:
        jobfile: The job file as the user named it; None: ./gridtf.toml if the command line has neither a command nor an
            entry.
        given: The options of the command line, as arguments.add_job_options collects them.
        command: The arguments after ``--``; None without a ``--``.
        environ: The environment, for GRIDTF_SUBMIT_ variables and the paths of the site and user files.
        cwd: The working folder.
        table: All options.

    Raises:
        UsageError: For an invalid value in any layer, naming its source.
        NotFoundError: When the job file, or a site file that is named, does not exist.
        GridtfError: When a file cannot be read.
    """
    flags = _flags(given, command, environ, cwd)
    if command is not None and not command:
        raise UsageError("there is no command after --")
    notes: tuple[str, ...] = ()
    # not Path.is_file, which raises for a folder that this user cannot read
    if jobfile is None and not flags.keys() & {_COMMAND, _ENTRY} and os.path.isfile(cwd / JOB_FILE):  # noqa: PTH113
        jobfile, notes = JOB_FILE, (f"the job is taken from {JOB_FILE}",)
    general = [_read(path, str(path), missing, table)[0] for path, missing in _files(environ)]
    job_layers: list[Layer] = []
    owner = None
    if jobfile is not None:
        layer, owner = _read(cwd / jobfile, jobfile, _no_job_file(jobfile), table, named=not notes)
        job_layers = [layer]
        if ("chdir",) not in layer:
            # lowest precedence: any explicit chdir overrides the job file's folder
            general.insert(0, {("chdir",): Value(str((cwd / jobfile).parent), f"the folder of {jobfile}")})
    merged = _merge(general, [*job_layers, _environment(environ, cwd, table), flags])
    trusted = None
    if owner is not None and merged.get(_TEMPLATE) is job_layers[0].get(_TEMPLATE):
        trusted = frozenset({owner})
    sources = {".".join(key): value.source for key, value in merged.items()}
    try:
        spec = JobSpec.from_dict(_nested(merged, {option.key for option in table}))
    except SpecError as error:
        raise located(error, sources) from None
    need_program(spec)
    return Configured(spec, sources, trusted, notes)


def located(error: SpecError, sources: Mapping[str, str]) -> UsageError:
    """Convert a SpecError to a UsageError that names the source of the value.

    Args:
        error: Its ``key`` names the value.
        sources: Dotted key -> source, as in Configured.
    """
    parts = error.key.split(".")
    upwards = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    below = (key for key in sources if key.startswith(f"{error.key}.") and len(parts) > 1)
    key = next((key for key in (*upwards, *below) if key in sources), None)
    if key is None:
        what = f"{error.key}: {error.problem}"
    elif sources[key].startswith(("-", options.PREFIX)):
        what = f"{sources[key]}: {error.problem}"
    else:
        what = f"{sources[key]}: {error.key}: {error.problem}"
    return UsageError(plain(what), why=error.why, hint=error.hint)  # keys can contain any character


# --- layers ---------------------------------------------------------------------------------------------------


def _files(environ: Mapping[str, str]) -> Iterator[tuple[Path, NotFoundError | None]]:
    """The site file and the user file, each with the error to raise when it is missing; None: it is optional."""
    site = environ.get(_SITE_VARIABLE)
    if site is None:
        yield Path(SITE_FILE), None
    elif site:
        hint = "unset it, or set it to an empty string to use no site file"
        yield Path(site), NotFoundError(f"{_SITE_VARIABLE}: no such file: {site}", hint=hint)
    with contextlib.suppress(RuntimeError):  # a user without a home folder
        folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
        yield Path(folder) / "gridtf" / "config.toml", None


def _no_job_file(name: str) -> NotFoundError:
    hint = "" if name.endswith(".toml") else "a command goes after --: gridtf submit [options] -- command"
    if name.isdecimal():
        hint = "--chief and --evaluator take no number; --workers and --ps do"
    return NotFoundError(f"no such file: {name}", hint=hint)


def _read(
    path: Path, name: str, missing: NotFoundError | None, table: Table, *, named: bool = True
) -> tuple[Layer, int | None]:
    """Read a file as a layer.

    Args:
        path: The file.
        name: Its name in messages and sources.
        missing: The error to raise when it does not exist; None: it is optional.
        table: All options.
        named: Whether the user or the administrator named it; otherwise it must belong to this user or root.

    Returns:
        (layer, id of the user the file belongs to); an empty layer and None when it does not exist.
    """
    trusted = None if named else ()
    hint = f"if you trust it, name it on the command line: {name}"
    try:
        data, lines, owner = _load(path, name, trusted=trusted, hint=hint)
    except (FileNotFoundError, NotADirectoryError):
        if missing is None:
            return {}, None
        raise missing from None
    layer: Layer = {}
    other_names = aliases(table)
    for key, value in _flat(data):
        place = f"{name}:{_line(lines, key)}"
        try:
            _check_key(key, value, table)
        except SpecError as error:
            raise UsageError(plain(f"{place}: {error.what}"), hint=error.hint) from None
        if key == ("time",) and hasattr(value, "isoformat"):
            value = value.isoformat()  # in TOML a bare 02:00:00 is a time of day
        canonical = (other_names.get(key[0], key[0]), *key[1:])
        if canonical in layer:
            twins = [word for word in data if other_names.get(word, word) == canonical[0]]
            raise UsageError(f"{place}: {' and '.join(twins)} are two names of one key", hint="keep one of them")
        source = place if canonical == key else f"{place} ({key[0]})"
        layer[canonical] = Value(_absolute(canonical, value, path.parent), source)
    return layer, owner


def _environment(environ: Mapping[str, str], cwd: Path, table: Table) -> Layer:
    known = options.by_variable(table)
    layer: Layer = {}
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(options.PREFIX) or not text:
            continue
        option = known.get(variable)
        if option is None:
            hint = options.as_variable(variable, table) or nearest(variable, list(known)) or "unset it"
            raise UsageError(f"{variable}: there is no such option", hint=hint)
        parts = text.splitlines() if option.kind in ("lines", "variables") else [text]
        _add(layer, option, parts, variable, environ, cwd)
    return layer


def _flags(given: Given, command: Sequence[str] | None, environ: Mapping[str, str], cwd: Path) -> Layer:
    layer: Layer = {}
    for option, flag, text in given:
        if text is None:
            _put(layer, options.switch(option, flag), flag)
        else:
            _add(layer, option, [text], flag, environ, cwd)
    if command:
        layer[_COMMAND] = Value(tuple(command), "the command line")
    return layer


def _add(
    layer: Layer, option: Option, texts: Sequence[str], source: str, environ: Mapping[str, str], cwd: Path
) -> None:
    for text in texts:
        try:
            values = options.read(option, text, environ)
        except UsageError as error:
            raise UsageError(f"{source}: {error.what}", why=error.why, hint=error.hint) from None
        _put(layer, {key: _absolute(key, value, cwd) for key, value in values.items()}, source)


def _put(layer: Layer, values: Mapping[Key, Any], source: str) -> None:
    """Add values to a layer, appending to lists that it already has."""
    for key, value in values.items():
        if isinstance(value, tuple) and key in layer:
            value = (*layer[key].value, *value)
        layer[key] = Value(value, source)


def _merge(general: Sequence[Layer], job_layers: Sequence[Layer]) -> Layer:
    """Merge the site and user files with the layers of this job, the lowest first."""
    merged: Layer = {}
    for layer in (*general, *job_layers):
        for one, other in _EXCLUSIVE:
            if one in layer:
                merged.pop(other, None)
        if _CHIEF in layer and any(key[:2] == _MASTER[:2] for key in merged):
            layer = {_MASTER if key == _CHIEF else key: value for key, value in layer.items()}
        merged.update(layer)
    requested = {key[1] for layer in job_layers for key in layer if key[0] == "tasks"} | {"worker"}
    counted = {key[1] for key in merged if key[0] == "tasks" and key[2:] == ("count",)}
    return {key: value for key, value in merged.items() if key[0] != "tasks" or key[1] in requested | counted}


# --- keys -----------------------------------------------------------------------------------------------------


def _flat(table: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Leaves of the tables that merge. An empty table is a leaf: ``[tasks.evaluator]`` alone requests an evaluator."""
    for name, value in table.items():
        key = (*path, name)
        if isinstance(value, dict) and (value or key == ("tasks",)) and _is_table(key):
            yield from _flat(value, key)
        else:
            yield key, tuple(value) if isinstance(value, list) else value


def _is_table(key: Key) -> bool:
    """Whether the value of this key is a table that merges key by key."""
    return key in (("env",), ("tasks",)) or (key[0] == "tasks" and (len(key) == 2 or key[2:] == ("env",)))


def _nested(layer: Layer, keys: Collection[str]) -> dict[str, Any]:
    """The dictionary for JobSpec. keys: of all options; those that are no fields of JobSpec go into its ``options``."""
    data: dict[str, Any] = {}
    known = {f.name for f in fields(JobSpec)}
    for key, value in layer.items():
        table = data if key[0] in known or key[0] not in keys else data.setdefault("options", {})
        for part in key[:-1]:
            table = table.setdefault(part, {})
        if value.value == {}:
            table.setdefault(key[-1], {})
        else:
            table[key[-1]] = value.value
    return data


def _line(lines: Mapping[Key, int], key: Key) -> int:
    """The line of a key, or of the innermost table around it that has one."""
    return next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), 1)


def _check_key(key: Key, value: object, table: Table) -> None:
    """Raise SpecError for an unknown key, and for a value in place of a table."""
    dotted = ".".join(key)
    tables = [f.name for f in fields(TaskSpec)]
    tops = dict.fromkeys([f.name for f in fields(JobSpec)] + [option.key.partition(".")[0] for option in table])
    for depth, known in enumerate(([*tops, *aliases(table)], list(TASK_TYPES), tables)):
        if len(key) > depth and (depth == 0 or key[0] == "tasks") and key[depth] not in known:
            what = "unknown task type" if depth == 1 else "unknown key"
            hint = options.as_key(key[depth], value, table) if depth == 0 else ""
            hint = hint or nearest(key[depth], known) or f"known: {', '.join(known)}"
            raise SpecError(".".join(key[: depth + 1]), what, hint=hint)
    if _is_table(key) and value != {}:
        raise SpecError(dotted, f"{spell(value)} is not a table", hint=f"write [{dotted}] on a line of its own")
    if key == _COMMAND and value == ():
        raise SpecError(dotted, "the list is empty: there is nothing to run")


def _absolute(key: Key, value: Any, base: Path) -> Any:
    """The value, made absolute if it is a path."""
    if not isinstance(value, str) or not value:
        return value
    if key[0] not in _PATHS and not (key[0] == "python" and "/" in value):
        return value
    path = Path(value)
    if path.parts[:1] == ("~",):
        with contextlib.suppress(RuntimeError):  # without a home folder, a later error names ~
            path = path.expanduser()
    return str(Path(base, path).absolute())


# --- TOML with line numbers: tomllib for the values, a small scanner for the line of each key -------------------

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


def _load(
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
        raise GridtfError(f"cannot read {name}: {error.strerror}") from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text), locate(text), owner
    except tomllib.TOMLDecodeError as error:
        place = re.search(_AT_LINE, str(error))
        line = place[1] if place and place[1] else str(max(1, len(text.splitlines())))
        problem = re.sub(_KEY, lambda key: key[1].replace("', '", ".").strip("'"), re.sub(_AT_LINE, "", str(error)))
        raise UsageError(f"{name}:{line}: {problem}", hint="TOML is described at https://toml.io") from None
    except (RecursionError, ValueError):
        raise UsageError(f"{name}: it is nested too deeply, or a number has thousands of digits") from None


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
