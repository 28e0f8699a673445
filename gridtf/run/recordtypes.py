"""The kind of every record in a run directory, and the check of records against their kinds. Pure.

A kind is ``str``, ``int``, ``float`` (none below 0), Real, ``bool``, ``None`` or ``object`` (anything); a compiled
pattern for strings that match as a whole; a frozenset of strings; a range of whole numbers; ``[kind]`` for a list,
``[kind, kind]`` for a pair; ``{str: kind}`` for a table with any keys; ``{"key": kind, "optional?": kind}`` for a table
with these keys and possibly others; a tuple of kinds for a value of any of them. kind_of makes that of a class of
values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from reprlib import repr as _short  # limited in length and depth

from gridtf.jobspec.tasktypes import KINDS, TASK_TYPES
from gridtf.states import JobState
from gridtf.values import Value, items, of_dict

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from gridtf.values import V

Kind = object

# A job id: never an option, a pattern or a path, hence safe as an argument of scancel or qdel.
Word = re.compile(r"[A-Za-z0-9][\w.+\[\]-]*", re.ASCII)
TaskType = re.compile(r"[a-z][a-z_]*")  # part of a log's name
# what names a task type in a table: one of TensorFlow's or gridtf's, or one of the job's own and its kind
_NAMED = ({"type": TaskType, "kind": frozenset(KINDS)}, {"type": frozenset(TASK_TYPES), "kind?": frozenset({""})})
Pid = range(1, (1 << 22) + 1)
Port = range(1 << 16)
_MOST = 1 << 53
Count = range(_MOST)
Texts = {str: [str]}
Cluster = Texts

_FAR = 1e11  # seconds since the epoch, or of a duration; calendars do not extend much further

Real = "a finite number"  # of either sign, as a float is not

# --- of a job -----------------------------------------------------------------------------------------------------

# the part of a JobSpec that gridtf uses without making one
_Spec = {
    **dict.fromkeys(("heartbeat_timeout?", "kill_grace?"), float),
    **{key: [str] for key in ("command?", "container_command?", "setup?", "after?", "after_any?", "after_failed?")},
    "cpus_per_task?": (Count, None),
    "tasks?": {str: {"cpus?": (Count, None)}},
}
Job = {
    "spec?": {**_Spec, "chdir?": str, "env?": {str: object}, "params?": {str: object}},
    "sources?": {str: str},
    "origin?": {
        **dict.fromkeys(("rerun_of?", "like?", "snapshot?", "step?", "chain?"), str),
        "waits_for?": {str: str},
    },
}
# the commit of the code of a job, what differs from it, and whether the diff is whole (None: there is none)
Code = {
    "folder?": str,
    "unknown?": str,
    "commit?": (str, None),
    "branch?": (str, None),
    "dirty?": bool,
    "untracked?": [str],
    "remote?": str,
    "diff?": (bool, None),
}
# of a snapshot: the folder that was copied, and each file -> what identifies its content there
Snapshot = {"top": str, "files": {str: str}, "code": Code, "diff": str}
_Where = {"user?": str, "host?": str, "time?": float}
Submitted = {
    "scheduler": Word,
    "job_id": Word,
    "name?": str,
    **_Where,
    "cluster?": Word,
    "command?": [str],
    "elements?": [Word],
    "pid?": Pid,
    "start?": (Count, None),
    "boot?": str,
    "ended?": str,
}
Steps = {"steps": {str: str}}  # of a job file: name -> run directory
Cancelled = _Where
Ended = {"exit": (int, None), "signal": (str, None), "told": (str, None), "error": (str, None)}

# --- of an attempt ------------------------------------------------------------------------------------------------
# The nonce identifies the records of one attempt: a record with another one is stale. It is not a secret.

Opened = {
    "nonce": str,
    "attempt": range(1, 1 << 31),
    "scheduler?": Word,
    "job_id?": Word,
    "cluster?": Word,
}
# the part of a plan that gridtf reads outside a job; plan_of checks all of its tasks and its request
_placed = {"index": Count, "host": str, "gpus": Count}
Plan = {
    "nonce": str,
    "job": {"id": str, "name": str, "scheduler": str},
    "hosts": {str: str},
    "tasks": [tuple({**named, **_placed} for named in _NAMED)],
    "python": str,
    "cwd": str,
    "key?": re.compile("[0-9a-f]*"),
    "spec": _Spec,
    "request": {str: object},
    "whole?": [Count, Count],
}
# the part of a plan that gridtf shows
Outline = {
    "nonce?": str,
    "job?": {"id?": str, "name?": str, "scheduler?": str},
    "tasks?": [tuple({**named, "index": Count, "host?": str, "gpus?": Count} for named in _NAMED)],
    "spec?": _Spec,
}
Environment = {"environ": {str: str}}
# task type -> the Python of its command, and what is installed there
Packages = {"nonce": str, "pythons": {str: {"python": str, "version": str, "packages": {str: str}}}}
# how the tasks of other hosts reach those of a host
_Reached = {"host": str, "address": str, "resolved?": [str], "fence?": str, "unfenced?": str, "addresses?": [str]}
HostRecord = {
    **_Reached,
    "ports": {str: Port},
    "master_port": Port,
    "tensorflow?": {str: str},
    "door?": Port,
    "gpus_in_use?": {str: Count},
}
RankRecord = {
    **_Reached,
    "hostname": str,
    "boot": str,
    "port": Port,
    "granted": [str],
    "cpus": [Count],
    "step_gpus?": Count,
    "master_port?": Port,
}
# Where the launcher listens. The secret, in hexadecimal digits, is the reason why the file is its owner's alone.
Listener = {"addresses": [str], "port": Port, "secret": re.compile("[0-9a-f]{64}")}
HostError = {"what": str, "why": str, "hint": str, "host?": str}
_Door = {"door": Port, "addresses": [str], "ports": [Port]}
# the rendezvous, as the launcher tells it to the agents, or rank 0 to the others
Rendezvous = {
    "master_addr": str,
    "master_port": Port,
    "outside": Texts,
    "doors?": {str: _Door},
    "text": str,
    "gpus?": Texts,
}
# the part of rendezvous.json that tasks and users read
Contract = {"cluster": Cluster, "outside?": Texts, "master_port?": Port}
Launcher = {
    "host?": str,
    "pid?": Pid,
    "start?": (Count, None),
    "boot?": str,
    "began?": float,
    "ends?": float,
    "phase?": str,
    "detail?": str,
    "checkpoint?": bool,
    "slow?": {"task": str, "host": str, "what": str, "sure": str, "text": str},
    "time?": float,
}
_Ranges = {str: [Real, Real]}  # the smallest and the largest of several values
# what a member of an averaging group has done; its distance from the mean, as a part of that, before the last exchange
_Averaging = {"exchanges": Count, "steps": Count, "distance?": Real, "due?": bool}
Progress = {"step": int, "values": {str: object}, "time": float, "ranges?": _Ranges, "averaging?": _Averaging}
Checkpoints = {"folder": str}
Raised = {"type": str, "message": str, "place": str, "cause?": str, "time": float, "pid": Pid}
_TaskState = {
    "state?": str,
    "pid?": (Pid, None),
    "started?": (float, None),
    "ended?": (float, None),
    "exit?": (int, None),
    "signal?": (str, None),
    "oom?": bool,
    "error?": (str, None),
    "restarts?": Count,
    "tensorflow?": str,
    "progress?": Progress,
    "ranges?": _Ranges,
    "exception?": Raised,
    "quiet?": float,
    "listens?": [Port],
    "own_folder?": str,
    "abandoned?": bool,
}
# What a host and its tasks use. Memory and sizes are in bytes, rates in bytes a second, CPU time in cores.
_Gpu = {"use?": float, "memory?": Count, "memory_total?": Count, "power?": float, "clock?": float, "throttled?": float}
_TaskSample = {
    "cpu": float,
    "memory": Count,
    "read": float,
    "written": float,
    "processes": Count,
    "threads": {str: Count},
    "delay?": float,
    "step?": int,
    "values?": {str: object},
    "ranges?": _Ranges,
    "rate?": float,
}
Sample = {
    "time": float,
    "host": str,
    "cpus": Count,
    "cpu": float,
    "memory": Count,
    "memory_total": Count,
    "received": float,
    "sent": float,
    "links?": {str: float},
    "gpus": {str: _Gpu},
    "tasks": {str: _TaskSample},
}
# what a host has measured before the tasks start, and what could not be; its time is by its own clock
_Said = {str: str}
Checked = {"number": Count, "values": {str: float}, "alike": _Said, "missing": _Said, "port": Port, "time": float}
Gone = {**HostError, "orphaned?": bool, "signal?": int, "unheard?": bool, "over?": bool}
HostState = {
    "tasks": {str: _TaskState},
    "host?": str,
    "pid?": Pid,
    "over?": bool,
    "left?": [str],
    "waits?": str,
    "gone?": Gone,
    "checkpoint?": bool,
    "beat?": Count,
    "time?": float,
    "gpus?": Texts,
    "sample?": Sample,
}
Summary = {"hosts": {str: HostState}}
# --- files of JSON lines; the first line is a Head
Head = {"version": Count, "nonce": str}
Event = {
    "time": float,
    "event": str,
    "host?": str,
    "task?": str,
    "state?": str,
    "text?": str,
    "what?": str,
    "exit?": (int, None),
    "signal?": (str, None),
    "restarts?": Count,
    "hosts?": [str],
    "next?": Count,
    "user?": str,
}
LogTimes = {"task": str, "time": float, "offset": Count, "then": [Count]}
# inode of a part of a log -> the offset at which it begins
LogParts = {str: Count}
Hex = re.compile("[0-9a-f]{16}")
StacksRequest = {"id": Hex}
_process = {"pid": Pid, "name": str, "state": str, "why?": str}
Shown = {"processes": [{**_process, "text?": str}]}
_InFile = {"host": str, "processes": [{**_process, "stack?": Count}]}
Stacks = {"id": str, "time": float, "tasks": {str: _InFile}, "stacks": [str], "missing": [str]}
# a command that a user runs beside a task, and where it waits for its user
# with a terminal where it has a TERM
ExecRequest = {"id": Hex, "task": str, "command": [str], "term": str, "certificate": str, "user": str}
ExecAnswer = {"error?": str, "host?": str, "addresses?": [str], "port?": Port, "certificate?": str}
Stop = {"state?": str, "reason?": str, "task?": (str, None)}
_Cause = {
    "task": (str, None),
    "host": (str, None),
    "exit": (int, None),
    "signal": (str, None),
    "log": str,
    "tail": [str],
}
_Chain = {"links": Count, "idle": Count, "progress": {"step?": int, "checkpoint?": int, "written?": float}}
Verdict = {
    "state": frozenset(map(str, JobState)),
    "reason?": str,
    "hint?": str,
    "cause?": (_Cause, None),
    "again?": (bool, None),
    "chain?": (_Chain, None),
    "next?": Count,
    "started?": float,
    "ended?": float,
    "exit_code?": int,
}
# --- of a sweep ---------------------------------------------------------------------------------------------------

_Number = range(1, _MOST)
Sweep = {
    "rows": [{str: (str, bool, int, Real)}],
    "at_once": _Number,
    "pack": _Number,
    "numbers": [_Number],
}
# an element that has ended, in place of its attempts; hosts, CPUs and GPUs: how many it had
Result = {
    "attempt": _Number,
    "verdict": Verdict,
    "params": {str: object},
    "values": {str: {"last": (Real, None), "least": Real, "most": Real, "step": (Count, None)}},
    "had": {"hosts": Count, "cpus": Count, "gpus": Count},
    "hosts": [str],
    "tasks": Count,
}


def tasks_of(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name, such as ``worker:0`` -> what a plan says of the task; empty for a plan without tasks.

    Args:
        plan: A record of the kind Outline; ``{}`` where this user may not read it.
    """
    return {f"{task['type']}:{task['index']}": task for task in plan.get("tasks", ())}


def kind_of(cls: type[Value]) -> Kind:
    """The kind of the records that as_dict makes of values, from the annotations of their class.

    A field with a default may be missing. A whole number counts something. What has a type and a kind is about
    tasks: of a type of TensorFlow's or gridtf's, or of one of the job's own.
    """
    table: dict[str, Kind] = {}
    for name, (container, words, own) in items(cls).items():
        kinds = [kind_of(own) if own else _named(word) for word in words if word != "..."]
        kind = {"": kinds[0], "Mapping": {str: kinds[-1]}}.get(container, kinds)
        table[f"{name}{'?' * (name in cls._defaults)}"] = kind
    return tuple({**table, **named} for named in _NAMED) if {"type", "kind?"} <= table.keys() else table


def _named(words: str) -> Kind:
    """The kind of a type such as ``int | None``."""
    return tuple(_BY_NAME[word] for word in words.split(" | "))


_BY_NAME: Mapping[str, Kind] = {"int": Count, "str": str, "bool": bool, "float": float, "None": None, "Any": object}


def check(kind: Kind) -> Callable[[Any], str]:
    """Make a check of JSON values against a kind.

    Args:
        kind: As the module's docstring describes.

    Returns:
        A function that returns what is wrong with a value, such as ``tasks.3.index is 'x'``; empty when it fits.
    """
    if isinstance(kind, dict):
        if str in kind:
            return partial(_each, dict, check(kind[str]))
        required = frozenset(name for name in kind if not name.endswith("?"))
        return partial(_table, {name.removesuffix("?"): check(entry) for name, entry in kind.items()}, required)
    if isinstance(kind, list):
        each = partial(_each, list, check(kind[0]))
        return each if len(kind) == 1 else lambda value: each(value) or _plain(lambda it: len(it) == len(kind), value)
    if isinstance(kind, tuple):
        return partial(_any_of, [check(choice) for choice in kind])
    if isinstance(kind, range):
        return partial(_plain, lambda value: type(value) is int and value in kind)
    if isinstance(kind, frozenset):
        return partial(_plain, lambda value: type(value) is str and value in kind)
    if isinstance(kind, re.Pattern):
        return partial(_plain, lambda value: _is_text(value) and kind.fullmatch(value))
    return partial(_plain, _PLAIN[kind])


def checked(kind: Kind) -> Callable[[Any], str]:
    """The check of a kind, made once: a list of jobs reads the same few kinds a thousand times."""
    if id(kind) not in _made:
        _made[id(kind)] = kind, check(kind)
    return _made[id(kind)][1]


_made: dict[int, tuple[Kind, Callable[[Any], str]]] = {}  # with the kind, so that no other one gets its id


def read(cls: type[V], record: Any) -> V:
    """The value that a record holds.

    Raises:
        ValueError: What is wrong with it, as check says.
    """
    if cls not in _checks:
        _checks[cls] = check(kind_of(cls))
    if wrong := _checks[cls](record):
        raise ValueError(wrong)
    return of_dict(cls, record)


_checks: dict[type[Value], Callable[[Any], str]] = {}


def _table(entries: Mapping[str, Callable[[Any], str]], required: frozenset[str], value: Any) -> str:
    if not isinstance(value, dict):
        return _wrong(value)
    for name, check_entry in entries.items():
        if name not in value:
            if name in required:
                return f"{name} is missing"
        elif wrong := check_entry(value[name]):
            return _within(name, wrong)
    return ""


def _each(container: type[dict[str, Any]] | type[list[Any]], check_item: Callable[[Any], str], value: Any) -> str:
    if not isinstance(value, container):
        return _wrong(value)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return next((_within(str(key), wrong) for key, item in items if (wrong := check_item(item))), "")


def _any_of(checks: Sequence[Callable[[Any], str]], value: Any) -> str:
    wrong = ""
    for check_choice in checks:
        if not (wrong := check_choice(value)):
            break
    return wrong


def _plain(fits: Callable[[Any], object], value: Any) -> str:
    return "" if fits(value) else _wrong(value)


def _is_text(value: Any) -> bool:
    """Whether it is a string that file systems and terminals accept: JSON allows more."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        return value.isascii() or bool(value.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        return False


_PLAIN: Mapping[Any, Callable[[Any], bool]] = {
    object: lambda value: True,
    str: _is_text,
    int: lambda value: type(value) is int and abs(value) < _MOST,
    float: lambda value: type(value) in (int, float) and 0 <= value < _FAR,  # nan is not
    bool: lambda value: type(value) is bool,
    None: lambda value: value is None,
    Real: lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max,
}


def _within(key: str, wrong: str) -> str:
    """Prefix a problem in a value with the key of the value."""
    return f"{_short(key)[1:-1]}{'' if wrong.startswith(' ') else '.'}{wrong}"


def _wrong(value: Any) -> str:
    return f" is {_short(value)}"
