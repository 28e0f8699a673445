"""Schedulers of other packages, by the entry points of the group ``gridtf.schedulers``: NAME = "package.module:Class".

Looking for them reads the metadata of every installed package, so that is done only when no scheduler of gridtf's own
fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from gridtf.errors import SpecError
from gridtf.schedulers import BUILT_IN, GROUP
from gridtf.schedulers.api import API_VERSION, Scheduler

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def _found() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def forget() -> None:
    """Look for plugins again at the next call, after packages were installed or removed."""
    _found.cache_clear()


def names() -> list[str]:
    """The names of the installed plugins, usable or not."""
    return [name for name in _found() if name not in BUILT_IN]


def load(name: str) -> Scheduler | None:
    """Load the plugin of this name.

    Returns:
        The scheduler; None when no plugin of this name is installed.

    Raises:
        SpecError: When the plugin cannot be used, with its package and the reason.
    """
    if name not in names():
        return None
    return _loaded(*_found()[name])


def usable(warn: Callable[[str], object]) -> Iterator[Scheduler]:
    """Load all plugins, skipping those that cannot be used.

    Args:
        warn: Called with one line for each plugin that cannot be used.

    Yields:
        The schedulers, each when it is needed.
    """
    for name, points in _found().items():
        try:
            if name in BUILT_IN:
                raise _broken(points[0], "gridtf itself has a scheduler of this name")
            yield _loaded(*points)
        except SpecError as error:
            warn(error.what)


def _loaded(point: EntryPoint, *others: EntryPoint) -> Scheduler:
    if others:
        values = ", ".join(other.value for other in others)
        raise _broken(point, f"another package has a scheduler of this name ({values})")
    try:
        made = point.load()
        if not isinstance(made, Scheduler) and not (isinstance(made, type) and issubclass(made, Scheduler)):
            raise _broken(point, f"{point.value} is not a gridtf.schedulers.api.Scheduler")
        if made.api_version != API_VERSION:
            written_for = f"version {made.api_version} of gridtf's scheduler interface"
            raise _broken(point, f"it is written for {written_for}, this gridtf has version {API_VERSION}")
        if isinstance(made, type):
            made = made()
        for half in (made.login, made.injob):  # which say what they lack
            assert half.scheduler is made
    except SpecError:
        raise
    except Exception as error:  # a plugin is another author's program
        raise _broken(point, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    if getattr(made, "name", None) != point.name:
        raise _broken(point, f"its class has the name {getattr(made, 'name', None)!r}")
    return made


def _broken(point: EntryPoint, why: str) -> SpecError:
    package = f" of {point.dist.name}" if point.dist else ""
    return SpecError("scheduler", f"the scheduler plugin {point.name!r}{package} cannot be used: {why}")
