"""What a Grid Engine job was given, from the environment of its script: qsub(1), ENVIRONMENTAL VARIABLES."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.jobspec import layout
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.base import Allocation, Host
from gridtf.schedulers.common import whole
from gridtf.schedulers.sge import slots
from gridtf.schedulers.sge.hostfile import HostLine, parse, same
from gridtf.schedulers.sge.requested import PER_HOST, PER_JOB, PER_SLOT, Resource

AskRequests = Callable[[], Mapping[str, Resource]]


def lines(environ: Mapping[str, str], here: str) -> tuple[HostLine, ...]:
    """The hosts of this job, the one that we run on first. here: its name. Raises SchedulerError."""
    path = environ.get("PE_HOSTFILE")
    if path is None:
        return (_without_hostfile(environ, here),)
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SchedulerError(
            f"cannot read PE_HOSTFILE, {path}, on {here}: {error.strerror}",
            why="it lies in the spool folder of the host that runs the job script, and goes with the job",
            hint="is this the job script's own host? has a script changed PE_HOSTFILE, or taken it from another job?",
        ) from None
    found = parse(text, path)
    own = next((number for number, line in enumerate(found) if same(line.name, here)), 0)
    return (found[own], *found[:own], *found[own + 1 :])


def _without_hostfile(environ: Mapping[str, str], here: str) -> HostLine:
    """A job without a parallel environment has one slot."""
    if environ.get("PE"):
        raise SchedulerError(
            f"PE_HOSTFILE is not set on {here}, although the job has the parallel environment {environ['PE']}",
            why="only the job script has it, not what qrsh -inherit starts",
            hint="call gridtf_run in the job script itself; in what qrsh -inherit starts call gridtf_join",
        )
    return HostLine(here, whole(environ.get("NSLOTS", "1")) or 1)


def allocation(found: Sequence[HostLine], spec: JobSpec, ask: AskRequests) -> Allocation:
    """What the hosts of a job have room for. found: as from lines.

    ask: what the job has asked Grid Engine for. Raises SchedulerError.
    """
    shape = slots.in_job(spec)
    gpus = _gpus(found, spec, shape.per_task, ask)
    counts = _without_riders([line.slots for line in found], 0 if any(gpus) else shape.riders)
    hosts = [
        Host(line.name, count // shape.per_task, gpus=own, cpus=_cpus(line, own, shape.per_task), address=line.name)
        for line, count, own in zip(found, counts, gpus, strict=True)
        if line.slots  # a host may be there for the job script alone
    ]
    if spec.tasks_per_node and not shape.low <= sum(line.slots for line in found) <= shape.high:
        # A script of the user's own has asked for something else. What gridtf asks for is so many slots in all, and
        # only the parallel environment knows over how many hosts: better fewer hosts than fewer tasks.
        hosts = [replace(host, slots=min(host.slots, spec.tasks_per_node)) for host in hosts]
    return Allocation(tuple(hosts))


def unused_gpus(given: Allocation, spec: JobSpec, present: Callable[[], Sequence[str]]) -> str:
    """A note where the first host has GPUs, and neither the job nor its script has said a word about them; else empty.

    present: the GPUs of this host.
    """
    silent = layout.gpus_per_task(spec, default=-1) == -1 and not any(host.gpus for host in given.hosts)
    if not silent or not (there := present()):
        return ""
    return (
        f"host {given.hosts[0].name} has {len(there)} GPUs, and no task gets one: the job has asked Grid Engine for no "
        f"{spec.gpu_resource}; `--gpus-per-node {len(there)}`, or --gpu-resource with your site's name for them, does"
    )


def _cpus(line: HostLine, gpus: int, per_task: int) -> int | None:
    """A slot is a CPU, unless there is one for each GPU: then nobody says how many CPUs that means."""
    if line.cores is not None:
        return line.cores
    return None if gpus and per_task == 1 else line.slots


def _without_riders(counts: list[int], riders: int) -> list[int]:
    """Slots that were asked for on behalf of tasks that ride along are not there for training tasks."""
    for _ in range(min(riders, sum(counts) - 1)):
        fullest = max(range(len(counts)), key=lambda number: (counts[number], number))
        counts[fullest] -= 1
    return counts


def _gpus(found: Sequence[HostLine], spec: JobSpec, per_task: int, ask: AskRequests) -> list[int]:
    """GPUs on each host: as asked of Grid Engine, or else as gridtf was told."""
    try:
        asked = ask().get(spec.gpu_resource)
    except SchedulerError:  # qmaster is down; the job goes on without it
        asked = None
    if asked is not None and asked.per == PER_SLOT:
        return [int(asked.amount * line.slots) for line in found]
    if asked is not None and asked.per == PER_HOST:
        return [int(asked.amount) for _ in found]
    if asked is not None and asked.per == PER_JOB:
        return [int(asked.amount) if number == 0 else 0 for number, _ in enumerate(found)]
    if spec.gpus_per_node is not None:
        return [spec.gpus_per_node for _ in found]
    return [line.slots // per_task * layout.gpus_per_task(spec) for line in found]
