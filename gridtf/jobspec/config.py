"""Merges defaults, files, environment and flags into a JobSpec, and records the source of each value.

Layers, each overriding the one before: defaults < site file < user file < job file < environment < flags.

- Tables (``env``, ``tasks``, ``tasks.TYPE``, ``tasks.TYPE.env``) merge key by key; any other value but ``setup`` and
  ``args``, even a list, is replaced as a whole. Within one command line a repeated flag adds to its list.
- The set-up lines of all layers add up, the lowest first; ``setup_replace`` drops those of lower layers. A job that
  runs in this process (gridtf_run) gets none from the site and user files: its script or shell has done its own set-up.
- A command in a higher layer overrides a lower layer's entry, and vice versa; so do an address and an interface.
- ``args`` are added to the command of the same layer or the one below; so are words after ``--`` if the first begins
  with a dash.
- An unknown key in the site or user file is left out, with a note.
- ``[partitions.NAME]`` of a file are its values for jobs on that partition or queue, above its plain values.
- ``[profiles.NAME]`` of all files, the site's first, are a layer between the job file and the environment for jobs with
  that profile. ``[limits]`` of the site file are checked last.
- ``[tasks.ps]`` without ``count`` in the site or user file describes a ps, but does not request one. In these files,
  ``container_binds`` and a ``container_command`` with ``{image}`` are for jobs with a container.
- ``./gridtf.toml`` is read without being named only when the command line has neither a command nor an entry, and when
  it belongs to this user or root: a job file decides what runs.
- In paths ``~``, ``$NAME`` and ``${NAME}`` are replaced; ``$$`` is a dollar sign. Relative paths in a file are resolved
  against that file's folder, others against the working folder. A ``python`` with a slash in it is such a path, and so
  is a ``container`` without a colon, and the source of a bind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.errors import NotFoundError, SpecError, UnknownKeyError, UsageError, nearest
from gridtf.jobspec import limits, options
from gridtf.jobspec.arguments import Parser, add_job_options, split_command
from gridtf.jobspec.jobfile import JOB_FILE, load, no_job_file, refuse_other_kinds
from gridtf.jobspec.limits import Limit
from gridtf.jobspec.options import OPTIONS, Key, Option, Table, aliases
from gridtf.jobspec.spec import JobSpec, TaskSpec, check_strings, container_path, need_program, spell
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.text import plain, toml
from gridtf.values import Value, fields

SITE_FILE = "/etc/gridtf/config.toml"
_SITE_VARIABLE = "GRIDTF_SITE_CONFIG"
_PATHS = ("chdir", "template", "run_dir", "run_root")
_VARIABLE = r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\})"  # any other dollar sign stays
_COMMAND, _ENTRY, _TEMPLATE = ("command",), ("entry",), ("template",)
_SETUP, _SETUP_REPLACE, _ARGS = ("setup",), ("setup_replace",), ("args",)
_COMMAND_LINE = "the command line"
UNREAD = f"{JOB_FILE} is not read, since the command line says what to run; to use it: gridtf submit {JOB_FILE} -- …"
_ADDRESS, _INTERFACE = ("address",), ("interface",)
_CONTAINER, _BINDS, _CONTAINER_COMMAND = ("container",), ("container_binds",), ("container_command",)
# The first of a pair overrides the second in lower layers.
_PROFILE, _PARTITION = ("profile",), ("partition",)
_PARTITIONS = ("partitions", "partition", "queues", "queue")  # tables of these names
_EXCLUSIVE = ((_COMMAND, _ENTRY), (_ENTRY, _COMMAND), (_ADDRESS, _INTERFACE), (_INTERFACE, _ADDRESS))
_CHIEF, _MASTER = ("tasks", "chief", "count"), ("tasks", "master", "count")

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
    """

    layer: Layer
    owner: int | None = None
    profiles: Mapping[str, Layer] = {}
    partitions: Mapping[str, Layer] = {}
    limits: Mapping[str, Limit] = {}


class Configured(Value):
    """A job and the sources of its values.

    Attributes:
        spec: The job.
        sources: Dotted key -> source, for every value that is not a default. Each set-up line has a source of its own,
            as ``setup.1`` and so on.
        trusted: Ids of the users, besides this one and root, who may own the template; None: any user, since this user
            has named the template.
        notes: Messages for the user, one line each.
    """

    spec: JobSpec
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None
    notes: tuple[str, ...] = ()

    def source(self, key: str) -> str:
        """The source of a value, as in a message; "the defaults" without one."""
        return self.sources.get(key, "the defaults")


def from_arguments(
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    table: Table = OPTIONS,
    *,
    complete: bool = True,
    runs_here: bool = False,
) -> Configured:
    """Parse a command line ``[JOBFILE] [options] [-- command]`` and merge it with all layers below it.

    Args:
        argv: Its arguments.
        environ: The environment, for GRIDTF_SUBMIT_ variables and the paths of the site and user files.
        cwd: The working folder.
        table: The options.
        complete: As for configure.
        runs_here: As for configure.

    Raises:
        UsageError: For an invalid value in any layer, naming its source.
        UnknownKeyError: As for configure.
        NotFoundError: When the job file, or a site file that is named, does not exist.
        GridtfError: When a file cannot be read.
    """
    words, command = split_command(argv)
    parser = Parser("gridtf_run", usage="gridtf_run [JOBFILE] [options] -- command")
    add_job_options(parser, table)
    arguments = parser.parse(words, command)
    return configure(
        arguments.jobfile, arguments.given, command, environ, cwd, table, complete=complete, runs_here=runs_here
    )


def configure(
    jobfile: str | None,
    given: Given,
    command: Sequence[str] | None,
    environ: Mapping[str, str],
    cwd: Path,
    table: Table = OPTIONS,
    *,
    complete: bool = True,
    runs_here: bool = False,
    limited: bool = True,
) -> Configured:
    """Merge all layers into a JobSpec.

    Args:
        jobfile: The job file as the user named it; None: ./gridtf.toml if the command line has neither a command nor an
            entry.
        given: The options of the command line, as arguments.add_job_options collects them.
        command: The arguments after ``--``; None without a ``--``.
        environ: The environment, for GRIDTF_SUBMIT_ variables and the paths of the site and user files.
        cwd: The working folder.
        table: The options.
        complete: Whether these are all options, those of plugins as well: then unknown keys in the site's and the
            user's file are left out, with a note.
        runs_here: Whether the job runs in this process and not in a job script of its own: then the set-up lines of the
            site's and the user's file are left out.
        limited: Whether the site's limits apply, which they never do to a job that runs here.

    Raises:
        UsageError: For an invalid value in any layer, naming its source.
        UnknownKeyError: For an unknown key in the site's or the user's file, unless ``complete``.
        NotFoundError: When the job file, or a site file that is named, does not exist.
        GridtfError: When a file cannot be read.
    """
    flags = _flags(given, command, environ, cwd)
    if command is not None and not command:
        raise UsageError("there is no command after --", hint="such as: -- python train.py")
    general, notes = _general(environ, table, complete=complete, with_setup=not runs_here)
    named = jobfile is not None
    # not Path.is_file, which raises for a folder that this user cannot read
    if not named and os.path.isfile(cwd / JOB_FILE):  # noqa: PTH113
        if not flags.keys() & {_COMMAND, _ENTRY}:
            jobfile = JOB_FILE
            notes.append(f"the job is taken from {JOB_FILE}")
        elif not runs_here or sys.stderr.isatty():
            notes.append(UNREAD)
    job = File({})
    if jobfile is not None:
        refuse_other_kinds(cwd / jobfile, jobfile)
        job = _read(cwd / jobfile, jobfile, no_job_file(jobfile, cwd), table, environ, named=named)
        if ("chdir",) not in job.layer:
            # lowest precedence: any explicit chdir overrides the job file's folder
            general.insert(0, File({("chdir",): Sourced(str((cwd / jobfile).parent), f"the folder of {jobfile}")}))
    merged = _merge_files(general, job, [_environment(environ, cwd, table), flags])
    trusted = None
    if job.owner is not None and merged.get(_TEMPLATE) is job.layer.get(_TEMPLATE):
        trusted = frozenset({job.owner})
    made = _configured(merged, {option.key for option in table}, trusted, notes)
    if limited and not runs_here:
        _check_limits(made, general)
    try:
        need_program(made.spec, "give a command after --, or --entry module:function, or a job file that names one")
    except SpecError as error:
        raise located(error, made.sources) from None
    return made


def complement(
    spec: JobSpec, environ: Mapping[str, str], table: Table = OPTIONS, *, complete: bool = True
) -> Configured:
    """Merge the site's and the user's file below a JobSpec made in Python.

    Args:
        spec: Its values that are no defaults override the files'; its set-up lines are added to theirs.
        environ: The environment, for the paths of the files.
        table: The options.
        complete: As for configure.

    Raises:
        UsageError: For an invalid value in a file, naming its source.
        UnknownKeyError: As for configure.
        NotFoundError: When a site file that is named does not exist.
        GridtfError: When a file cannot be read.
    """
    general, notes = _general(environ, table, complete=complete)
    values = spec.to_dict()
    values |= values.pop("options", {})
    own = {key: Sourced(value, "JobSpec") for key, value in _flat(values)}
    merged = _merge_files(general, File({}), [own])
    made = _configured(merged, {option.key for option in table} | {*spec.options}, None, notes)
    _check_limits(made, general)
    return made


def _configured(
    merged: Layer, keys: Collection[str], trusted: frozenset[int] | None, notes: Sequence[str]
) -> Configured:
    sources = {".".join(key): value.source for key, value in merged.items()}
    try:
        for value in merged.values():
            if value.error:
                raise value.error
        return Configured(JobSpec.from_dict(_nested(merged, keys)), sources, trusted, tuple(notes))
    except SpecError as error:
        raise located(error, sources) from None


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
    hint = error.hint
    if key == "nodes" and sources[key] == "-N":
        hint += "; qsub's -N is --name"
    shown = "setup" if parts[0] == "setup" else error.key  # the number of a line counts those of all layers
    if key is None:
        # on a command line without a file the key is known as its option
        typed = sources.get("command") == _COMMAND_LINE or sources.get("entry", "").startswith("-")
        what = f"{options.flag(error.key) if typed else shown}: {error.problem}"
    elif sources[key].startswith(("-", options.PREFIX)):
        what = f"{sources[key]}: {error.problem}"
    elif sources[key] == _COMMAND_LINE:
        what = f"{shown}: {error.problem}"
    else:
        what = f"{sources[key]}: {shown}: {error.problem}"
    return UsageError(plain(what), why=error.why, hint=hint)  # keys can contain any character


def setup_by_source(spec: JobSpec, sources: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Group set-up lines that follow each other and have one source.

    Args:
        spec: The job.
        sources: Dotted key -> source, as in Configured.

    Returns:
        (source, lines) pairs in the order of the lines; the source is empty if it is not known.
    """
    groups: list[tuple[str, list[str]]] = []
    for number, line in enumerate(spec.setup, 1):
        source = sources.get(f"setup.{number}", "")
        if not groups or groups[-1][0] != source:
            groups.append((source, []))
        groups[-1][1].append(line)
    return groups


# --- layers ---------------------------------------------------------------------------------------------------


def _check_limits(made: Configured, general: Sequence[File]) -> None:
    try:
        for file in general:
            limits.check(made.spec, made.sources, file.limits)
    except SpecError as error:
        raise located(error, made.sources) from None


def _general(
    environ: Mapping[str, str], table: Table, *, complete: bool, with_setup: bool = True
) -> tuple[list[File], list[str]]:
    """The site file and the user file, and a note on each unknown key."""
    found: list[File] = []
    notes: list[str] = []
    for path, missing, is_site in general_files(environ):
        unknown: dict[str, str] = {}
        file = _read(path, str(path), missing, table, environ, unknown=unknown, is_site=is_site)
        found.append(file if with_setup else _without_setup(file))
        notes += unknown.values()
    if notes and not complete:
        raise UnknownKeyError(notes[0])
    return found, notes


def _without_setup(file: File) -> File:
    def rest(layer: Layer) -> Layer:
        return {key: value for key, value in layer.items() if key != _SETUP}

    profiles, partitions = (
        {name: rest(layer) for name, layer in layers.items()} for layers in (file.profiles, file.partitions)
    )
    return file.replace(layer=rest(file.layer), profiles=profiles, partitions=partitions)


def general_files(environ: Mapping[str, str]) -> Iterator[tuple[Path, NotFoundError | None, bool]]:
    """The site file and the user file: path, the error to raise when it is missing, and whether it is the site's."""
    site = environ.get(_SITE_VARIABLE)
    if site is None:
        yield Path(SITE_FILE), None, True
    elif site:
        hint = "unset it, or set it to an empty string to use no site file"
        yield Path(site), NotFoundError(f"{_SITE_VARIABLE}: no such file: {site}", hint=hint), True
    with contextlib.suppress(RuntimeError):  # a user without a home folder
        folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
        yield Path(folder) / "gridtf" / "config.toml", None, False


def _read(
    path: Path,
    name: str,
    missing: NotFoundError | None,
    table: Table,
    environ: Mapping[str, str],
    *,
    named: bool = True,
    unknown: dict[str, str] | None = None,
    is_site: bool = False,
) -> File:
    """Read a file.

    Args:
        path: The file.
        name: Its name in messages and sources.
        missing: The error to raise when it does not exist; None: it is optional.
        table: The options.
        environ: The variables that paths may contain.
        named: Whether the user or the administrator named it; otherwise it must belong to this user or root.
        unknown: Collects a note for each unknown key, which is left out; None: an unknown key is an error.
        is_site: Whether it is the site's, which may have limits.

    Returns:
        The file; an empty one when it does not exist.
    """
    trusted = None if named else ()
    hint = f"if you trust it, name it on the command line: {name}"
    try:
        data, lines, owner = load(path, name, trusted=trusted, hint=hint)
    except (FileNotFoundError, NotADirectoryError):
        if missing is None:
            return File({})
        raise missing from None

    def layer_of(values: Mapping[str, Any], *prefix: str) -> Layer:
        places = {key[len(prefix) :]: line for key, line in lines.items() if key[: len(prefix)] == prefix}
        return _layer(values, places, name, path.parent, table, environ, unknown)

    profiles = {word: layer_of(own, "profiles", word) for word, own in _tables(data, "profiles", name, lines).items()}
    partitions: dict[str, Layer] = {}
    for kind in _PARTITIONS:
        if isinstance(data.get(kind), dict):  # partition = "gpu" is a value
            for word, own in _tables(data, kind, name, lines).items():
                partitions.setdefault(word, {}).update(layer_of(own, kind, word))
    made = _limits(data.pop("limits"), name, lines, unknown) if is_site and isinstance(data.get("limits"), dict) else {}
    return File(layer_of(data), owner, profiles, partitions, made)


def _tables(data: dict[str, Any], kind: str, name: str, lines: Mapping[Key, int]) -> dict[str, dict[str, Any]]:
    """Take the tables ``[KIND.NAME]`` out of a file's content, by name."""
    found = data.pop(kind, {})
    if isinstance(found, dict) and all(isinstance(values, dict) for values in found.values()):
        return found
    line = _line(lines, (kind, *(list(found)[:1] if isinstance(found, dict) else [])))
    raise UsageError(f"{name}:{line}: {kind}: expected tables", hint=f"write [{kind}.NAME] on a line of its own")


def _limits(
    values: Mapping[str, Any], name: str, lines: Mapping[Key, int], unknown: dict[str, str] | None
) -> dict[str, Limit]:
    made = {}
    for word, value in values.items():
        place = f"{name}:{_line(lines, ('limits', word))}"
        if word not in limits.NAMES and unknown is not None:
            hint = nearest(word, [*limits.NAMES]) or f"known: {', '.join(limits.NAMES)}"
            unknown[place] = plain(f"{place}: limits.{word}: unknown limit, left out; {hint}")
            continue
        try:
            made[word] = Limit(limits.parse(word, value), place)
        except SpecError as error:
            raise UsageError(plain(f"{place}: {error.what}"), hint=error.hint) from None
    return made


def _layer(
    values: Mapping[str, Any],
    lines: Mapping[Key, int],
    name: str,
    folder: Path,
    table: Table,
    environ: Mapping[str, str],
    unknown: dict[str, str] | None,
) -> Layer:
    """A table of a file as a layer; see _read. lines: of its keys. folder: for relative paths."""
    layer: Layer = {}
    left_out: set[str] = set()
    other_names = aliases(table)
    for key, value in _flat(values):
        place = f"{name}:{_line(lines, key)}"
        error = _unknown_key(key, value, table)
        if error and unknown is not None:
            advice = "" if error.hint.startswith("known: ") else f"; {error.hint}"
            if error.key not in left_out:  # an unknown task type has several keys
                left_out.add(error.key)
                unknown[place] = plain(f"{place}: {error.what}, left out{advice}")
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
        layer[canonical] = _valued(canonical, value, source, folder, environ)
    return layer


def _environment(environ: Mapping[str, str], cwd: Path, table: Table) -> Layer:
    known = options.by_variable(table)
    layer: Layer = {}
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(options.PREFIX) or not text:
            continue
        option = known.get(variable)
        if option is None:
            hint = options.as_variable(variable, table) or _near_variable(variable, text, known) or "unset it"
            raise UsageError(f"{variable}: there is no such option", hint=hint)
        parts = text.splitlines() if option.kind in ("lines", "variables") else [text]
        _add(layer, option, parts, variable, environ, cwd)
    return layer


def _near_variable(variable: str, text: str, known: Collection[str]) -> str:
    from gridtf.jobspec import synonyms

    word = variable.removeprefix(options.PREFIX)
    named = [f"{options.PREFIX}{name}" for name in synonyms.variable(word)]
    if found := [f"{name}={shlex.quote(text)}" for name in named if name in known]:
        return f"write {' or '.join(found)}"
    hint = nearest(word, [name.removeprefix(options.PREFIX) for name in known])  # the prefix makes all alike
    return hint.replace("mean ", f"mean {options.PREFIX}").replace(" or ", f" or {options.PREFIX}")


def _flags(given: Given, command: Sequence[str] | None, environ: Mapping[str, str], cwd: Path) -> Layer:
    layer: Layer = {}
    for option, flag, text in given:
        if text is None:
            for key, value in options.switch(option, flag).items():
                _put(layer, key, Sourced(value, flag))
        else:
            _add(layer, option, [text], flag, environ, cwd)
    if command:
        _put(layer, _ARGS if command[0].startswith("-") else _COMMAND, Sourced(tuple(command), _COMMAND_LINE))
    return layer


def _add(
    layer: Layer, option: Option, texts: Sequence[str], source: str, environ: Mapping[str, str], cwd: Path
) -> None:
    for text in texts:
        try:
            values = options.read(option, text, environ)
        except UsageError as error:
            raise UsageError(f"{source}: {error.what}", why=error.why, hint=error.hint) from None
        for key, value in values.items():
            _put(layer, key, _valued(key, value, source, cwd, environ))


def _put(layer: Layer, key: Key, value: Sourced) -> None:
    """Add a value to a layer, appending to a list that it already has."""
    if isinstance(value.value, tuple) and key in layer:
        value = Sourced((*layer[key].value, *value.value), value.source)
    layer[key] = value


def _merge_files(general: Sequence[File], job: File, above: Sequence[Layer]) -> Layer:
    """Merge the files and the layers above them, with the tables for the job's profile and partition."""
    read = (*general, job)
    plain_layers = [file.layer for file in read]
    chosen = _highest(_PROFILE, [*plain_layers, *above])
    profile = [file.profiles[chosen.value] for file in read if chosen and chosen.value in file.profiles]
    if chosen and not profile:
        known = [*dict.fromkeys(name for file in read for name in file.profiles)]
        hint = nearest(str(chosen.value), known) or (f"known: {', '.join(known)}" if known else "no file has profiles")
        error = SpecError("profile", f"there is no profile {chosen.value!r}", hint=hint)
        raise located(error, {"profile": chosen.source})
    partition = _highest(_PARTITION, [*plain_layers, *profile, *above])
    name = str(partition.value) if partition else ""
    below, own = (
        [layer for file in part for layer in (file.layer, file.partitions.get(name, {}))] for part in (general, (job,))
    )
    merged = _merge(below, [*own, *profile, *above])
    merged.pop(_PROFILE, None)
    return merged


def _highest(key: Key, layers: Sequence[Layer]) -> Sourced | None:
    """The value of a key in the highest layer that has it."""
    return next((layer[key] for layer in reversed(layers) if key in layer), None)


def _merge(general: Sequence[Layer], job_layers: Sequence[Layer]) -> Layer:
    """Merge the site and user files with the layers of this job, the lowest first."""
    merged: Layer = {}
    for layer in (*general, *job_layers):
        for one, other in _EXCLUSIVE:
            if one in layer:
                merged.pop(other, None)
        if _CHIEF in layer and any(key[:2] == _MASTER[:2] for key in merged):
            layer = {_MASTER if key == _CHIEF else key: value for key, value in layer.items()}
        if _ARGS in layer:
            layer = {**layer, _COMMAND: _with_arguments(layer, merged)}
        merged.update(layer)
    for key in (_SETUP, _SETUP_REPLACE, _ARGS):
        merged.pop(key, None)
    merged.update(_setup((*general, *job_layers)))
    if _CONTAINER not in merged:
        command = merged.get(_CONTAINER_COMMAND)
        needless = (_BINDS, _CONTAINER_COMMAND) if command is None or "{image}" in str(command.value) else ()
        for key in needless:
            if any(key in layer and merged.get(key) is layer[key] for layer in general):
                del merged[key]
    requested = {key[1] for layer in job_layers for key in layer if key[0] == "tasks"} | {"worker"}
    counted = {key[1] for key in merged if key[0] == "tasks" and key[2:] == ("count",)}
    return {key: value for key, value in merged.items() if key[0] != "tasks" or key[1] in requested | counted}


def _setup(layers: Sequence[Layer]) -> Layer:
    """The set-up lines of all layers, as ("setup", "1") and so on, since each line has a source."""
    lines: list[Sourced] = []
    for layer in layers:
        replaces = layer.get(_SETUP_REPLACE)
        if replaces and replaces.value not in (0, 1):
            error = SpecError("setup_replace", f"{spell(replaces.value)} is neither true nor false")
            raise located(error, {error.key: replaces.source})
        if replaces and replaces.value:
            lines.clear()
        if _SETUP in layer:
            lines += (Sourced(line, layer[_SETUP].source) for line in _strings(_SETUP, layer))
    return {("setup", str(number)): line for number, line in enumerate(lines, 1)}


def _with_arguments(layer: Layer, below: Layer) -> Sourced:
    """The command of a layer, or else the one below it, with the layer's ``args`` added."""
    words, source = _strings(_ARGS, layer), layer[_ARGS].source
    command = layer.get(_COMMAND) or below.get(_COMMAND)
    if command:
        _strings(_COMMAND, {_COMMAND: command})
        return Sourced((*command.value, *words), f"{command.source} and {source}")
    if _ENTRY in layer or _ENTRY in below:
        error = SpecError("args", "an entry function takes no arguments", hint="pass values in variables: --env K=V")
    elif source == _COMMAND_LINE:
        what = f"{words[0]!r} after -- begins with a dash, so it is an argument, and there is no command to add it to"
        raise UsageError(what, hint="write the program first, as in -- python train.py, or name a job file that does")
    else:
        hint = 'give a command as well: after --, or in the job file as command = ["python", "train.py"]'
        error = SpecError("args", "there is no command to add arguments to", hint=hint)
    raise located(error, {"args": source})


def _strings(key: Key, layer: Layer) -> tuple[str, ...]:
    """A list of strings of a layer; a UsageError with its source if it is none."""
    try:
        return check_strings(key[0], layer[key].value)
    except SpecError as error:
        raise located(error, {key[0]: layer[key].source}) from None


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
    known = {*fields(JobSpec)}
    for key, value in layer.items():
        if key[:-1] == _SETUP:
            data.setdefault("setup", []).append(value.value)
            continue
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


def _unknown_key(key: Key, value: object, table: Table) -> SpecError | None:
    """The error for an unknown key or task type; None for a known one."""
    tables = [*fields(TaskSpec)]
    tops = dict.fromkeys([*fields(JobSpec)] + [option.key.partition(".")[0] for option in table])
    for depth, known in enumerate(([*tops, *aliases(table)], list(TASK_TYPES), tables)):
        if len(key) > depth and (depth == 0 or key[0] == "tasks") and key[depth] not in known:
            what = "unknown task type" if depth == 1 else "unknown key"
            hint = _other_word(depth, key[depth], value, tops, table) or nearest(key[depth], known)
            return SpecError(".".join(key[: depth + 1]), what, hint=hint or _in_general(depth, value, known))
    return None


def _misplaced(key: Key, value: object) -> SpecError | None:
    """The error for a value in place of a table, and for an empty command."""
    dotted = ".".join(key)
    if _is_table(key) and value != {}:
        name, equals, text = value.partition("=") if isinstance(value, str) and key[-1] == "env" else ("", "", "")
        write = f"{dotted} = {toml({name: text})}" if equals else f"[{dotted}] on a line of its own"
        return SpecError(dotted, f"{spell(value)} is not a table", hint=f"write {write}")
    if key == _COMMAND and value == ():
        return SpecError(dotted, "the list is empty: there is nothing to run")
    return None


def _other_word(depth: int, word: str, value: object, tops: Collection[str], table: Table) -> str:
    """What to write for a word from elsewhere. depth: 0 for a key of the job, 1 a task type, 2 a key of its table."""
    from gridtf.jobspec import synonyms

    if depth == 0:
        return synonyms.key(word, value, table)
    return synonyms.task_type(word) if depth == 1 else synonyms.task_key(word, value, tops)


def _in_general(depth: int, value: object, known: Collection[str]) -> str:
    """A hint for a key that is like no other."""
    if depth:
        return f"known: {', '.join(known)}"
    if not isinstance(value, Mapping):
        return "the keys are the options that `gridtf submit --help` lists, with _ for -"
    lines = [f"{part} = {toml(item)}" for part, item in value.items() if not isinstance(item, Mapping)]
    return f"keys of the job have no table: write them above the first one{': ' if lines else ''}{', '.join(lines)}"


def _valued(key: Key, value: Any, source: str, base: Path, environ: Mapping[str, str]) -> Sourced:
    """A value of a layer; a path is expanded and made absolute."""
    try:
        if key[0] in (*_PATHS, "container", "python") and isinstance(value, str) and value:
            return Sourced(_path(key[0], expand(value, environ), base), source)
        if key == _BINDS and isinstance(value, tuple) and all(isinstance(bind, str) for bind in value):
            return Sourced(tuple(_bind(expand(bind, environ), base) for bind in value), source)
    except ValueError as error:
        hint = "set it, or write a dollar sign of the path itself as $$"
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
    """Replace a ``~`` at the beginning of a path."""
    path = Path(text)
    if path.parts[:1] == ("~",):
        with contextlib.suppress(RuntimeError):  # without a home folder, a later error names ~
            return str(path.expanduser())
    return text


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
