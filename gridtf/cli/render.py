"""gridtf render: the script on stdout, everything about it on stderr."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import configured, new_parser
from gridtf.jobspec.options import Parser, add_job_options
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec
    from gridtf.schedulers.base import Plan


def parser(**more: Any) -> Parser:
    examples = (
        "--scheduler slurm --nodes 2 --gpus-per-node 4 -- python train.py",
        "gridtf.toml > job.sh",
        "gridtf.toml | sbatch",
    )
    made = new_parser("render", "[JOBFILE] [options] -- command …", examples, **more)
    add_job_options(made)
    return made


def run(arguments: Namespace) -> int:
    from gridtf.login import submission

    asked = configured(arguments)
    plan = submission.prepare(asked.spec, asked.sources, asked.trusted)
    script = submission.script(plan)
    output.tell(_about(plan, submission.command(plan)))
    if output.on_terminal():
        output.write("".join(f"{plain(line)}\n" for line in script.split("\n")[:-1]))
    else:
        output.write(output.raw(script))  # the very bytes that submit writes
    return 0


def _about(plan: Plan, command: tuple[str, ...]) -> str:
    taken = plan.spec.run_dir is not None and os.path.lexists(plan.run_dir)
    lines = [
        f"name           {plan.spec.title}",
        f"scheduler      {plan.scheduler}",
        f"run directory  {plan.run_dir}{' (is there already: submit would refuse it)' if taken else ''}",
        f"submit with    {shlex.join(command)}",
        f"resources      {'; '.join([_resources(plan.spec), *_components(plan)])}",
        f"tasks          {', '.join(_tasks(plan.spec))}",
        "values",
    ]
    rows = list(_values(plan))
    width = min(50, max(len(text) for text, _ in rows))
    lines += [f"  {text:<{width}}  {source}" for text, source in rows]
    return "\n".join(map(plain, lines))


def _resources(spec: JobSpec) -> str:
    from gridtf.jobspec import layout

    asked = layout.request(spec)
    low, high = asked.nodes
    words = [
        f"{low if low == high else f'{low}-{high}'} host{'' if high == 1 else 's'}",
        f"{asked.tasks_per_node} training task{'' if asked.tasks_per_node == 1 else 's'} each",
        f"{asked.gpus_per_node} GPUs each" if asked.gpus_per_node else "no GPUs",
    ]
    if asked.gpus_per_node:
        words.append(f"{asked.gpus_per_task} a task")
    if asked.cpus_per_task:
        words.append(f"{asked.cpus_per_task} CPUs a task")
    return ", ".join(words)


def _components(plan: Plan) -> Iterator[str]:
    """What is asked for elsewhere than on the job's own partition; the local scheduler has no partitions."""
    from gridtf.jobspec import layout
    from gridtf.schedulers.common import rider_needs

    for part in layout.components(plan.spec)[1:] if plan.scheduler != "local" else ():
        needed = rider_needs(plan.spec, part)
        words = [
            f"up to {needed.count} hosts" if needed.count > 1 else "1 host",
            " and ".join(f"{plan.spec.count(name)} {name}" for name in part.types),
        ]
        if needed.cpus is not None:
            words.append(f"{needed.cpus} CPUs a task")
        yield f"partition {part.partition}: {', '.join(words)}"


def _tasks(spec: JobSpec) -> Iterator[str]:
    """The tasks as far as they are known before the hosts are."""
    from gridtf.jobspec.tasktypes import TASK_TYPES

    for name, row in TASK_TYPES.items():
        count = spec.count(name)
        by_us = " (served by gridtf)" if spec.serves(name) else ""
        if spec.in_cluster(name) != row.in_cluster:
            by_us += " (not in the cluster)"
        if count is None:
            yield f"{name}:0 and as many more as there is room for{by_us}"
        elif count:
            yield f"{name}:0{f' to {name}:{count - 1}' if count > 1 else ''}{by_us}"


def _values(plan: Plan) -> Iterator[tuple[str, str]]:
    """("key = value", where it came from), first what was given, then the defaults that say something."""
    for key, source in sorted(plan.sources.items()):
        if key != "scheduler":
            yield f"{key} = {_look_up(plan.spec, key)}", source
    yield f'scheduler = "{plan.scheduler}"', plan.sources["scheduler"]
    for field in fields(plan.spec):
        if field.name not in plan.sources and field.default is not MISSING and field.default not in (None, ()):
            yield f"{field.name} = {json.dumps(field.default)}", "default"


def _look_up(spec: JobSpec, key: str) -> str:
    value: Any = spec
    for part in key.split("."):
        value = value.get(part) if hasattr(value, "get") else getattr(value, part)
    return json.dumps(value, default=lambda table: {}, ensure_ascii=False)  # [tasks.TYPE] with nothing in it
