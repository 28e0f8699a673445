"""Schedulers by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from gridtf.errors import UsageError, nearest
from gridtf.schedulers.base import Scheduler

_HOME = {"slurm": "gridtf.schedulers.slurm", "sge": "gridtf.schedulers.sge", "local": "gridtf.schedulers.local"}


def get(name: str) -> Scheduler:
    """The scheduler of this name. Raises UsageError."""
    if name not in _HOME:
        hint = nearest(name, list(_HOME)) or f"known: {', '.join(_HOME)}"
        raise UsageError(f"no scheduler is called {name!r}", hint=hint)
    return cast(Scheduler, import_module(_HOME[name]).scheduler)


def on_this_machine(environ: Mapping[str, str]) -> str:
    """The name of the scheduler to submit to from here: the first that is found, else local."""
    return next(name for name in _HOME if get(name).here(environ))


def around_this_process(environ: Mapping[str, str]) -> str:
    """The name of the scheduler whose job this process is part of, else local.

    Grid Engine knows its own jobs for certain, so it comes first: ``qsub -V`` carries the variables of others along.
    """
    return next(name for name in ("sge", "slurm", "local") if get(name).inside(environ))


def untold(environ: Mapping[str, str]) -> str:
    """A note for a process that is part of a job without having been told so; mostly empty."""
    if around_this_process(environ) != "local":
        return ""
    return next(filter(None, (get(name).untold() for name in _HOME)), "")


def without_place(environ: Mapping[str, str]) -> dict[str, str]:
    """This environment without what tells its process its place among others: tasks have places of their own."""
    theirs = get(around_this_process(environ)).place_variables
    return {name: text for name, text in environ.items() if not theirs.match(name)}
