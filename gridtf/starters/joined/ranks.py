"""For gridtf_join: which process is which task, and its share of its host. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from gridtf.bootstrap.plan.placement import PlacedTask, place
from gridtf.errors import PlacementError, RendezvousError, UsageError
from gridtf.jobspec.request import Request, resolve
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.tasktypes import ALWAYS
from gridtf.jobspec.units import MOST
from gridtf.run.rundir import Record
from gridtf.schedulers.api import Allocation, Host, RankVariables, Scheduler
from gridtf.text import counted, whole
from gridtf.values import Value


class Member(Value):
    """One process among those that join.

    Attributes:
        rank: Its number, from 0 to size - 1.
        size: The number of processes that join.
        step: A name that the processes of one step share, and no other process has.
    """

    rank: int
    size: int
    step: str


def member_of(environ: Mapping[str, str], scheduler: Scheduler) -> Member:
    """Rank, size and step of this process, from the variables of srun, mpirun or the user (RANK and WORLD_SIZE).

    Where several are set, those of the innermost program that started the process count.

    Args:
        environ: The environment of the process.
        scheduler: The scheduler around it.

    Raises:
        UsageError: None of these variables is set, or their values are not valid.
    """
    starters = (*scheduler.injob.starters, RankVariables("RANK", "WORLD_SIZE"))
    for starter in starters:
        if starter.rank in environ and starter.size in environ:
            return Member(*_numbers(starter.rank, starter.size, environ), _step(starter, environ, scheduler))
    raise UsageError(
        "gridtf_join cannot determine this process's rank",
        why=f"none of {', '.join(starter.rank for starter in starters)} is set",
        hint="start it with srun or mpirun, or set RANK and WORLD_SIZE (qrsh -inherit -v RANK=0,WORLD_SIZE=8 …); "
        "to have gridtf start the tasks, call gridtf_run",
    )


def _numbers(rank: str, size: str, environ: Mapping[str, str]) -> tuple[int, int]:
    number, count = whole(environ[rank]), whole(environ[size])
    if number is None or count is None or not number < count <= MOST:
        raise UsageError(
            f"{rank}={environ[rank]} and {size}={environ[size]} are not valid",
            hint=f"a rank is from 0 to the number of processes less 1, and there are at most {MOST} processes",
        )
    return number, count


def _step(starter: RankVariables, environ: Mapping[str, str], scheduler: Scheduler) -> str:
    """The name of this step: from the variables of srun or mpirun, else GRIDTF_JOB_ID, else the scheduler's."""
    parts = [environ.get(name, "") for name in starter.step]
    if starter.reused and scheduler.injob.restart_variable:
        parts.append(environ.get(scheduler.injob.restart_variable, "0"))
    if not parts or not all(parts):
        parts = [environ.get("GRIDTF_JOB_ID", "")]
    if not all(parts) and scheduler.injob.start_variables and scheduler.is_current(environ):
        start = (environ.get(name, "0") for name in scheduler.injob.start_variables)
        parts = [text for text in start if text != "undefined"]  # Grid Engine's SGE_TASK_ID of a job that is no array
    if not all(parts):
        raise UsageError(
            "gridtf_join cannot determine which processes belong together",
            hint="set GRIDTF_JOB_ID to the same value in all of them, and to a new one for every run",
        )
    return re.sub(r"[^A-Za-z0-9_.-]", "-", ".".join(parts))


def assign_ranks(spec: JobSpec, size: int) -> tuple[PlacedTask, ...]:
    """The tasks that the processes become, in rank order, without hosts.

    Args:
        size: The number of processes that join.

    Raises:
        PlacementError: The number of tasks is not the number of processes.
        UsageError: The specification requests tasks that gridtf serves, or ranks that it starts.
    """
    if spec.mpi is not False:
        raise UsageError(
            "gridtf_join starts no ranks: the process that joins is one of srun or mpirun",
            hint="leave --mpi out (--no-mpi where a file has it), or have gridtf_run --mpi start them",
        )
    always = (name for name in spec.types if spec.count(name) != 0 and spec.row(name).served == ALWAYS)
    if served := [*spec.serve, *always]:
        raise UsageError(
            f"gridtf_join cannot serve {served[0]} tasks: the process that joins is the task",
            hint="let it run `python -m gridtf.training.serve`, or start the job with gridtf_run",
        )
    counts = {name: spec.count(name) for name in spec.types}
    if counts["worker"] is None:
        others = sum(count or 0 for count in counts.values())
        counts["worker"] = max(size - others, 0 if counts["chief"] or counts["master"] else 1)
    total = sum(count or 0 for count in counts.values())
    if total != size:
        requested = " + ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise PlacementError(
            f"{counted(total, 'task')} requested ({requested}), but the number of processes that join is {size}",
            hint="start as many processes as there are tasks, or change the counts",
        )
    tables = {name: spec.task(name).replace(count=count, gpus=None) for name, count in counts.items() if count}
    plain = spec.replace(tasks=tables, gpus_per_task=0, gpus_per_node=0, gpus=None, nodes=None, tasks_per_node=None)
    return place(Allocation((Host("", size),)), resolve(plain, "", memory=False))


def check_addresses(records: Sequence[Record]) -> None:
    """Check that no two machines have the same name, such as ``localhost``: each would connect to itself.

    Args:
        records: The records of all ranks, in rank order.

    Raises:
        RendezvousError: Two machines have the same name.
    """
    machines: dict[str, tuple[int, str]] = {}  # address -> the first rank there, and the boot id of its machine
    for rank, record in enumerate(records):
        boot = record.get("boot", "")
        first, known = machines.setdefault(record["address"], (rank, boot))
        if known != boot:
            raise RendezvousError(
                f"rank {first} and rank {rank} are on different machines with the same host name {record['address']}",
                hint="give every machine a unique host name that the others can resolve",
            )


def split_gpus(tasks: Sequence[PlacedTask], records: Sequence[Record], request: Request) -> dict[str, tuple[str, ...]]:
    """Determine each task's GPUs from the GPUs that its process sees.

    Processes of one host that see the same GPUs divide them; a process that sees only its own GPUs keeps them.

    Args:
        tasks: In rank order.
        records: The records of all ranks, in rank order.
        request: What the job requests.

    Returns:
        Task name -> GPU ids.

    Raises:
        PlacementError: There are too few GPUs.
    """
    shares: dict[str, tuple[str, ...]] = {}
    taken: Counter[tuple[str, tuple[str, ...]]] = Counter()
    crowds = Counter((record["hostname"], tuple(record["granted"])) for record in records)
    for task, record in zip(tasks, records, strict=True):
        seen, host = tuple(record["granted"]), record["hostname"]
        needs = request.gpus_of(task.type, 1)
        if len(seen) < request.gpus_of(task.type, 0):  # 0 where the user has not set them: any number will do
            raise PlacementError(
                f"{task.name} on {host} needs {counted(needs, 'GPU')}, but sees {len(seen)}",
                why=f"CUDA_VISIBLE_DEVICES={','.join(seen)}",
                hint="check the GPU request of the job, and how srun or mpirun binds GPUs to processes",
            )
        if len(seen) <= needs or not needs:
            # processes bound to one GPU each may all see it as 0; then the step has that many GPUs on this host
            on_host, crowd = record.get("step_gpus"), crowds[host, seen]
            if needs and seen and on_host and crowd * len(seen) > on_host:
                raise PlacementError(
                    f"{host}: {crowd} processes see the same GPU {','.join(seen)}, and the step has {on_host} there",
                    hint="start one process per GPU, or request more GPUs per host",
                )
            shares[task.name] = seen if needs else ()
            continue
        start = taken[host, seen]
        taken[host, seen] += needs
        if start + needs > len(seen):
            raise PlacementError(
                f"{host}: its processes all see the same GPUs {','.join(seen)}, too few for its tasks",
                why=f"{task.name} would not get its {counted(needs, 'GPU')}",
                hint="start one process per GPU, or request fewer GPUs per task with --gpus-per-task",
            )
        shares[task.name] = seen[start : start + needs]
    return shares


def place_ranks(
    tasks: Sequence[PlacedTask], records: Sequence[Record], shares: Mapping[str, Sequence[str]]
) -> tuple[PlacedTask, ...]:
    """The tasks with the hosts, GPUs, CPUs and local ranks of their processes.

    Args:
        tasks: In rank order.
        records: The records of all ranks, in rank order.
        shares: Task name -> GPU ids.
    """
    # processes that are not bound to cores of their own see the same cores, and share them
    sharing = Counter((record["hostname"], tuple(record["cpus"])) for record in records)
    placed: list[PlacedTask] = []
    ranked: Counter[str] = Counter()  # host -> how many of its tasks have a local rank so far
    for task, record in zip(tasks, records, strict=True):
        host, cpus = record["hostname"], tuple(record["cpus"])
        cores = min(task.cpus or max(1, len(cpus) // sharing[host, cpus]), len(cpus))
        local_rank = None if task.rank is None else ranked[host]
        ranked[host] += task.rank is not None
        placed.append(task.replace(host=host, gpus=len(shares[task.name]), cpus=cores, local_rank=local_rank))
    return tuple(placed)
