"""Hand-written sbatch scripts on a real Slurm cluster. Tests for every scheduler are in test_scripts.py."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest
import yaml

from gridtf.run.rundir import RunDir
from gridtf.schedulers.slurm.hostlist import counts
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import EVERYWHERE, no_process_left
from tests.support.clusterscripts import (
    ENTER,
    ENVIRON,
    RUN,
    SAVES,
    TASK,
    Folder,
    logs,
    one_gpu_each,
)
from tests.support.ondemand import rendered

# Prints its TF_CONFIG without ports, its GPU, and fails in one task if that is asked for.
PLACE = """\
import json, os, sys
def check(labels):
    for label in labels:
        if label > 9:
            raise ValueError(f"bad label {label}")
place = json.loads(os.environ["TF_CONFIG"])
place["cluster"]["worker"] = [host.partition(":")[0] for host in place["cluster"]["worker"]]
print("place", json.dumps({**place, "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}, sort_keys=True), flush=True)
if "fail" in sys.argv and place["task"]["index"] == 10:
    check([3, 1, 11])
"""


def test_script_of_the_readme_and_its_one_line_give_tasks_the_same_places(slurm: Bed) -> None:
    """What the README shows as before and after; and the verdict of the latter, where a task fails."""
    folder = Folder(slurm, "readme")
    (folder.path / "train.py").write_text(PLACE)
    section = (CHECKOUT / "README.md").read_text(encoding="utf-8").split("\n## Before and after\n")[1]
    blocks = re.findall(r"^```\w*\n((?:#!/bin/bash|gridtf submit).*?)^```$", section, re.MULTILINE | re.DOTALL)
    script, line = blocks[:2]
    job = folder.sbatch(script).ended()
    before = sorted(re.findall("place (.*)", job.output))
    assert len(before) == 16, job.output
    folder.run("bash", "-c", f"{line}gridtf wait train")
    (run,) = folder.path.glob("gridtf-runs/*")
    assert sorted(re.findall("place (.*)", "".join(logs(RunDir(run))))) == before
    verdict = folder.run("bash", "-c", f"{line.rstrip()} fail\ngridtf wait train || true")
    shown = re.escape("".join(re.findall(r"\$ gridtf wait train\n(.*?)```", section, re.DOTALL)))
    assert re.search(re.sub(r"train\\ \\\(\d+\\\)|after\\ \d+", lambda _: ".*", shown), verdict), verdict


def test_script_with_export_none(slurm: Bed) -> None:
    folder = Folder(slurm, "inherits-nothing")
    script = f"{ENTER}\n{RUN}gridtf_run -- {TASK}"
    job = folder.sbatch(script, "--export=NONE", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2").ended()
    one_gpu_each(folder.tasks(job.id), 4)


@pytest.mark.parametrize("gpus", [0, 2])
def test_session_of_open_ondemand(slurm: Bed, gpus: int) -> None:
    """The app of packaging/ondemand, submitted with the options that it asks for."""
    folder = Folder(slurm, f"session-{gpus}")
    typed = {"modules": "", "command": TASK, "folder": folder.seen_as, "nodes": 2, "gpus_per_node": gpus}
    script = rendered("template/script.sh.erb", **typed)
    native = yaml.safe_load(rendered("submit.yml.erb", **typed))["script"]["native"]
    job = folder.sbatch(script, *native).ended()
    tasks = folder.tasks(job.id)
    assert Counter(task.host for task in tasks.values()) == {"n1": 2, "n2": 2}, job.output
    assert {task.gpus for task in tasks.values()} == ({("0",), ("1",)} if gpus else {()})


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        pytest.param(["--nodes=2-4", "--ntasks-per-node=2", "--gpus-per-node=2"], [2, 2, 2, 2], id="range"),
        pytest.param(["--nodes=2", "--exclusive"], [4, 4], id="exclusive"),
        pytest.param(["--nodes=2", "--ntasks=2", "--gpus=3"], [1, 2], id="gpus"),
        pytest.param(["--nodes=2", "--ntasks=3", "--gpus-per-task=1"], [1, 2], id="gpus-per-task"),
    ],
)
def test_one_task_per_gpu_for_all_ways_to_request_them(slurm: Bed, options: list[str], shape: list[int]) -> None:
    folder = Folder(slurm, "shapes")
    job = folder.sbatch(f"{RUN}gridtf_run -- {TASK}", *options).ended()
    tasks = folder.tasks(job.id)
    one_gpu_each(tasks, sum(shape))
    assert sorted(Counter(task.host for task in tasks.values()).values()) == shape


def test_tasks_do_not_inherit_the_cpus_of_their_agent(slurm: Bed) -> None:
    folder = Folder(slurm, "own-cpus")
    (folder.path / "task.sh").write_text("echo on $SLURMD_NODENAME; env | grep ^SLURM.*PER_TASK || true")
    job = folder.sbatch(f"{RUN}gridtf_run -- bash task.sh", "--ntasks=2", "--cpus-per-task=2").ended()
    assert logs(folder.runs(job.id)[0]) == ["on n1\n"] * 2


def test_tasks_without_gpus_follow_slurm_s_task_layout(slurm: Bed) -> None:
    folder = Folder(slurm, "uneven")
    script = f"{RUN}echo laid out: $SLURM_TASKS_PER_NODE\ngridtf_run -- {TASK}"
    job = folder.sbatch(script, "--nodes=2", "--ntasks=5").ended()
    tasks = folder.tasks(job.id)
    shape = counts(re.findall(r"laid out: (\S+)", job.output)[0])
    assert len(tasks) == 5
    on = Counter(task.host for task in tasks.values())
    assert [on[host] for host in sorted(on)] == list(shape)
    assert not any(task.gpus or task.granted for task in tasks.values())


def test_heterogeneous_job(slurm: Bed) -> None:
    folder = Folder(slurm, "het")
    (folder.path / "job.toml").write_text('[tasks.ps]\ncount = 1\npartition = "cpu"\n')
    head = ["--nodes=2 --ntasks-per-node=2 --gpus-per-node=2", "hetjob", "--partition=cpu --ntasks=1"]
    lines = "".join(f"#SBATCH {line}\n" for line in head)
    job = folder.sbatch(f"{lines}{RUN}gridtf_run job.toml -- {TASK}").ended()
    tasks = folder.tasks(job.id)
    assert tasks.pop("ps:0").host == "c1"
    one_gpu_each(tasks, 4)


def test_two_runs_at_once_take_turns_with_the_gpus(slurm: Bed) -> None:
    folder = Folder(slurm, "turns")
    (folder.path / "task.sh").write_text("date +%s.%N; sleep 2; date +%s.%N")
    runs = "".join(f"gridtf_run --name {name} -- bash task.sh & " for name in ("one", "two"))
    job = folder.sbatch(f"{RUN}{runs}wait", "--nodes=2", "--gpus-per-node=1").ended()
    times = [[float(line) for log in logs(run) for line in log.split()] for run in folder.runs(job.id)]
    first, second = sorted(times)
    assert len(first) == len(second) == 4
    assert max(first) < min(second)


def test_job_is_found_by_its_id_whatever_it_was_submitted_with(slurm: Bed) -> None:
    folder = Folder(slurm, "found")
    job = folder.on_two_hosts(
        "gridtf_run -- true", "--job-name=found", "--comment=two\nlines WorkDir=/no JobName=no"
    ).ended()
    status = folder.run("gridtf", "status", job.id, env={**ENVIRON, "XDG_STATE_HOME": "/tmp/without-an-index"})
    assert f"{folder.seen_as}/gridtf-runs/found-{job.id}" in status


def test_tasks_can_save_when_the_job_is_cancelled(slurm: Bed) -> None:
    folder = Folder(slurm, "saves")
    (folder.path / "task.sh").write_text(SAVES)
    job = folder.sbatch(f"{RUN}gridtf_run --name saves -- bash task.sh", "--nodes=2", "--gpus-per-node=1")
    job.until_printed("started", 2)
    folder.run("scancel", job.id)
    job.until_printed("saved", 2)
    no_process_left(slurm, EVERYWHERE)
    assert folder.verdicts(job.id) == ["CANCELLED"]


def test_tasks_can_save_when_another_one_fails(slurm: Bed) -> None:
    folder = Folder(slurm, "fails")
    once_the_other_can_save = "until grep -q started $GRIDTF_RUN_DIR/*/logs/worker-0.log; do sleep 0.1; done"
    fails = f"[ $RANK != 1 ] || {{ echo started; {once_the_other_can_save}; exit 3; }}\n"
    (folder.path / "task.sh").write_text(fails + SAVES)
    script = f"{RUN}gridtf_run --name fails -- bash task.sh || echo code=$?"
    job = folder.sbatch(script, "--nodes=2", "--gpus-per-node=1").ended()
    assert "code=1" in job.output
    assert "worker:1 on n2: exit code 3" in job.output
    assert "saved" in logs(folder.runs(job.id)[0])[0]


def test_scancel_signal_usr1_reaches_the_tasks(slurm: Bed) -> None:
    folder = Folder(slurm, "usr1")
    (folder.path / "task.sh").write_text(SAVES)
    job = folder.sbatch(f"{RUN}gridtf_run -- bash task.sh", "--nodes=2", "--gpus-per-node=1")
    job.until_printed("started", 2)
    folder.run("scancel", "--signal=USR1", job.id)
    job.until_printed("time for a checkpoint", 2)
    time.sleep(1)  # enough to notice an agent that the signal has killed
    assert [state for state, _ in job.states()] == ["RUNNING"]
    assert folder.verdicts(job.id) == [""]
