"""Leader, GPUs by role and task types of a job's own, on hosts that are exactly full; for every scheduler."""

from __future__ import annotations

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob

# A host of the test bed has four GPUs with Slurm, two with Grid Engine.
SIZES = {
    "slurm": (4, 6, ("--nodes", "2", "--gpus-per-node", "4")),
    "sge": (2, 2, ("--pe", "two")),
}
JOB = """
command = ["bash", "-c", "echo $GRIDTF_TASK_TYPE at {{beside_hosts}} sees $CUDA_VISIBLE_DEVICES"]
leader = "chief"

[tasks.chief]
gpus = 2

[tasks.worker]
count = {workers}
gpus = 1

[tasks.beside]
kind = "service"
count = 2
command = ["sleep", "600"]
"""


@on_every_scheduler
def test_chief_with_two_gpus_workers_with_one_and_services_fill_two_hosts(bed: Bed) -> None:
    per_host, workers, words = SIZES[bed.kind]
    file = bed.home() / "roles.toml"
    file.write_text(JOB.format(workers=workers))
    job = ClusterJob(bed, bed.seen(file), *bed.options, *words, "--time", "10")
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED", (verdict, job.output, job.logs())
    gpus = job.gpus()
    assert len(gpus["chief:0"][1]) == 2
    assert [len(gpus[f"worker:{index}"][1]) for index in range(workers)] == [1] * workers
    used = [(host, number) for host, numbers in gpus.values() for number in numbers]
    hosts = {host for host, _ in used}
    assert sorted(used) == sorted((host, str(number)) for host in hosts for number in range(per_host))
    assert len(hosts) == 2
    assert {gpus[f"beside:{index}"][0] for index in range(2)} == hosts
    tasks = job.tasks()
    assert [tasks[f"beside:{index}"]["state"] for index in range(2)] == ["STOPPED", "STOPPED"]
    said = job.logs()["chief-0"]
    assert said.startswith("chief at ")
    assert said.partition(" sees ")[2].strip() == ",".join(gpus["chief:0"][1])
    assert said.count(":") == 2, "host:port of both services"
