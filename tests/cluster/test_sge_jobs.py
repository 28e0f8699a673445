"""Jobs on a real Grid Engine, as a plain user sees them from the login host, handed over by DRMAA and by qsub."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridtf.run.rundir import RunDir, read_record
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterjobs import ClusterJob, gridtf

pytestmark = pytest.mark.timeout(120)

TELL = 'echo "$GRIDTF_TASK_TYPE $GRIDTF_TASK_INDEX rank $RANK of $WORLD_SIZE on $HOSTNAME" "gpu $CUDA_VISIBLE_DEVICES"'
# What shells, and Grid Engine's own parsers, read in other ways than a program does.
NASTY = [
    "a b",
    "$HOME",
    "`id`",
    "q'uo\"te",
    "",
    "*",
    "back\\slash",
    "ümlaut",
    "two\nlines",
    "a,b=c",
    "#$ -l x",
    "%s;&|",
]
REPEAT = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['NASTY'], os.environ['HOSTNAME']]))"


def submitted(bed: Bed, *words: str, name: str = "tell", command: str = TELL, **more: Any) -> ClusterJob:
    return ClusterJob(bed, "--env", "PYTHONPATH", "--name", name, *words, "--", "bash", "-c", command, **more)


@pytest.mark.parametrize("way", ["drmaa", "qsub"])
def test_from_submit_to_logs_in_other_processes(sge: Bed, way: str) -> None:
    env = {"GRIDTF_SGE_SUBMIT": way}
    job = submitted(sge, "--pe", "rr", "--workers", "8", "--gpus-per-task", "1", "--time", "10", name=way, env=env)
    for word in (job.id, way, job.seen_as):
        assert f"{way} ({job.id}): COMPLETED" in gridtf(sge, "wait", word).stdout
    view = job.status()
    assert (view["state"], view["scheduler"], view["job_id"]) == ("COMPLETED", "sge", job.id)
    tasks = [(task["name"], task["host"], task["state"], task["exit"]) for task in view["tasks"]]
    assert tasks == [(f"worker:{index}", f"n{1 + index // 2}", "COMPLETED", 0) for index in range(8)]
    assert job.id in gridtf(sge, "list").stdout
    assert "worker 3 rank 3 of 8 on n2 gpu " in job.gridtf("logs", "--task", "worker:3").stdout
    assert job.gridtf("logs", "--task", "job").stdout == job.output
    record = read_record(job.run.submitted) or {}
    assert (record["by"], record["scheduler"]) == (way, "sge")
    assert not job.attempt.environment.exists()  # it is nobody's business once all hosts have read it


@pytest.mark.parametrize("way", ["drmaa", "qsub"])
def test_cancel_in_another_process(sge: Bed, way: str) -> None:
    more = {"env": {"GRIDTF_SGE_SUBMIT": way}}
    job = submitted(sge, "--pe", "rr", "--workers", "4", name="long", command="sleep 300", **more)
    job.running(4)
    assert job.status()["state"] == "RUNNING"
    elsewhere = gridtf(sge, "status", "--json", job.id, user="root", cwd="/")  # in whose index it is not
    assert json.loads(elsewhere.stdout)["run_dir"] == job.seen_as
    assert "CANCELLED" in gridtf(sge, "cancel", job.id).stdout
    assert job.verdict()["reason"] == "cancelled by alice on login"
    assert "has ended" in gridtf(sge, "cancel", job.id).stdout or job.status()["state"] == "CANCELLED"


def test_words_and_environment_arrive_as_they_are_on_every_host(sge: Bed) -> None:
    nasty = "".join(NASTY)
    words = ["--env", "PATH", "--env", f"NASTY={nasty}", "--pe", "one", "--workers", "4", "--name", "nasty"]
    job = ClusterJob(sge, "--env", "PYTHONPATH", *words, "--", "python", "-c", REPEAT, *NASTY)
    assert job.verdict()["state"] == "COMPLETED"
    said = [json.loads(text) for text in job.logs().values()]
    assert said == [[NASTY, nasty, host] for host in ("n1", "n2", "n3", "n4")]


def test_as_many_slots_as_there_are_in_a_range(sge: Bed) -> None:
    job = submitted(sge, "--pe", "rr", "--slots", "2-64", name="range")
    assert job.verdict()["state"] == "COMPLETED"
    assert len(job.logs()) == 16


@pytest.mark.parametrize("pe", ["fill", "rr"])
def test_a_count_that_tasks_per_node_does_not_divide(sge: Bed, pe: str) -> None:
    """The parallel environment decides over how many hosts the slots are: four on one, or one on each."""
    asked = ((3, ()), (5, ()), (5, ("--nodes", "4")), (2, ()))
    jobs = [
        submitted(sge, "--pe", pe, "--tasks-per-node", "2", "--workers", str(count), *more) for count, more in asked
    ]
    example = (f"{CHECKOUT}/examples/multiworker/gridtf.toml", "--pe", pe, "--workers", "5")
    jobs.append(submitted(sge, *example, "--run-root", "runs"))
    for (count, _), job in zip((*asked, (5, ())), jobs, strict=True):
        verdict = job.verdict()
        assert verdict["state"] == "COMPLETED", (verdict, job.output)
        assert len(job.logs()) == count


def test_every_element_of_an_array_is_a_job_of_its_own(sge: Bed) -> None:
    fails = f"{TELL}; [ $SGE_TASK_ID != 2 ]"
    job = submitted(sge, "--pe", "rr", "--workers", "2", "--native=-t 1-3", name="many", command=fails)
    done = job.gridtf("wait", check=False)
    assert done.returncode == 1
    assert "array of 3: 2 COMPLETED, 1 FAILED; element 2 FAILED: worker:" in done.stdout
    assert f"gridtf status {job.seen_as}/array/2" in done.stdout
    for element, state in (("1", "COMPLETED"), ("2", "FAILED"), ("3", "COMPLETED")):
        view = json.loads(gridtf(sge, "status", "--json", f"{job.id}.{element}").stdout)
        assert (view["state"], view["name"]) == (state, f"many_{element}")
        run = RunDir(job.run.elements / element)
        assert "worker 0 rank 0 of 2" in run.attempt(1).task_log("worker", 0).read_text()
        assert f"{state}: " in run.log.read_text()
    assert not job.run.attempts()


def test_a_dry_run_changes_nothing_and_is_what_runs(sge: Bed) -> None:
    words = (
        "--scheduler",
        "sge",
        "--pe",
        "fill",
        "--workers",
        "2",
        "--time",
        "30",
        "--name",
        "dry",
        "--env",
        "PYTHONPATH",
    )
    there = ("--run-dir", "/mnt/shared/home/alice/dry-run")
    shown = gridtf(sge, "render", *words, *there, "--", "bash", "-c", TELL)
    assert not (sge.home("alice") / "dry-run").exists()
    job = ClusterJob(sge, *words, *there, "--", "bash", "-c", TELL)
    assert job.run.script.read_text() == shown.stdout
    assert job.verdict()["state"] == "COMPLETED"
