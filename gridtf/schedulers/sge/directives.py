"""What qsub is asked for: qsub(1), complex(5), sge_pe(5). Pure."""

from __future__ import annotations

import re

from gridtf.errors import SpecError
from gridtf.jobspec.layout import components, request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import native, needs, word
from gridtf.schedulers.sge import arrays
from gridtf.schedulers.sge.slots import Slots, asks_itself, slots

MEMORY = "mem_free"


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of qsub. Raises SpecError for what Grid Engine cannot be asked for.

    Left out on purpose: -V, which carries the whole environment of the submitting shell into the job; -cwd and
    -wd, because the script itself goes to its folder and says so when it is not there.
    """
    spec, asked = plan.spec, request(plan.spec)
    _refuse_partitions(spec)
    needed = needs(spec, asked)
    found = slots(spec, asked, needed)
    _need_pe(spec, found)
    lines = [f"-N {_job_name(spec)}", "-S /bin/bash", "-j y"]
    lines.append("-r y")  # run again when Grid Engine loses it, as Slurm does by default
    lines.append("-notify")  # USR2 some time before KILL: time to end in good order
    if spec.pe is not None:
        count = str(found.low) if found.low == found.high else f"{found.low}-{found.high}"
        lines.append(f"-pe {word('pe', spec.pe)} {count}")
    if asked.gpus_per_task and not asks_itself(spec, spec.gpu_resource):
        lines.append(f"-l {_resource_name(spec)}={_gpus_per_slot(asked.gpus_per_task, found)}")
    if needed.host_mem is not None and not asks_itself(spec, MEMORY):
        lines.append(f"-l {MEMORY}={-(-needed.host_mem // (asked.tasks_per_node * found.per_task))}M")
    if spec.walltime is not None:
        hours, rest = divmod(spec.walltime, 3600)
        lines.append(f"-l h_rt={hours}:{rest // 60:02}:{rest % 60:02}")
    if spec.partition is not None:
        lines.append(f"-q {word('partition', spec.partition)}")
    if spec.account is not None:
        lines.append(f"-P {word('account', spec.account)}")
    return (*lines, *native(spec))


def submit_command(plan: Plan) -> tuple[str, ...]:
    """qsub with what needs the run directory to exist. Raises SpecError for a path that qsub would misread."""
    run = RunDir(plan.run_dir)
    if re.search(r"[,:$]", str(run.path)) or not str(run.path).isprintable():
        raise SpecError(
            "run_dir",
            f"qsub cannot write a log into {str(run.path)!r}",
            why="in its -o a comma or a colon separates hosts and paths, and $ begins a variable",
            hint="choose another place with --run-dir or --run-root",
        )
    log = run.elements / "$TASK_ID" / run.log.name if arrays.elements(plan.spec.native) else run.log
    return "qsub", "-terse", "-o", str(log), str(run.script)


def _refuse_partitions(spec: JobSpec) -> None:
    others = components(spec)[1:]
    if others:
        raise SpecError(
            f"tasks.{others[0].types[0]}.partition",
            "a Grid Engine job cannot ask for different hosts for some of its tasks",
            why="a parallel job has one request, which holds for all of its slots",
            hint="leave it out: these tasks then ride along on the hosts of the others",
        )


def _need_pe(spec: JobSpec, found: Slots) -> None:
    if found.high > 1 and spec.pe is None:
        raise SpecError(
            "pe",
            f"{found.high} slots need a parallel environment",
            hint="name one with --pe; `qconf -spl` lists them",
        )


def _gpus_per_slot(gpus_per_task: int, found: Slots) -> int:
    if gpus_per_task % found.per_task:
        raise SpecError(
            "slots",
            f"{gpus_per_task} GPUs a task over {found.per_task} slots a task is not a whole number a slot",
            hint="ask for as many slots as tasks, or ask for GPUs with native, in your site's way",
        )
    return gpus_per_task // found.per_task


def _job_name(spec: JobSpec) -> str:
    if spec.title[0].isdigit():
        raise SpecError(
            "name",
            f"{spec.title!r} begins with a digit, which Grid Engine does not take",
            hint="choose another with --name",
        )
    return word("name", spec.title)


def _resource_name(spec: JobSpec) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*", spec.gpu_resource):
        raise SpecError("gpu_resource", f"{spec.gpu_resource!r} is not the name of a resource", hint="see `qconf -sc`")
    return spec.gpu_resource
