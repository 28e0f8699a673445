"""Job scripts from templates of users and of schedulers' packages, rendered by Jinja2 in its sandbox."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gridtf import files, resources, schedulers
from gridtf.errors import GridtfError, NotFoundError, UsageError, nearest
from gridtf.login.filters import FILTERS
from gridtf.schedulers.api import Plan

_OF_BUILT_IN = frozenset(f"{name}.sh.j2" for name in schedulers.BUILT_IN)


def render(plan: Plan, values: dict[str, Any]) -> str:
    """Render the template of a plan.

    Args:
        values: The names that the template can use.

    Raises:
        NotFoundError: When the user's template does not exist.
        GridtfError: For errors in the template, with file and line.
    """
    own = Path(plan.spec.template).absolute() if plan.spec.template else None
    loader = _Loader(own, plan.trusted, plan.scheduler.login.template)
    made = environment(loader)
    try:
        text = made.get_template(str(loader.own or values["template"])).render(values)
        if loader.own:
            _check_ancestors(made, loader, plan.scheduler.name)
        return text
    except GridtfError:
        raise
    except Exception as error:  # a template is a program, which may raise anything
        raise _template_error(error, values, loader) from error


def environment(loader: jinja2.BaseLoader | None = None) -> jinja2.Environment:
    """How templates are written.

    Args:
        loader: Finds templates by their names.
    """
    made = ImmutableSandboxedEnvironment(  # rendering another user's template must be safe
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # escapes HTML; the filters quote for the shell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{%#",  # {# occurs in bash's ${#array[@]}
        comment_end_string="#%}",
    )
    made.filters.update(FILTERS)
    return made


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
            template = resources.COMMON
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
    return ", ".join(sorted([resources.COMMON, *_OF_BUILT_IN]))


def _to_compare() -> str:
    return f"templates are Jinja2; gridtf's own, to compare with: {resources.templates() / resources.COMMON}"


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
