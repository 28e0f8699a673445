"""``python -m gridtf.training.run module:function``: runs a task whose training loop is a function.

The module is looked up in the working folder first. The function's return value is ignored: a task fails by an
exception or by sys.exit.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gridtf import contract
from gridtf.errors import GridtfError, UsageError, nearest
from gridtf.training.context import Context

Entry = Callable[..., object]
_NOT_RUN_BY_A_CALL = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def load(entry: str, folder: Path) -> Entry:
    """Import an entry function.

    Args:
        entry: ``module:function``.
        folder: Where to look for the module first; added to sys.path.

    Raises:
        UsageError: When there is no such module or function, or when calling the function would not run it. Exceptions
            raised by the module itself pass through.
    """
    module_name, separator, name = entry.partition(":")
    if not (separator and module_name and name):
        raise UsageError(f"{entry!r} is not module:function", hint="for main() in train.py: train:main")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports does not
        modules = sorted(file.stem for file in folder.glob("*.py"))
        raise UsageError(
            f"entry {entry}: no module {error.name!r} in {folder}",
            hint=nearest(error.name, modules) or (f"modules there: {', '.join(modules)}" if modules else ""),
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        known = functions(module)
        raise UsageError(
            f"entry {entry}: no function {name!r} in {getattr(module, '__file__', module_name)}",
            why=f"functions there: {', '.join(known)}" if known else "it defines no function",
            hint=nearest(name, known),
        )
    if any(kind(function) for kind in _NOT_RUN_BY_A_CALL):
        raise UsageError(
            f"entry {entry}: {name} is a generator or coroutine function: calling it would not run it",
            hint="name a plain function that runs it, for example with asyncio.run",
        )
    return function  # type: ignore[no-any-return]


def functions(module: object) -> list[str]:
    """Names of the public functions that a module defines itself."""
    own = getattr(module, "__name__", "")
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == own and not name.startswith("_")
    ]


def arguments(function: Entry, context: Context) -> tuple[Any, ...]:
    """Choose the arguments of an entry function.

    Args:
        function: The entry function.
        context: The context of this task.

    Returns:
        The context if the function's first parameter has no default or is named ctx or context; otherwise no arguments.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a function without a signature, written in C
        return (context,)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if positional and (positional[0].default is inspect.Parameter.empty or positional[0].name in ("ctx", "context")):
        return (context,)
    return ()


def prepare(argv: Sequence[str]) -> Callable[[], object]:
    """Load an entry function and bind it to its arguments.

    Args:
        argv: The words after ``python -m gridtf.training.run``.

    Returns:
        A function without parameters that runs the entry function.

    Raises:
        GridtfError: Outside a gridtf task, or when the entry function cannot be loaded.
    """
    if len(argv) != 1:
        raise UsageError("usage: python -m gridtf.training.run module:function")
    context = Context(contract.task())
    contract.checkpoint_requested()  # from now on, a request does not end this process
    function = load(argv[0], Path.cwd())
    if context.task.type == "worker" and context.cluster.get("ps"):
        context.server  # noqa: B018 - started now: the chief may use this worker before its own code asks for a server
    return partial(function, *arguments(function, context))


if __name__ == "__main__":
    try:
        call = prepare(sys.argv[1:])
    except GridtfError as problem:
        print("gridtf:", str(problem).replace("\n", "\n  "), file=sys.stderr)
        sys.exit(problem.exit_code)
    call()
