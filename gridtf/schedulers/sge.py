"""Grid Engine (Son of Grid Engine and its relatives): qsub(1), complex(5), sge_pe(5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gridtf.errors import SpecError
from gridtf.layout import Request, components, request
from gridtf.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import Needs, native, needs, on_path, word
from gridtf.schedulers.rendered import RenderedOnly
from gridtf.spec import JobSpec

MEMORY = "mem_free"


@dataclass(frozen=True)
class Slots:
    """(fewest, most) slots of the job, and how many of them a training task has."""

    low: int
    high: int
    per_task: int


class GridEngine(RenderedOnly):
    name = "sge"
    title = "Grid Engine"

    def here(self, environ: Mapping[str, str]) -> bool:
        return "SGE_ROOT" in environ and on_path("qsub", environ)  # other schedulers have a qsub, too

    def inside(self, environ: Mapping[str, str]) -> bool:
        return "PE_HOSTFILE" in environ or "SGE_TASK_ID" in environ

    def directives(self, plan: Plan) -> tuple[str, ...]:
        """Options of qsub. Raises SpecError for what Grid Engine cannot be asked for.

        Left out on purpose: -V, which carries the whole environment of the submitting shell into the job; -cwd and
        -wd, because the script itself goes to its folder and says so when it is not there.
        """
        spec, asked = plan.spec, request(plan.spec)
        _refuse_partitions(spec)
        needed = needs(spec, asked)
        slots = _slots(spec, asked, needed)
        lines = [f"-N {_job_name(spec)}", "-S /bin/bash", "-j y"]
        lines.append("-r y")  # run again after a host crashed, as Slurm does by default
        if spec.pe is not None:
            count = str(slots.low) if slots.low == slots.high else f"{slots.low}-{slots.high}"
            lines.append(f"-pe {word('pe', spec.pe)} {count}")
        if asked.gpus_per_task and not _asks_itself(spec, spec.gpu_resource):
            lines.append(f"-l {_resource_name(spec)}={_gpus_per_slot(asked.gpus_per_task, slots)}")
        if needed.host_mem is not None and not _asks_itself(spec, MEMORY):
            lines.append(f"-l {MEMORY}={-(-needed.host_mem // (asked.tasks_per_node * slots.per_task))}M")
        if spec.walltime is not None:
            hours, rest = divmod(spec.walltime, 3600)
            lines.append(f"-l h_rt={hours}:{rest // 60:02}:{rest % 60:02}")
        if spec.partition is not None:
            lines.append(f"-q {word('partition', spec.partition)}")
        if spec.account is not None:
            lines.append(f"-P {word('account', spec.account)}")
        return (*lines, *native(spec))

    def submit_command(self, plan: Plan) -> tuple[str, ...]:
        """qsub with what needs the run directory to exist. Raises SpecError for a path that qsub would misread."""
        run = RunDir(plan.run_dir)
        if re.search(r"[,:$]", str(run.path)) or not str(run.path).isprintable():
            raise SpecError(
                "run_dir",
                f"qsub cannot write a log into {str(run.path)!r}",
                why="in its -o a comma or a colon separates hosts and paths, and $ begins a variable",
                hint="choose another place with --run-dir or --run-root",
            )
        return "qsub", "-terse", "-o", str(run.log), str(run.script)


def _refuse_partitions(spec: JobSpec) -> None:
    others = components(spec)[1:]
    if others:
        raise SpecError(
            f"tasks.{others[0].types[0]}.partition",
            "a Grid Engine job cannot ask for different hosts for some of its tasks",
            why="a parallel job has one request, which holds for all of its slots",
            hint="leave it out: these tasks then ride along on the hosts of the others",
        )


def _slots(spec: JobSpec, asked: Request, needed: Needs) -> Slots:
    """How many slots to ask for. Without GPUs a slot is a CPU; with GPUs it is a task, because GPUs count by slot."""
    fewest = asked.training or asked.nodes[0] * asked.tasks_per_node
    most = asked.training or asked.nodes[1] * asked.tasks_per_node
    if spec.slots is not None:
        low, _, high = str(spec.slots).partition("-")
        per_task = int(low) // asked.training if asked.training else 1
        slots = Slots(int(low), int(high or low), max(1, per_task))
        _check_slots(slots, asked)
    elif asked.gpus_per_task and not _asks_itself(spec, spec.gpu_resource):
        if (needed.task_cpus or 1) > 1 or needed.rider_cpus:
            raise SpecError(
                "cpus_per_task",
                "Grid Engine counts GPUs by slot: with GPUs a slot is a task, and CPUs cannot be asked for",
                hint=f"leave out CPUs, give slots, or ask for GPUs yourself: native = ['-l {spec.gpu_resource}=1']",
            )
        slots = Slots(fewest, most, 1)
    else:
        cpus = needed.task_cpus or 1
        slots = Slots(fewest * cpus + needed.rider_cpus, most * cpus + needed.rider_cpus, cpus)
    if slots.high > 1 and spec.pe is None:
        raise SpecError(
            "pe",
            f"{slots.high} slots need a parallel environment",
            hint="name one with --pe; `qconf -spl` lists them",
        )
    return slots


def _check_slots(slots: Slots, asked: Request) -> None:
    if slots.low > slots.high:
        raise SpecError("slots", f"{slots.low}-{slots.high} is an empty range", hint="write the smaller number first")
    if asked.training and slots.low < asked.training:
        raise SpecError("slots", f"{slots.low} slots for {asked.training} training tasks", hint="a task needs a slot")


def _gpus_per_slot(gpus_per_task: int, slots: Slots) -> int:
    if gpus_per_task % slots.per_task:
        raise SpecError(
            "slots",
            f"{gpus_per_task} GPUs a task over {slots.per_task} slots a task is not a whole number a slot",
            hint="ask for as many slots as tasks, or ask for GPUs with native, in your site's way",
        )
    return gpus_per_task // slots.per_task


def _asks_itself(spec: JobSpec, resource: str) -> bool:
    """Whether the user's own options ask for this resource already."""
    return any(re.search(rf"[\s,]{re.escape(resource)}=", option) for option in spec.native)


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


scheduler = GridEngine()
