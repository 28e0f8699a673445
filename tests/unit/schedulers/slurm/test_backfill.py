"""When backfill starts a job, by what squeue and scontrol print. The forms are those of Slurm 20.11 and 24.11."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gridtf.schedulers.api import Estimate
from gridtf.schedulers.slurm import backfill
from gridtf.schedulers.slurm.advice import ComponentRequest
from gridtf.schedulers.slurm.offers import parse_partitions

NOW = 1_796_070_000.0
MINUTE = 60
SITE = parse_partitions(
    "gpu*|up|7-00:00:00|1-infinite|4|mixed|8|16000|gpu:4|n[1-4]|v100\n"
    "short|up|30:00|1-infinite|4|mixed|8|16000|gpu:4|n[1-4]|v100\n"
    "low|up|7-00:00:00|1-infinite|4|mixed|8|16000|gpu:4|n[1-4]|v100\n"
    "cpu|up|7-00:00:00|1-infinite|1|idle|8|16000|(null)|c1|\n"
)
CONFIG = """Configuration data as of 2026-11-30T20:25:00
DefMemPerCPU            = 500
PreemptType             = preempt/partition_prio
PrivateData             = none
SchedulerParameters     = bf_interval=2
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
"""
PARTITIONS = "".join(
    f"PartitionName={name} DefaultTime=NONE PriorityTier={tier} PreemptMode={mode} DefMemPerNode=UNLIMITED\n"
    for name, tier, mode in (("gpu", 10, "OFF"), ("short", 10, "OFF"), ("low", 1, "CANCEL"), ("cpu", 10, "OFF"))
)


def job(
    number: str,
    nodes: int = 1,
    minutes: float = 10,
    *,
    on: str = "",
    planned: str = "",
    at: float | None = None,
    alone: bool = False,
    cpus: int = 1,
    gpus: int = 0,
    mem: str = "500M",
    partition: str = "gpu",
    priority: int = 100,
    reason: str = "Priority",
) -> str:
    """A line of squeue: of a job that runs ``on`` hosts since ``at`` (in minutes from now), or waits, with its plan."""
    begin = NOW + (at or 0) * MINUTE
    when = f"{begin:.0f}|{begin + minutes * MINUTE:.0f}" if on or at is not None else "N/A|N/A"
    sizes = (
        f"cpu={cpus * nodes},mem={mem},node={nodes},billing=1|{f'gres/gpu:{gpus}' if gpus else 'N/A'}|N/A|N/A|{nodes}"
    )
    state, why = ("R", "None") if on else ("PD", reason)
    limit = f"{int(minutes)}:00"
    return (
        f"{number}|{state}|{partition}|{priority}|{when}|{limit}|{sizes}|{'NO' if alone else 'OK'}|{on}|"
        f"{planned or '(null)'}|{why}|"
    )


def asked(nodes: int = 1, minutes: float = 5, partition: str = "gpu", **values: Any) -> ComponentRequest:
    time = int(minutes * MINUTE) or None
    given = {"cpus": 1, "mem": 0, "keys": {}, **values}
    return ComponentRequest(partitions=(partition,), nodes=nodes, time=time, **given)


def estimate(
    request: ComponentRequest, *jobs: str, told: float = 0, config: str = CONFIG, partitions: str = PARTITIONS
) -> Estimate:
    """told: what --test-only says, in minutes from now."""
    queue = backfill.parse(config, partitions, "\n".join(jobs))
    return backfill.estimate(Estimate(NOW + told * MINUTE), queue, SITE, request, NOW)


def minutes(request: ComponentRequest, *jobs: str, **more: Any) -> float:
    found = estimate(request, *jobs, **more)
    assert not found.at_most
    assert found.start is not None
    return (found.start - NOW) / MINUTE


THREE = job("1", 3, 10, on="n[1-3]", alone=True)
BIG = job("2", 4, 120, planned="n[1-4]", at=10, reason="Resources")


@pytest.mark.parametrize(("long", "start"), [(5, 0), (10, 0), (11, 10), (30, 10)])
def test_a_job_fits_the_hole_before_a_planned_one_or_starts_beside_it(long: float, start: float) -> None:
    assert minutes(asked(minutes=long), THREE, BIG) == start


def test_behind_a_planned_job_that_takes_whole_nodes() -> None:
    alone = job("2", 4, 120, planned="n[1-4]", at=10, alone=True)
    assert minutes(asked(minutes=30), THREE, alone) == 130


def test_jobs_that_slurm_plans_one_behind_the_other_start_together_where_there_is_room() -> None:
    """Slurm keeps whole nodes for what it plans, and starts what fits beside it."""
    more = [job(str(number), 4, 120, planned="n[1-4]", at=10 + 120 * (number - 2), cpus=3) for number in (2, 3, 4)]
    assert minutes(asked(minutes=30, cpus=2), THREE, *more[:2]) == 10
    assert minutes(asked(minutes=30, cpus=3), THREE, *more) == pytest.approx(130)


def test_jobs_without_a_plan_are_planned_in_the_order_of_their_priorities() -> None:
    full = job("1", 4, 10, on="n[1-4]", alone=True)
    waiting = [job("3", 4, 60, alone=True, priority=50), job("4", 2, 20, alone=True, priority=90)]
    assert minutes(asked(minutes=20), full, *waiting) == 10  # beside the second, before the first
    assert minutes(asked(minutes=21), full, *waiting) == 90


def test_elements_of_an_array_wait_one_after_another() -> None:
    full, array = job("1", 4, 10, on="n[1-4]", alone=True), job("2_[3-10,13]", 1, 30, alone=True)
    assert minutes(asked(), full, array) == 10 + 2 * 30


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_elements_of_an_array_run_at_once_than_it_allows(limit: int) -> None:
    """Of 4 nodes, the others stay free; without an end in sight of one, its place stays taken."""
    runs = [job(f"2_{number}", 1, 10, on=f"n{number}", alone=True) for number in range(1, limit + 1)]
    array = job(f"2_[4-50%{limit}]", 1, 10, alone=True, reason="JobArrayTaskLimit")
    assert minutes(asked(4 - limit, minutes=60), *runs, array) == 0
    assert minutes(asked(5 - limit, minutes=60), *runs, array) > 100


def test_elements_of_an_array_that_end_at_the_same_moment_are_told_apart() -> None:
    assert minutes(asked(4, minutes=60), job("2_1", 1, 10, on="n1"), job("2_[2-7%2]", 1, 10, alone=True)) == 40


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency", "BeginTime", "QOSMaxJobsPerUserLimit"])
def test_jobs_that_do_not_wait_for_room_are_passed(reason: str) -> None:
    assert minutes(asked(minutes=60), job("2", 4, 120, at=10, planned="n[1-4]", reason=reason), told=120 + 7) == 7
    assert minutes(asked(minutes=60), job("2", 4, 120, priority=0), told=7) == 7


@pytest.mark.parametrize(
    "reason",
    [
        *("None", "Resources", "ReqNodeNotAvail, Reserved for maintenance", "JobArrayTaskLimit"),
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    ],
)
def test_jobs_that_wait_for_room_come_first(reason: str) -> None:
    large = job("2", 4, 120, planned="n[1-4]", at=10, alone=True, reason=reason)
    assert minutes(asked(minutes=60), THREE, large) == 130


def test_where_no_job_waits_before_it_the_answer_of_test_only_counts() -> None:
    assert minutes(asked(), THREE, told=3.5) == 3.5
    below = job("2", 4, 120, planned="n[1-4]", at=10, partition="low")
    assert minutes(asked(minutes=60), THREE, below, told=3.5) == 3.5


def test_what_test_only_says_apart_from_the_jobs_that_wait_is_the_least() -> None:
    """Such as the end of a reservation: of 600 minutes, the job that waits makes 120."""
    assert minutes(asked(), THREE, BIG, told=600) == pytest.approx(480)


def test_a_job_that_starts_later_than_there_is_room_needs_room_then() -> None:
    """As for a reservation that ends when a job begins that waits; told: 10 minutes, and the 120 of that job."""
    whole = job("2", 4, 120, planned="n[1-4]", at=10, alone=True)
    assert minutes(asked(minutes=5), THREE, whole, told=120 + 10) == 130


def test_mem_0_is_all_memory_of_a_node() -> None:
    running = job("1", 4, 10, on="n[1-4]", mem="8000M")
    assert minutes(asked(minutes=5, options={"mem": "0"}), running, job("2", 4, 120, cpus=8)) == 130


def test_jobs_that_make_room_for_a_higher_tier_are_no_hindrance() -> None:
    running = job("1", 4, 600, on="n[1-4]", alone=True, partition="low")
    waits = job("2", 2, 10, planned="n[1-2]", at=0, alone=True)
    assert minutes(asked(), running, waits) == 0
    assert minutes(asked(partition="low"), running, waits) == pytest.approx(600)


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({"gpus": 1}, 0),
        ({"gpus": 3}, 20),
        ({"mem": 13_000}, 20),
        ({"cpus": 6}, 0),
        ({"options": {"exclusive": ""}}, 20),
        ({"gpus": 1, "options": {"exclude": "n[2-4]"}}, 30),
        ({"options": {"nodelist": "n1"}}, 30),
        ({"gpus": 1, "features": ("v100",)}, 0),
    ],
)
def test_gpus_memory_and_hosts_count(values: dict[str, Any], start: float) -> None:
    jobs = (
        job("1", 1, 30, on="n1", alone=True),
        job("2", 3, 20, on="n[2-4]", gpus=2, mem="12000M"),
        job("3", 1, 10, planned="n1", at=30, alone=True),  # there, so that --test-only is not believed
    )
    assert minutes(asked(minutes=25, **values), *jobs) == pytest.approx(start if start < 30 else 40)


@pytest.mark.parametrize(
    ("config", "partition", "start"),
    [
        (CONFIG, "", 0),
        (CONFIG, "DefMemPerCPU=9000", 10),
        (CONFIG.replace("DefMemPerCPU            = 500", "DefMemPerNode = UNLIMITED"), "", 10),
        (CONFIG.replace("DefMemPerCPU            = 500", "DefMemPerNode = 100"), "", 0),
        (CONFIG.replace("CR_CORE_MEMORY", "CR_CORE"), "DefMemPerCPU=9000", 0),
    ],
)
def test_a_job_that_requests_no_memory_has_the_default_or_all(config: str, partition: str, start: float) -> None:
    running, waits = job("1", 4, 10, on="n[1-4]", mem="40000M"), job("2", 4, 20, planned="n[1-4]", at=10, alone=True)
    partitions = PARTITIONS.replace("DefMemPerNode=UNLIMITED", partition or "DefMemPerNode=UNLIMITED")
    found = minutes(asked(minutes=5), running, waits, config=config, partitions=partitions)
    assert found == (start and 30)


HIDDEN = CONFIG.replace("PrivateData             = none", "PrivateData             = accounts,jobs")


@pytest.mark.parametrize(
    ("jobs", "config", "latest"),
    [
        ([], HIDDEN, 600),
        ([THREE, job("2_[0-5000]", 4, 120)], CONFIG.replace("bf_interval=2", "bf_max_job_test=1000"), 480 + 5001 * 120),
        ([THREE, *(job(str(number), 4, 1) for number in range(501))], CONFIG, 600),
        ([THREE, *(job(str(number), 4, 2, partition="short") for number in range(501))], CONFIG, 600 + 501 * 2),
        (
            [THREE, *(job(str(number), 4, 1) for number in range(51))],
            CONFIG.replace("=2", "=2,bf_max_job_test=50"),
            600,
        ),
    ],
)
def test_where_not_all_that_waits_is_known_or_looked_at_only_the_sum_is(
    jobs: list[str], config: str, latest: float
) -> None:
    """--test-only counts the elements of an array once, and no jobs of other partitions."""
    assert estimate(asked(), *jobs, config=config, told=600) == Estimate(NOW + latest * MINUTE, at_most=True)
    assert estimate(asked(), config=HIDDEN) == Estimate(NOW)


@pytest.mark.parametrize(
    "options",
    [{"begin": "now+1hour"}, {"constraint": "v100|a100"}, {"gpus": "4"}, {"reservation": "r"}, {"switches": "1"}],
)
def test_what_only_slurm_understands_is_left_to_test_only(options: dict[str, str]) -> None:
    assert estimate(asked(options=options), THREE, BIG, told=600) == Estimate(NOW + 600 * MINUTE, at_most=True)


def test_jobs_without_an_end_are_left_to_test_only() -> None:
    endless = (
        job("1", 4, 10, on="n[1-4]", alone=True).replace(f"|{NOW:.0f}|", "|N/A|").replace("|10:00|", "|UNLIMITED|")
    )
    assert estimate(asked(), endless, BIG, told=600).at_most


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("cpu=8,mem=4G,node=2,billing=8|N/A|N/A|N/A|2", (2, (4, 0, 2048))),
        ("cpu=8,mem=4G,node=2,gres/gpu=6,gres/gpu:a100=6|gres/gpu:a100:3|N/A|N/A|2", (2, (4, 3, 2048))),
        ("cpu=2,mem=6G,node=2|N/A|gpu:3|N/A|2", (2, (1, 2, 3072))),
        ("cpu=4,node=1|N/A|N/A|gres/gpu:1|4", (1, (4, 4, 0))),
        ("cpu=4,node=1|gpu:a100:2,gpu:v100:1|N/A|N/A|4", (1, (4, 3, 0))),
        ("cpu=4,node=1|gpu|N/A|N/A|4", (1, (4, 1, 0))),
        ("|gres:tpu:2|||", (1, (1, 0, 0))),
    ],
)
def test_what_a_job_takes_on_each_node(sizes: str, expected: tuple[int, backfill.Room]) -> None:
    found = backfill.parse_job(f"7|PD|gpu|1|N/A|N/A|5:00|{sizes}|OK||(null)|None|")
    assert found is not None
    assert (found.nodes, found.each) == expected


@pytest.mark.parametrize(
    "line", ["", "JOBID|ST", "x" * 40, "|" * 16, "slurm_load_jobs error: down", THREE.replace("R", "CG")]
)
def test_other_lines_are_no_jobs(line: str) -> None:
    found = backfill.parse_job(line)
    assert found is None or not found.hosts


def test_partitions_that_have_nodes_in_common_count_together() -> None:
    assert backfill.beside(SITE, ["short"]) == ["gpu", "low", "short"]
    assert backfill.beside(SITE, ["cpu", "nosuch"]) == ["cpu"]


def test_a_job_with_an_unlimited_walltime_waits_until_all_is_free() -> None:
    full = job("1", 4, 10, on="n[1-4]", alone=True)
    forever = job("2", 1, 10, priority=10).replace("|10:00|", "|UNLIMITED|")
    found = backfill.parse_job(forever)
    assert found is not None
    assert found.length == math.inf
    assert minutes(asked(cpus=8), full, forever) == 10
