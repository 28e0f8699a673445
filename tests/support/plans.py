"""Plans and tasks for tests that run no job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridtf.bootstrap.plan.placement import PlacedTask, place
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.jobspec.request import Request, resolve
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import Allocation, Host

NONCE = "0123456789abcdef"


def job(**values: Any) -> JobSpec:
    """A specification from the values of a job file, with a default command."""
    program = {} if "entry" in values else {"command": ["train"]}
    return JobSpec.from_dict({**program, **values})


def resolved(spec: JobSpec, scheduler: str = "local") -> Request:
    """The request of a specification, as computed inside a job."""
    return resolve(spec, scheduler, memory=False)


def hosts(*gpus: int | None, slots: int = 8, cpus: int | None = None) -> Allocation:
    """An allocation of hosts h0, h1, … with these numbers of GPUs."""
    return Allocation(tuple(Host(f"h{number}", slots, has, cpus) for number, has in enumerate(gpus)))


def task(
    name: str,
    host: str = "h0",
    *,
    rank: int | None = 0,
    gpus: int = 0,
    served: bool = False,
    in_cluster: bool = True,
) -> PlacedTask:
    """A placed task, such as worker:3. A ps or an evaluator has no rank."""
    kind, index = name.split(":")
    if served or kind in ("ps", "evaluator"):
        rank = None
    member = in_cluster and kind != "evaluator"
    return PlacedTask(kind, int(index), host, gpus, 1, rank, rank, served, member)


def task_plan(run: Path, allocation: Allocation, **values: Any) -> AttemptPlan:
    """The plan of attempt 1 in a new run directory, not written yet."""
    directory = RunDir(run)
    directory.path.mkdir(exist_ok=True)
    attempt = directory.new_attempt()
    spec = job(**values)
    request = resolved(spec)
    names = {host.name: host.address or host.name for host in allocation.hosts}
    return AttemptPlan(
        attempt,
        NONCE,
        "4711",
        spec,
        request,
        names,
        place(allocation, request),
        "/usr/bin/python3",
        Path("/home/user"),
    )


def records(plan: AttemptPlan, *, nonce: str = NONCE, address: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Host -> the record that it would publish, with ports from 20001 on."""
    port = 20000
    published: dict[str, Any] = {}
    for host in plan.hosts:
        ports = {}
        for placed in plan.on(host):
            port += 1
            ports[placed.name] = port
        published[host] = {
            "nonce": nonce,
            "host": host,
            "address": (address or {}).get(host, host),
            "ports": ports,
            "master_port": 30000,
        }
    return published
