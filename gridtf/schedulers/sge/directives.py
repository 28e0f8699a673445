"""What a job requests of Grid Engine: slots, resources, qsub's options, array elements: qsub(1), complex(5), sge_pe(5).
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gridtf.errors import SpecError
from gridtf.jobspec.request import Request
from gridtf.run.rundir import RunDir
from gridtf.schedulers import batch
from gridtf.schedulers.api import Plan
from gridtf.schedulers.batch import word

MEMORY = "mem_free"


# --- the user's raw options --------------------------------------------------------------------------------------


def parse_native(native: Sequence[str]) -> dict[str, str]:
    """The user's raw options by name: ``{"pe": "mpi 8", "q": "a.q,b.q", "t": "1-7:2", "notify": ""}``.

    Of an option that is given several times the last one counts, as for qsub. Resources are different, since qsub adds
    them up: ``-l gpu=1,arch=lx-amd64`` becomes ``{"l gpu": "1", "l arch": "lx-amd64"}``, and ``-l gpu`` means an amount
    of 1. Resources and queues behind ``-soft``, until ``-hard``, have the names ``soft l gpu`` and ``soft q``.
    """
    found: dict[str, str] = {}
    name = prefix = ""
    for item in " ".join(native).split():
        if item in ("-hard", "-soft"):
            name, prefix = "", "soft " if item == "-soft" else ""
        elif re.match("-[A-Za-z]", item):
            name = prefix + item[1:] if item in ("-l", "-q") else item[1:]
            if item != "-l":
                found[name] = ""
        elif name == f"{prefix}l":
            pairs = (part.partition("=") for part in item.split(","))
            found.update({f"{name} {resource}": amount or "1" for resource, _, amount in pairs if resource})
        elif name:
            found[name] = f"{found[name]} {item}".strip()
    return found


def array_elements(native: Mapping[str, str]) -> tuple[str, ...]:
    """``-t 1-7:2`` -> 1 3 5 7; empty without such an option.

    Raises:
        SpecError: For what is no range of tasks.
    """
    text = native.get("t")
    if not text:
        return ()

    def complaint(part: str) -> SpecError:
        what = f"'-t {text}': {part!r} is no range of tasks of an array"
        return SpecError("native", what, hint="such as -t 1-16, from 1 on")

    return batch.array_elements(text, complaint, least=1)


def native_has(request: Request, resource: str) -> bool:
    """Whether the user's raw options ask for this resource already."""
    return f"l {resource}" in request.native or f"soft l {resource}" in request.native


# --- slots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slots:
    """The slots of a job, written as qsub takes them: ``8`` or ``4-8``.

    Attributes:
        low: The fewest that it can do with.
        high: The most that it has use for.
        per_task: How many of them a training task has.
        non_training: How many of them are there for tasks that ride along.
    """

    low: int
    high: int
    per_task: int = 1
    non_training: int = 0

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def slots(request: Request) -> Slots:
    """The slots to ask for. Without GPUs a slot is a CPU; with GPUs it is a task, because GPUs count by slot.

    Raises:
        SpecError: For counts that do not fit, and for CPUs beside GPUs.
    """
    if (chosen := request.options.get("slots")) is not None:
        return _chosen_slots(str(chosen), request.training)
    fewest = request.training or request.nodes[0] * request.tasks_per_node
    most = request.training or request.nodes[1] * request.tasks_per_node
    cpus = request.task_cpus or 1
    if request.gpus_per_task and not native_has(request, gpu := request.options["gpu_resource"]):
        if cpus > 1 or request.non_training_cpus:
            raise SpecError(
                "cpus_per_task",
                "Grid Engine counts GPUs by slot: with GPUs a slot is a task, and CPUs cannot be asked for",
                hint=f"leave out CPUs, give slots, or ask for GPUs yourself: native = ['-l {gpu}=1']",
            )
        return Slots(fewest, most)
    non_training = request.non_training_cpus
    return Slots(fewest * cpus + non_training, most * cpus + non_training, cpus, non_training)


def slots_in_job(request: Request) -> Slots:
    """The same for a job that is there. Where it was not gridtf that asked for it, low and high are not the job's."""
    try:
        return slots(request)
    except SpecError:  # it could not have been asked for so, but it was not gridtf that asked
        return Slots(1, 1, request.task_cpus or 1)


def _chosen_slots(text: str, training: int | None) -> Slots:
    first, _, last = text.partition("-")
    low, high = int(first), int(last or first)
    if low > high:
        raise SpecError("slots", f"{low}-{high} is an empty range", hint="write the smaller number first")
    if training and low < training:
        raise SpecError("slots", f"{low} slots for {training} training tasks", hint="a task needs a slot")
    return Slots(low, high, low // training if training else 1)


# --- options of qsub ---------------------------------------------------------------------------------------------


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of qsub.

    Left out on purpose: -V, which carries the whole environment of the submitting shell into the job; -cwd and
    -wd, because the script itself goes to its folder and says so when it is not there.

    Raises:
        SpecError: For what Grid Engine cannot be asked for.
    """
    request = plan.request
    _refuse_partitions(request)
    wanted = slots(request)
    pe, queue, account = request.options.get("pe"), request.options.get("partition"), request.options.get("account")
    if wanted.high > 1 and pe is None:
        raise SpecError(
            "pe",
            f"{wanted.high} slots need a parallel environment",
            hint="name one with --pe; `qconf -spl` lists them",
        )
    lines = [f"-N {_job_name(request)}", "-S /bin/bash", "-j y"]
    lines.append("-r y")  # run again when Grid Engine loses it, as Slurm does by default
    lines.append("-notify")  # USR2 some time before KILL: time to end in good order
    lines += [f"-pe {word('pe', pe)} {wanted}"] if pe is not None else []
    lines += [f"-l {resource}={amount}" for resource, amount in resources(request, wanted).items()]
    lines += [f"-q {word('partition', queue)}"] if queue is not None else []
    lines += [f"-P {word('account', account)}"] if account is not None else []
    return (*lines, *batch.native(plan.spec))


def resources(request: Request, wanted: Slots) -> dict[str, str]:
    """The hard resources to ask for, beside those in the user's raw options: name -> amount, of consumables for a slot.

    Raises:
        SpecError: For a resource that cannot be one, and for GPUs that slots do not divide.
    """
    found = {}
    gpu = request.options["gpu_resource"]
    if request.gpus_per_task and not native_has(request, gpu):
        if not re.fullmatch(r"[A-Za-z_][\w.]*", gpu):
            raise SpecError("gpu_resource", f"{gpu!r} is not the name of a resource", hint="see `qconf -sc`")
        if request.gpus_per_task % wanted.per_task:
            raise SpecError(
                "slots",
                f"{request.gpus_per_task} GPUs a task over {wanted.per_task} slots a task is not a whole number a slot",
                hint="ask for as many slots as tasks, or ask for GPUs with native, in your site's way",
            )
        found[gpu] = str(request.gpus_per_task // wanted.per_task)
    if request.host_mem is not None and not native_has(request, MEMORY):
        found[MEMORY] = f"{-(-request.host_mem // (request.tasks_per_node * wanted.per_task))}M"
    if request.walltime is not None:
        hours, rest = divmod(request.walltime, 3600)
        found["h_rt"] = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return found


def submit_command(plan: Plan) -> tuple[str, ...]:
    """qsub with what needs the run directory to exist.

    Raises:
        SpecError: For a path that qsub would misread.
    """
    run = RunDir(plan.run_dir)
    if re.search(r"[,:$]", str(run.path)) or not str(run.path).isprintable():
        raise SpecError(
            "run_dir",
            f"qsub cannot write a log into {str(run.path)!r}",
            why="in its -o a comma or a colon separates hosts and paths, and $ begins a variable",
            hint="choose another place with --run-dir or --run-root",
        )
    log = run.elements / "$TASK_ID" / run.log.name if plan.request.elements else run.log
    return "qsub", "-terse", "-o", str(log), str(run.script)


def _refuse_partitions(request: Request) -> None:
    others = request.components[1:]
    if others:
        raise SpecError(
            f"tasks.{others[0].types[0]}.partition",
            "a Grid Engine job cannot ask for different hosts for some of its tasks",
            why="a parallel job has one request, which holds for all of its slots",
            hint="leave it out: these tasks then ride along on the hosts of the others",
        )


def _job_name(request: Request) -> str:
    if request.name[0].isdigit():
        raise SpecError(
            "name",
            f"{request.name!r} begins with a digit, which Grid Engine does not take",
            hint="choose another with --name",
        )
    return word("name", request.name)
