"""GPU-hours, and what a request could have been."""

from __future__ import annotations

from gridtf.jobspec.request import Request, Role
from gridtf.report import resources
from gridtf.report.resources import GpuHours, Line
from gridtf.report.timeline import QUEUE, Attempt, AttemptData, Phase
from gridtf.report.usage import Usage
from tests.support.samples import sample, used

ROLES = (Role("worker", 1, None, cpus=8, mem=16384),)
REQUEST = Request("slurm", "digits", (1, 1), 1, 0, 0, 1, ROLES, task_cpus=8, walltime=36000)


def attempt(begin: float, end: float, hosts: tuple[str, ...] = ("n1",)) -> Attempt:
    return Attempt(1, "COMPLETED", "", begin - 100, end, (Phase(QUEUE, begin - 100, begin),), hosts)


def lines(usage: Usage, request: Request = REQUEST) -> dict[str, Line]:
    found = resources.lines(request, usage, [attempt(0, 3600)])
    return {line.what: line for line in found}


def test_gpu_hours() -> None:
    usage = used(*(sample(time) for time in range(0, 1801, 60)))
    hours = resources.gpu_hours([AttemptData(1)], [attempt(0, 3600)], usage)
    assert hours == GpuHours(allocated=1.0, used=0.25, idle=0.25, unknown=0.5)


def test_gpus_that_were_never_measured_count_as_allocated() -> None:
    told = AttemptData(1, plan={"request": {"gpus_per_node": 4}}, hosts={"n1": {"gpus": {"worker:0": ["0", "1"]}}})
    hours = resources.gpu_hours([told], [attempt(0, 3600, ("n1", "n2"))], Usage())
    assert hours == GpuHours(allocated=8.0, used=0.0, idle=0.0, unknown=8.0)


def test_job_without_gpus() -> None:
    assert resources.gpu_hours([AttemptData(1)], [attempt(0, 3600)], Usage()) is None


def test_use_as_a_part_of_the_request() -> None:
    found = lines(used(*(sample(time, cpu=2.0) for time in range(0, 1000, 5))))
    assert {line.what: line.share for line in found.values()} == {
        "GPUs": 0.5,
        "Memory of a GPU": 0.5,
        "CPUs of a worker": 0.25,
        "Memory of a worker": 1 / 16,
        "Walltime": 0.1,
    }


def test_unknown_request() -> None:
    found = lines(used(sample(0), sample(400)), resources.UNKNOWN)
    assert found["CPUs of a worker"].requested == ""
    assert found["Memory of a worker"].share is None
    assert "Walltime" not in found
