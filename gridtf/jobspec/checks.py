"""What JobSpec refuses: each check raises SpecError, with what to write. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.errors import SpecError, UsageError, nearest
from gridtf.jobspec import tasktypes, units
from gridtf.jobspec.placeholders import (
    ALL,
    CONTAINER_NAMES,
    HOST_NAMES,
    PARAMS,
    host_address,
    is_whole,
    missing,
    misspelt,
    placeholders,
    without_parameters,
)
from gridtf.jobspec.primitives import as_list, as_name, check_each, check_parsed, check_text, check_whole, spell
from gridtf.jobspec.staged import staged_name
from gridtf.text import counted, toml

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec

_A_KIND = f'kind = "{next(iter(tasktypes.KINDS))}", or {" or ".join(toml(name) for name in [*tasktypes.KINDS][1:])}'
A_TYPE_OF_ONE_S_OWN = f"a type of your own needs a kind: {_A_KIND}"
_TYPE = re.compile(r"[a-z][a-z_]{0,31}")
FIRST_WORKER = "first-worker"
_CHOICES = {
    "success_policy": ("all", "chief"),
    "ports": ("hold", "release", "auto"),
    "fence": ("users", "hosts", "off", "auto"),
    "checkpoint_signal": ("USR1", "USR2"),
    "on_stall": ("report", "restart", "end"),
    "check": ("off", "quick"),
    "on_bad_host": ("warn", "end"),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,62}")
_MPI_TYPE = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_ALL = re.compile(r"[${]\{params\}")  # the shell's, and what the program is to get
PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INTERFACE = re.compile(r"[!-.0-~]{1,15}")  # linux/if.h: IFNAMSIZ; no space, no slash
_NOTIFY = re.compile(r"mail(:[^\s:,;]+@[^\s:,;]+|:\w[\w.-]*)?")  # an address, or the name of a user
_MEM_FORMS = "a number with K, M, G or T, such as 16G (without: MiB)"
_PROGRAM_FIRST = 'write the program first, such as "python"'
_NAME_A_PROGRAM = 'write JobSpec(command=["python", "train.py"]), or JobSpec(entry="module:function")'
_NAME_AN_IMAGE = 'name the image: --container IMAGE, or container = "IMAGE" in a file'
# As Docker writes it, without the forms of Apptainer that have no // either.
_REGISTRY = re.compile(
    r"(?!(?:docker-archive|docker-daemon|oci|oci-archive|oci-sif):)\w[\w.-]*(?:[/#][\w.-]+)*:[\w.-]+"
)
_MAY_BE_ZERO = ("kill_grace", "evaluator_wait", "leader_wait", "sample_interval")  # in seconds


def need_program(spec: JobSpec, hint: str = _NAME_A_PROGRAM) -> None:
    """Check that every task has a program to run.

    Args:
        spec: The job.
        hint: How to name one.

    Raises:
        SpecError: When a command has only arguments.
        UsageError: When a task type has no command, no entry and is not served.
    """
    own = ((f"tasks.{name}.command", table.command) for name, table in spec.tasks.items())
    for key, command in (("command", spec.command), *own):
        if command and command[0].startswith("-"):
            what = f"the first item, the program to run, begins with a dash: {command[0]!r}"
            raise SpecError(key, what, hint=_PROGRAM_FIRST)
    if spec.command or spec.entry:
        return
    types = [name for name in spec.types if spec.count(name) != 0 and not spec.serves(name)]
    idle = [name for name in types if spec.task(name).command is None]
    if idle:
        which = "" if len(idle) == len(types) else f" on {', '.join(idle)}"
        raise UsageError(f"nothing to run{which}", hint=hint)


def _command(key: str, words: Sequence[object], spec: JobSpec) -> None:
    check_each(key, words, newlines=True)
    if words and not words[0]:
        raise SpecError(key, "the first item, the program to run, is empty", hint=_PROGRAM_FIRST)
    for word in map(str, words):
        _placeholders(key, word, spec)


def _placeholders(key: str, word: str, spec: JobSpec, *, argument: bool = True) -> None:
    """Refuse an unknown placeholder. argument: also a word that is like none, if it is all there is in braces."""
    whole = argument and is_whole(word)
    for name, meant in misspelt(without_parameters(word, spec.params), placeholders(spec.tasks), whole=whole):
        hint = f"did you mean {{{meant}}}?" if meant else "`gridtf submit --help` lists the placeholders;"
        if name == PARAMS:
            continue
        literal = f"{{{{{name}}}}}" if is_whole(word) else f"{{ {name} }}"
        hint += f" to pass braces to the program itself, write {literal}"
        if name in spec.params:
            hint = f"the parameter is {{{PARAMS}.{name}}}"
        raise SpecError(key, f"there is no placeholder {{{name}}}", hint=hint)


def need_parameters(spec: JobSpec) -> None:
    """Check, before the submission, that the job has the parameters that its commands and variables name.

    Args:
        spec: The job, with all of its parameters.

    Raises:
        SpecError: When it lacks one, and for a ``{params}`` that is no argument by itself.
    """
    for prefix, own in (("", spec), *((f"tasks.{name}.", table) for name, table in spec.tasks.items())):
        if spec.params and (own.command or ())[:1] == (ALL,):
            raise SpecError(f"{prefix}command", f"{ALL} stands for flags, not for the program", hint=_PROGRAM_FIRST)
        for word in own.command or ():
            _parameters(f"{prefix}command", word, spec.params, argument=True)
        for name, text in own.env.items():
            _parameters(f"{prefix}env.{name}", text, spec.params, argument=False)


def _parameters(key: str, word: str, params: Mapping[str, object], *, argument: bool) -> None:
    for name in missing(word, params, argument=argument):
        near = nearest(name, list(params))
        hint = f"{near}{' if not, ' * bool(near)}write {name} = … under [params] in the job file, or --set {name}=…"
        raise SpecError(key, f"there is no parameter {name!r}", hint=hint)
    if ALL not in _NOT_ALL.sub("", word) or (params and argument and word == ALL):
        return
    if not params and argument and is_whole(word):
        hint = "set some: --set lr=0.01, or lr = 0.01 under [params]; for the braces themselves write {{params}}"
        raise SpecError(key, f"{ALL} stands for the parameters of the job, and it has none", hint=hint)
    if params:
        hint = "make it an argument by itself, or name one, as in {params.NAME}; GRIDTF_PARAMS has all of them as JSON"
        raise SpecError(key, f"{ALL} stands for several arguments, and is only a part of this text", hint=hint)


def _environment(key: str, value: object, spec: JobSpec) -> None:
    if not isinstance(value, Mapping):
        raise SpecError(key, "expected a table of strings")
    for name, text in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            like = re.sub(r"^(?=\d)|\W+", "_", str(name), flags=re.ASCII) or "NAME"
            hint = f"use letters, digits and _: {like} = {toml(text)}, or --env {like}={text}"
            raise SpecError(f"{key}.{name}", f"{name!r} is not a name that a shell can export", hint=hint)
        if not isinstance(text, str) or "\0" in text:
            raise SpecError(f"{key}.{name}", f"{spell(text)} is not a string", hint=f'write {name} = "{spell(text)}"')
        _placeholders(f"{key}.{name}", text, spec, argument=False)  # {message} may be the format of a log


# --- a value by itself


def _check_texts(spec: JobSpec) -> None:
    for key in ("scheduler", "gpu_model", "python", "chdir", "template", "run_dir", "run_root"):
        check_text(key, getattr(spec, key))
    if spec.name is not None and not (isinstance(spec.name, str) and _NAME.fullmatch(spec.name)):
        raise SpecError(
            "name",
            f"{spell(spec.name)} is not a job name",
            hint=f"write {as_name(str(spec.name)) or 'train'}: up to 63 letters, digits and _ . + = - are allowed",
        )
    _command("command", spec.command, spec)
    check_each("setup", spec.setup, newlines=True)
    check_each("native", spec.native, newlines=False)
    for host in (*spec.nodelist, *spec.exclude):
        check_text("exclude" if host in spec.exclude else "nodelist", host)
        if "=" in host:  # mpirun's -x
            raise SpecError(
                "exclude", f"{spell(host)} is not the name of a host", hint=f"a variable is set by --env {host}"
            )
    if spec.notify is not None and not _NOTIFY.fullmatch(str(spec.notify)):
        address = spec.notify if _NOTIFY.fullmatch(f"mail:{spec.notify}") and isinstance(spec.notify, str) else ""
        hint = f"write mail:{address}" if address else "write mail, or mail:ann@example.org"
        raise SpecError("notify", f"{spell(spec.notify)} is neither mail nor mail:ADDRESS", hint=hint)
    _environment("env", spec.env, spec)
    options: object = spec.options
    if not isinstance(options, Mapping):
        raise SpecError("options", f"{spell(options)} is not a table of options")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise SpecError(f"options.{key}", f"{spell(value)} is neither a string nor a number")
    for key, words in _CHOICES.items():
        value = getattr(spec, key)
        if value not in (None, *words):
            choices = ", ".join(words)
            raise SpecError(key, f"{spell(value)} is not one of {choices}", hint=nearest(str(value), list(words)))


def _check_truths(spec: JobSpec) -> None:
    for key, other in (("hook", "false"), ("snapshot", "true"), ("avoid_bad_hosts", "true")):
        if not isinstance(value := getattr(spec, key), bool):
            hint = f"write {key} = {other}, or leave it out"
            raise SpecError(key, f"{spell(value)} is neither true nor false", hint=hint)


def _check_sizes(spec: JobSpec) -> None:
    check_parsed("time", spec.time, units.parse_walltime, units.WALLTIME_FORMS)
    check_parsed("checkpoint_before", spec.checkpoint_before, units.parse_duration, units.WALLTIME_FORMS)
    after: object = spec.stall_after
    if after is None:
        raise SpecError("stall_after", "it has no value", hint='write a time such as "10m", or "off"')
    check_parsed("stall_after", spec.stall_after, units.parse_pause, f'"off", {units.WALLTIME_FORMS}')
    _check_end(spec)
    check_parsed("mem", spec.mem, units.parse_memory, _MEM_FORMS)
    check_parsed("mem_per_task", spec.mem_per_task, units.parse_memory, _MEM_FORMS)
    check_parsed("log_limit", spec.log_limit, units.parse_memory, _MEM_FORMS)
    if spec.mem is not None and spec.mem_per_task is not None:
        raise SpecError("mem_per_task", "memory is requested both per task and per host", hint="keep one of them")
    check_parsed("nodes", spec.nodes, units.parse_nodes, "a number, or a range such as 2-4")
    least_of = {"gpus_per_node": 0, "gpus": 0, "tasks_per_node": 1, "gpus_per_task": 0, "cpus_per_task": 1}
    for key, least in {**least_of, "restarts": 0, "spare_nodes": 0}.items():
        check_whole(key, getattr(spec, key), least)
    for key in ("start_timeout", "heartbeat_timeout", *_MAY_BE_ZERO):
        value = getattr(spec, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or (value == 0 and key not in _MAY_BE_ZERO):
            raise SpecError(key, f"{spell(value)} is not a number of seconds", hint=_in_seconds(value))
    if 0 < spec.sample_interval < 1:
        raise SpecError("sample_interval", f"{spell(spec.sample_interval)} is less than a second", hint="0: no samples")
    if spec.on_stall == "restart" and not spec.restarts:
        hint = "add restarts = 1 or more, or choose report or end"
        raise SpecError("on_stall", "a stalled job is to be restarted, but restarts is 0", hint=hint)
    if spec.on_stall not in (None, "report") and spec.seconds_to_stall is None:
        raise SpecError("on_stall", "stall_after is off, so that no job is stalled", hint="give stall_after a time")
    if spec.on_bad_host == "end" and spec.check == "off":
        raise SpecError("on_bad_host", "check is off, so that no host is found bad", hint='add check = "quick"')
    if spec.spare_nodes and not spec.restarts:
        what = f"{counted(spec.spare_nodes, 'spare host')} for restarts, but restarts is 0"
        raise SpecError("spare_nodes", what, hint="add restarts = 1 or more, or leave spare_nodes out")
    if spec.gpus_per_node and spec.gpus_per_task and spec.gpus_per_task > spec.gpus_per_node:
        what = f"{spec.gpus_per_task} GPUs per task, but gpus_per_node is {spec.gpus_per_node}"
        raise SpecError("gpus_per_task", what, hint=f"write gpus_per_node = {spec.gpus_per_task} or more")
    _ = spec.with_gpus_per_node


def _in_seconds(value: object) -> str:
    """What to write for a number of seconds in quotes or with a unit, such as ``10m``."""
    text = str(value)
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and text.strip("0."):
        return f"write {text}, without quotes"
    try:
        return f"write {units.parse_duration(text)}" if isinstance(value, str) else ""
    except ValueError:
        return "write a number, such as 60"


def _check_end(spec: JobSpec) -> None:
    before: object = spec.checkpoint_before
    given: object = spec.continuations
    if given is None:
        raise SpecError("continuations", "it has no value", hint="write a number, such as 2, or leave it out")
    check_whole("continuations", given, 0)
    if given and before is None:
        hint = "say how long before the end of the walltime to save: --checkpoint-before 5m"
        raise SpecError("continuations", "a job that is never asked to save cannot be continued", hint=hint)
    check_parsed("time_min", spec.time_min, units.parse_walltime, units.WALLTIME_FORMS)
    least = spec.walltime if spec.least_walltime is None else spec.least_walltime
    if spec.least_walltime is not None and (spec.walltime or 0) < spec.least_walltime:
        raise SpecError("time_min", "it is no less walltime than time", hint='write time = "8h", say, and less here')
    if least is not None and (spec.seconds_to_save or 0) >= least:
        early = units.format_walltime(spec.seconds_to_save or 0)
        what = f"{early} is not less than the walltime, {units.format_walltime(least)}"
        hint = "a checkpoint is requested that long before the end; a plain number is in minutes"
        raise SpecError("checkpoint_before", what, hint=hint)


def need_walltime(spec: JobSpec) -> None:
    """Check, before the submission, that a checkpoint is requested before an end that exists.

    Args:
        spec: The job.

    Raises:
        SpecError: For a job without a walltime.
    """
    if spec.checkpoint_before is not None and spec.time is None:
        hint = "add a walltime, such as --time 2:00:00"
        raise SpecError("checkpoint_before", "the job has no walltime before whose end it could save", hint=hint)


# --- task types


def _check_types(spec: JobSpec) -> None:
    for task_type, table in spec.tasks.items():
        key = f"tasks.{task_type}"
        kind: object = table.kind
        if task_type in tasktypes.TASK_TYPES and kind is not None:
            raise SpecError(f"{key}.kind", f"{task_type} is a type of TensorFlow's or gridtf's", hint="leave kind out")
        if task_type in tasktypes.TASK_TYPES:
            continue
        if kind is None:
            known = f"known: {', '.join(tasktypes.TASK_TYPES)}; {A_TYPE_OF_ONE_S_OWN}"
            hint = nearest(str(task_type), list(tasktypes.TASK_TYPES)) or known
            raise SpecError(key, "unknown task type", hint=hint)
        if kind not in tasktypes.KINDS:
            raise SpecError(f"{key}.kind", f"{spell(kind)} is not a kind of task", hint=f"write {_A_KIND}")
        if not _TYPE.fullmatch(str(task_type)):
            hint = "use up to 32 lower-case letters and _, with a letter first, as in parameter_cache"
            raise SpecError(key, f"{task_type!r} cannot be the name of a task type", hint=hint)
        if task_type == "job":
            what = "'job' cannot be the name of a task type: in `gridtf logs --task job` it stands for the job script"
            raise SpecError(key, what, hint="choose another name")


def _check_tasks(spec: JobSpec) -> None:
    for task_type, table in spec.tasks.items():
        key, row = f"tasks.{task_type}", spec.row(task_type)
        check_whole(f"{key}.count", table.count, 0)
        check_whole(f"{key}.gpus", table.gpus, 0)
        check_whole(f"{key}.cpus", table.cpus, 1)
        check_parsed(f"{key}.mem", table.mem, units.parse_memory, _MEM_FORMS)
        _check_place(key, task_type, spec)
        _check_membership(f"{key}.in_cluster", task_type, spec)
        _check_on_failure(f"{key}.on_failure", task_type, spec)
        _environment(f"{key}.env", table.env, spec)
        if table.command is not None:
            if not isinstance(table.command, tuple) or not table.command:
                given: object = table.command
                if given == ():
                    raise SpecError(f"{key}.command", "the list is empty: there is nothing to run")
                hint = as_list("command", given) if isinstance(given, str) else ""
                what = "one string" if hint else spell(given)
                raise SpecError(f"{key}.command", f"expected a list of strings, not {what}", hint=hint)
            _command(f"{key}.command", table.command, spec)
            if row.served == tasktypes.ALWAYS:
                raise SpecError(f"{key}.command", f"gridtf runs a server in a {task_type}", hint="leave it out")
        if row.limit is not None and (table.count or 0) > row.limit:
            raise SpecError(f"{key}.count", f"{table.count} requested, but a job can have only {row.limit}")
        if table.gpus and not row.takes_gpu:
            raise SpecError(f"{key}.gpus", f"a {task_type} takes no GPU", hint="leave it out, or write 0")
    if bool(spec.count(tasktypes.DISPATCHER)) != bool(spec.count(tasktypes.DATA_WORKER)):
        lacks, has = sorted((tasktypes.DISPATCHER, tasktypes.DATA_WORKER), key=lambda name: bool(spec.count(name)))
        hint = "request data workers with --data-workers N: that adds the dispatcher"
        raise SpecError(f"tasks.{lacks}.count", f"there is a {has}, but no {lacks}", hint=hint)
    _check_leader(spec)
    leaders = [leader for leader in tasktypes.LEADERS if spec.count(leader)]
    if len(leaders) > 1:
        raise SpecError("tasks.master", "chief and master are two names of one task", hint="keep one of them")
    if not any(spec.count(name) != 0 and spec.row(name).trains for name in spec.types):
        raise SpecError("tasks.worker.count", "no worker and no chief: nothing would train")
    if spec.mpi is not False:
        _check_mpi(spec)


def _check_leader(spec: JobSpec) -> None:
    if spec.leader is None:
        return
    known = (*tasktypes.LEADERS, FIRST_WORKER)
    if spec.leader not in known:
        hint = nearest(str(spec.leader), list(known))
        raise SpecError("leader", f"{spell(spec.leader)} is not one of {', '.join(known)}", hint=hint)
    for name in tasktypes.LEADERS:
        if (count := spec.task(name).count) is not None and count != (name == spec.leader):
            what = f"the leader is {spec.leader}, but tasks.{name}.count is {count}"
            raise SpecError("leader", what, hint=f"leave out tasks.{name}.count")
    if spec.leader == FIRST_WORKER and spec.count("worker") == 0:
        raise SpecError("leader", "there is no worker that could lead", hint='write leader = "chief"')


def _check_place(table: str, task_type: str, spec: JobSpec) -> None:
    key, partition, model = f"{table}.partition", spec.task(task_type).partition, spec.task(task_type).gpu_model
    check_text(key, partition)
    check_text(f"{table}.gpu_model", model)
    if model and (not spec.row(task_type).takes_gpu or spec.task(task_type).gpus == 0):
        raise SpecError(f"{table}.gpu_model", f"a {task_type} takes no GPU here", hint="leave it out")
    if partition not in (None, spec.partition) and spec.row(task_type).takes_gpu and not spec.apart(task_type):
        non_training = ", ".join(name for name in spec.types if not spec.row(name).takes_gpu)
        raise SpecError(
            key,
            f"a {task_type} trains, and training tasks run on the job's own partition",
            hint=f"set the job's partition instead; only {non_training} can have one of their own, "
            "and a leader with another gpu_model",
        )


def _check_on_failure(key: str, task_type: str, spec: JobSpec) -> None:
    chosen = spec.task(task_type).on_failure
    if chosen is not None and chosen not in tasktypes.ON_FAILURE:
        choices = ", ".join(tasktypes.ON_FAILURE)
        hint = nearest(str(chosen), list(tasktypes.ON_FAILURE)) or f"choose from {choices}"
        raise SpecError(key, f"{spell(chosen)} is not one of {choices}", hint=hint)
    if chosen == tasktypes.RESTART and task_type == "ps":
        what = "a ps that starts again has lost the variables that it held"
        raise SpecError(key, what, hint='write "attempt", and restarts = 1 or more: then all tasks start again')


def _check_membership(key: str, task_type: str, spec: JobSpec) -> None:
    member = spec.task(task_type).in_cluster
    if member is not None and not isinstance(member, bool):
        raise SpecError(key, f"{spell(member)} is neither true nor false")
    if member and not spec.row(task_type).in_cluster:
        what = f"TensorFlow's strategies would wait for a cluster member of type {task_type}"
        raise SpecError(key, what, hint="leave in_cluster out")
    if member is False and task_type in spec.serve:
        raise SpecError(key, f"gridtf serves {task_type}, and a TensorFlow server is a member of the cluster")
    if member is False and not any(spec.count(name) != 0 and spec.in_cluster(name) for name in spec.types):
        raise SpecError(key, "no task would be left in the cluster", hint="leave in_cluster out")


def _check_mpi(spec: JobSpec) -> None:
    if spec.mpi is not True and not _MPI_TYPE.fullmatch(str(spec.mpi)):
        raise SpecError(
            "mpi", f"{spell(spec.mpi)} is not what starts the ranks", hint='write true, "mpirun", "gloo" or "pmix"'
        )
    for name in spec.types:
        if spec.count(name) != 0 and (spec.serves(name) or not spec.row(name).trains):
            what = f"all tasks are ranks of the world, and a {name} cannot be one"
            raise SpecError("mpi", what, hint="leave out mpi, or that type of task")
    if name := next((name for name in spec.types if spec.count(name) != 0 and spec.apart(name)), ""):
        raise SpecError(f"tasks.{name}.gpu_model", "all ranks have GPUs of one model", hint="leave it out, or mpi")
    if spec.contained:
        hint = "start containers by mpirun yourself, in a job script, where each process calls gridtf_join"
        raise SpecError("mpi", "ranks are not started in containers", hint=hint)
    for name, table in spec.tasks.items():
        if table.on_failure == tasktypes.RESTART:
            hint = 'write "attempt", and restarts = 1 or more: then all ranks start again'
            raise SpecError(f"tasks.{name}.on_failure", "a rank alone cannot start again", hint=hint)


# --- parameters, and what happens around a job


def _check_params(spec: JobSpec) -> None:
    params: object = spec.params
    if not isinstance(params, Mapping):
        raise SpecError("params", f"{spell(params)} is not a table", hint="write [params], and lr = 0.01 below it")
    for name, value in params.items():
        key = f"params.{name}"
        if not isinstance(name, str) or not PARAMETER.fullmatch(name):
            like = re.sub(r"^(?=[^A-Za-z_])|[^A-Za-z0-9_-]+", "_", str(name))
            hint = f"use letters, digits, _ and -: {like}"
            raise SpecError(key, f"{name!r} is not the name of a parameter", hint=hint)
        finite = not isinstance(value, float) or abs(value) < float("inf")
        if not isinstance(value, bool | int | float | str) or not finite:
            what = f"{spell(value)} is neither a number nor a text, nor true or false"
            raise SpecError(key, what, hint="several values of one parameter are a sweep: write them in [sweep]")
        check_parameter(key, value)
    if (size := len(json.dumps(params)) + len("GRIDTF_PARAMS=")) > units.LONGEST_VARIABLE:
        what = f"{size} bytes as JSON, and Linux allows {units.LONGEST_VARIABLE} in a variable, GRIDTF_PARAMS"
        raise SpecError("params", what, hint="pass large values in a file, and its path as the parameter")


def check_parameter(key: str, value: object) -> None:
    """Refuse the value of a parameter that no argument can have."""
    if isinstance(value, str) and any(ord(char) < 32 for char in value):
        raise SpecError(key, f"{value!r} contains a control character", hint="leave out newlines and tabs")


def _check_around(spec: JobSpec) -> None:
    for key in ("host_setup", "stage", "on", "after", "after_any", "after_failed"):
        for item in getattr(spec, key):
            check_text(key, item)
    names: dict[str, str] = {}
    for number, path in enumerate(spec.stage, 1):
        name, _ = staged_name(path)
        if not name.strip("."):
            raise SpecError(f"stage.{number}", f"{spell(path)} has no name", hint="name a file or a folder")
        if name in names:
            what = f"{spell(path)} would be {name} on the hosts, as {spell(names[name])}"
            raise SpecError(f"stage.{number}", what, hint="rename one of them, or leave it out")
        names[name] = path


# --- program, network, container


def _check_program(spec: JobSpec) -> None:
    if spec.command and spec.entry:
        raise SpecError("entry", "both a command and an entry function are given", hint="keep one of them")
    if spec.entry is not None and not (isinstance(spec.entry, str) and _ENTRY.fullmatch(spec.entry)):
        raise SpecError("entry", f"{spell(spec.entry)} is not module:function", hint="main() in train.py is train:main")
    if spec.entry and ".py:" in spec.entry:
        hint = f"write the module without .py: {spec.entry.replace('.py:', ':')}"
        raise SpecError("entry", f"{spell(spec.entry)} names a file, not a module", hint=hint)
    for task_type in spec.serve:
        servable = [name for name in spec.types if spec.row(name).served == tasktypes.ON_REQUEST]
        if task_type not in servable:
            hint = f"choose from {', '.join(servable)}"
            raise SpecError("serve", f"{spell(task_type)} cannot be served by gridtf", hint=hint)
        if spec.task(task_type).command is not None:
            raise SpecError("serve", f"{task_type} has a command of its own: tasks.{task_type}.command")
    trains = any(spec.count(name) != 0 and spec.row(name).trains and not spec.serves(name) for name in spec.types)
    if "worker" in spec.serve and not trains:
        raise SpecError("serve", "with the workers served by gridtf nothing would train", hint="request a chief too")
    if wrong := [name for name in spec.serve_imports if not all(map(str.isidentifier, name.split(".")))]:
        raise SpecError("serve_imports", f"{spell(wrong[0])} is not the name of a module", hint="as after `import`")
    if spec.serve_imports and not any(spec.serves(name) for name in spec.types if spec.count(name) != 0):
        what = "gridtf serves no task of this job"
        raise SpecError("serve_imports", what, hint="add serve, or import the module in your program")
    if spec.success_policy == "chief" and not trains:
        raise SpecError("success_policy", "there is neither a chief nor a worker")


def _check_network(spec: JobSpec) -> None:
    for key in ("address", "interface"):
        check_text(key, getattr(spec, key))
    if spec.address is not None and spec.interface is not None:
        what = f"both an address and an interface are given, {spell(spec.address)} and {spell(spec.interface)}"
        raise SpecError("interface", what, hint="choose one of them, and leave out the other")
    if spec.interface is not None and not _INTERFACE.fullmatch(spec.interface):
        hint = "write the name of a network interface, such as ib0: `ip -brief address` on a host lists them"
        raise SpecError("interface", f"{spell(spec.interface)} is not the name of a network interface", hint=hint)
    if spec.address is None:
        return
    for name in re.findall(r"\{(.*?)\}", spec.address):
        if name not in HOST_NAMES:
            hint = "write {host}, the scheduler's name of the host, or {short}, that name up to the first dot"
            raise SpecError("address", f"there is no placeholder {{{name}}}", hint=hint)
    names = [host_address(spec.address, host) for host in ("a", "b")]
    if names[0] == names[1]:
        hint = 'write the part that differs as {host}, such as "{host}i" or "{short}-ib.cluster"'
        raise SpecError("address", f"{spell(spec.address)} is the same on every host", hint=hint)
    if not _HOST_NAME.fullmatch(names[0]):
        hint = 'write letters, digits, ".", "-", "_", and {host}: gridtf adds the port'
        raise SpecError("address", f"{spell(spec.address)} is not a valid host name", hint=hint)


def _check_container(spec: JobSpec) -> None:
    check_text("container", spec.container)
    for bind in spec.container_binds:
        check_text("container_binds", bind)
        parts = bind.split(":")
        if len(parts) > 3 or not all(part.startswith("/") for part in parts[:2]):
            hint = 'write a path on the host, and where it is in the container: "/data:/data", or "/data:/data:ro"'
            raise SpecError("container_binds", f"{spell(bind)} is not SOURCE:TARGET with absolute paths", hint=hint)
        if parts[2:] and not spec.container_command and parts[2] not in ("ro", "rw"):
            raise SpecError("container_binds", f"{spell(bind)}: the mode is ro or rw, not {spell(parts[2])}")
    words = spec.container_command
    for word in words:
        check_text("container_command", word)
    names = {name for word in words for name in re.findall(r"\{([a-z]+)\}", word)}
    for name in sorted(names - set(CONTAINER_NAMES)):
        hint = f"known: {', '.join(f'{{{known}}}' for known in CONTAINER_NAMES)}"
        raise SpecError("container_command", f"there is no placeholder {{{name}}}", hint=hint)
    if spec.container_binds and not spec.contained:
        raise SpecError("container_binds", "there is no container", hint=_NAME_AN_IMAGE)
    if spec.container is None and "image" in names:
        raise SpecError("container_command", "it has {image}, and there is no container", hint=_NAME_AN_IMAGE)
    if spec.container and (uri := re.fullmatch(r"([a-z]+):/([^/].*)", spec.container)):
        hint = f"write {uri[1]}://{uri[2]}"
        raise SpecError("container", f"{spec.container} is neither a path nor a URI", hint=hint)
    if spec.container and not words and (name := _REGISTRY.fullmatch(spec.container)):
        raise SpecError("container", f"{spec.container} is neither a path nor a URI", hint=f"write docker://{name[0]}")
    if words and spec.container is not None and "image" not in names:
        hint = f"write it where {words[0]} expects the image, or leave out container"
        raise SpecError("container_command", "it has no {image} for the container", hint=hint)
    if words and spec.container_binds and "bind" not in names:
        hint = f"write {words[0]}'s option for a bind once, such as --volume={{bind}}"
        raise SpecError("container_command", "it has no {bind} for container_binds", hint=hint)


CHECKS = (
    *(_check_types, _check_params, _check_texts, _check_truths, _check_sizes, _check_tasks),
    *(_check_around, _check_program, _check_network, _check_container),
)
