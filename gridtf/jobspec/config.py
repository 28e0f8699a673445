"""Merges defaults, files, environment and flags into a JobSpec, and records the source of each value.

Layers, each overriding the one before: defaults < site file < user file < job file < environment < flags. Below the
environment comes what --like has measured. A job that is run again has its own specification below the flags instead.

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
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from gridtf import files
from gridtf.errors import NotFoundError, SpecError, UnknownKeyError, UsageError
from gridtf.jobspec import limits, merging
from gridtf.jobspec.arguments import Parser, add_job_options, split_command
from gridtf.jobspec.checks import need_program
from gridtf.jobspec.jobfile import JOB_FILE, no_job_file, refuse_other_kinds
from gridtf.jobspec.layers import COMMAND, File, Given, Layer, Reader, Sourced, flat
from gridtf.jobspec.limits import Limit
from gridtf.jobspec.merging import ENTRY, SETUP, merge, strings
from gridtf.jobspec.options import OPTIONS, Table
from gridtf.jobspec.params import parameter
from gridtf.jobspec.spec import JobSpec
from gridtf.values import Value, fields

SITE_FILE = "/etc/gridtf/config.toml"
SITE_VARIABLE = "GRIDTF_SITE_CONFIG"
_TEMPLATE, _NAME = ("template",), ("name",)
_CONDITIONS = (("after",), ("after_any",), ("after_failed",))
UNREAD = f"{JOB_FILE} is not read, since the command line says what to run; to use it: gridtf submit {JOB_FILE} -- …"
# Key -> what it may be where users write ``auto``, and what to write instead.
_NO_AUTO = {
    ("partition",): ("short,long", "name several, such as {}: the first with room is taken; `gridtf when` lists them"),
    ("nodes",): ("2,4,8", "write the number that ends first by `gridtf when --nodes {} --like JOB`, with your options"),
    ("time",): ("1h,8h", 'choose by `gridtf when --time {}`; on Slurm time = "8h" with time_min = "1h" does it'),
}


class Configured(Value):
    """A job and the sources of its values.

    Attributes:
        spec: The job.
        sources: Dotted key -> source, for every value that is not a default. Each set-up line has a source of its own,
            as ``setup.1`` and so on.
        trusted: Ids of the users, besides this one and root, who may own the template; None: any user, since this user
            has named the template.
        notes: Messages for the user, one line each.
        partitions: Partition or queue with a table of its own in the site's or the user's file -> its source.
        sweep: Key -> value of the job file's ``[sweep]``.
        steps: The names of the job file's ``[steps]``, in its order; the job is one of them.
        follows: Condition of its start, such as ``after`` -> the steps and jobs that the table of the step names; for
            a table without one, the step before it.
        sweep_limits: Those of the site on a sweep, by name.
        origin: What the job comes from, as in Plan.
    """

    spec: JobSpec
    sources: Mapping[str, str]
    trusted: frozenset[int] | None = None
    notes: tuple[str, ...] = ()
    partitions: Mapping[str, str] = {}
    sweep: Mapping[str, Sourced] = {}
    steps: tuple[str, ...] = ()
    follows: Mapping[str, tuple[str, ...]] = {}
    sweep_limits: Mapping[str, Limit] = {}
    origin: Mapping[str, str] = {}

    def source(self, key: str) -> str:
        """The source of a value, as in a message; "the defaults" without one."""
        return self.sources.get(key, "the defaults")


class Use(Enum):
    """What a job is configured for."""

    SUBMIT = "a job script"  # all layers, and the site's limits
    HERE = "this process"  # without limits, and without the set-up lines of the site's and the user's file
    LOOK = "a look at it"  # without limits


class Typed(Value):
    """A command line.

    Attributes:
        jobfile: The job file as the user named it; None: ./gridtf.toml if the command line has neither a command nor an
            entry.
        given: The options, as arguments.add_job_options collects them.
        command: The arguments after ``--``; None without a ``--``.
    """

    jobfile: str | None = None
    given: Given = ()
    command: Sequence[str] | None = None


def from_arguments(
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    table: Table = OPTIONS,
    *,
    complete: bool = True,
    use: Use = Use.SUBMIT,
) -> Configured:
    """Parse a command line ``[JOBFILE] [options] [-- command]`` and merge it with all layers below it.

    Args:
        argv: Its arguments.
        environ: As for configure, and so are the others.
        cwd: The working folder.
        table: The options.
        complete: Whether these are all options.
        use: What the job is configured for.

    Raises:
        GridtfError: As configure does.
    """
    words, command = split_command(argv)
    parser = Parser("gridtf_run", usage="gridtf_run [JOBFILE] [options] -- command")
    add_job_options(parser, table)
    arguments = parser.parse(words, command)
    typed = Typed(arguments.jobfile, arguments.given, command)
    return configure(typed, environ, cwd, table, complete=complete, use=use)


def configure(
    typed: Typed,
    environ: Mapping[str, str],
    cwd: Path,
    table: Table = OPTIONS,
    *,
    complete: bool = True,
    use: Use = Use.SUBMIT,
    like: Callable[[JobSpec], Layer] | None = None,
    step: str = "",
) -> Configured:
    """Merge all layers into a JobSpec.

    Args:
        typed: The command line.
        environ: The environment, for GRIDTF_SUBMIT_ variables and the paths of the site and user files.
        cwd: The working folder.
        table: The options.
        complete: Whether these are all options, those of plugins as well: then unknown keys in the site's and the
            user's file are left out, with a note.
        use: What the job is configured for.
        like: Makes a layer between the files and the variables, for the job that it is without it.
        step: Which of the job file's steps it is; empty: the first, if there are any.

    Raises:
        UsageError: For an invalid value in any layer, naming its source.
        UnknownKeyError: For an unknown key in the site's or the user's file, unless ``complete``.
        NotFoundError: When the job file, or a site file that is named, does not exist.
        GridtfError: When a file cannot be read.
    """
    reader = Reader(table, environ, cwd)
    flags, jobfile = reader.flags(typed.given, typed.command), typed.jobfile
    general, notes = _general(reader, complete=complete, with_setup=use is not Use.HERE)
    named = jobfile is not None
    # not Path.is_file, which raises for a folder that this user cannot read
    if not named and files.is_file(cwd / JOB_FILE):
        if not flags.keys() & {COMMAND, ENTRY}:
            jobfile = JOB_FILE
            notes.append(f"the job is taken from {JOB_FILE}")
        elif use is not Use.HERE or sys.stderr.isatty():
            notes.append(UNREAD)
    job = File({})
    if jobfile is not None:
        refuse_other_kinds(cwd / jobfile, jobfile)
        job = reader.file(cwd / jobfile, jobfile, no_job_file(jobfile, cwd), named=named, is_job=True)
        if ("chdir",) not in job.layer:
            # lowest precedence: any explicit chdir overrides the job file's folder
            general.insert(0, File({("chdir",): Sourced(str((cwd / jobfile).parent), f"the folder of {jobfile}")}))
    above = _with_parameters([*general, job], [reader.variables(), flags])
    if (job.steps or job.sweep) and use is Use.HERE:
        what = f"{jobfile} has {'[steps]' if job.steps else 'a [sweep]'}, and this runs one job"
        raise UsageError(what, hint=f"gridtf {'submit' if job.steps else 'sweep'} {jobfile} submits a job for each")
    if job.steps and job.sweep:
        what = f"{jobfile} has [steps] and a [sweep], and a step is one job"
        raise UsageError(what, hint="write the sweep in a file of its own")
    step = step or next(iter(job.steps), "")
    own, follows = _step(job.steps, step)
    keys = {option.key for option in table}
    merged, trusted = merge(general, job, [own, *above]), None
    if like:
        merged = merge(general, job, [own, like(_configured(merged, keys, None, ()).spec), *above])
    merged = _named(merged, step)
    if job.owner is not None and merged.get(_TEMPLATE) is job.layer.get(_TEMPLATE):
        trusted = frozenset({job.owner})
    made = _configured(merged, keys, trusted, notes)
    tables = [table for file in general for table in file.partitions.items()]
    partitions = {name: next(iter(values.values())).source for name, values in tables if values}
    of_sweep = {name: file.limits[name] for file in general for name in limits.OF_SWEEPS if name in file.limits}
    if use is Use.SUBMIT:
        _check_limits(made, general)
    parts = {"sweep": job.sweep, "steps": tuple(job.steps), "follows": follows, "sweep_limits": of_sweep}
    made = made.replace(partitions=partitions, **parts)
    try:
        need_program(made.spec, "give a command after --, or --entry module:function, or a job file that names one")
    except SpecError as error:
        raise merging.located(error, made.sources) from None
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
    general, notes = _general(Reader(table, environ, Path()), complete=complete)
    merged = merge(general, File({}), [_layer(spec, "JobSpec")])
    made = _configured(merged, {option.key for option in table} | {*spec.options}, None, notes)
    _check_limits(made, general)
    return made


def change(
    spec: JobSpec,
    source: str,
    typed: Typed,
    environ: Mapping[str, str],
    cwd: Path,
    table: Table = OPTIONS,
    *,
    complete: bool = True,
) -> Configured:
    """Merge a command line above the specification of a job that is there already.

    Of the files only the profile that the command line names and the site's limits count, and no variables.

    Args:
        spec: The specification.
        source: Of its values.
        typed: The command line, without a job file.
        environ: The environment, for the paths of the files.
        cwd: As for configure, and so are the others.

    Raises:
        GridtfError: As configure does.
    """
    reader = Reader(table, environ, cwd)
    general, _ = _general(reader, complete=complete)
    named = [file.replace(layer={}, partitions={}) for file in general]
    own = File(_layer(spec, source))
    merged = merge(named, own, _with_parameters([own], [reader.flags(typed.given, typed.command)]))
    made = _configured(merged, {option.key for option in table} | {*spec.options}, None, ())
    _check_limits(made, general)
    return made


def _layer(spec: JobSpec, source: str) -> Layer:
    """The values of a specification that are no defaults."""
    values = spec.to_dict()
    values |= values.pop("options", {})
    return {key: Sourced(value, source) for key, value in flat(values)}


def _configured(
    merged: Layer, keys: Collection[str], trusted: frozenset[int] | None, notes: Sequence[str]
) -> Configured:
    sources = {".".join(key): value.source for key, value in merged.items()}
    try:
        for key, value in merged.items():
            if value.error:
                raise value.error
            word, _, listed = str(value.value).partition(":")
            if key in _NO_AUTO and word == "auto":
                several, hint = _NO_AUTO[key]
                raise SpecError(key[0], "gridtf chooses no value for auto", hint=hint.format(listed or several))
        return Configured(JobSpec.from_dict(_nested(merged, keys)), sources, trusted, tuple(notes))
    except SpecError as error:
        raise merging.located(error, sources) from None


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


def forbidden_by_site(name: str, environ: Mapping[str, str]) -> str:
    """Where the site's file forbids something; empty where it does not.

    Args:
        name: An entry of ``[limits]`` that is true or false.
        environ: As for limit_of_site.

    Raises:
        GridtfError: As limit_of_site does.
    """
    limit = limit_of_site(name, environ)
    return f"{limit.source}: {name} = false" if limit and not limit.value else ""


def limit_of_site(name: str, environ: Mapping[str, str], *, of_root: bool = False) -> Limit | None:
    """An entry of ``[limits]`` in the site's file, which no other file can set; None where it has none.

    Args:
        name: The entry.
        environ: The environment, for the path of the file.
        of_root: Whether it counts in a file of root's only: a user can name one of his own in the environment.

    Raises:
        GridtfError: The file cannot be read, or has a wrong value.
    """
    for path, missing, is_site in general_files(environ):
        if is_site:
            file = Reader(OPTIONS, environ, Path()).file(path, str(path), missing, unknown={}, is_site=True)
            counts = name in file.limits and (file.owner == 0 or not of_root)
            return file.limits[name].replace(owner=file.owner) if counts else None
    return None


def _step(steps: Mapping[str, Layer], name: str) -> tuple[Layer, dict[str, tuple[str, ...]]]:
    """The values of a step, without the conditions of its start, which add to those of the file; and these. name:
    empty: there are no steps."""
    if not name:
        return {}, {}
    own = {key: value for key, value in steps[name].items() if key not in _CONDITIONS}
    follows = {key[0]: strings(key, steps[name]) for key in _CONDITIONS if key in steps[name]}
    before = list(steps)[: list(steps).index(name)][-1:]
    return own, follows or {_CONDITIONS[0][0]: tuple(before)}


def _named(merged: Layer, step: str) -> Layer:
    """The values of a job, with the name of the step that it is, if it is one."""
    if not step:
        return merged
    name, place = merged.get(_NAME), f"[steps.{step}]"
    called = Sourced(f"{name.value}-{step}", f"{name.source} and {place}") if name else Sourced(step, place)
    return {**merged, _NAME: called}


def _with_parameters(read: Sequence[File], above: Sequence[Layer]) -> list[Layer]:
    """The layers of the variables and flags, where ``--set`` gives each parameter a value of the type it has in the
    files; without any there, ``--set`` makes new ones."""
    layers = [layer for file in read for layer in (file.layer, *file.profiles.values(), *file.steps.values())]
    known = {key[1]: value.value for layer in layers for key, value in layer.items() if key[0] == "params"}
    made: list[Layer] = []
    for layer in above:
        typed: Layer = {}
        for key, value in layer.items():
            if key[0] != "params":
                typed[key] = value
                continue
            try:
                typed[key] = Sourced(parameter(key[1], value.value, known), value.source)
            except SpecError as error:
                raise merging.located(error, {".".join(key): value.source}) from None
        made.append(typed)
    return made


def _check_limits(made: Configured, general: Sequence[File]) -> None:
    try:
        for file in general:
            limits.check(made.spec, made.sources, file.limits)
    except SpecError as error:
        raise merging.located(error, made.sources) from None


def _general(reader: Reader, *, complete: bool, with_setup: bool = True) -> tuple[list[File], list[str]]:
    """The site file and the user file, and a note on each unknown key."""
    found: list[File] = []
    notes: list[str] = []
    for path, missing, is_site in general_files(reader.environ):
        unknown: dict[str, str] = {}
        file = reader.file(path, str(path), missing, unknown=unknown, is_site=is_site)
        found.append(file if with_setup else _without_setup(file))
        notes += unknown.values()
    if notes and not complete:
        raise UnknownKeyError(notes[0])
    return found, notes


def _without_setup(file: File) -> File:
    def rest(layer: Layer) -> Layer:
        return {key: value for key, value in layer.items() if key != SETUP}

    profiles, partitions = (
        {name: rest(layer) for name, layer in layers.items()} for layers in (file.profiles, file.partitions)
    )
    return file.replace(layer=rest(file.layer), profiles=profiles, partitions=partitions)


def general_files(environ: Mapping[str, str]) -> Iterator[tuple[Path, NotFoundError | None, bool]]:
    """The site file and the user file: path, the error to raise when it is missing, and whether it is the site's."""
    site = environ.get(SITE_VARIABLE)
    if site is None:
        yield Path(SITE_FILE), None, True
    elif site:
        hint = "unset it, or set it to an empty string to use no site file"
        yield Path(site), NotFoundError(f"{SITE_VARIABLE}: no such file: {site}", hint=hint), True
    with contextlib.suppress(RuntimeError):  # a user without a home folder
        folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
        yield Path(folder) / "gridtf" / "config.toml", None, False


def _nested(layer: Layer, keys: Collection[str]) -> dict[str, Any]:
    """The dictionary for JobSpec. keys: of all options; those that are no fields of JobSpec go into its ``options``."""
    data: dict[str, Any] = {}
    known = {*fields(JobSpec)}
    for key, value in layer.items():
        if key[:-1] == SETUP:
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
