"""Reads files, environment variables and flags as layers: key -> value and its source; config merges the layers.

In paths ``~``, ``~USER``, ``$NAME`` and ``${NAME}`` are replaced; ``$$`` is a dollar sign. Relative paths in a file
are resolved against that file's folder, others against the working folder. A ``python`` with a slash in it is such a
path, and so is a ``container`` without a colon, and the source of a bind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.errors import NotFoundError, SpecError, UsageError, nearest
from gridtf.jobspec import limits, options
from gridtf.jobspec.checks import A_TYPE_OF_ONE_S_OWN
from gridtf.jobspec.jobfile import load
from gridtf.jobspec.limits import Limit
from gridtf.jobspec.options import Key, Option, Table, aliases
from gridtf.jobspec.primitives import spell
from gridtf.jobspec.spec import ONE_MODEL, JobSpec, TaskSpec, container_path
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.jobspec.units import GPU_KEYS, split_gpus
from gridtf.text import plain, toml
from gridtf.values import Value, fields

COMMAND, ARGS, BINDS, STAGE = ("command",), ("args",), ("container_binds",), ("stage",)
COMMAND_LINE = "the command line"
_PATHS = ("chdir", "template", "run_dir", "run_root")
_PARTITIONS = ("partitions", "partition", "queues", "queue")  # tables of these names
_VARIABLE = r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\})"  # any other dollar sign stays

Given = Sequence[tuple[Option, str, "str | None"]]  # option, the flag as typed, its value


class Sourced(Value):
    """A value and its source.

    Attributes:
        value: The value.
        source: Such as ``gridtf.toml:12``, ``--nodes`` or ``GRIDTF_SUBMIT_NODES``.
        error: Why it cannot be used; raised unless a higher layer overrides it.
    """

    value: Any
    source: str
    error: SpecError | None = None


Layer = dict[Key, Sourced]


class File(Value):
    """A file as layers.

    Attributes:
        layer: Its plain values.
        owner: Id of the user it belongs to; None if it does not exist.
        profiles: Name -> the values of this profile.
        partitions: Name -> the values for jobs on this partition or queue.
        limits: Name -> limit, of the site file.
        sweep: Key of ``[sweep]`` -> its value, of a job file.
        steps: Name -> the values of this step, of a job file, in the order of the file.
    """

    layer: Layer
    owner: int | None = None
    profiles: Mapping[str, Layer] = {}
    partitions: Mapping[str, Layer] = {}
    limits: Mapping[str, Limit] = {}
    sweep: Mapping[str, Sourced] = {}
    steps: Mapping[str, Layer] = {}


class Reader(Value):
    """Reads layers.

    Attributes:
        table: The options.
        environ: The environment, for GRIDTF_SUBMIT_ variables and for the variables that paths may contain.
        cwd: The working folder, for relative paths that are in no file.
    """

    table: Table
    environ: Mapping[str, str]
    cwd: Path

    def file(
        self,
        path: Path,
        name: str,
        missing: NotFoundError | None,
        *,
        named: bool = True,
        unknown: dict[str, str] | None = None,
        is_site: bool = False,
        is_job: bool = False,
    ) -> File:
        """Read a file.

        Args:
            path: The file.
            name: Its name in messages and sources.
            missing: The error to raise when it does not exist; None: it is optional.
            named: Whether the user or the administrator named it; otherwise it must belong to this user or root.
            unknown: Collects a note for each unknown key, which is left out; None: an unknown key is an error.
            is_site: Whether it is the site's, which may have limits.
            is_job: Whether it is a job file, which may have a sweep and steps.

        Returns:
            The file; an empty one when it does not exist.

        Raises:
            UsageError: For an invalid key or value, naming its line.
            GridtfError: When the file cannot be read.
        """
        hint = f"if you trust it, name it on the command line: {name}"
        try:
            data, lines, owner = load(path, name, trusted=None if named else (), hint=hint)
        except (FileNotFoundError, NotADirectoryError):
            if missing is None:
                return File({})
            raise missing from None
        tables = _Tables(self, path.parent, name, lines, unknown)
        profiles = {word: tables.layer(own, "profiles", word) for word, own in tables.take(data, "profiles").items()}
        partitions: dict[str, Layer] = {}
        for kind in _PARTITIONS:
            if isinstance(data.get(kind), dict):  # partition = "gpu" is a value
                for word, own in tables.take(data, kind).items():
                    partitions.setdefault(word, {}).update(tables.layer(own, kind, word))
        limited = is_site and isinstance(data.get("limits"), dict)
        made = tables.limits(data.pop("limits")) if limited else {}
        sweep = tables.sourced(data.pop("sweep"), "sweep") if is_job and isinstance(data.get("sweep"), dict) else {}
        named_steps = tables.take(data, "steps") if is_job else {}
        steps = {word: tables.layer(own, "steps", word) for word, own in named_steps.items()}
        return File(tables.layer(data), owner, profiles, partitions, made, sweep, steps)

    def variables(self) -> Layer:
        """Read the GRIDTF_SUBMIT_ variables.

        Raises:
            UsageError: For an unknown variable or an invalid value, naming the variable.
        """
        known = options.by_variable(self.table)
        layer: Layer = {}
        for variable in sorted(self.environ):
            text = self.environ[variable]
            if not variable.startswith(options.PREFIX) or not text:
                continue
            option = known.get(variable)
            if option is None:
                from gridtf.jobspec import synonyms

                names = [name.removeprefix(options.PREFIX) for name in known]  # the prefix makes all alike
                near = nearest(variable.removeprefix(options.PREFIX), names, before=options.PREFIX)
                hint = synonyms.variable(variable, text, known) or near or "unset it"
                raise UsageError(f"{variable}: there is no such option", hint=hint)
            parts = text.splitlines() if option.kind.repeats else [text]
            self._add(layer, option, parts, variable)
        return _with_models(layer)

    def flags(self, given: Given, command: Sequence[str] | None) -> Layer:
        """Read the command line.

        Args:
            given: Its options.
            command: The arguments after ``--``; None without a ``--``.

        Raises:
            UsageError: For an invalid value, naming the flag, and for a ``--`` without a command.
        """
        if command is not None and not command:
            raise UsageError("there is no command after --", hint="such as: -- python train.py")
        layer: Layer = {}
        for option, flag, text in given:
            if text is None:
                for key, value in options.of_flag(option, flag).items():
                    _put(layer, key, Sourced(value, flag))
            else:
                self._add(layer, option, [text], flag)
        if command:
            _put(layer, ARGS if command[0].startswith("-") else COMMAND, Sourced(tuple(command), COMMAND_LINE))
        return _with_models(layer)

    def _add(self, layer: Layer, option: Option, texts: Sequence[str], source: str) -> None:
        for text in texts:
            try:
                values = options.read(option, text, self.environ)
            except UsageError as error:
                raise UsageError(f"{source}: {error.what}", why=error.why, hint=error.hint) from None
            for key, value in values.items():
                _put(layer, key, _valued(key, value, source, self.cwd, self.environ))


class _Tables(Value):
    """The tables of a file. lines: of its keys. folder: for relative paths; the others as in Reader.file."""

    reader: Reader
    folder: Path
    name: str
    lines: Mapping[Key, int]
    unknown: dict[str, str] | None

    def take(self, data: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
        """Take the tables ``[KIND.NAME]`` out of the file's content, by name."""
        found = data.pop(kind, {})
        if isinstance(found, dict) and all(isinstance(values, dict) for values in found.values()):
            return found
        place = self._place((kind, *(list(found)[:1] if isinstance(found, dict) else [])))
        raise UsageError(f"{place}: {kind}: expected tables", hint=f"write [{kind}.NAME] on a line of its own")

    def limits(self, values: Mapping[str, Any]) -> dict[str, Limit]:
        """The table ``[limits]``."""
        made = {}
        for word, value in values.items():
            place = self._place(("limits", word))
            if word not in limits.NAMES and self.unknown is not None:
                hint = nearest(word, [*limits.NAMES]) or f"known: {', '.join(limits.NAMES)}"
                self.unknown[place] = plain(f"{place}: limits.{word}: unknown limit, left out; {hint}")
                continue
            try:
                made[word] = Limit(limits.parse(word, value), place)
            except SpecError as error:
                raise UsageError(plain(f"{place}: {error.what}"), hint=error.hint) from None
        return made

    def sourced(self, values: Mapping[str, Any], *prefix: str) -> dict[str, Sourced]:
        """The values of a table as they are, each with its place. prefix: its key in the file."""
        return {key: Sourced(value, self._place((*prefix, key))) for key, value in values.items()}

    def layer(self, values: Mapping[str, Any], *prefix: str) -> Layer:
        """A table as a layer. prefix: its key in the file."""
        layer: Layer = {}
        left_out: set[str] = set()
        other_names = aliases(self.reader.table)
        tasks = values.get("tasks")
        # a table without a kind may add to one of a lower layer, but a misspelt type is more likely
        own = (
            [name for name, made in tasks.items() if isinstance(made, dict) and "kind" in made]
            if isinstance(tasks, dict)
            else []
        )
        for key, value in flat(values):
            place = self._place((*prefix, *key))
            error = _unknown_key(key, value, self.reader.table, own)
            if error and self.unknown is not None:
                advice = "" if error.hint.startswith("known: ") else f"; {error.hint}"
                if error.key not in left_out:  # an unknown task type has several keys
                    left_out.add(error.key)
                    self.unknown[place] = plain(f"{place}: {error.what}, left out{advice}")
                continue
            if error := error or _misplaced(key, value):
                raise UsageError(plain(f"{place}: {error.what}"), hint=error.hint)
            if key == ("time",) and hasattr(value, "isoformat"):
                value = value.isoformat()  # in TOML a bare 02:00:00 is a time of day
            canonical = (other_names.get(key[0], key[0]), *key[1:])
            if canonical in layer:
                twins = [word for word in values if other_names.get(word, word) == canonical[0]]
                raise UsageError(f"{place}: {' and '.join(twins)} are two names of one key", hint="keep one of them")
            source = place if canonical == key else f"{place} ({key[0]})"
            layer[canonical] = _valued(canonical, value, source, self.folder, self.reader.environ)
        return _with_models(layer)

    def _place(self, key: Key) -> str:
        """``FILE:LINE`` of a key, or of the innermost table around it that has a line."""
        within = (key[:end] for end in range(len(key), 0, -1))
        return f"{self.name}:{next((self.lines[part] for part in within if part in self.lines), 1)}"


def _with_models(layer: Layer) -> Layer:
    """The layer with numbers of GPUs alone in place of values such as "a100:4", and with the model as a key of its own,
    so that a layer above it can change one of them.

    Raises:
        UsageError: When such values of a job, or of a task type, name different models.
    """
    for table in dict.fromkeys(key[:-1] for key in layer if key[-1] in GPU_KEYS and len(key) % 2):  # no params
        known = {key[-1]: value for key, value in layer.items() if key[:-1] == table}
        try:
            made = split_gpus({name: value.value for name, value in known.items()})
        except ValueError as error:
            source = next(value.source for name, value in known.items() if name in GPU_KEYS)
            raise UsageError(f"{source}: {error}", hint=ONE_MODEL) from None
        named = next((known[name].source for name in made if name in GPU_KEYS), "")
        for name, value in made.items():
            key: Key = (*table, name)
            layer[key] = Sourced(value, known[name].source if name in known else named)
    return layer


def _put(layer: Layer, key: Key, value: Sourced) -> None:
    """Add a value to a layer, appending to a list that it already has."""
    if isinstance(value.value, tuple) and key in layer:
        value = Sourced((*layer[key].value, *value.value), value.source)
    layer[key] = value


# --- keys -----------------------------------------------------------------------------------------------------


def flat(table: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Leaves of the tables that merge. An empty table is a leaf: ``[tasks.evaluator]`` alone requests an evaluator."""
    for name, value in table.items():
        key = (*path, name)
        if isinstance(value, dict) and (value or key == ("tasks",)) and _is_table(key):
            yield from flat(value, key)
        else:
            yield key, tuple(value) if isinstance(value, list) else value


def _is_table(key: Key) -> bool:
    """Whether the value of this key is a table that merges key by key."""
    return key in (("env",), ("params",), ("tasks",)) or (key[0] == "tasks" and (len(key) == 2 or key[2:] == ("env",)))


def _unknown_key(key: Key, value: object, table: Table, own: Collection[str]) -> SpecError | None:
    """The error for an unknown key or task type; None for a known one. own: the job's own task types."""
    tables = [*fields(TaskSpec)]
    types = [*TASK_TYPES, *own]
    tops = dict.fromkeys([*fields(JobSpec)] + [option.key.partition(".")[0] for option in table])
    for depth, known in enumerate(([*tops, *aliases(table)], types, tables)):
        if len(key) > depth and (depth == 0 or key[0] == "tasks") and key[depth] not in known:
            what = "unknown task type" if depth == 1 else "unknown key"
            if key[0] == "limits":
                return SpecError("limits", what, hint="[limits] counts in the site's file only")
            near = ("tasks", "env") if depth == 0 and isinstance(value, Mapping) else known
            from gridtf.jobspec import synonyms

            word = key[depth]
            if depth == 0:
                hint = synonyms.key(word, value, table)
            else:
                hint = synonyms.task_type(word) if depth == 1 else synonyms.task_key(word, value, tops)
            hint = hint or nearest(word, list(near))
            return SpecError(".".join(key[: depth + 1]), what, hint=hint or _in_general(depth, value, known))
    return None


def _misplaced(key: Key, value: object) -> SpecError | None:
    """The error for a value in place of a table, and for an empty command."""
    dotted = ".".join(key)
    if _is_table(key) and value != {}:
        pairs = [str(part).partition("=") for part in (value if isinstance(value, tuple) else [value])]
        variables = {name: text for name, equals, text in pairs if equals and key[-1] == "env"}
        write = f"{dotted} = {toml(variables)}" if variables else f"[{dotted}] on a line of its own"
        if key[0] == "tasks" and len(key) == 2 and type(value) is int:
            write = f"{dotted}.count = {value}"
        return SpecError(dotted, f"{spell(value)} is not a table", hint=f"write {write}")
    if key == COMMAND and value == ():
        return SpecError(dotted, "the list is empty: there is nothing to run")
    return None


def _in_general(depth: int, value: object, known: Collection[str]) -> str:
    """A hint for a key that is like no other."""
    if depth:
        return f"known: {', '.join(known)}{f'; {A_TYPE_OF_ONE_S_OWN}' if depth == 1 else ''}"
    if isinstance(value, tuple) and value and isinstance(value[0], Mapping):
        return "a file describes one job, or its steps: write [steps.train], [steps.evaluate] and so on"
    if not isinstance(value, Mapping):
        return "the keys are the options that `gridtf submit --help` lists, with _ for -"
    lines = [f"{part} = {toml(item)}" for part, item in value.items() if not isinstance(item, Mapping)]
    return f"keys of the job have no table: write them above the first one{': ' if lines else ''}{', '.join(lines)}"


def _valued(key: Key, value: Any, source: str, base: Path, environ: Mapping[str, str]) -> Sourced:
    """A value of a layer; a path is expanded and made absolute."""
    try:
        if key[0] in (*_PATHS, "container", "python") and isinstance(value, str) and value:
            return Sourced(_path(key[0], expand(value, environ), base), source)
        if key == BINDS and isinstance(value, tuple) and all(isinstance(bind, str) for bind in value):
            return Sourced(tuple(_bind(expand(bind, environ), base) for bind in value), source)
        if key == STAGE and isinstance(value, tuple) and all(isinstance(path, str) for path in value):
            return Sourced(tuple(_path(key[0], expand(path, environ), base) for path in value), source)
    except ValueError as error:
        hint = "set it, or write a dollar sign of the path itself as $$"
        if "$" not in str(value):
            hint = f"write $HOME for your own, or ./{value} for a folder of this name"
        return Sourced(value, source, SpecError(key[0], str(error), hint=hint))
    return Sourced(value, source)


def _path(key: str, text: str, base: Path) -> str:
    """An absolute path, of a key whose value may also be the name of a program or an image."""
    if (key == "python" and "/" not in text) or (key == "container" and not container_path(_home(text))):
        return text
    return str(Path(base, _home(text)).absolute())


def _bind(text: str, base: Path) -> str:
    """``SOURCE:TARGET[:MODE]``, the source as an absolute path; the target is the source where it is left out."""
    source, _, rest = text.partition(":")
    source = str(Path(base, _home(source)).absolute()) if source else source
    return f"{source}:{rest or source}"


def _home(text: str) -> str:
    """Replace a ``~`` or ``~user`` at the beginning of a path. Raises ValueError for an unknown user."""
    if text.startswith("~"):
        try:
            return str(Path(text).expanduser())
        except RuntimeError:
            if not text.startswith(("~/", "./")) and text != "~":
                raise ValueError(f"there is no user {Path(text).parts[0][1:]}") from None
    return text  # without a home folder, a later error names ~


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace the variables in a path. Pure.

    Args:
        text: Where ``$NAME`` and ``${NAME}`` are variables and ``$$`` is a dollar sign.
        environ: Their values.

    Raises:
        ValueError: For a variable that is not set or empty, which would name another folder.
    """

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        name = match[2] or match[3]
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{match[0]} is not a variable; those of a path are written $NAME or ${{NAME}}")
        if not environ.get(name):
            raise ValueError(f"the variable {name} is {'empty' if name in environ else 'not set'}")
        return environ[name]

    return re.sub(_VARIABLE, value, text)
