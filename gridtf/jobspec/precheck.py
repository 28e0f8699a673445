"""Checks before submission that a job's files and functions exist, without running or importing the user's code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.errors import SpecError, nearest
from gridtf.jobspec.config import setup_by_source
from gridtf.jobspec.spec import JobSpec

if TYPE_CHECKING:
    import ast

_PARSE_SECONDS = 10
_BASH = "bash cannot parse this"
_COMPLAINT = re.compile(r"^.*?: line \d+: (?:warning: )?(.*)", re.MULTILINE)


def check(spec: JobSpec, sources: Mapping[str, str]) -> None:
    """Check that a job's folder, template, entry function and set-up lines are usable.

    Args:
        spec: The job; its ``chdir`` must be absolute.
        sources: Dotted key -> source, as in config.Configured.

    Raises:
        SpecError: For a folder, a template or an entry function that does not exist, and for set-up lines that bash
            cannot parse.
    """
    if spec.chdir and not _exists("chdir", Path.is_dir, Path(spec.chdir)):
        raise SpecError("chdir", f"there is no folder {spec.chdir}")
    if spec.template and not _exists("template", Path.is_file, Path(spec.template)):
        raise SpecError("template", f"there is no file {spec.template}")
    if spec.entry:
        _check_entry(spec, spec.entry, Path(spec.chdir or "."))
    if spec.setup:
        _check_setup(setup_by_source(spec, sources))


def _exists(key: str, test: Callable[[Path], bool], path: Path) -> bool:
    try:
        return test(path)
    except OSError as error:
        raise SpecError(key, f"cannot access {path}: {error.strerror}") from None


def _check_setup(groups: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Let bash parse the lines of each source without running them: an open quote would swallow the script below."""
    first = 1
    for _, lines in groups:
        if problem := _syntax_error("".join(f"{line}\n" for line in lines)):
            what, *more = problem
            hint = "put lines that need shell options or aliases into a file, and source it in a set-up line"
            raise SpecError(f"setup.{first}", what, why=" ".join(more), hint=hint if _BASH in what else "")
        first += len(lines)


def _syntax_error(text: str) -> list[str]:
    """What bash says of some shell lines, without running them; empty if it has no objection."""
    import os
    import shutil
    import subprocess

    if re.search(r"(?<!\\)(\\\\)*\\\n\Z", text):  # bash -n accepts it
        return ["the last line ends in a backslash: the script's next line would be part of it"]
    bash = shutil.which("bash")
    if bash is None:  # the hosts of the job may have one
        return []
    try:
        complaints = subprocess.run(
            [bash, "-O", "extglob", "-n"],  # set-up lines may turn extended patterns on before they use them
            input=text.encode(errors="surrogateescape"),
            capture_output=True,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            timeout=_PARSE_SECONDS,
            check=False,
        ).stderr.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = _COMPLAINT.findall(complaints)
    return [f"{_BASH}: {lines[0]}", *lines[1:]] if lines else []


def _check_entry(spec: JobSpec, entry: str, folder: Path) -> None:
    module, function = entry.split(":")
    base = folder.joinpath(*module.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    path = next((path for path in files if _exists("entry", Path.is_file, path)), None)
    if path is None:
        # with another Python, set-up lines or PYTHONPATH, the module may exist in the job alone
        if not (spec.python or spec.setup or "PYTHONPATH" in spec.env or _installed(module)):
            known = sorted(file.stem for file in folder.glob("*.py"))
            hint = nearest(module, known) or "the module must be in the working folder (--chdir) or be installed"
            raise SpecError("entry", f"there is no module {module} in {folder}", hint=hint)
        return
    defined = _names(path)
    if defined is None or function in defined:
        return
    functions = [name for name, is_function in defined.items() if is_function]
    hint = nearest(function, list(defined)) or f"functions in this file: {', '.join(functions) or 'none'}"
    raise SpecError("entry", f"{path} has no function {function}", hint=hint)


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    package = module.partition(".")[0]
    return package != "__main__" and find_spec(package) is not None  # __main__ is gridtf itself here


def _names(path: Path) -> dict[str, bool] | None:
    """Top-level name -> whether it is a function; None when the names are unknown (``import *``).

    Raises:
        SpecError: For a file that cannot be read or is not Python.
    """
    import ast

    try:
        tree = ast.parse(files.read(path, str(path))[0], filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        line = getattr(error, "lineno", None) or 1
        raise SpecError("entry", f"{path}:{line}: {getattr(error, 'msg', error)}") from None
    except OSError as error:
        raise SpecError("entry", f"cannot read {path}: {error.strerror}") from None
    names: dict[str, bool] = {}
    blocks: list[ast.stmt] = list(tree.body)
    while blocks:
        statement = blocks.pop(0)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            names[statement.name] = True
        elif isinstance(statement, ast.ClassDef):
            names[statement.name] = False
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if alias.name == "*":
                    return None
                names[alias.asname or alias.name.partition(".")[0]] = False
        else:
            blocks.extend(node for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement)
            stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            names.update((node.id, False) for node in stored if isinstance(node.ctx, ast.Store))
    return names
