"""What a JobSpec may say: one check a kind of value. Pure; raises SpecError, which names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.errors import SpecError, UsageError, nearest
from gridtf.placeholders import misspelt
from gridtf.roles import LEADERS, TASK_TYPES
from gridtf.units import MOST, WALLTIME_FORMS, parse_memory, parse_nodes, parse_walltime

if TYPE_CHECKING:
    from gridtf.spec import JobSpec

SCHEDULERS = ("local", "slurm", "sge")
SUCCESS_POLICIES = ("all", "chief")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SLOTS = re.compile(r"[1-9]\d*(-[1-9]\d*)?", re.ASCII)
_MEM_FORMS = "a number with K, M, G or T, such as 16G (without: MiB)"
# What Slurm takes for a lack of limits. gridtf has to know numbers, the scheduler alone need not.
_LIMITLESS = ("0", "-1", "unlimited", "infinite")
_MAY_BE_ZERO = ("kill_grace", "evaluator_wait", "leader_wait")  # in seconds


def need_program(spec: JobSpec) -> None:
    """Every task must have something to run. Raises UsageError."""
    if spec.command or spec.entry:
        return
    types = [name for name in TASK_TYPES if spec.count(name) != 0 and name not in spec.serve]
    idle = [name for name in types if spec.task(name).command is None]
    if idle:
        which = "" if len(idle) == len(types) else f" on {', '.join(idle)}"
        hint = "give a command after --, or --entry module:function, or a job file that names one"
        raise UsageError(f"nothing to run{which}", hint=hint)


def validate(spec: JobSpec) -> None:
    """Raise SpecError for the first value that cannot be."""
    for check in _CHECKS:
        check(spec)


def told(value: object) -> str:
    """A value in messages, as a job file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(told, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {told(one)}' for key, one in value.items())}}}"
    return repr(value) if isinstance(value, str) else str(value)


def _whole(key: str, value: object, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise SpecError(key, f"{told(value)} is not a whole number of {least} or more")
    if isinstance(value, int) and value > MOST:
        raise SpecError(key, f"{value} is more than {MOST}, which no job needs")


def _text(key: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise SpecError(key, f"{told(value)} is not a string with something in it")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise SpecError(key, f"{value!r} holds a control character", hint="leave out newlines, tabs and the like")


def _strings(key: str, value: Sequence[object], *, newlines: bool) -> None:
    for item in value:
        if not isinstance(item, str):
            raise SpecError(key, f"{told(item)} is not a string")
        if "\0" in item or (not newlines and "\n" in item):
            raise SpecError(key, f"{item!r} holds a {'NUL' if newlines else 'newline'}, which cannot be passed on")


def _command(key: str, words: Sequence[object]) -> None:
    _strings(key, words, newlines=True)
    if words and not words[0]:
        raise SpecError(key, "its first word, the program to run, is empty")
    for name, meant in (pair for word in words for pair in misspelt(str(word))):
        hint = f"did you mean {{{meant}}}? braces that the program itself understands can be written {{ {name} }}"
        raise SpecError(key, f"there is no placeholder {{{name}}}", hint=hint)


def _environment(key: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise SpecError(key, "a table of strings is wanted")
    for name, text in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise SpecError(f"{key}.{name}", f"{name!r} is not a name that a shell can export")
        if not isinstance(text, str) or "\0" in text:
            raise SpecError(f"{key}.{name}", f"{told(text)} is not a string", hint=f'write {name} = "{told(text)}"')


def _parsed(key: str, value: str | int | None, parse: Callable[[str | int], object], forms: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SpecError(key, f"{told(value)} is of the wrong type", hint=f"write {forms}")
    try:
        parse(value)
    except ValueError as error:
        limitless = key in ("time", "mem") and str(value).lower() in _LIMITLESS
        hint = f"for Slurm's lack of a limit: --native=--{key}=0" if limitless else f"write {forms}"
        raise SpecError(key, str(error), hint=hint) from None


def _check_words(spec: JobSpec) -> None:
    for key in ("partition", "account", "pe", "gpu_resource", "python", "chdir", "template", "run_dir", "run_root"):
        _text(key, getattr(spec, key))
    if spec.name is not None and not (isinstance(spec.name, str) and _NAME.fullmatch(spec.name)):
        raise SpecError(
            "name",
            f"{told(spec.name)} is not a job name",
            hint="use up to 63 letters, digits and _ . + = -, with a letter, digit or _ first",
        )
    _command("command", spec.command)
    _strings("setup", spec.setup, newlines=True)
    _strings("native", spec.native, newlines=False)
    _environment("env", spec.env)


def _check_choices(spec: JobSpec) -> None:
    for key, choices in (("scheduler", SCHEDULERS), ("success_policy", SUCCESS_POLICIES)):
        value = getattr(spec, key)
        if value is not None and value not in choices:
            hint = nearest(str(value), list(choices)) or f"choose from {', '.join(choices)}"
            raise SpecError(key, f"{told(value)} is not one of {', '.join(choices)}", hint=hint)


def _check_sizes(spec: JobSpec) -> None:
    _parsed("time", spec.time, parse_walltime, WALLTIME_FORMS)
    _parsed("mem", spec.mem, parse_memory, _MEM_FORMS)
    _parsed("mem_per_task", spec.mem_per_task, parse_memory, _MEM_FORMS)
    if spec.mem is not None and spec.mem_per_task is not None:
        raise SpecError("mem_per_task", "memory was asked for by the task and by the host", hint="give one of them")
    _parsed("nodes", spec.nodes, parse_nodes, "a number, or a range such as 2-4")
    for key, least in (("gpus_per_node", 0), ("tasks_per_node", 1), ("gpus_per_task", 0), ("cpus_per_task", 1)):
        _whole(key, getattr(spec, key), least)
    if spec.slots is not None and not _SLOTS.fullmatch(str(spec.slots)):
        raise SpecError(
            "slots", f"{told(spec.slots)} is not a number of slots", hint="write a number, or a range such as 2-16"
        )
    if spec.slots is not None and spec.scheduler == "sge" and spec.pe is None:
        raise SpecError("slots", "slots need a parallel environment", hint="name it with --pe")
    for key in ("start_timeout", "heartbeat_timeout", *_MAY_BE_ZERO):
        value = getattr(spec, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or (value == 0 and key not in _MAY_BE_ZERO):
            raise SpecError(key, f"{told(value)} is not a number of seconds")
    if spec.gpus_per_node and spec.gpus_per_task and spec.gpus_per_task > spec.gpus_per_node:
        raise SpecError("gpus_per_task", f"{spec.gpus_per_task} GPUs a task, but gpus_per_node is {spec.gpus_per_node}")


def _check_tasks(spec: JobSpec) -> None:
    for task_type, table in spec.tasks.items():
        key = f"tasks.{task_type}"
        if task_type not in TASK_TYPES:
            hint = nearest(str(task_type), list(TASK_TYPES)) or f"known: {', '.join(TASK_TYPES)}"
            raise SpecError(key, "unknown task type", hint=hint)
        _whole(f"{key}.count", table.count, 0)
        _whole(f"{key}.gpus", table.gpus, 0)
        _whole(f"{key}.cpus", table.cpus, 1)
        _parsed(f"{key}.mem", table.mem, parse_memory, _MEM_FORMS)
        _check_partition(f"{key}.partition", task_type, spec)
        _check_membership(f"{key}.in_cluster", task_type, spec)
        _environment(f"{key}.env", table.env)
        if table.command is not None:
            if not isinstance(table.command, tuple) or not table.command:
                raise SpecError(f"{key}.command", "a list of strings is wanted")
            _command(f"{key}.command", table.command)
        limit = TASK_TYPES[task_type].limit
        if limit is not None and (table.count or 0) > limit:
            raise SpecError(f"{key}.count", f"{table.count} asked for, but there can be only {limit}")
        if table.gpus and not TASK_TYPES[task_type].takes_gpu:
            raise SpecError(f"{key}.gpus", f"a {task_type} takes no GPU", hint="leave it out, or write 0")
    leaders = [leader for leader in LEADERS if spec.count(leader)]
    if len(leaders) > 1:
        raise SpecError("tasks.master", "chief and master are two names of one task", hint="ask for one of them")
    if spec.count("worker") == 0 and not leaders:
        raise SpecError("tasks.worker.count", "no worker and no chief: nothing would train")


def _check_partition(key: str, task_type: str, spec: JobSpec) -> None:
    partition = spec.task(task_type).partition
    _text(key, partition)
    if partition not in (None, spec.partition) and TASK_TYPES[task_type].takes_gpu:
        riders = " and ".join(name for name, row in TASK_TYPES.items() if not row.takes_gpu)
        raise SpecError(
            key,
            f"a {task_type} trains, and training tasks run on the job's own partition",
            hint=f"set the job's partition instead; {riders} can have one of their own",
        )


def _check_membership(key: str, task_type: str, spec: JobSpec) -> None:
    said = spec.task(task_type).in_cluster
    if said is not None and not isinstance(said, bool):
        raise SpecError(key, f"{told(said)} is neither true nor false")
    if said and not TASK_TYPES[task_type].in_cluster:
        why = f"TensorFlow's strategies would wait for it ({task_type}) in the cluster"
        raise SpecError(key, why, hint="leave in_cluster out")
    if said is False and task_type in spec.serve:
        raise SpecError(key, f"gridtf serves {task_type}, and a TensorFlow server is a member of the cluster")
    if said is False and not any(spec.count(name) != 0 and spec.in_cluster(name) for name in TASK_TYPES):
        raise SpecError(key, "nobody would be left in the cluster", hint="leave in_cluster out")


def _check_program(spec: JobSpec) -> None:
    if spec.command and spec.entry:
        raise SpecError("entry", "a command and an entry function were given", hint="give one of them")
    if spec.entry is not None and not (isinstance(spec.entry, str) and _ENTRY.fullmatch(spec.entry)):
        raise SpecError("entry", f"{told(spec.entry)} is not module:function", hint="main() in train.py is train:main")
    for task_type in spec.serve:
        if task_type not in ("ps", "worker"):
            raise SpecError("serve", f"{told(task_type)} cannot be served by gridtf", hint="ps, worker or both")
        if spec.task(task_type).command is not None:
            raise SpecError("serve", f"tasks.{task_type}.command is set, yet gridtf is to serve {task_type}")
    leader = any(spec.count(leader) for leader in LEADERS)
    if "worker" in spec.serve and not leader:
        raise SpecError("serve", "with the workers served by gridtf nothing would train", hint="add a chief: --chief")
    if spec.success_policy == "chief" and not leader and spec.count("worker") == 0:
        raise SpecError("success_policy", "there is neither a chief nor a worker")


_CHECKS = (_check_words, _check_choices, _check_sizes, _check_tasks, _check_program)
