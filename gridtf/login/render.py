"""A plan as text: the job script, from the shipped templates or the user's own. The only place that uses Jinja2."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import bccache, nodes
from jinja2.exceptions import SecurityError
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment

import gridtf
from gridtf import files, resources, schedulers
from gridtf.errors import GridtfError, NotFoundError, SpecError, UsageError, nearest
from gridtf.jobspec import config
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.schedulers.api import Plan

_COMMON = "job.sh.j2"
_OF_BUILT_IN = frozenset(f"{name}.sh.j2" for name in schedulers.BUILT_IN)

# Keys of the specification that only the login side needs; the job does not get them.
LOGIN_SIDE = frozenset({"run_dir", "run_root", "template", "native", "partition", "account", "exclude"})

# Variables that bash would not pass on unchanged: read-only, set by bash, or evaluated as arithmetic, which runs $(…).
_BASH_OWN = re.compile(
    r"_|BASHOPTS|BASHPID|BASH_(?:ALIASES|ARGC|ARGV|CMDS|COMMAND|LINENO|MONOSECONDS|SOURCE|SUBSHELL|TRAPSIG|VERSINFO)"
    r"|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTIND|PPID|RANDOM|SECONDS|SHELLOPTS"
    r"|SHLVL|SRANDOM|UID"
)
_ESCAPES = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t", "\r": r"\r"}


def script(plan: Plan) -> str:
    """Render the job script of a plan.

    Args:
        plan: The submission.

    Returns:
        The text, determined by the plan alone: no clock, no environment. Bytes of values that are not UTF-8 are
        surrogate escapes.

    Raises:
        SpecError: For values that a script or a directive cannot contain.
        NotFoundError: When the user's template does not exist.
        GridtfError: For errors in the user's template, with file and line.
    """
    for name in plan.spec.env:
        if _BASH_OWN.fullmatch(name):
            raise SpecError(f"env.{name}", f"bash itself sets {name}", hint="choose another name")
    values = _values(plan)
    _refuse_long(values["job"])
    own = Path(plan.spec.template).absolute() if plan.spec.template else None
    loader = _Loader(own, plan.trusted, schedulers.get(plan.scheduler).template)
    environment = ImmutableSandboxedEnvironment(  # rendering another user's template must be safe
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # escapes HTML; the filters below quote for the shell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{%#",  # {# occurs in bash's ${#array[@]}
        comment_end_string="#%}",
        bytecode_cache=_compiled_templates(),
    )
    environment.filters.update(FILTERS)
    try:
        text = environment.get_template(str(loader.own or values["template"])).render(values)
        if loader.own:
            _check_ancestors(environment, loader, plan.scheduler)
        return text
    except GridtfError:
        raise
    except Exception as error:  # a template is a program, which may raise anything
        raise _template_error(error, values, loader) from error


def _values(plan: Plan) -> dict[str, Any]:
    """The names that templates can use, listed in docs/templates.md. Plain values only: a Path would let a template out
    of the sandbox, to the file system."""
    spec, scheduler = plan.spec, schedulers.get(plan.scheduler)
    job = spec.replace(scheduler=plan.scheduler).to_dict()
    return {
        "version": gridtf.__version__,
        "scheduler": plan.scheduler,
        "template": spec.template or (scheduler.template.name if scheduler.template else _COMMON),
        "name": spec.title,
        "directive_prefix": scheduler.directive_prefix,
        "directives": scheduler.directives(plan),
        "chdir": spec.chdir,
        "setup": spec.setup,
        "setup_by_source": config.setup_by_source(spec, plan.sources),
        "env": dict(spec.env),
        "run_dir": str(plan.run_dir),
        "python": plan.python,
        "bootstrap": str(plan.bootstrap),
        "spec": spec,
        "job": {key: value for key, value in job.items() if key not in LOGIN_SIDE},
        "request": plan.request.to_dict(in_job=True),
    }


def _refuse_long(job: dict[str, Any]) -> None:
    """Raise SpecError for a specification that does not fit into an environment variable: no program could be started
    with it."""
    size = len(f"GRIDTF_SPEC={_json(job)}".encode())
    if size > LONGEST_VARIABLE:
        key = max(job, key=lambda key: len(_json(job[key])))
        raise SpecError(
            key,
            f"the specification has {size} bytes, at most {LONGEST_VARIABLE} can be passed to a job",
            why=f"it is passed in an environment variable, whose length Linux limits; most of it is {key}",
            hint="put long values into a file that the program reads",
        )


# --- filters ----------------------------------------------------------------------------------------------------


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
    return shlex.quote(_json(value))


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


def _json(value: object) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(char if char == "\n" else _printable(char, _json_escape) for char in text)


def _printable(char: str, escape: Callable[[str], str]) -> str:
    return char if char.isprintable() else escape(char)


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode(errors="surrogateescape"))


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]


# --- templates --------------------------------------------------------------------------------------------------


class _CompiledTemplates(jinja2.FileSystemBytecodeCache):
    """Compiled templates, in files that only help: unreadable ones are ignored, and so is a disk that is full."""

    def load_bytecode(self, bucket: bccache.Bucket) -> None:
        try:
            super().load_bytecode(bucket)
        except Exception:  # what unpickling a damaged file may raise
            bucket.reset()

    def dump_bytecode(self, bucket: bccache.Bucket) -> None:
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled_templates() -> _CompiledTemplates | None:
    """The compiled templates in the user's cache folder, since compiling takes an eighth of the instructions of `gridtf
    render`; None without a folder that this user alone can write, since they are code."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "gridtf")
        folder.mkdir(0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # no home folder
        return None
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return _CompiledTemplates(str(folder)) if private else None


class _Loader(jinja2.BaseLoader):
    """Loads shipped templates and those in the folder of the user's template by name, the user's template by its path.

    The shipped ones come first, so that a user's slurm.sh.j2 can extend the shipped one; the names of the built-in
    schedulers' templates all mean job.sh.j2.

    Args:
        own: The user's template.
        trusted: Ids of users who may own it, see Plan.
        plugin: The template of a scheduler from another package.
    """

    def __init__(self, own: Path | None, trusted: frozenset[int] | None, plugin: Path | None) -> None:
        self.own = own
        self._shipped = [resources.templates(), *([plugin.parent] if plugin else [])]
        self._trusted = trusted
        self.folders = self._shipped + ([own.parent] if own else [])

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        hint = "if you trust it, name it with --template, or have its owner's job file name it"
        for path in self._candidates(template):
            trusted = None if path.parent in self._shipped else self._trusted
            try:
                data, _ = files.read(path, f"the template {path}", trusted=trusted, hint=hint)
                return data.decode("utf-8-sig"), str(path), lambda: True
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise GridtfError(f"cannot read the template {path}", why=str(reason)) from None
        if self.own and template == str(self.own):
            raise NotFoundError(f"no such template: {self.own}", hint=f"shipped ones to extend: {_shipped()}")
        raise jinja2.TemplateNotFound(template)

    def _candidates(self, template: str) -> list[Path]:
        if self.own and template == str(self.own):
            return [self.own]
        if template in _OF_BUILT_IN:
            template = _COMMON
        parts = split_template_path(template)  # refuses paths that lead out of the folder
        return [folder.joinpath(*parts) for folder in self.folders]

    def owns(self, filename: str) -> bool:
        """Whether this is the file of a template and not Python code."""
        return not filename.endswith(".py") and Path(filename).parent in self.folders


def _check_ancestors(environment: jinja2.Environment, loader: _Loader, scheduler: str) -> None:
    """Raise GridtfError for two mistakes that Jinja2 ignores: a block that no extended template has, which would be
    dropped, and another scheduler's template, whose directives this scheduler does not read."""
    others = _OF_BUILT_IN - {f"{scheduler}.sh.j2"}
    chain: list[tuple[str, nodes.Template]] = []
    name = str(loader.own)
    while True:
        text, file, _ = loader.get_source(environment, name)
        tree = environment.parse(text, name, file)
        chain.append((file, tree))
        extends = tree.find(nodes.Extends)
        if extends is None:
            break
        if extends not in tree.body or not isinstance(extends.template, nodes.Const):
            return  # the name of the parent is known only when it is rendered
        name = str(extends.template.value)
        if name in others and scheduler != "local":
            what = f"{file}:{extends.lineno}: {name} is another scheduler's template, but this job is for {scheduler}"
            raise UsageError(what, hint=f"extend {scheduler}.sh.j2 instead")
    known = {block.name for block in chain.pop()[1].find_all(nodes.Block)}
    for file, tree in reversed(chain):
        blocks = list(tree.find_all(nodes.Block))
        inner = {block.name for outer in blocks for block in outer.find_all(nodes.Block)}
        for block in blocks:
            if block.name not in known | inner:
                what = f"{file}:{block.lineno}: no template that this one extends has a block {block.name!r}"
                raise UsageError(what, hint=nearest(block.name, [*known]) or f"blocks: {', '.join(sorted(known))}")
        known.update(block.name for block in blocks)


def _shipped() -> str:
    return ", ".join(sorted([_COMMON, *_OF_BUILT_IN]))


def _to_compare() -> str:
    return f"templates are Jinja2; gridtf's own, to compare with: {resources.templates() / _COMMON}"


def _template_error(error: Exception, values: dict[str, Any], loader: _Loader) -> UsageError:
    """The error to raise for an exception in a template, with file and line."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        place = f"{error.filename or error.name}:{error.lineno}"
        return UsageError(f"{place}: {error.message}", hint=_to_compare())
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}: " for frame in frames if loader.owns(frame.filename)]
    place = places[-1] if places else f"{values['template']}: "
    if isinstance(error, jinja2.TemplateNotFound):
        return UsageError(f"{place}no such template: {error.name!r}", hint=f"shipped: {_shipped()}")
    if isinstance(error, SecurityError):
        hint = "templates only insert values; commands belong in set-up lines or in the program"
        return UsageError(f"{place}templates may not do this: {error.message}", hint=hint)
    if isinstance(error, jinja2.UndefinedError):
        known = f"names: {', '.join(sorted(values))}; filters: {', '.join(FILTERS)}"
        return UsageError(f"{place}{error.message}", hint=known)
    why = re.sub(r"\s+", " ", str(error))
    return UsageError(
        f"{place}{type(error).__name__}: {why}",
        hint=_to_compare(),
    )
