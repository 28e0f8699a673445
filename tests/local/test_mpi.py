"""Jobs of this machine that are one MPI world."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridtf.host import procfs
from gridtf.run.rundir import read_record
from tests.support.jobs import LaunchedJob, until
from tests.support.mpi import MPICH, OPEN_MPI, variables

WORLD = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
print(world.rank, world.size, world.allreduce(world.rank), os.environ["RANK"], os.environ["GRIDTF_TASK_INDEX"])
raise SystemExit(int(os.environ.get("CODE", "0")))
"""
RAISES = """
from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    raise ValueError("the loss is not a number")
MPI.COMM_WORLD.Barrier()
"""

LEAVES = """
import os, sys

after = sys.argv[1] == "True"
if after:
    from mpi4py import MPI
if os.environ["GRIDTF_TASK_INDEX"] == "1":
    os._exit(0)
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""

# Asks the store as Horovod does: each rank says where it is, hears where all others are, and has met them then.
GLOO = """
import http.client, os, sys, time

def of(name):
    return os.environ[f"HOROVOD_{name}"]

def ask(method, rank, value=None):
    link = http.client.HTTPConnection(of("GLOO_RENDEZVOUS_ADDR"), int(of("GLOO_RENDEZVOUS_PORT")), timeout=30)
    link.request(method, f"/global/{rank}", value)
    answer = link.getresponse()
    return answer.status, answer.read().decode()

ask("PUT", of("RANK"), f"address of {of('RANK')}")
met = []
for rank in range(int(of("SIZE"))):
    while (found := ask("GET", rank))[0] == 404:
        time.sleep(0.05)
    met.append(found[1])
ask("DELETE", of("RANK"))
print(met, *map(of, "LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE CONTROLLER".split()), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., LaunchedJob]]:
    """world(kind, program, *arguments, **spec): start four ranks of a program; the job is ended with the test."""
    jobs: list[LaunchedJob] = []

    def start(kind: str, program: str, *arguments: str, count: int = 4, **spec: Any) -> LaunchedJob:
        (tmp_path / "train.py").write_text(program)
        found = variables(kind, os.environ["PATH"])
        modules = found.pop("PYTHONPATH")
        own = {"PYTHONPATH": modules, **spec.pop("env", {})}
        tasks = {"tasks": {"worker": {"count": count}}, "tasks_per_node": count, "gpus_per_task": 0}
        whole = {"command": [sys.executable, "train.py", *arguments], "mpi": True, "env": own, **tasks, **spec}
        jobs.append(LaunchedJob(tmp_path, whole, (), (), None, **found))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def log(job: LaunchedJob, index: int) -> str:
    return job.attempt.task_log("worker", index).read_text()


@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH])
def test_tasks_are_the_ranks_of_one_world(kind: str, world: Callable[..., LaunchedJob]) -> None:
    job = world(kind, WORLD)
    assert job.verdict()["state"] == "COMPLETED", job.output
    assert [log(job, rank).strip() for rank in range(4)] == [f"{rank} 4 6 {rank} {rank}" for rank in range(4)]


@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH])
def test_exception_of_a_rank_is_the_first_cause_although_mpi_waits_for_the_others(
    kind: str, world: Callable[..., LaunchedJob]
) -> None:
    verdict = world(kind, RAISES).verdict()
    assert verdict["state"] == "FAILED"
    assert verdict["reason"].startswith(f"worker:1 on {os.uname().nodename}: ValueError: the loss is not a number")


@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH])
@pytest.mark.parametrize("after", [False, True], ids=["before MPI_Init", "after MPI_Init"])
def test_rank_that_ends_with_0_while_others_go_on_is_told(
    kind: str, after: bool, world: Callable[..., LaunchedJob]
) -> None:
    """Without MPI_Finalize; the others wait for it, or their MPI ends them."""
    job = world(kind, LEAVES, str(after), count=2)
    left = "worker:1 ended with exit code 0 while others went on"

    def told() -> bool:
        return left in str((read_record(job.attempt.launcher) or {}).get("detail")) or job.attempt.verdict.exists()

    until(told, "the status that names the rank")
    job.process.send_signal(signal.SIGTERM)
    verdict = job.verdict()
    assert left in verdict["reason"]


@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH])
def test_all_ranks_that_have_saved_make_a_job_that_has_saved(kind: str, world: Callable[..., LaunchedJob]) -> None:
    job = world(kind, WORLD, env={"CODE": "42"})
    assert job.verdict()["state"] == "SAVED", job.output


def test_without_mpirun_the_job_fails_with_what_to_load(tmp_path: Path) -> None:
    for name in ("bash", "sh"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    job = LaunchedJob(tmp_path, {"command": ["true"], "mpi": True, "gpus_per_task": 0}, PATH=str(tmp_path))
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert verdict["reason"].startswith(f"host {os.uname().nodename}: command not found: mpirun (PATH=")
    assert "load the program's MPI" in verdict["hint"]


def gloo(folder: Path, go: Path) -> LaunchedJob:
    """Start two tasks that meet as Horovod's ranks without MPI do, and go on until there is a file."""
    (folder / "train.py").write_text(GLOO)
    whole = {"command": [sys.executable, "train.py", str(go)], "mpi": "gloo", "gpus_per_task": 0}
    return LaunchedJob(folder, {**whole, "tasks": {"worker": {"count": 2}}})


def test_ranks_of_horovod_without_mpi_meet_at_the_store(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    job = gloo(tmp_path, tmp_path / "go")
    assert job.verdict()["state"] == "COMPLETED", job.output
    met = ["address of 0", "address of 1"]
    assert [log(job, rank).strip() for rank in range(2)] == [f"{met} {rank} 2 0 1 gloo" for rank in range(2)]


def test_lost_store_of_horovod_ends_the_job_and_is_named(tmp_path: Path) -> None:
    job = gloo(tmp_path, tmp_path / "go")
    try:
        job.running("worker:0", "worker:1")
        below = procfs.descendants(job.process.pid)
        (store,) = [pid for pid in below if "gloostore" in Path(f"/proc/{pid}/cmdline").read_text()]
        until(lambda: all(log(job, rank) for rank in range(2)), "all to have met")
        os.kill(store, signal.SIGKILL)
        verdict = job.verdict()
    finally:
        job.end()
    assert verdict["state"] == "FAILED"
    assert verdict["reason"] == "the store of Horovod's Gloo, which the ranks need, was killed by SIGKILL"
