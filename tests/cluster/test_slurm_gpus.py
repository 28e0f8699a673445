"""GPUs on a real Slurm cluster: tasks see the GPUs that Slurm grants, with and without control groups."""

from __future__ import annotations

import re

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob, refused
from tests.support.clusterscripts import RUN, TASK, Folder, logs, parse_tasks

# The devices have no driver: opening one fails with "No such device", or otherwise if a control group forbids it.
LOOK = """
echo "sees $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES $ZE_AFFINITY_MASK on $SLURMD_NODENAME"
for device in /run/testbed/gpu*; do
    (: <"$device") 2>&1 | grep -q "No such device" && echo "opens ${device##*/gpu}"
done
while [ ! -e "$OUTPUT_DIR/enough" ]; do sleep 0.1; done
"""


def look(bed: Bed, name: str) -> ClusterJob:
    words = ("--scheduler", "slurm", "--nodes", "2", "--gpus-per-node", "2", "--name", name)
    return ClusterJob(bed, *words, "--", "bash", "-c", LOOK)


def seen(job: ClusterJob) -> list[tuple[str, str, set[str]]]:
    """(host, value of all GPU variables, devices that can be opened) of each task."""
    tasks = []
    for text in job.logs().values():
        match = re.match(r"sees (\d) (\d) (\d?) on (\S+)", text)
        assert match, text
        assert len({*match.group(1, 2), match[3] or match[1]}) == 1, text  # 20.11 does not set ZE_AFFINITY_MASK
        tasks.append((match[4], match[1], set(re.findall(r"opens (\d)", text))))
    return tasks


def both(bed: Bed) -> tuple[list[tuple[str, str, set[str]]], list[tuple[str, str, set[str]]]]:
    """What the tasks of two jobs see that share two hosts at the same time."""
    bed.run("ctl", "scontrol", "update", "nodename=n[3-4]", "state=drain", "reason=test", user="root")
    try:
        jobs = look(bed, "one"), look(bed, "other")
        for job in jobs:
            job.running(4)
        for job in jobs:
            (job.run.output / "enough").touch()
            assert job.verdict()["state"] == "COMPLETED"
        return seen(jobs[0]), seen(jobs[1])
    finally:
        bed.run("ctl", "scontrol", "update", "nodename=n[3-4]", "state=resume", user="root")


def test_two_jobs_on_the_same_hosts_have_different_gpus(slurm: Bed) -> None:
    one, other = both(slurm)
    assert {(host, gpu) for host, gpu, _ in one} == {(host, gpu) for host in ("n1", "n2") for gpu in ("0", "1")}
    assert {(host, gpu) for host, gpu, _ in other} == {(host, gpu) for host in ("n1", "n2") for gpu in ("2", "3")}


def test_two_jobs_with_constrained_devices_both_count_from_0(constrained_slurm: Bed) -> None:
    one, other = both(constrained_slurm)
    expected = {(host, gpu) for host in ("n1", "n2") for gpu in ("0", "1")}
    assert {(host, gpu) for host, gpu, _ in one} == {(host, gpu) for host, gpu, _ in other} == expected
    assert [opens for _, _, opens in one] == [{"0", "1"}] * 4
    assert [opens for _, _, opens in other] == [{"2", "3"}] * 4


def test_gpus_of_a_job_all_have_a_task(slurm: Bed) -> None:
    asked = ("--workers", "1", "--gpus-per-node", "4")
    message = refused(slurm, *asked, "--gpus-per-task", "1")
    assert "1 training task with 1 GPU would leave 3 of 4 GPUs without a task" in message
    assert "write --gpus-per-task 4 or --gpus-per-node 1" in message
    job = ClusterJob(slurm, "--scheduler", "slurm", *asked, "--", "bash", "-c", "echo on $CUDA_VISIBLE_DEVICES")
    assert job.verdict()["state"] == "COMPLETED"
    assert list(job.logs().values()) == ["on 0,1,2,3\n"]


def test_gpus_that_only_the_allocation_tells_are_noted(slurm: Bed) -> None:
    """A number of hosts that Slurm chooses, and scripts that run in more than they need."""
    words = ("--nodes", "1-2", "--workers", "3", "--gpus-per-node", "4", "--native=--nodes=2")
    job = ClusterJob(slurm, "--scheduler", "slurm", *words, "--", "true")
    assert job.verdict()["state"] == "COMPLETED"
    note = "no task uses 5 of 8 GPUs: 2 on n1, 3 on n2"
    assert note in job.gridtf("status").stdout
    assert f"gridtf: {note}\n" in job.output
    folder = Folder(slurm, "more-than-needed")
    runs = "".join(f"gridtf_run {words} -- {TASK}\n" for words in ("--gpus-per-node 2", "--workers 1", "--workers 3"))
    script = folder.sbatch(RUN + runs, "--nodes=1", "--gpus-per-node=4").ended()
    found = [parse_tasks("".join(logs(run))) for run in folder.runs(script.id)]
    assert sorted(sorted(task.gpus for task in tasks.values()) for tasks in found) == [
        [("0",), ("1",)],
        [("0",), ("1",), ("2",)],
        [("0", "1", "2", "3")],
    ]
    notes = re.findall(r"^gridtf: no task uses (.*)", script.output, re.MULTILINE)
    assert notes == ["2 of 4 GPUs: 2 on n1", "1 of 4 GPUs: 1 on n1"], script.output
