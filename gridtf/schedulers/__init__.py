"""Schedulers by name: those of gridtf itself, and plugins. Each is imported only when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from gridtf.errors import SchedulerError, SpecError, UnknownKeyError, UsageError, nearest

if TYPE_CHECKING:
    from gridtf.jobspec.options import Option
    from gridtf.jobspec.spec import JobSpec
    from gridtf.schedulers.api import Scheduler

T = TypeVar("T")

# In the order in which gridtf looks for them on a login node; local, which is always available, comes last.
BUILT_IN = ("slurm", "sge", "local")
_WITH_OPTIONS = BUILT_IN[:-1]  # local has none, and need not be imported to find that out
GROUP = "gridtf.schedulers"  # group of the entry points of plugins


def get(name: str) -> Scheduler:
    """Import the scheduler of this name.

    Raises:
        SpecError: When no scheduler has the name, or it is a plugin that cannot be used.
    """
    if name in BUILT_IN:
        built_in: Scheduler = import_module(f"gridtf.schedulers.{name}").scheduler
        return built_in
    from gridtf.schedulers import plugins

    if (plugin := plugins.load(name)) is not None:
        return plugin
    known = names()
    hint = nearest(name, known) or "a scheduler of another package is known when its package is installed"
    raise SpecError("scheduler", f"{name!r} is not one of {', '.join(known)}", hint=hint)


def names() -> list[str]:
    """The names of all schedulers: those of gridtf itself, then plugins."""
    from gridtf.schedulers import plugins

    return [*BUILT_IN, *plugins.names()]


def _each() -> Iterator[Scheduler]:
    """All schedulers, in the order in which gridtf looks for them: plugins are loaded only after gridtf's own ones, and
    broken ones are skipped with a warning."""
    for name in BUILT_IN[:-1]:
        yield get(name)
    from gridtf.schedulers import plugins

    yield from plugins.usable(_warn)
    yield get(BUILT_IN[-1])


def _warn(problem: str) -> None:
    print(f"gridtf: {problem}", file=sys.stderr)


def _first(fits: Callable[[Scheduler], bool]) -> Scheduler:
    """The first scheduler that fits; a plugin that raises an error is skipped with a warning."""
    for scheduler in _each():
        try:
            if fits(scheduler):
                return scheduler
        except Exception as error:
            if scheduler.name in BUILT_IN:
                raise
            _warn(f"the scheduler plugin {scheduler.name!r} is skipped: {type(error).__name__}: {error}")
    return get("local")


def available_here(environ: Mapping[str, str]) -> str:
    """The name of the scheduler to submit to from this machine: the first that is available, else local."""
    return _first(lambda scheduler: scheduler.is_available(environ)).name


def to_submit_to(environ: Mapping[str, str]) -> str:
    """The name of the scheduler for a job whose user has named none: as available_here.

    Raises:
        SchedulerError: Where it would be local although a cluster's scheduler has commands here: this is a login node.
    """
    name = available_here(environ)
    found = [get(other).out_of_order(environ) for other in _WITH_OPTIONS if name == "local"]
    if any(why for why, _ in found):
        why, cure = ("; ".join(filter(None, words)) for words in zip(*found, strict=True))
        what = "no cluster can be used from this machine, where jobs run only with --scheduler local"
        raise SchedulerError(what, why=why, hint=cure)
    return name


def around_this_process(environ: Mapping[str, str]) -> str:
    """The name of the scheduler whose job this process is part of, else local.

    Grid Engine knows its own jobs for certain, so it comes first: ``qsub -V`` carries the variables of others along.
    """
    if get("sge").is_current(environ):
        return "sge"
    return _first(lambda scheduler: scheduler.is_current(environ)).name


def unannounced() -> str:
    """A note for a process that runs inside a job although its environment does not show it; usually empty."""
    return next(filter(None, (scheduler.injob.unannounced() for scheduler in _each())), "")


def without_place(environ: Mapping[str, str], scheduler: Scheduler | None = None) -> dict[str, str]:
    """Remove the variables that say which of several processes an agent is: its tasks have ranks of their own.

    Args:
        environ: The environment of an agent.
        scheduler: The scheduler of the job; None: local. If the process runs inside a job of Grid Engine or Slurm, that
            one is used instead. Plugins are not searched: that would take an agent longer than everything else before
            its tasks start.

    Returns:
        The other variables.
    """
    around = next((get(name) for name in ("sge", "slurm") if get(name).is_current(environ)), scheduler or get("local"))
    return {name: text for name, text in environ.items() if not around.place_variables.match(name)}


def job_options(*, plugins: bool = False) -> tuple[Option, ...]:
    """List the options of a job.

    Args:
        plugins: Include the options of plugins, except those whose flags or keys exist already.

    Returns:
        The options of every job, then those that only some schedulers have.
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


def with_options(use: Callable[[tuple[Option, ...], bool], T]) -> T:
    """Call use with the options of gridtf's own schedulers, and only if that fails with the options of plugins as well.

    Args:
        use: Parses a command line or a job file, given the known options and whether these include those of plugins.

    Returns:
        What use returns.

    Raises:
        UsageError: The one that use raises.
    """
    built_in = job_options()
    try:
        return use(built_in, False)
    except UsageError as error:
        extended = job_options(plugins=True)
        if len(extended) == len(built_in) and not isinstance(error, UnknownKeyError):
            raise  # not once more: a job file may be a pipe
        return use(extended, True)


def unused(spec: JobSpec, scheduler: Scheduler) -> tuple[str, ...]:
    """A note on keys that the user has set although this scheduler ignores them; usually empty.

    Args:
        spec: The user's specification.
        scheduler: The scheduler that the job is for.

    Returns:
        No note, or one line that names the keys.
    """
    others = dict.fromkeys([*(option.key for name in _WITH_OPTIONS for option in get(name).options), *spec.options])
    own = {option.key for option in scheduler.options}
    keys = [key for key in others if key not in own]
    keys += [] if scheduler.login.takes_native else ["native"]
    keys += [] if scheduler.login.requests_memory else ["mem", "mem_per_task"]
    chosen = [key for key in keys if spec.option(key) not in (None, (), getattr(type(spec), key, None))]
    return (f"{scheduler.title} ignores {', '.join(chosen)}",) if chosen else ()
