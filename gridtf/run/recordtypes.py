"""The type of every record in a run directory, and the check of one that was read against it. Pure.

What a reader cannot do without is required, the rest may be missing; further entries are let pass.
"""

# Without `from __future__ import annotations`: types that are text are compiled one by one, at every start of an agent.

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from reprlib import repr as _told  # short, whatever it is of
from types import NoneType, UnionType
from typing import Annotated, Any, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from gridtf.jobspec.tasktypes import TASK_TYPES

# A word that is no option, no pattern and no path. No id of scancel's or qdel's is anything else.
Word = Annotated[str, re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)]
TaskType = Annotated[str, tuple(TASK_TYPES)]
Pid = Annotated[int, range(1, (1 << 22) + 1)]
Port = Annotated[int, range(1 << 16)]
_MOST = 1 << 53
Count = Annotated[int, range(_MOST)]
Cluster = dict[str, list[str]]

_FAR = 1e11  # seconds since the epoch, or of some length: no calendar goes much further


class Spec(TypedDict, total=False):
    """What of a specification is used without a JobSpec being made of it."""

    heartbeat_timeout: float
    kill_grace: float


class Job(TypedDict, total=False):
    spec: Spec
    sources: dict[str, str]


class _Handed(TypedDict):
    scheduler: Word
    job_id: Word


class Submitted(_Handed, total=False):
    name: str
    user: str
    host: str
    time: float
    cluster: Word
    elements: list[Word]
    pid: Pid
    start: Count | None
    boot: str
    ended: str


class Cancelled(TypedDict, total=False):
    user: str
    host: str
    time: float


class Ended(TypedDict):
    exit: int | None
    signal: str | None
    told: str | None
    error: str | None


# The nonce in most of them marks the records of one attempt: with another one a record is stale. It is no secret.


class _Attempt(TypedDict):
    nonce: str
    attempt: Annotated[int, range(1, 1 << 31)]


class Opened(_Attempt, total=False):
    scheduler: Word
    job_id: Word
    cluster: Word


class PlannedJob(TypedDict):
    id: str
    name: str
    scheduler: str


class _NamedTask(TypedDict):
    type: TaskType
    index: Count


class NamedTask(_NamedTask, total=False):
    host: str


class PlannedTask(_NamedTask):
    host: str
    gpus: Count
    cpus: Count | None
    local_rank: Count | None
    rank: Count | None
    served: bool
    in_cluster: bool


class _NamedJob(TypedDict, total=False):
    id: str
    name: str
    scheduler: str


class Outline(TypedDict, total=False):
    """What of a plan is shown."""

    nonce: str
    job: _NamedJob
    tasks: list[NamedTask]
    spec: Spec


class Plan(TypedDict):
    nonce: str
    job: PlannedJob
    hosts: dict[str, str]
    tasks: list[PlannedTask]
    python: str
    cwd: str
    spec: Spec


class Environment(TypedDict):
    environ: dict[str, str]


class HostRecord(TypedDict):
    host: str
    address: str
    ports: dict[str, Port]
    master_port: Port


class _Rank(TypedDict):
    host: str
    hostname: str
    address: str
    boot: str
    port: Port
    granted: list[str]
    cpus: list[Count]


class RankRecord(_Rank, total=False):
    step_gpus: Count
    master_port: Port


class HostError(TypedDict):
    what: str
    why: str
    hint: str


class Meeting(TypedDict):
    nonce: str
    master_addr: str
    master_port: Port
    outside: dict[str, list[str]]


class JoinedMeeting(Meeting):
    cluster: Cluster
    gpus: dict[str, list[str]]


class _Members(TypedDict):
    cluster: Cluster


class Contract(_Members, total=False):
    """What a task reads of the same file."""

    outside: dict[str, list[str]]


class Launcher(TypedDict, total=False):
    host: str
    pid: Pid
    start: Count | None
    boot: str
    began: float
    phase: str
    detail: str
    beat: Count
    time: float


# A task's states. A job has more of them (gridtf.schedulers), but not STOPPED: ended by gridtf.
PENDING, RUNNING, COMPLETED, FAILED, STOPPED = "PENDING", "RUNNING", "COMPLETED", "FAILED", "STOPPED"


class TaskState(TypedDict, total=False):
    state: str
    pid: Pid | None
    started: float | None
    ended: float | None
    exit: int | None
    signal: str | None
    oom: bool
    error: str | None
    restarts: Count


class _Gone(TypedDict):
    what: str
    why: str
    hint: str


class Gone(_Gone, total=False):
    orphaned: bool
    signal: int
    unheard: bool


class _HostState(TypedDict):
    tasks: dict[str, TaskState]


class HostState(_HostState, total=False):
    host: str
    pid: Pid
    over: bool
    waits: str
    gone: Gone
    beat: Count
    time: float


class Stop(TypedDict, total=False):
    state: str
    reason: str
    task: str | None


class Cause(TypedDict):
    task: str | None
    host: str | None
    exit: int | None
    signal: str | None
    log: str
    tail: list[str]


class _Verdict(TypedDict):
    state: str


class Verdict(_Verdict, total=False):
    reason: str
    hint: str
    cause: Cause | None
    again: bool | None
    started: float
    ended: float
    exit_code: int


@cache
def check(kind: Any) -> Callable[[Any], str]:
    """What says of a value from JSON where it is not of this type, such as ``tasks.3.index is 'x'``; empty when it is.

    kind: a TypedDict, dict, list, union, Any, str, int, float, bool or None; or Annotated, with a pattern that a string
    matches as a whole, or with what holds the values there may be.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        entries = {name: check(one) for name, one in get_type_hints(kind, include_extras=True).items()}
        return partial(_table, entries, kind.__required_keys__)
    if origin is dict:
        return partial(_entries, check(parts[1]))
    if origin is list:
        return partial(_items, check(parts[0]))
    if origin in (Union, UnionType):
        return partial(_one_of, [check(one) for one in parts])
    if origin is Annotated:
        return partial(_among, check(parts[0]), parts[1])
    return partial(_plain, _PLAIN[kind])


def _table(entries: Mapping[str, Callable[[Any], str]], required: frozenset[str], value: Any) -> str:
    if not isinstance(value, dict):
        return _wrong(value)
    for name, of_this in entries.items():
        if name not in value:
            if name in required:
                return f"{name} is missing"
        elif wrong := of_this(value[name]):
            return _within(name, wrong)
    return ""


def _entries(of_each: Callable[[Any], str], value: Any) -> str:
    if not isinstance(value, dict):
        return _wrong(value)
    return next((_within(key, wrong) for key, one in value.items() if (wrong := of_each(one))), "")


def _items(of_each: Callable[[Any], str], value: Any) -> str:
    if not isinstance(value, list):
        return _wrong(value)
    return next((_within(str(at), wrong) for at, one in enumerate(value) if (wrong := of_each(one))), "")


def _one_of(checks: Sequence[Callable[[Any], str]], value: Any) -> str:
    wrong = ""
    for of_this in checks:
        if not (wrong := of_this(value)):
            break
    return wrong


def _among(of_all: Callable[[Any], str], allowed: Any, value: Any) -> str:
    if wrong := of_all(value):
        return wrong
    fits = allowed.fullmatch(value) if isinstance(allowed, re.Pattern) else value in allowed
    return "" if fits else _wrong(value)


def _plain(fits: Callable[[Any], bool], value: Any) -> str:
    return "" if fits(value) else _wrong(value)


def _is_text(value: Any) -> bool:
    """Also one that a file system and a terminal take: json makes strings of more than these."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        return value.isascii() or bool(value.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        return False


_PLAIN: Mapping[Any, Callable[[Any], bool]] = {
    Any: lambda value: True,
    str: _is_text,
    int: lambda value: type(value) is int and abs(value) < _MOST,
    float: lambda value: type(value) in (int, float) and 0 <= value < _FAR,  # nan is not
    bool: lambda value: type(value) is bool,
    NoneType: lambda value: value is None,
}


def _within(key: str, wrong: str) -> str:
    """With the way to it."""
    return f"{_told(key)[1:-1]}{'' if wrong.startswith(' ') else '.'}{wrong}"


def _wrong(value: Any) -> str:
    return f" is {_told(value)}"
