"""The processes that join a run by themselves: who is which task, and what of its host each one gets. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gridtf.bootstrap.placement import PlacedTask, place
from gridtf.errors import PlacementError, RendezvousError, UsageError
from gridtf.jobspec import layout
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.jobspec.units import MOST
from gridtf.run.rundir import Record
from gridtf.schedulers.base import Allocation, Host
from gridtf.schedulers.common import whole

_RESTARTS = "SLURM_RESTART_COUNT"  # not set in a job that was never requeued
# How starters of processes say rank and size, and what names the start; the innermost starter comes first. A batch
# script has SLURM_PROCID too, but only a step has SLURM_STEP_NUM_TASKS.
_STARTERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("PMI_RANK", "PMI_SIZE", ("PMI_JOBID", _RESTARTS)),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID", _RESTARTS)),
    ("RANK", "WORLD_SIZE", ()),
)


@dataclass(frozen=True)
class Member:
    """One process among those that join. step: the same in all of them, and in no others."""

    rank: int
    size: int
    step: str


def member_of(environ: Mapping[str, str]) -> Member:
    """Rank, size and step of this process. Raises UsageError when nobody says them."""
    for rank, size, step in _STARTERS:
        if rank in environ and size in environ:
            return Member(*_numbers(rank, size, environ), _step(step, environ))
    raise UsageError(
        "gridtf_join does not know this process's rank",
        why="none of " + ", ".join(rank for rank, _, _ in _STARTERS) + " is set",
        hint="start it with srun or mpirun, or set RANK and WORLD_SIZE (qrsh -inherit -v RANK=0,WORLD_SIZE=8 …); "
        "to start the tasks too, call gridtf_run",
    )


def started_with(environ: Mapping[str, str]) -> int:
    """How many processes srun or mpirun has started together with this one, itself included."""
    sizes = (environ.get(size, "") for rank, size, step in _STARTERS if step and rank in environ)
    return max((number for size in sizes if (number := whole(size)) is not None), default=1)


def _numbers(rank: str, size: str, environ: Mapping[str, str]) -> tuple[int, int]:
    number, count = whole(environ[rank]), whole(environ[size])
    if number is None or count is None or not number < count <= MOST:
        raise UsageError(
            f"{rank}={environ[rank]} and {size}={environ[size]} cannot be",
            hint=f"ranks are counted from 0 and are smaller than the number of processes, at most {MOST}",
        )
    return number, count


def _step(names: Sequence[str], environ: Mapping[str, str]) -> str:
    parts = [environ.get(name, "0" if name == _RESTARTS else "") for name in names]
    if not parts or not all(parts):
        parts = [environ.get("GRIDTF_JOB_ID", "")]
    if not all(parts) and "SGE_TASK_ID" in environ:  # qrsh -inherit tells the job, but neither rank nor size
        told = (environ.get(name, "0") for name in ("JOB_ID", "SGE_TASK_ID", "RESTARTED"))
        parts = [text for text in told if text != "undefined"]  # no element of an array
    if not all(parts):
        raise UsageError(
            "gridtf_join does not know which processes belong together",
            hint="set GRIDTF_JOB_ID to the same word in all of them, a new one for every run",
        )
    return re.sub(r"[^A-Za-z0-9_.-]", "-", ".".join(parts))


def roster(spec: JobSpec, size: int) -> tuple[PlacedTask, ...]:
    """The tasks that this many processes are, in rank order; nobody knows their hosts yet.

    Raises PlacementError when the counts do not fit, UsageError when gridtf is to serve some of the tasks.
    """
    if spec.serve:
        raise UsageError(
            f"gridtf_join serves no {spec.serve[0]}: the process that joins is the task",
            hint="let it run `python -m gridtf.training.serve`, or start the job with gridtf_run",
        )
    counts = {name: spec.count(name) for name in TASK_TYPES}
    if counts["worker"] is None:
        others = sum(count or 0 for count in counts.values())
        counts["worker"] = max(size - others, 0 if counts["chief"] or counts["master"] else 1)
    total = sum(count or 0 for count in counts.values())
    if total != size:
        asked = " + ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise PlacementError(
            f"the number of tasks asked for is {total} ({asked}), the number of processes that join is {size}",
            hint="start as many processes as there are tasks, or change the counts",
        )
    tables = {name: replace(spec.task(name), count=count, gpus=None) for name, count in counts.items() if count}
    plain = replace(spec, tasks=tables, gpus_per_task=0, gpus_per_node=0)
    return place(Allocation((Host("", size),)), plain)


def check_addresses(records: Sequence[Record]) -> None:
    """Raises RendezvousError when two machines go by the same name, such as ``localhost``: each would reach itself."""
    boots: dict[str, str] = {}
    for rank, record in enumerate(records):
        boot = record.get("boot", "")
        if boots.setdefault(record["address"], boot) != boot:
            first = next(other for other, known in enumerate(records) if known["address"] == record["address"])
            raise RendezvousError(
                f"rank {first} and rank {rank} are on different machines that are both called {record['address']}",
                hint="give every machine a host name of its own, by which the others can reach it",
            )


def split_gpus(tasks: Sequence[PlacedTask], records: Sequence[Record], spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """Each task's GPUs, from what each process sees. records: as published, in the order of the tasks.

    Processes of one host that see the same several GPUs share them out; one that sees just its own keeps it.
    Raises PlacementError when there are too few.
    """
    told = layout.gpus_per_task(spec)  # 0 where the user has said nothing: then what is there is used
    usual = layout.gpus_per_task(spec, default=1)
    shares: dict[str, tuple[str, ...]] = {}
    taken: dict[tuple[str, tuple[str, ...]], int] = {}
    crowds = Counter((record["hostname"], tuple(record["granted"])) for record in records)
    for task, record in zip(tasks, records, strict=True):
        seen, host = tuple(record["granted"]), record["hostname"]
        needs = layout.gpus_of(task.type, spec, usual)
        if len(seen) < layout.gpus_of(task.type, spec, told):
            raise PlacementError(
                f"{task.name} on {host} needs {needs} GPU{'' if needs == 1 else 's'}, but sees {len(seen)}",
                why=f"CUDA_VISIBLE_DEVICES={','.join(seen)}",
                hint="check the GPU request of the job, and what its starter binds to each process",
            )
        if len(seen) <= needs or not needs:
            # bound to a device each, all of them may call it 0; then the step has as many on this host
            on_host, crowd = record.get("step_gpus"), crowds[host, seen]
            if needs and seen and on_host and crowd * len(seen) > on_host:
                raise PlacementError(
                    f"{host}: {crowd} processes see the same GPU {','.join(seen)}, and the step has {on_host} there",
                    hint="start one process a GPU, or ask for more GPUs a host",
                )
            shares[task.name] = seen if needs else ()
            continue
        start = taken.get((host, seen), 0)
        taken[host, seen] = start + needs
        if start + needs > len(seen):
            raise PlacementError(
                f"{host}: its processes all see the GPUs {','.join(seen)}, too few for one task per GPU",
                why=f"{task.name} would be the first without",
                hint="start one process a GPU, or ask for fewer GPUs a task with --gpus-per-task",
            )
        shares[task.name] = seen[start : start + needs]
    return shares


def at_home(
    tasks: Sequence[PlacedTask], records: Sequence[Record], shares: Mapping[str, Sequence[str]]
) -> tuple[PlacedTask, ...]:
    """The tasks with the hosts, GPUs, CPUs and local ranks that they turned out to have."""
    # processes that nobody has bound to cores of their own see the same ones, and share them
    sharing: dict[tuple[str, tuple[int, ...]], int] = {}
    for record in records:
        key = record["hostname"], tuple(record["cpus"])
        sharing[key] = sharing.get(key, 0) + 1
    placed: list[PlacedTask] = []
    local: dict[str, int] = {}
    for task, record in zip(tasks, records, strict=True):
        host, cpus = record["hostname"], tuple(record["cpus"])
        number = local.get(host, 0)
        if task.rank is not None:
            local[host] = number + 1
        placed.append(
            replace(
                task,
                host=host,
                gpus=len(shares[task.name]),
                cpus=task.cpus or max(1, len(cpus) // sharing[host, cpus]),
                local_rank=None if task.rank is None else number,
            )
        )
    return tuple(placed)
