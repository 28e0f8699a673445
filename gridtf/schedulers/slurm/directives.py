"""What sbatch(1) is asked for: the #SBATCH lines of a script's head, and the command that hands it over. Pure."""

from __future__ import annotations

import re

from gridtf.errors import SpecError
from gridtf.jobspec.layout import Component, Request, components, request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.common import Needs, native, needs, rider_needs, word
from gridtf.schedulers.slurm import arrays


def directives(plan: Plan) -> tuple[str, ...]:
    """Options of sbatch. Raises SpecError for values that an #SBATCH line cannot carry.

    A Slurm task is a training task, so that --ntasks-per-node says in this script what it says in a hand-written
    one, and site defaults such as DefCpuPerGPU apply; one agent a node is a matter of the launcher's srun. Room
    for tasks that ride along is made by asking for some more CPUs a task.

    Tasks with a partition of their own are components of a heterogeneous job. From the first component sbatch hands
    on --time, --account, --qos, --mem, --output and most of what is no matter of nodes; CPUs, GPUs, --mem-per-cpu,
    --mem-per-gpu, --constraint, --exclusive and the like it does not.
    """
    spec, asked = plan.spec, request(plan.spec)
    needed = needs(spec, asked)
    parts = components(spec)
    low, high = asked.nodes
    lines = [
        f"--job-name={word('name', spec.title)}",
        f"--nodes={low}" if low == high else f"--nodes={low}-{high}",
        # without it, -N4 -n8 may be laid out 5,1,1,1
        f"--ntasks-per-node={asked.tasks_per_node}",
    ]
    cpus = _cpus_per_task(needed, asked)
    if cpus is not None:
        lines.append(f"--cpus-per-task={cpus}")
    if asked.gpus_per_node:
        lines.append(f"--gpus-per-node={asked.gpus_per_node}")
    if needed.host_mem is not None:
        lines.append(_memory(needed.host_mem, asked, cpus or 1, alone=len(parts) == 1))
    if spec.walltime is not None:
        lines.append(f"--time={format_walltime(spec.walltime)}")
    if spec.partition is not None:
        lines.append(f"--partition={word('partition', spec.partition)}")
    if spec.account is not None:
        lines.append(f"--account={word('account', spec.account)}")
    lines.append("--open-mode=append")  # a requeued job goes on in the same log
    lines += native(spec)
    if len(parts) > 1 and arrays.elements(spec.native):
        raise SpecError(
            f"tasks.{parts[1].types[0]}.partition",
            "the elements of a job array cannot have tasks on another partition",
            why="Slurm has no arrays of heterogeneous jobs",
            hint="leave it out, or submit jobs instead of an array",
        )
    for part in parts[1:]:
        lines += ["hetjob", *_component(part, spec)]
    return tuple(lines)


def _cpus_per_task(needed: Needs, asked: Request) -> int | None:
    if needed.task_cpus is None:
        return None
    cpus = asked.tasks_per_node * needed.task_cpus + needed.host_rider_cpus
    return -(-cpus // asked.tasks_per_node)


def _memory(host_mem: int, asked: Request, cpus_per_task: int, *, alone: bool) -> str:
    """The option for so many MiB on a host of the first component."""
    if alone:
        return f"--mem={host_mem}M"
    # sbatch would hand --mem on to the other components, and there refuse the --mem-per-cpu beside it
    if asked.gpus_per_node:
        return f"--mem-per-gpu={-(-host_mem // asked.gpus_per_node)}M"
    return f"--mem-per-cpu={-(-host_mem // (asked.tasks_per_node * cpus_per_task))}M"


def _component(part: Component, spec: JobSpec) -> list[str]:
    """The lines of one of the other components. How its tasks share nodes is left to what Slurm finds free."""
    needed = rider_needs(spec, part)
    lines = [
        f"--partition={word(f'tasks.{part.types[0]}.partition', part.partition or '')}",
        "--nodes=1" if needed.count == 1 else f"--nodes=1-{needed.count}",
        f"--ntasks={needed.count}",
    ]
    if needed.cpus is not None:
        lines.append(f"--cpus-per-task={needed.cpus}")
    if needed.mem is not None:
        lines.append(f"--mem-per-cpu={-(-needed.mem // (needed.cpus or 1))}M")
    return lines


def overridden(plan: Plan) -> tuple[str, ...]:
    """A note on what the user's own options ask for and do not get."""
    own = [option for option in plan.spec.native if re.match(r"--output\b|-o", option)]
    where = RunDir(plan.run_dir).log
    return (f"native {own[-1]} has no effect: what the script prints is in {where}",) if own else ()


def submit_command(plan: Plan) -> tuple[str, ...]:
    """sbatch with what needs the run directory to exist. Raises SpecError for a path that sbatch would misread."""
    run = RunDir(plan.run_dir)
    if "\\" in str(run.path):
        raise SpecError(
            "run_dir",
            f"sbatch cannot write a log into {str(run.path)!r}",
            why="it drops backslashes from its --output",
            hint="choose another place with --run-dir or --run-root",
        )
    # % begins a pattern there, and %a is the element of an array: sbatch(1), FILENAME PATTERN
    log = str(run.log).replace("%", "%%")
    if arrays.elements(plan.spec.native):
        folder = str(run.elements).replace("%", "%%")
        log = f"{folder}/%a/{run.log.name}"
    return "sbatch", "--parsable", f"--output={log}", str(run.script)
