"""Processes that join: rank, size and step by starter; which task each rank is; which GPUs it has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.errors import PlacementError, RendezvousError, UsageError
from gridtf.starters.joined.ranks import Member, assign_ranks, check_addresses, member_of, split_gpus
from tests.support.plans import job, resolved


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "GRIDTF_JOB_ID": "x"}, Member(1, 4, "x")),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"},
            Member(3, 4, "77.2.0"),
        ),
        (
            {
                "SLURM_PROCID": "3",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_JOB_ID": "77",
                "SLURM_STEP_ID": "2",
                "SLURM_RESTART_COUNT": "1",
                "RANK": "9",  # of an outer job
                "WORLD_SIZE": "10",
            },
            Member(3, 4, "77.2.1"),
        ),
        (  # mpirun in a Slurm job: on the first node its processes are no step of their own
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "2",
                "PMIX_NAMESPACE": "prterun-n1-123@1",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "8",
                "SLURM_JOB_ID": "77",
            },
            Member(0, 2, "prterun-n1-123-1"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "77.4"}, Member(1, 2, "77.4")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "77.4", "SLURM_JOB_ID": "77"}, Member(1, 2, "77.4.0")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "GRIDTF_JOB_ID": "a/b c"}, Member(1, 2, "a-b-c")),
        (  # the batch script itself is no step: what it has numbered by hand counts
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "8",
                "SLURM_JOB_ID": "77",
                "RANK": "1",
                "WORLD_SIZE": "2",
                "GRIDTF_JOB_ID": "x",
            },
            Member(1, 2, "x"),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "JOB_ID": "7", "SGE_TASK_ID": "undefined", "RESTARTED": "0"},
            Member(1, 2, "7.0"),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "JOB_ID": "7", "SGE_TASK_ID": "3", "RESTARTED": "1"}, Member(1, 2, "7.3.1")),
    ],
)
def test_member_of_reads_rank_size_and_step_of_each_starter(environ: dict[str, str], expected: Member) -> None:
    scheduler = "slurm" if "SLURM_JOB_ID" in environ else "sge" if "SGE_TASK_ID" in environ else "local"
    assert member_of(environ, schedulers.get(scheduler)) == expected


@pytest.mark.parametrize(
    ("rank", "size"),
    [("2", "2"), ("-1", "2"), ("one", "2"), ("0", "two"), ("", ""), ("0", "0"), ("1.0", "2"), ("0", "100000000")],
)
def test_invalid_rank_and_size_are_refused(rank: str, size: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"RANK={rank} and WORLD_SIZE={size} are not valid")):
        member_of({"RANK": rank, "WORLD_SIZE": size, "GRIDTF_JOB_ID": "x"}, schedulers.get("local"))


def test_ranks_that_join_are_started_by_others() -> None:
    with pytest.raises(UsageError, match="gridtf_join starts no ranks") as caught:
        assign_ranks(job(mpi=True), 2)
    assert "--no-mpi" in caught.value.hint


def test_assign_ranks_returns_tasks_in_rank_order() -> None:
    tasks = assign_ranks(job(tasks={"master": {}, "ps": {"count": 2}, "evaluator": {}}, gpus_per_task=2), 6)
    assert [(task.name, task.rank) for task in tasks] == [
        ("master:0", 0),
        ("worker:0", 1),
        ("worker:1", 2),
        ("ps:0", None),
        ("ps:1", None),
        ("evaluator:0", None),
    ]
    assert [task.name for task in assign_ranks(job(tasks={"chief": {}}), 1)] == ["chief:0"]
    with pytest.raises(
        PlacementError, match=r"1 task requested \(1 chief\), but the number of processes that join is 3"
    ):
        assign_ranks(job(tasks={"chief": {}, "worker": {"count": 0}}), 3)


def _seen(*processes: tuple[str, str]) -> list[dict[str, Any]]:
    """What each process would publish: (host, CUDA_VISIBLE_DEVICES)."""
    return [{"hostname": host, "granted": [gpu for gpu in gpus.split(",") if gpu]} for host, gpus in processes]


@pytest.mark.parametrize(
    ("values", "processes", "expected"),
    [
        ({}, [("a", "0,1"), ("a", "0,1"), ("b", "0,1"), ("b", "0,1")], ["0", "1", "0", "1"]),
        ({}, [("a", "0"), ("a", "1"), ("b", ""), ("b", "")], ["0", "1", "", ""]),
        (
            {"gpus_per_task": 2},
            [("a", "0,1,2,3"), ("a", "0,1,2,3"), ("b", "4,5"), ("c", "0,1")],
            ["0,1", "2,3", "4,5", "0,1"],
        ),
        ({"gpus_per_task": 0}, [("a", "0,1")] * 4, ["", "", "", ""]),
        ({"gpus_per_node": 0}, [("a", "0,1")] * 4, ["", "", "", ""]),
        (
            {"tasks": {"chief": {"gpus": 2}, "worker": {"gpus": 1}}},
            [("a", "0,1,2,3")] * 3 + [("b", "7")],
            ["0,1", "2", "3", "7"],
        ),
        ({"tasks": {"ps": {"count": 3}}}, [("a", "0,1")] * 4, ["0", "", "", ""]),
    ],
)
def test_split_gpus(values: dict[str, Any], processes: list[tuple[str, str]], expected: list[str]) -> None:
    spec = job(**values)
    shares = split_gpus(assign_ranks(spec, 4), _seen(*processes), resolved(spec))
    assert [",".join(gpus) for gpus in shares.values()] == expected


def test_split_gpus_with_too_few_gpus_is_an_error_with_the_numbers() -> None:
    spec = job(gpus_per_task=2)
    with pytest.raises(PlacementError, match="worker:1 on b needs 2 GPUs, but sees 1"):
        split_gpus(assign_ranks(spec, 2), _seen(("a", "0,1"), ("b", "3")), resolved(spec))
    with pytest.raises(PlacementError, match="worker:0 on a needs 1 GPU, but sees 0"):
        split_gpus(assign_ranks(job(gpus_per_node=4), 1), _seen(("a", "")), resolved(job(gpus_per_node=4)))
    with pytest.raises(PlacementError, match="a: its processes all see the same GPUs 0,1,2, too few"):
        split_gpus(assign_ranks(spec, 2), _seen(("a", "0,1,2"), ("a", "0,1,2")), resolved(spec))


def test_check_addresses_refuses_two_machines_with_one_host_name() -> None:
    alike = [{"address": name, "boot": boot} for name, boot in (("n1", "a"), ("n1", "a"), ("n2", "b"))]
    check_addresses(alike)
    with pytest.raises(RendezvousError, match="rank 0 and rank 3 are on different machines with the same host name n1"):
        check_addresses([*alike, {"address": "n1", "boot": "c"}])
