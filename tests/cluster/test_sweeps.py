"""Sweeps on real schedulers: one array, at most so many elements at once, each with a table row and few files."""

from __future__ import annotations

import json
import os
from typing import Any

from gridtf.run.rundir import RunDir, read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import admin, no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf

ONE_HOST = {"slurm": ("--nodes", "1"), "sge": ("--pe", "one", "--slots", "1")}
NO_SLOTS = {"slurm": ("--nodes", "1"), "sge": ("--pe", "one")}
FORBIDS = {"slurm": "--native=--no-requeue", "sge": "--native=-r n"}
ENV = ("--env", "PATH", "--env", f"PYTHONPATH={CHECKOUT}", "--workers", "1", "--kill-grace", "1")
FILES = ["attempts.tar.gz", "job.json", "job.log", "output", "result.json", "submitted.json"]
PROGRAM = """\
import os, sys, time
from pathlib import Path
import gridtf
run = Path(os.environ["GRIDTF_RUN_DIR"])
again = "rerun" in str(run)
gridtf.progress(1, loss=float(run.name))
Path(os.environ["OUTPUT_DIR"], "gpus").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
if run.name in sys.argv[2].split(",") and not again:
    time.sleep(600)
time.sleep(1)
sys.exit(run.name in sys.argv[1].split(",") and not again)
"""


class SweepJob(ClusterJob):
    """A sweep that alice has submitted. fails, waits: numbers of elements."""

    verb = "sweep"

    def __init__(self, bed: Bed, *words: str, count: int = 6, fails: str = "", waits: str = "") -> None:
        home = bed.home()
        (home / "swept.py").write_text(PROGRAM)
        text = f'name = "swept"\ncommand = ["python", "swept.py", "{fails}", "{waits}"]\n'
        text += f"[params]\nlayers = 4\n[sweep]\nlayers = {{from = 1, to = {count}}}\n"
        (home / "swept.toml").write_text(text)
        super().__init__(bed, "swept.toml", *bed.options, *ENV, *words)

    def rows(self) -> dict[int, dict[str, Any]]:
        return {row["element"]: row for row in json.loads(self.gridtf("list", "--json").stdout)}

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows().values()]

    def element(self, number: int) -> RunDir:
        return RunDir(self.run.elements / str(number))

    def wait(self, code: int = 0) -> None:
        done = self.gridtf("wait", "--timeout", "300", check=False, timeout=320)
        assert done.returncode == code, f"{done.stdout}{done.stderr}{self.bed.about(self.id)}"

    def again(self) -> str:
        """Run the failed ones again with more time; returns the new run directory, when all of it has ended."""
        new = str(json.loads(self.gridtf("rerun", "--failed", "--time", "9", "--json").stdout)["run_dir"])
        gridtf(self.bed, "wait", new, "--timeout", "300", timeout=320)
        return new


@on_every_scheduler
def test_at_most_so_many_elements_run_at_once_and_the_failed_ones_run_again(bed: Bed) -> None:
    job = SweepJob(bed, *ONE_HOST[bed.kind], "--at-once", "2", fails="2,5")
    job.wait(code=1)
    rows = job.rows()
    assert [row["state"] for row in rows.values()] == [
        "COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "FAILED", "COMPLETED",
    ]  # fmt: skip
    ends = [(read_record(job.element(number).result) or {})["verdict"] for number in rows]
    most = max(sum(other["started"] <= one["started"] < other["ended"] for other in ends) for one in ends)
    assert most == 2, ends
    for number, row in rows.items():
        assert row["params"] == {"layers": number}
        assert row["values"]["loss"]["last"] == number
        assert row["job_id"] == f"{job.id}{bed.element_separator}{number}"
        assert sorted(os.listdir(job.element(number).path)) == FILES
        assert row["cost"]["host_seconds"] >= 1
    view = json.loads(gridtf(bed, "status", "--json", rows[2]["job_id"]).stdout)
    assert (view["state"], view["name"]) == ("FAILED", "swept_2")
    assert "exit code 1" in gridtf(bed, "logs", rows[2]["job_id"], "job").stdout
    new = job.again()
    assert new == f"{job.seen_as}/rerun-1"
    assert job.states() == ["COMPLETED"] * 6
    assert sorted(os.listdir(job.run.path / "rerun-1" / "array")) == ["1", "2"]
    assert json.loads(RunDir(job.run.path / "rerun-1").job.read_text())["spec"]["time"] == 9
    no_process_left(bed)


@on_every_scheduler
def test_sweep_is_cancelled_half_way(bed: Bed) -> None:
    job = SweepJob(bed, *ONE_HOST[bed.kind], "--at-once", "1", waits="2", count=4)
    job.until(lambda: job.states()[:2] == ["COMPLETED", "RUNNING"], "the second element to run")
    job.gridtf("cancel")
    rows = job.rows()
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] + ["CANCELLED"] * 3
    assert rows[1]["values"]["loss"]["last"] == 1
    assert all(rows[number]["reason"].startswith("cancelled by alice") for number in (2, 3, 4)), rows
    no_process_left(bed)


@on_every_scheduler
def test_elements_share_an_allocation(bed: Bed) -> None:
    job = SweepJob(bed, *NO_SLOTS[bed.kind], "--pack", "2", "--at-once", "1", fails="2", count=3)
    job.wait(code=1)
    rows = job.rows()
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "FAILED", "COMPLETED"]
    ids = [f"{job.id}{bed.element_separator}{first}" for first in (1, 1, 3)]
    assert [row["job_id"] for row in rows.values()] == ids
    ends = [(read_record(job.element(number).result) or {})["verdict"] for number in rows]
    assert ends[0]["started"] < ends[1]["ended"]
    assert ends[1]["started"] < ends[0]["ended"] < ends[2]["started"]
    job.again()
    assert job.states() == ["COMPLETED"] * 3
    no_process_left(bed)


@on_every_scheduler
def test_elements_that_share_a_host_have_gpus_of_their_own(bed: Bed) -> None:
    job = SweepJob(bed, *NO_SLOTS[bed.kind], "--gpus-per-node", "1", "--pack", "2", count=2)
    job.wait()
    gpus = [(job.element(number).output / "gpus").read_text() for number in (1, 2)]
    assert len({*gpus}) == 2, gpus
    assert all(gpu.isdecimal() for gpu in gpus), gpus
    assert [row["cost"]["gpu_seconds"] > 0 for row in job.rows().values()] == [True, True]
    no_process_left(bed)


@on_every_scheduler
def test_packed_elements_are_cancelled(bed: Bed) -> None:
    job = SweepJob(bed, *NO_SLOTS[bed.kind], "--pack", "2", "--at-once", "1", waits="1,2", count=3)
    job.until(lambda: job.states()[:2] == ["RUNNING", "RUNNING"], "both to run")
    job.gridtf("cancel")
    assert job.states() == ["CANCELLED"] * 3, job.rows()
    assert all(row["reason"].startswith("cancelled by alice") for row in job.rows().values()), job.rows()
    no_process_left(bed)


def refused(bed: Bed, count: int) -> list[str]:
    """What `gridtf sweep` says of so many elements."""
    (bed.home() / "many.toml").write_text(
        f'command = ["true"]\n[params]\nlr = 0.1\nlayers = 4\n[sweep]\nlayers = {{from = 1, to = {count}}}\n'
    )
    before = {*bed.home().glob("gridtf-runs/*")}
    words = ("many.toml", *bed.options, *ENV, *ONE_HOST[bed.kind])
    done = gridtf(bed, "sweep", *words, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert {*bed.home().glob("gridtf-runs/*")} == before
    return done.stderr.splitlines()[-3:]


def test_slurm_takes_arrays_of_so_many_elements(slurm: Bed) -> None:
    said = refused(slurm, 1001)
    assert said[0] == "gridtf: sweep: it has 1001 elements, at most 1000 are allowed"
    assert said[1] == "  MaxArraySize of this Slurm is 1001"


def test_grid_engine_takes_arrays_of_so_many_elements(sge: Bed) -> None:
    shell = "qconf -sconf | sed 's/^max_aj_tasks.*/max_aj_tasks {}/' > /tmp/global && qconf -Mconf /tmp/global"
    admin(sge, "bash", "-c", shell.format(5))
    try:
        said = refused(sge, 6)
    finally:
        admin(sge, "bash", "-c", shell.format(75000))
    assert said[0] == "gridtf: sweep: it has 6 elements, at most 5 are allowed"
    assert said[1] == "  max_aj_tasks of this Grid Engine is 5"


@on_every_scheduler
def test_host_of_an_element_is_lost(bed: Bed) -> None:
    """Slurm says at once that it is; Grid Engine when the host is back. Both would start the element again."""
    words = (*ONE_HOST[bed.kind], "--heartbeat-timeout", "4", FORBIDS[bed.kind])
    job = SweepJob(bed, *words, "--at-once", "3", waits="1", count=3)
    job.until(lambda: job.states() == ["RUNNING", "COMPLETED", "COMPLETED"], "the others to end")
    lost = next(iter((read_record(job.element(1).attempt(1).plan) or {})["hosts"]))
    bed.kill(lost)
    if bed.kind == "sge":
        bed.mend(lost)
    job.wait(code=1)  # which waits for Grid Engine's accounting as well; until then the element has only no verdict
    assert job.rows()[1]["state"] == "NODE_FAIL", job.rows()
    assert job.states()[1:] == ["COMPLETED"] * 2
    if bed.kind == "slurm":
        bed.mend(lost)
    job.again()
    assert job.states() == ["COMPLETED"] * 3


def test_element_that_slurm_starts_again_counts_once(slurm: Bed) -> None:
    job = SweepJob(slurm, *ONE_HOST["slurm"], waits="1", count=2)
    job.until(lambda: job.states() == ["RUNNING", "COMPLETED"], "the other to end")
    (slurm.home() / "swept.py").write_text(PROGRAM.replace("time.sleep(600)", "pass"))
    admin(slurm, "scontrol", "requeue", f"{job.id}_1")
    job.wait()
    assert job.states() == ["COMPLETED"] * 2
    assert (read_record(job.element(1).result) or {})["attempt"] == 2
    assert sorted(os.listdir(job.element(1).path)) == FILES
    no_process_left(slurm)
