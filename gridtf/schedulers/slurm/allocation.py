"""What a Slurm job was given, from the environment of its script: sbatch(1), OUTPUT ENVIRONMENT VARIABLES."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gridtf.errors import PlacementError, SchedulerError, counted, some
from gridtf.jobspec import layout
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.base import Allocation, Host
from gridtf.schedulers.common import whole
from gridtf.schedulers.slurm.hostlist import counts, expand

AskGpus = Callable[[str], Mapping[str, int]]


def allocation(environ: Mapping[str, str], spec: JobSpec, ask_gpus: AskGpus) -> Allocation:
    """The hosts of this job, those of the components of a heterogeneous job one after the other.

    ask_gpus: job id -> GPUs by node, as the controller knows them; asked only where the environment does not say it.
    Raises PlacementError when the job is not what the specification asks for, SchedulerError for what cannot be read.
    """
    wanted = len(layout.components(spec))
    there = _components(environ)
    if wanted > there:
        raise PlacementError(
            f"tasks with partitions of their own make {wanted} components of a heterogeneous job, this job has {there}",
            hint="leave partition out of the [tasks.…] tables, or let gridtf submit the job",
        )
    hosts: list[Host] = []
    for component in range(wanted):
        suffix = f"_HET_GROUP_{component}" if there > 1 else ""
        hosts += _hosts(environ, suffix, component, spec, ask_gpus)  # components share no nodes
    return Allocation(tuple(hosts))


def _components(environ: Mapping[str, str]) -> int:
    said = environ.get("SLURM_HET_SIZE") or "1"
    found = whole(said)
    if found is None:
        raise SchedulerError(f"SLURM_HET_SIZE={said!r} is not a number", hint="Slurm sets it: leave it alone")
    return found


def _hosts(environ: Mapping[str, str], suffix: str, component: int, spec: JobSpec, ask_gpus: AskGpus) -> list[Host]:
    def said(name: str) -> str:
        return environ.get(name + suffix) or ""

    names = expand(said("SLURM_JOB_NODELIST") or said("SLURM_NODELIST"))
    if not names:
        raise SchedulerError(
            f"SLURM_JOB_NODELIST{suffix} is not set on {environ.get('SLURMD_NODENAME', 'this host')}",
            hint="is this inside a job script, or an salloc?",
        )
    fewest = spec.node_range[0] if spec.node_range and not component else 1
    if fewest > len(names):
        raise PlacementError(
            f"{counted(fewest, 'node')} are asked for, this job has {len(names)}: {some(names)}",
            hint="leave --nodes out, or ask sbatch or salloc for as many",
        )
    gpus = {} if component else _gpus(environ, suffix, names, ask_gpus)  # elsewhere are those that take none
    short = [name for name in names if gpus.get(name, 0) < (spec.gpus_per_node or 0)]
    if short and not component:
        raise PlacementError(
            f"{spec.gpus_per_node} GPUs a node are asked for, this job has {gpus.get(short[0], 0)} on {short[0]}",
            hint="leave --gpus-per-node out, or ask sbatch for as many",
        )
    own = spec.tasks_per_node if component == 0 else None
    per_task = layout.gpus_per_task(spec, default=1 if any(gpus.values()) else 0)
    narrow = min(names, key=lambda name: gpus.get(name, 0))
    if own and own * per_task > gpus.get(narrow, 0):  # as layout.request has it before a submission
        raise PlacementError(
            f"tasks_per_node: {own} tasks x {per_task} GPUs need more than this job has on {narrow}, "
            f"{gpus.get(narrow, 0)}",
            hint="leave --tasks-per-node out, or ask for tasks without GPUs: --gpus-per-task 0",
        )
    cpus = _of_each(said("SLURM_JOB_CPUS_PER_NODE"), names)
    tasks = _of_each(said("SLURM_TASKS_PER_NODE"), names)
    return [
        Host(
            name,
            slots=own or tasks[number] or 1,
            gpus=gpus.get(name, 0),
            cpus=cpus[number],
            address=name,
            component=component,
        )
        for number, name in enumerate(names)
    ]


def _of_each(text: str, names: list[str]) -> list[int | None]:
    values: list[int | None] = [*counts(text)] if text else []
    return values if len(values) == len(names) else [None] * len(names)


def _gpus(environ: Mapping[str, str], suffix: str, names: list[str], ask_gpus: AskGpus) -> Mapping[str, int]:
    """GPUs by host. What a host really grants its agent reads there; a host that grants fewer ends the attempt."""
    told = environ.get(f"SLURM_GPUS_PER_NODE{suffix}")
    if told is not None:
        return dict.fromkeys(names, _sum(told))
    # --gpus, --gpus-per-task and --gres may give each host another number, which only the controller knows
    on_host = "SLURMD_NODENAME" in environ  # else an salloc's shell elsewhere, which is told less
    if on_host and not any(re.match(r"SLURM_(JOB_|STEP_)?(GPUS|GRES)", name) for name in environ):
        return {}
    job = environ.get(f"SLURM_JOB_ID{suffix}") or environ.get("SLURM_JOB_ID", "")
    try:
        return ask_gpus(job)
    except SchedulerError:  # no scontrol in a container, or a controller that does not answer
        here = whole(environ.get("SLURM_GPUS_ON_NODE", ""))
        return {} if here is None else dict.fromkeys(names, here)


def _sum(text: str) -> int:
    """``4``, ``a100:4`` or ``a100:2,v100:1``: GPUs on a node, by type."""
    return sum(int(number) for number in re.findall(r"(?:^|[:,])([0-9]{1,9})(?=,|$)", text))
