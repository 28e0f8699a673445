"""Schedulers by name: those of gridtf itself, and plugins. Each is imported when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from gridtf.errors import SpecError, UsageError, nearest

if TYPE_CHECKING:
    from gridtf.jobspec.options import Option
    from gridtf.jobspec.spec import JobSpec
    from gridtf.schedulers.api import Scheduler

T = TypeVar("T")

# In the order in which they are looked for on a login node; local, which is always there, comes last.
BUILT_IN = ("slurm", "sge", "local")
_WITH_OPTIONS = BUILT_IN[:-1]  # this machine has none, and is not imported to learn it
GROUP = "gridtf.schedulers"  # of the entry points of plugins


def get(name: str) -> Scheduler:
    """The scheduler of this name.

    Raises:
        SpecError: For a name that no scheduler has, or a plugin that cannot be used.
    """
    if name in BUILT_IN:
        found: Scheduler = import_module(f"gridtf.schedulers.{name}").scheduler
        return found
    from gridtf.schedulers import plugins

    if (plugin := plugins.load(name)) is not None:
        return plugin
    known = names()
    hint = nearest(name, known) or f"choose from {', '.join(known)}"
    raise SpecError("scheduler", f"{name!r} is not one of {', '.join(known)}", hint=hint)


def names() -> list[str]:
    """The names of all schedulers: those of gridtf itself, then plugins."""
    from gridtf.schedulers import plugins

    return [*BUILT_IN, *plugins.names()]


def _each() -> Iterator[Scheduler]:
    """All schedulers in the order in which they are looked for: plugins are loaded only where no other is found, and a
    broken one is told of and left out."""
    for name in BUILT_IN[:-1]:
        yield get(name)
    from gridtf.schedulers import plugins

    yield from plugins.usable(_warn)
    yield get(BUILT_IN[-1])


def _warn(problem: str) -> None:
    print(f"gridtf: {problem}", file=sys.stderr)


def _first(says: Callable[[Scheduler], bool]) -> Scheduler:
    """The first scheduler of which that is so. A plugin that fails to answer is told of and left out."""
    for scheduler in _each():
        try:
            if says(scheduler):
                return scheduler
        except Exception as error:
            if scheduler.name in BUILT_IN:
                raise
            _warn(f"the scheduler plugin {scheduler.name!r} is left out: {type(error).__name__}: {error}")
    return get("local")


def available_here(environ: Mapping[str, str]) -> str:
    """The name of the scheduler to submit to from this machine: the first that is found, else local."""
    return _first(lambda scheduler: scheduler.is_available(environ)).name


def around_this_process(environ: Mapping[str, str]) -> str:
    """The name of the scheduler whose job this process is part of, else local.

    Grid Engine knows its own jobs for certain, so it comes first: ``qsub -V`` carries the variables of others along.
    """
    if get("sge").is_current(environ):
        return "sge"
    return _first(lambda scheduler: scheduler.is_current(environ)).name


def unannounced() -> str:
    """A note for a process that is part of a job without having been told so; mostly empty."""
    return next(filter(None, (scheduler.unannounced() for scheduler in _each())), "")


def without_place(environ: Mapping[str, str], scheduler: Scheduler | None = None) -> dict[str, str]:
    """This environment without what tells its process its place among others: tasks have places of their own.

    Args:
        environ: The environment of an agent.
        scheduler: The scheduler whose job it is. A local job may run within one of Slurm or Grid Engine, but no plugin
            is looked for: that would take an agent longer than all else that it does before its tasks start.
    """
    around = next((get(name) for name in ("sge", "slurm") if get(name).is_current(environ)), scheduler or get("local"))
    return {name: text for name, text in environ.items() if not around.place_variables.match(name)}


def job_options(*, plugins: bool = False) -> tuple[Option, ...]:
    """The options of a job: those of every job, then those that only some schedulers know.

    Args:
        plugins: Also those of schedulers of other packages. One whose flags mean something else already is left out.
    """
    from gridtf.jobspec.options import OPTIONS

    found = list(OPTIONS)
    flags = {flag for option in found for flag in option.flags}
    keys = {option.key for option in found}
    for scheduler in _each() if plugins else map(get, _WITH_OPTIONS):
        for option in scheduler.options:
            if option.key not in keys and flags.isdisjoint(option.flags):
                found.append(option)
                flags.update(option.flags)
                keys.add(option.key)
    return tuple(found)


def with_options(use: Callable[[tuple[Option, ...]], T]) -> T:
    """Call use with the options of gridtf's own schedulers; where it finds something wrong, which may be an option of a
    plugin, once more with those of plugins.

    Raises:
        UsageError: As use raises it.
    """
    own = job_options()
    try:
        return use(own)
    except UsageError:
        more = job_options(plugins=True)
        if len(more) == len(own):
            raise
        return use(more)


def unused(spec: JobSpec, scheduler: Scheduler) -> tuple[str, ...]:
    """A note on keys that the user has set and that only other schedulers know; mostly empty."""
    others = dict.fromkeys([*(option.key for name in _WITH_OPTIONS for option in get(name).options), *spec.options])
    own = {option.key for option in scheduler.options}
    keys = [key for key in others if key not in own]
    keys += [] if scheduler.takes_native else ["native"]
    keys += [] if scheduler.requests_memory else ["mem", "mem_per_task"]
    chosen = [key for key in keys if spec.option(key) not in (None, ()) and not _is_default(spec, key)]
    return (f"{scheduler.title} has no use for {', '.join(chosen)}",) if chosen else ()


def _is_default(spec: JobSpec, key: str) -> bool:
    return bool(spec.option(key) == getattr(type(spec), key, None))
