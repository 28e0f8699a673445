"""What a job requests of Grid Engine: slots, qsub's options, array elements: qsub(1), complex(5), sge_pe(5). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gridtf.errors import SpecError
from gridtf.jobspec.layout import Request, components, request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import Needs, indices, native, needs, word

MEMORY = "mem_free"


# --- slots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slots:
    """(fewest, most) slots of the job, how many of them a training task has, and all tasks that ride along."""

    low: int
    high: int
    per_task: int
    riders: int = 0


def slots(spec: JobSpec, asked: Request, needed: Needs) -> Slots:
    """Without GPUs a slot is a CPU; with GPUs it is a task, because GPUs count by slot. Raises SpecError."""
    fewest = asked.training or asked.nodes[0] * asked.tasks_per_node
    most = asked.training or asked.nodes[1] * asked.tasks_per_node
    if spec.slots is not None:
        low, _, high = str(spec.slots).partition("-")
        per_task = int(low) // asked.training if asked.training else 1
        found = Slots(int(low), int(high or low), max(1, per_task))
        _check_slots(found, asked)
        return found
    if asked.gpus_per_task and not asks_itself(spec, spec.gpu_resource):
        if (needed.task_cpus or 1) > 1 or needed.rider_cpus:
            raise SpecError(
                "cpus_per_task",
                "Grid Engine counts GPUs by slot: with GPUs a slot is a task, and CPUs cannot be asked for",
                hint=f"leave out CPUs, give slots, or ask for GPUs yourself: native = ['-l {spec.gpu_resource}=1']",
            )
        return Slots(fewest, most, 1)
    cpus = needed.task_cpus or 1
    return Slots(fewest * cpus + needed.rider_cpus, most * cpus + needed.rider_cpus, cpus, needed.rider_cpus)


def in_job(spec: JobSpec) -> Slots:
    """The same for a job that is there. Where it was not gridtf that asked for it, low and high are not the job's."""
    asked = request(spec)
    try:
        return slots(spec, asked, needs(spec, asked))
    except SpecError:  # it could not have been asked for so, but it was not gridtf that asked
        return Slots(1, 1, spec.cpus_per_task or 1)


def asks_itself(spec: JobSpec, resource: str) -> bool:
    """Whether the user's own options ask for this resource already."""
    return any(re.search(rf"[\s,]{re.escape(resource)}=", option) for option in spec.native)


def _check_slots(found: Slots, asked: Request) -> None:
    if found.low > found.high:
        raise SpecError("slots", f"{found.low}-{found.high} is an empty range", hint="write the smaller number first")
    if asked.training and found.low < asked.training:
        raise SpecError("slots", f"{found.low} slots for {asked.training} training tasks", hint="a task needs a slot")


# --- options of qsub ---------------------------------------------------------------------------------------------


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
    log = run.elements / "$TASK_ID" / run.log.name if array_elements(plan.spec.native) else run.log
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


def array_elements(native: Sequence[str]) -> tuple[str, ...]:
    """``-t 1-7:2`` -> 1 3 5 7; none without such an option. Raises SpecError."""
    text = ""
    for option in native:
        words = option.split()
        text = next((after for word, after in pairwise(words) if word == "-t"), text)
    if not text:
        return ()
    numbers: set[int] = set()
    for part in text.split(","):
        some = indices(part)
        if some is None or some.start == 0:
            raise SpecError(
                "native", f"'-t {text}': {part!r} is no range of tasks of an array", hint="such as -t 1-16, from 1 on"
            )
        numbers.update(some)
    return tuple(str(number) for number in sorted(numbers))
