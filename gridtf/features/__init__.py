"""The features of a job: each is one file or folder here, behind hooks of the core, which names none of them.

==========  =======================================================================
stage       copies of files on a disk of each host
hostsetup   lines that bash runs on each host before its tasks start
fence       who may connect to the ports of tasks, whose gRPC has no authentication
hostcheck   whether hosts are as fast as the others, before tasks start (``check``)
badhosts    what a job has found out about hosts is remembered
trackers    commands that the job runs when something has happened (``on``)
stalls      where tasks are, and whether they do anything
straggler   who holds the others up, where tasks train in lock-step
membership  whether tasks train together
averaged    what averaging has done
ownfolders  checkpoints in folders that one host alone has
exec        commands that users run beside a task
==========  =======================================================================

It has a class InLauncher, InAgent or both, which extend Feature of bootstrap/launcher/api and bootstrap/agent/api:
these have the hooks, and say what a feature sees. Hooks return values, and set nothing of the core. Those that are
called while tasks run do not wait: a process of its own (Helper) does for a feature what may take long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from gridtf.errors import GridtfError

if TYPE_CHECKING:
    from gridtf.bootstrap.wire.helper import Helper
    from gridtf.jobspec.spec import JobSpec
    from gridtf.run.recordtypes import Kind


LAUNCHER, AGENT = "launcher", "agent"
# When they are imported: with the process; or, while hosts wait for each other, what does nothing before tasks run.
START, TASKS = "start", "tasks"


def _elsewhere(spec: JobSpec, hosts: int) -> bool:
    """Whether another host may look for what one has written, perhaps that of a further start."""
    return hosts > 1 or spec.continuations > 0


# Name, which ends with a dot where each side has a module of its own; from when on it is in the launcher, and in
# agents; and which jobs have it, by their specification and number of hosts. Hooks are called in this order.
FEATURES: Sequence[tuple[str, str, str, Callable[[JobSpec, int], object]]] = (
    ("stage", "", START, lambda spec, _: spec.stage),
    ("hostsetup", "", START, lambda spec, _: spec.host_setup),
    ("fence", START, START, lambda spec, _: spec.fence != "off"),
    ("hostcheck.", START, START, lambda spec, _: spec.check != "off"),
    ("badhosts", START, "", lambda *_: True),
    ("trackers", START, "", lambda spec, _: spec.on),
    ("stalls.", TASKS, TASKS, lambda *_: True),
    ("straggler", TASKS, "", lambda spec, hosts: spec.sample_interval and hosts > 2),
    ("membership", TASKS, TASKS, lambda *_: True),
    ("averaged", TASKS, "", lambda *_: True),
    ("ownfolders", TASKS, TASKS, _elsewhere),
    ("exec", TASKS, TASKS, lambda *_: True),
)


def modules(side: str, when: str, spec: JobSpec, hosts: int) -> list[ModuleType]:
    """Import what a job has of features.

    Args:
        side: LAUNCHER or AGENT.
        when: START or TASKS.
        spec: The job.
        hosts: How many hosts it has.
    """
    names = [
        f"{name}{side}" if name.endswith(".") else name
        for name, launcher, agent, wants in FEATURES
        if when == (launcher if side == LAUNCHER else agent) and wants(spec, hosts)
    ]
    return [import_module(f"gridtf.features.{name}") for name in names]


def take_time(spec: JobSpec) -> bool:
    """Whether a host may be prepared for long before it reports its ports, and tells meanwhile what it waits for."""
    return bool(spec.stage or spec.host_setup)


class Feature:
    """What a feature does on one side.

    Attributes:
        vital: Whether the job must not go on without it.
        hears: Kind of a message of the other side -> the form of its content, as in recordtypes.
    """

    vital: ClassVar[bool]
    hears: ClassVar[Mapping[str, Kind]] = {}

    @property
    def name(self) -> str:
        """Its name in this package."""
        return type(self).__module__.split(".")[2]


_F = TypeVar("_F", bound=Feature)
_Made = TypeVar("_Made")


class Features(Generic[_F]):
    """The features of a job on one side. One that has a bug is switched off, unless the job must have it.

    Args:
        log: Writes lines for users.
        passes: What a hook may raise beside a GridtfError to end the attempt: that a signal does.

    Attributes:
        ending: Whether the attempt is being ended: nothing that a hook raises ends it again.
        off: The names of those that were switched off.
    """

    def __init__(self, log: Callable[[str], None], passes: type[Exception]) -> None:
        self._log, self._passes = log, (GridtfError, passes)
        self._all: list[_F] = []
        self.ending = False
        self.off: list[str] = []

    def __iter__(self) -> Iterator[_F]:
        return iter(self._all)

    def add(self, features: Iterable[_F]) -> None:
        """Have these as well."""
        self._all += features

    def each(self, hook: Callable[[_F], _Made], *, also_off: bool = False) -> Iterator[_Made]:
        """Call a hook of each, in their order.

        Args:
            hook: Calls it.
            also_off: Whether those that were switched off are called, too, which have something to end.

        Raises:
            GridtfError: A feature ends the attempt; or has a bug, and the job must have it.
        """
        for one in self._all:
            yield from self.call(one, partial(hook, one), also_off=also_off)

    def tell(self, hook: Callable[[_F], object], *, also_off: bool = False) -> None:
        """The same, of a hook that returns nothing."""
        for _ in self.each(hook, also_off=also_off):
            pass

    def call(self, one: _F, hook: Callable[[], _Made], *, also_off: bool = False) -> tuple[_Made, ...]:
        """The same, of one feature alone. Returns what the hook has returned; nothing, where it has not."""
        if also_off or one.name not in self.off:
            try:
                return (hook(),)
            except Exception as error:
                self._failed(one, error)
        return ()

    def failures(self) -> str:
        """That features were switched off, in a clause; empty: none was."""
        were = "were" if len(self.off) > 1 else "was"
        return f"gridtf's {', '.join(self.off)} failed, and {were} switched off" if self.off else ""

    def _failed(self, one: _F, error: Exception) -> None:
        passes = isinstance(error, self._passes) or (one.vital and isinstance(error, OSError))  # such as a full disk
        if passes and not self.ending:
            raise error
        if one.name in self.off:  # what fails at its end follows from that
            return
        from traceback import format_exception

        self._log(f"gridtf's {one.name} has failed:\n{''.join(format_exception(error)).rstrip()}")
        self.off.append(one.name)
        if one.vital and not self.ending:
            raise GridtfError(f"gridtf's {one.name} has failed: {type(error).__name__}: {error}") from error


class Processes:
    """The processes of features. The core ends them, also those of a feature that was switched off."""

    def __init__(self) -> None:
        self._helpers: list[tuple[Helper, bool]] = []

    def own(self, helper: Helper, *, outlives: bool = False) -> Helper:
        """A process that is not one of the job's; returns it.

        Args:
            helper: The process.
            outlives: Whether it goes on when the tasks are ended, and ends when its feature lets it.
        """
        self._helpers.append((helper, outlives))
        return helper

    def pids(self, *, outlive: bool) -> frozenset[int]:
        """The ids of those that run, and that go on when the tasks are ended, or do not."""
        return frozenset(one.pid for one, outlives in self._helpers if outlives is outlive and one.pid is not None)
