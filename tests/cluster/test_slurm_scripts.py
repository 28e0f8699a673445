"""Hand-written sbatch scripts on a real Slurm cluster: the examples, and what gridtf_run makes of a job."""

from __future__ import annotations

import json
import re
import time
from collections import Counter

import pytest

from gridtf.run.rundir import RunDir
from gridtf.schedulers.slurm.hostlist import counts
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterscripts import (
    ENTER,
    HOME,
    NODES,
    RUN,
    SAVES,
    TASK,
    TELL,
    Batch,
    Folder,
    joined_tasks_ended,
    logs,
    nothing_left,
    one_gpu_each,
    told,
)
from tests.support.examples import stated_accuracy

pytestmark = pytest.mark.timeout(120)


# --- the examples


@pytest.mark.tensorflow
@pytest.mark.timeout(290)
@pytest.mark.parametrize("script", ["run.sh", "join.sh"])
def test_example(slurm: Bed, script: str) -> None:
    folder = Folder(slurm, "slurm_scripts")
    folder.run("cp", "-r", f"{CHECKOUT}/examples/slurm_scripts", HOME)
    # each task says where it is and what it sees, then becomes the program
    (folder.path / script).write_text(
        (folder.path / script).read_text().replace("python train.py", r"""bash -c "$TELL; exec python train.py" """)
    )
    job = folder.sbatch(script, f"--export=ALL,TELL={TELL}").ended(240)
    (run,) = folder.runs(job.id)
    reached = json.loads((run.output / "result.json").read_text())["accuracy"]
    assert stated_accuracy("slurm_scripts") <= reached <= 1
    tasks = told(job.output + "\n".join(logs(run)))
    one_gpu_each(tasks, 8)
    assert [tasks[f"worker:{index}"].host for index in range(8)] == [host for host in NODES for _ in "ab"]
    if script == "join.sh":
        joined_tasks_ended(folder, run, "COMPLETED", "the job they were a part of has ended", code=0)


# --- gridtf_run


def test_a_script_that_inherits_nothing(slurm: Bed) -> None:
    folder = Folder(slurm, "inherits-nothing")
    script = f"{ENTER}\n{RUN}gridtf_run -- {TASK}"
    job = folder.sbatch(script, "--export=NONE", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2").ended()
    one_gpu_each(folder.tasks(job.id), 4)


def test_every_element_of_an_array_has_a_run_of_its_own(slurm: Bed) -> None:
    folder = Folder(slurm, "array")
    script = f"""{RUN}gridtf_run --name tell -- bash -c '{TELL}; [ "$SLURM_ARRAY_TASK_ID" != 2 ]' || [ $? = 1 ]"""
    job = folder.sbatch(script, "--array=1-3", "--nodes=1", "--gpus-per-node=2").ended()
    assert [run.path.name for run in folder.runs(job.id)] == [f"tell-{job.id}_{element}" for element in (1, 2, 3)]
    assert folder.verdicts(job.id) == ["COMPLETED", "FAILED", "COMPLETED"]
    status = json.loads(folder.run("gridtf", "status", "--json", f"{job.id}_2"))
    assert (status["state"], status["name"]) == ("FAILED", "tell_2")
    said = folder.run("gridtf", "status", job.id)
    assert [line.split()[0] for line in said.splitlines()[1:4]] == ["tell_1", "tell_2", "tell_3"]
    assert re.search(rf"^{job.id}_2: worker:\d on n1: exit code 1$", said, re.MULTILINE), said


def test_several_runs_in_one_script(slurm: Bed) -> None:
    folder = Folder(slurm, "several")
    runs = (f"-- {TASK}", f"--ps 1 -- {TASK}", "-- false || echo code=$?")
    script = RUN + "\n".join(f"gridtf_run --name tell {run}" for run in runs)
    job = folder.sbatch(script, "--nodes=2", "--gpus-per-node=1").ended()
    assert [run.path.name for run in folder.runs(job.id)] == [f"tell-{job.id}{more}" for more in ("", "-2", "-3")]
    assert folder.verdicts(job.id) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert "code=1" in job.output
    second = told("\n".join(logs(folder.runs(job.id)[1])))
    assert second.pop("ps:0").gpus == ()
    one_gpu_each(second, 2)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        pytest.param(["--nodes=2-4", "--ntasks-per-node=2", "--gpus-per-node=2"], [2, 2, 2, 2], id="range"),
        pytest.param(["--nodes=2", "--exclusive"], [4, 4], id="exclusive"),
        pytest.param(["--nodes=2", "--ntasks=2", "--gpus=3"], [1, 2], id="gpus"),
        pytest.param(["--nodes=2", "--ntasks=3", "--gpus-per-task=1"], [1, 2], id="gpus-per-task"),
    ],
)
def test_one_task_per_gpu_however_they_were_asked_for(slurm: Bed, options: list[str], shape: list[int]) -> None:
    folder = Folder(slurm, "shapes")
    job = folder.sbatch(f"{RUN}gridtf_run -- {TASK}", *options).ended()
    tasks = folder.tasks(job.id)
    one_gpu_each(tasks, sum(shape))
    assert sorted(Counter(task.host for task in tasks.values()).values()) == shape


def test_tasks_without_gpus_go_where_slurm_laid_them_out(slurm: Bed) -> None:
    folder = Folder(slurm, "uneven")
    script = f"{RUN}echo laid out: $SLURM_TASKS_PER_NODE\ngridtf_run -- {TASK}"
    job = folder.sbatch(script, "--nodes=2", "--ntasks=5").ended()
    tasks = folder.tasks(job.id)
    shape = counts(re.findall(r"laid out: (\S+)", job.output)[0])
    assert len(tasks) == 5
    on = Counter(task.host for task in tasks.values())
    assert [on[host] for host in sorted(on)] == list(shape)
    assert not any(task.gpus or task.granted for task in tasks.values())


def test_a_hand_written_heterogeneous_job(slurm: Bed) -> None:
    folder = Folder(slurm, "het")
    (folder.path / "job.toml").write_text('[tasks.ps]\ncount = 1\npartition = "cpu"\n')
    head = ["--nodes=2 --ntasks-per-node=2 --gpus-per-node=2", "hetjob", "--partition=cpu --ntasks=1"]
    lines = "".join(f"#SBATCH {line}\n" for line in head)
    job = folder.sbatch(f"{lines}{RUN}gridtf_run job.toml -- {TASK}").ended()
    tasks = folder.tasks(job.id)
    assert tasks.pop("ps:0").host == "c1"
    one_gpu_each(tasks, 4)


def test_a_rendered_script_can_be_piped_to_sbatch(slurm: Bed) -> None:
    folder = Folder(slurm, "piped")
    options = "--scheduler slurm --nodes 2 --gpus-per-node 2 --run-dir there"
    said = folder.run("bash", "-c", f"gridtf render {options} -- {TASK} | sbatch --parsable")
    Batch(folder, said.strip()).ended()
    run = RunDir(folder.path / "there")
    one_gpu_each(told("\n".join(logs(run))), 4)
    status = json.loads(folder.run("gridtf", "status", "--json", "there"))
    assert (status["state"], status["job_id"]) == ("COMPLETED", said.strip())


def test_tasks_can_save_when_the_job_is_cancelled(slurm: Bed) -> None:
    folder = Folder(slurm, "saves")
    (folder.path / "task.sh").write_text(SAVES)
    job = folder.sbatch(f"{RUN}gridtf_run --name saves -- bash task.sh", "--nodes=2", "--gpus-per-node=1")
    job.until_said("started", 2)
    folder.run("scancel", job.id)
    job.until_said("saved", 2)
    nothing_left(slurm)
    assert folder.verdicts(job.id) == ["CANCELLED"]


def test_tasks_can_save_when_another_one_fails(slurm: Bed) -> None:
    folder = Folder(slurm, "fails")
    (folder.path / "task.sh").write_text("[ $RANK != 1 ] || { echo started; sleep 1; exit 3; }\n" + SAVES)
    script = f"{RUN}gridtf_run --name fails -- bash task.sh || echo code=$?"
    job = folder.sbatch(script, "--nodes=2", "--gpus-per-node=1").ended()
    assert "code=1" in job.output
    assert "worker:1 on n2: exit code 3" in job.output
    assert "saved" in logs(folder.runs(job.id)[0])[0]


def test_a_signal_from_the_user_is_for_the_tasks(slurm: Bed) -> None:
    folder = Folder(slurm, "usr1")
    (folder.path / "task.sh").write_text(SAVES)
    job = folder.sbatch(f"{RUN}gridtf_run -- bash task.sh", "--nodes=2", "--gpus-per-node=1")
    job.until_said("started", 2)
    folder.run("scancel", "--signal=USR1", job.id)
    job.until_said("time for a checkpoint", 2)
    time.sleep(1)  # enough to notice an agent that has died of it
    assert [state for state, _ in job.states()] == ["RUNNING"]
    assert folder.verdicts(job.id) == [""]
