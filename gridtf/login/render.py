"""A plan as text: the job script, from the shipped templates or the user's own. The only place that uses Jinja2."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment

import gridtf
from gridtf import files, resources, schedulers
from gridtf.errors import GridtfError, NotFoundError, SpecError, nearest
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.schedulers.api import Plan

_COMMON = "job.sh.j2"
_OF_BUILT_IN = frozenset(f"{name}.sh.j2" for name in schedulers.BUILT_IN)

# What the job itself never looks at: it is spent once the script is rendered and handed over.
LOGIN_SIDE = frozenset({"run_dir", "run_root", "template", "native", "partition", "account"})

# bash does not take these names as they are: read-only, kept by bash, or evaluated as arithmetic, which runs $(…).
_BASH_OWN = re.compile(
    r"_|BASHOPTS|BASHPID|BASH_(?:ALIASES|ARGC|ARGV|CMDS|COMMAND|LINENO|MONOSECONDS|SOURCE|SUBSHELL|TRAPSIG|VERSINFO)"
    r"|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTIND|PPID|RANDOM|SECONDS|SHELLOPTS"
    r"|SHLVL|SRANDOM|UID"
)
_ESCAPES = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t", "\r": r"\r"}


def script(plan: Plan) -> str:
    """The job script. The same plan gives the same text: no clock, no environment. Bytes of values that are no UTF-8
    are surrogate escapes in it.

    Raises SpecError for values that a script or a directive cannot carry, NotFoundError when the user's template is
    not there, GridtfError with file and line for whatever is wrong in it.
    """
    for name in plan.spec.env:
        if _BASH_OWN.fullmatch(name):
            raise SpecError(f"env.{name}", f"bash itself sets {name}", hint="choose another name")
    values = _values(plan)
    _refuse_long(values["job"])
    own = Path(plan.spec.template).absolute() if plan.spec.template else None
    loader = _Loader(own, plan.trusted, schedulers.get(plan.scheduler).template)
    environment = ImmutableSandboxedEnvironment(  # who looks at somebody else's template does not run it
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # that is for HTML; the filters below quote for the shell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{%#",  # {# stands in bash's ${#array[@]}
        comment_end_string="#%}",
    )
    environment.filters.update(FILTERS)
    try:
        text = environment.get_template(str(loader.own or values["template"])).render(values)
        if loader.own:
            _check_ancestors(environment, loader, plan.scheduler)
        return text
    except GridtfError:
        raise
    except Exception as error:  # a template is a program: whatever it does wrong is told with its place
        raise _template_error(error, values, loader) from error


def _values(plan: Plan) -> dict[str, Any]:
    """The names a template can use, as docs/templates.md lists them: plain values, for a Path would be a way out of the
    sandbox to the file system."""
    spec, scheduler = plan.spec, schedulers.get(plan.scheduler)
    job = replace(spec, scheduler=plan.scheduler).to_dict()
    return {
        "version": gridtf.__version__,
        "scheduler": plan.scheduler,
        "template": spec.template or (scheduler.template.name if scheduler.template else _COMMON),
        "name": spec.title,
        "directive_prefix": scheduler.directive_prefix,
        "directives": scheduler.directives(plan),
        "chdir": spec.chdir,
        "setup": spec.setup,
        "setup_from": plan.sources.get("setup", ""),
        "env": dict(spec.env),
        "run_dir": str(plan.run_dir),
        "python": plan.python,
        "bootstrap": str(plan.bootstrap),
        "spec": spec,
        "job": {key: value for key, value in job.items() if key not in LOGIN_SIDE},
        "request": plan.request.to_dict(in_job=True),
    }


def _refuse_long(job: dict[str, Any]) -> None:
    """The job finds its specification in the environment, where an entry that is too long keeps any program from
    starting."""
    size = len(f"GRIDTF_SPEC={_json(job)}".encode())
    if size > LONGEST_VARIABLE:
        key = max(job, key=lambda key: len(_json(job[key])))
        raise SpecError(
            key,
            f"the specification has {size} bytes, {LONGEST_VARIABLE} can be handed to a job",
            why=f"it goes by an environment variable, and Linux takes no longer one; most of it is {key}",
            hint="leave what is long in a file that the program reads",
        )


# --- filters ----------------------------------------------------------------------------------------------------


def quote(value: object) -> str:
    """One shell word that is value, byte for byte, on one line.

    Anything unprintable is written as $'…': a newline in a value cannot start a line that Grid Engine, which reads
    ``#$`` anywhere in the file, takes for an option, and nothing plays tricks on the terminal of a reviewer.
    """
    if not isinstance(value, str | int | float | Path) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a string, a number or a path")
    text = str(value)
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_ESCAPES.get(char) or _printable(char, _octal) for char in text) + "'"


def quote_json(value: object) -> str:
    """value as JSON that a person can read, as one shell word over several lines."""
    return shlex.quote(_json(value))


def quote_rows(value: object) -> str:
    """A table as JSON with one entry a line, as one shell word."""
    rows = (value if isinstance(value, dict) else {}).items()
    lines = (f"  {json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}" for key, entry in rows)
    return shlex.quote(
        "{\n" + ",\n".join("".join(_printable(char, _json_escape) for char in line) for line in lines) + "\n}"
    )


def directive(value: object) -> str:
    """value as it stands, on a line that a scheduler reads and no shell: refused unless it is one printable line."""
    text = str(value)
    if not text.strip() or not text.isprintable():
        raise GridtfError(f"{text!r} cannot stand in a directive line", why="it is empty or holds a control character")
    return text


def comment(value: object) -> str:
    """value for a comment: on one line, whatever it holds."""
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


class _Loader(jinja2.BaseLoader):
    """The shipped templates by their names, then the files beside the user's own template, which goes by its path.

    The shipped ones come first, so that a user's slurm.sh.j2 can extend the shipped one. A scheduler without a template
    of its own has job.sh.j2, which its name stands for as well. trusted: see Plan. plugin: the scheduler's template.
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
        parts = split_template_path(template)  # none of them leads out of the folder
        return [folder.joinpath(*parts) for folder in self.folders]

    def owns(self, filename: str) -> bool:
        """Whether this is the file of a template and not Python code."""
        return not filename.endswith(".py") and Path(filename).parent in self.folders


def _check_ancestors(environment: jinja2.Environment, loader: _Loader, scheduler: str) -> None:
    """What Jinja2 would let pass without a word: a block that no extended template has, which is dropped, and another
    scheduler's template, whose directives this one does not read."""
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
            return  # which template that is only shows when it is rendered
        name = str(extends.template.value)
        if name in others and scheduler != "local":
            what = f"{file}:{extends.lineno}: {name} is another scheduler's template, this job goes to {scheduler}"
            raise GridtfError(what, hint=f"extend {scheduler}.sh.j2 instead")
    known = {block.name for block in chain.pop()[1].find_all(nodes.Block)}
    for file, tree in reversed(chain):
        blocks = list(tree.find_all(nodes.Block))
        inner = {block.name for outer in blocks for block in outer.find_all(nodes.Block)}
        for block in blocks:
            if block.name not in known | inner:
                what = f"{file}:{block.lineno}: no template that this one extends has a block {block.name!r}"
                raise GridtfError(what, hint=nearest(block.name, [*known]) or f"blocks: {', '.join(sorted(known))}")
        known.update(block.name for block in blocks)


def _shipped() -> str:
    return ", ".join(sorted([_COMMON, *_OF_BUILT_IN]))


def _template_error(error: Exception, values: dict[str, Any], loader: _Loader) -> GridtfError:
    """What went wrong in a template, with its file and line."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        place = f"{error.filename or error.name}:{error.lineno}"
        return GridtfError(f"{place}: {error.message}", hint="see docs/templates.md")
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}: " for frame in frames if loader.owns(frame.filename)]
    place = places[-1] if places else f"{values['template']}: "
    if isinstance(error, jinja2.TemplateNotFound):
        return GridtfError(f"{place}no template is called {error.name!r}", hint=f"shipped: {_shipped()}")
    if isinstance(error, SecurityError):
        hint = "templates are text with values; what a job does, its set-up lines and its program do"
        return GridtfError(f"{place}a template must not do that: {error.message}", hint=hint)
    if isinstance(error, jinja2.UndefinedError):
        known = f"names: {', '.join(sorted(values))}; filters: {', '.join(FILTERS)}"
        return GridtfError(f"{place}{error.message}", hint=known)
    why = re.sub(r"\s+", " ", str(error))
    return GridtfError(f"{place}{type(error).__name__}: {why}", hint="see docs/templates.md")
