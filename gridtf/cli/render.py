"""gridtf render: prints the script to stdout, and a summary of the job to stderr."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.cli import output
from gridtf.cli.common import add_like, configured, new_parser, steps_of, sweep_of
from gridtf.jobspec import config
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.options import Table
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import LEADERS
from gridtf.run.rundir import RunDir
from gridtf.secrets import secret
from gridtf.starters import choose, named
from gridtf.text import counted, plain
from gridtf.values import fields

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.request import Component, Request
    from gridtf.jobspec.sweep import Sweep
    from gridtf.schedulers.api import Plan


_DEFAULT = "default"  # the source of values that were not given
_MASK = "***"  # in ASCII, which every terminal shows


def parser(table: Table | None = None, **more: Any) -> Parser:
    examples = (
        "--scheduler slurm --nodes 2 --gpus-per-node 4 -- python train.py",
        "gridtf.toml > job.sh",
        "gridtf.toml | sbatch",
    )
    made = new_parser("render", "[JOBFILE] [options] -- command …", examples, **more)
    made.add_argument("--json", action="store_true", help="print JSON: the request, the script, where values come from")
    made.add_argument("--defaults", action="store_true", help="show the default values as well")
    add_like(made)
    add_job_options(made, schedulers.job_options() if table is None else table)
    return made


def run(arguments: Namespace) -> int:
    given, swept = configured(arguments), None
    if given.steps:
        return show_steps(steps_of(arguments, given), as_json=arguments.json, defaults=arguments.defaults)
    if given.sweep:
        swept = sweep_of(given, arguments)
    return show(given, swept, as_json=arguments.json, defaults=arguments.defaults)


def show(given: Configured, swept: Sweep | None = None, *, as_json: bool = False, defaults: bool = False) -> int:
    """Print what the submission of a job would do.

    Args:
        given: The job.
        swept: The elements of a sweep; None: it is one job.
        as_json: Whether to print JSON.
        defaults: Whether to show the default values as well.
    """
    from gridtf.login import submission

    plan = submission.prepare(given.spec, given.sources, given.trusted, given.origin, swept)
    about = _described(plan, as_json=as_json, defaults=defaults)
    if as_json:
        output.write(f"{json.dumps(about, indent=2)}\n")
    return 0


def show_steps(steps: Mapping[str, Configured], *, as_json: bool = False, defaults: bool = False) -> int:
    """Print what the submission of a job file with steps would do.

    Args:
        steps: Name -> the step.
        as_json: As for show, and so is ``defaults``.
    """
    from gridtf.login import chains

    made = [_described(plan, as_json=as_json, defaults=defaults) for plan in chains.prepare(steps).values()]
    if as_json:
        output.write(f"{json.dumps(made, indent=2)}\n")
    return 0


def _described(plan: Plan, *, as_json: bool, defaults: bool) -> dict[str, Any]:
    """What the submission of a job would do, as JSON values; printed unless that is wanted as JSON."""
    from gridtf.login import submission

    script = submission.script(plan)
    command = submission.command(plan)
    copied = _copied(plan)
    if as_json:
        return {**_as_dict(plan, command, script), **copied}
    for note in submission.notes_of(plan):
        output.message(f"gridtf: {plain(note)}")
    output.message(_about(plan, command, copied, defaults=defaults))
    if output.on_terminal():
        output.write("".join(f"{plain(line)}\n" for line in script.split("\n")[:-1]))
    else:
        output.write(output.raw(script))  # the same bytes as in submit's job.sh
    return {}


def _as_dict(plan: Plan, command: Sequence[str], script: str) -> dict[str, Any]:
    """Everything known about a job before its submission, as JSON values."""
    return {
        "name": plan.spec.title,
        "scheduler": plan.scheduler.name,
        "run_dir": str(plan.run_dir),
        "command": list(command),
        "request": plan.request.to_dict(),
        "spec": _without_secrets(plan.spec.to_dict()),
        "sources": dict(plan.sources),
        "script": script,
    }


def _without_secrets(spec: dict[str, Any]) -> dict[str, Any]:
    """A specification without the values of likely secrets: others may see what render prints."""
    masked = {**spec}
    for table in spec.keys() & {"env", "params"}:
        masked[table] = {name: _MASK if secret(name, text) else text for name, text in spec[table].items()}
    if "tasks" in spec:
        masked["tasks"] = {name: _without_secrets(table) for name, table in spec["tasks"].items()}
    return masked


def _copied(plan: Plan) -> dict[str, Any]:
    """What a new snapshot would contain, as JSON values; empty without one."""
    if not plan.spec.snapshot or "snapshot" in plan.origin:
        return {}
    from gridtf.login import snapshot

    chosen = snapshot.choose(plan)
    about = {"folder": str(chosen.top), "files": len(chosen.files), "bytes": chosen.bytes, "left_out": chosen.links}
    return {"snapshot": {**about, "text": chosen.described()}}


def _about(plan: Plan, command: Sequence[str], copied: dict[str, Any], *, defaults: bool) -> str:
    taken = plan.spec.run_dir is not None and os.path.lexists(plan.run_dir)
    request = plan.request
    slots = plan.scheduler.login.slots(request)
    script = shlex.quote(str(RunDir(plan.run_dir).script))
    ranks, why = choose(plan.spec, plan.scheduler, os.environ)
    lines = [
        f"name           {plan.spec.title}",
        f"scheduler      {plan.scheduler.name}",
        f"run directory  {plan.run_dir}{' (already exists: submit would refuse it)' if taken else ''}",
        f"submit runs    {shlex.join(command)} < {script}",
        f"resources      {'; '.join([_resources(request, plan.spec.cpus_per_task, slots), *_components(request)])}",
        f"tasks          {', '.join(_tasks(request, slots))}",
        *_hours(plan),
        *([f"snapshot       submit copies {copied['snapshot']['text']}"] if copied else []),
        *([f"ranks          {named(ranks)}: {why}"] if ranks else []),
        *_of_sweep(plan),
        "values",
    ]
    rows = [row for row in _values(plan) if defaults or row[1] != _DEFAULT]
    width = min(50, max(len(text) for text, _ in rows))
    lines += [f"  {text:<{width}}  {source}" for text, source in rows]
    return "\n".join(map(plain, lines))


def _hours(plan: Plan) -> Sequence[str]:
    from gridtf.login import when

    if plan.request.hours is None:
        return ()
    left, used = plan.scheduler.login.balance(plan), when.hours(plan.request.hours)
    again = f" in each of up to {plan.spec.continuations + 1} runs" if plan.spec.continuations else ""
    return [f"uses at most   {used}{again}{left and f'; {left}'}"]


def _of_sweep(plan: Plan) -> Sequence[str]:
    if plan.sweep is None:
        return ()
    from gridtf.cli.sweep import about

    return about(plan.sweep)


def _resources(request: Request, cpus_per_task: int | None, slots: str = "") -> str:
    """What is requested: hosts, or slots where the scheduler chooses the hosts (slots is their number then)."""
    low, high = request.nodes
    if slots:
        words = ["1 slot" if slots == "1" else f"{slots} slots on hosts that the job learns when it starts"]
        words += [counted(request.training, "training task")] if request.training else []
        words.append(_gpus_of_tasks(request, _gpus(0, request.components[0])) if request.gpus_per_task else "no GPUs")
    else:
        present = request.gpus_per_node
        # Slurm gives such a job the GPUs of its hosts, however many there are
        whole = not present and request.native.get("exclusive") == "" and request.chosen("gpus_per_node") is None
        many = whole and request.training is None and request.chosen("tasks_per_node") is None
        none = "all GPUs that each has" if whole else "no GPUs"
        words = [
            counted(high, "host") if low == high else f"{low}-{high} hosts",
            "a training task for each of their GPUs" if many else f"{_training_tasks(request)} each",
            f"{_gpus(present, request.components[0])} each" if present else none,
        ]
        words += [_gpus_of_tasks(request)] if present else []
        words += [f"and {counted(request.spare_nodes, 'spare host')}"] if request.spare_nodes else []
    if cpus_per_task:
        words.append(f"{counted(cpus_per_task, 'CPU')} per task")
    return ", ".join(words)


def _training_tasks(request: Request) -> str:
    """The training tasks of a host; of the fullest, where their number is known and the hosts differ."""
    hosts, tasks = request.nodes[1], request.training
    if tasks is None or request.gpu_share != request.gpus_per_task:
        return counted(request.tasks_per_node, "training task")
    most = -(-tasks // request.nodes[0])
    return f"{'up to ' if tasks != most * hosts else ''}{counted(most, 'training task')}"


def _gpus_of_tasks(request: Request, unit: str = "") -> str:
    """The GPUs of a task, by its type where they differ."""
    differ = request.gpu_share != request.gpus_per_task
    roles = request.own_roles if differ else ()
    each = {role.type: role.gpus for role in roles if role.gpus} or {"task": request.gpus_per_task}
    return ", ".join(f"{counted(gpus, unit) if unit else gpus} per {name}" for name, gpus in each.items())


def _gpus(number: int, component: Component) -> str:
    """``4 a100 GPUs``; without a number, the noun alone."""
    noun = f"{component.gpu_model} GPU".lstrip()
    return counted(number, noun) if number else noun


def _components(request: Request) -> Iterator[str]:
    """The requests on partitions other than the job's own."""
    for part in request.components[1:]:
        words = [
            f"up to {part.count} hosts" if part.count > 1 else "1 host",
            " and ".join(f"{request.role(name).count} {name}" for name in part.types),
        ]
        words += [_gpus(part.gpus, part)] if part.gpus else []
        if part.cpus is not None:
            words.append(f"{counted(part.cpus, 'CPU')} per task")
        yield f"{f'partition {part.partition}' if part.partition else 'in addition'}: {', '.join(words)}"


def _workers(request: Request, slots: str) -> int | None:
    """How many workers the requested hosts have room for; None where the scheduler decides it."""
    gpus = {role.gpus for role in request.own_roles if role.gpus}
    low, high = request.nodes
    per_node = request.chosen("tasks_per_node") or (request.tasks_per_node if request.chosen("gpus_per_node") else None)
    if slots or low != high or per_node is None or request.chosen("nodes") is None or len(gpus) > 1:
        return None
    leaders = [role for role in request.own_roles if role.type in LEADERS and (role.gpus or not gpus)]
    return low * per_node - sum(role.count or 0 for role in leaders)


def _tasks(request: Request, slots: str = "") -> Iterator[str]:
    """The tasks, as far as they are known before the hosts are allocated."""
    for role in request.roles:
        count = _workers(request, slots) if role.count is None else role.count
        more = " (served by gridtf)" if role.served else ""
        if role.in_cluster != role.row.in_cluster:
            more += " (not in the cluster)"
        if count is None:
            per_gpu = request.scheduler == "local" and request.chosen("tasks_per_node") is None
            yield f"{role.type}:0 and as many more as {'there are GPUs for' if per_gpu else 'fit'}{more}"
        else:
            yield f"{role.type}:0{f' to {role.type}:{count - 1}' if count > 1 else ''}{more}"


def _values(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields ("key = value", where it came from): first those of this job, then those of the user's and the site's
    files, then the defaults that are not empty."""
    general = [f"{path}:" for path, _, _ in config.general_files(os.environ)]

    def rank(row: tuple[str, str]) -> tuple[int, str, int]:
        """Set-up lines stay together, in the order of their numbers."""
        key, _, number = row[0].partition(".")
        if key == "setup" and number.isdecimal():
            return 1, key, int(number)
        return 2 if row[1].startswith(tuple(general)) else 0, row[0], 0

    for key, source in sorted(plan.sources.items(), key=rank):
        if key != "scheduler":
            yield f"{key} = {_shown(key, _look_up(plan.spec, key))}", source
    yield f'scheduler = "{plan.scheduler.name}"', plan.sources["scheduler"]
    for key, default in fields(JobSpec).items():
        if key not in plan.sources and default not in (None, (), {}):
            yield f"{key} = {json.dumps(default)}", _DEFAULT


def _look_up(spec: JobSpec, key: str) -> Any:
    if key.startswith("setup."):
        return spec.setup[int(key[6:]) - 1]
    value: Any = spec.options if key in spec.options else spec
    for part in key.split("."):
        value = value.get(part) if hasattr(value, "get") else getattr(value, part)
    return value


def _shown(key: str, value: Any) -> str:
    if (".env." in f".{key}" or key.startswith("params.")) and secret(key.rpartition(".")[2], value):
        return _MASK
    return json.dumps(value, default=lambda table: {}, ensure_ascii=False)  # an empty [tasks.TYPE]
