"""Sweeps of the local scheduler: elements one beside the other, what is left of them, and those that run again."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gridtf.host.procfs import alive
from gridtf.login import sweeps
from gridtf.login.job import Job, find
from gridtf.run.rundir import RunDir, read_record
from tests.support.commands import as_json, call, status
from tests.support.jobs import until

# An element finds its number in its run directory. It fails, or waits for a file, as the job file says.
PROGRAM = """\
import os, sys, time
from pathlib import Path
import gridtf

run = Path(os.environ["GRIDTF_RUN_DIR"])
number = int(run.name)
Path(os.environ["OUTPUT_DIR"], "began").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
print("element", number, "on", *sorted(os.sched_getaffinity(0)), flush=True)
for step in range(3):
    gridtf.progress(step, loss=float(number - step), accuracy=number / 10)
while str(number) in sys.argv[2].split(",") and not Path("go").exists():
    time.sleep(0.05)
sys.exit(str(number) in sys.argv[1].split(",") and "rerun" not in str(run))
"""
FILES = ["attempts.tar.gz", "job.json", "job.log", "output", "result.json", "submitted.json"]


def sweep(here: Path, *words: str, fails: str = "", waits: str = "", axis: str = "[1, 2, 3, 4, 5, 6]") -> Job:
    """Submit a sweep. fails, waits: the numbers of the elements that fail, and of those that wait for the file go."""
    (here / "program.py").write_text(PROGRAM)
    text = f'name = "swept"\ncommand = ["python", "program.py", "{fails}", "{waits}"]\nkill_grace = 1\n'
    text += f"tasks.worker.count = 1\n[params]\nlayers = 4\n[sweep]\nlayers = {axis}\n"
    (here / "gridtf.toml").write_text(text)
    return Job(as_json("sweep", "gridtf.toml", *words)["run_dir"])


def rerun_failed(job: Job) -> Job:
    return Job(as_json("rerun", "--failed", str(job.run_dir))["run_dir"])


def committed(here: Path) -> None:
    """Commit all that is in the folder."""
    own = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*own, "commit", "-qm", "x", "--allow-empty")):
        subprocess.run(["git", *words], cwd=here, check=True)


def table(job: Job) -> dict[int, dict[str, Any]]:
    return {row["element"]: row for row in as_json("list", str(job.run_dir), "--json")}


def states(job: Job) -> list[str]:
    return [row["state"] for row in table(job).values()]


def element(job: Job, number: int) -> RunDir:
    return RunDir(job.run.elements / str(number))


def test_elements_that_failed_run_again_and_no_others(here: Path) -> None:
    job = sweep(here, "--at-once", "2", fails="2,5")
    assert call("wait", str(job.run_dir), code=1).stdout.startswith(f"swept ({job.id}): FAILED\n")
    rows = table(job)
    assert [row["state"] for row in rows.values()] == [
        "COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "FAILED", "COMPLETED",
    ]  # fmt: skip
    assert [row["params"] for row in rows.values()] == [{"layers": number} for number in range(1, 7)]
    assert rows[2]["reason"].endswith("exit code 1")
    assert rows[4]["values"]["loss"] == {"last": 2, "least": 2, "most": 4, "step": 2}
    assert rows[4]["job_id"] == f"{job.id}_4"
    for number in rows:
        assert sorted(os.listdir(element(job, number).path)) == FILES
    ends = {number: (read_record(element(job, number).result) or {})["verdict"] for number in rows}
    for one in ends.values():
        assert sum(other["started"] < one["started"] < other["ended"] for other in ends.values()) < 2
    before = {number: element(job, number).result.read_bytes() for number in rows}

    again = rerun_failed(job)
    assert (again.run_dir, again.wait().state) == (job.run_dir / "rerun-1", "COMPLETED")
    assert sorted(os.listdir(again.run.elements)) == ["1", "2"]
    assert states(job) == states(again) == ["COMPLETED"] * 6
    assert {number for number, row in table(job).items() if row["job_id"].startswith(again.id)} == {2, 5}
    assert sweeps.element_spec(Job(again.run.elements / "2")).params == {"layers": 5}
    assert {number: element(job, number).result.read_bytes() for number in rows} == before
    said = "gridtf: no element of the sweep is to be run again: all have completed\n"
    assert call("rerun", "swept", "--failed", code=1).stderr.startswith(said)


def test_element_that_has_ended_is_seen_as_any_job(here: Path) -> None:
    job = sweep(here, fails="2", axis="[1, 2]")
    job.wait()
    assert call("logs", f"{job.id}_2").stdout.startswith("element 2 on")
    assert call("logs", "swept_1", "worker:0").stdout.startswith("element 1 on")
    assert "FAILED: worker:0" in call("logs", "swept_2", "job").stdout
    assert Job(element(job, 2).path).logs().startswith("element 2 on")
    view = status("swept_2")
    assert (view["state"], view["name"], view["job_id"]) == ("FAILED", "swept_2", f"{job.id}_2")
    assert view["cause"]["log"] == str(element(job, 2).archive / "attempt-1/logs/worker-0.log")
    assert call("output", "swept_2").stdout.strip() == str(element(job, 2).output)
    assert sweeps.element_spec(find("swept_2")).params == {"layers": 2}
    assert json.loads(element(job, 2).job.read_text())["spec"]["params"] == {"layers": 2}
    assert call("list", "swept_1", code=2).stderr.startswith("gridtf: job swept_1 is no sweep\n")
    assert [line.split()[0] for line in call("list").stdout.splitlines()[1:]] == ["swept"]


def test_table_is_sorted_by_the_best_of_a_value(here: Path) -> None:
    job = sweep(here, axis="[1, 2, 3]")
    job.wait()
    name = str(job.run_dir)
    assert [row["element"] for row in as_json("list", name, "--json", "--by", "accuracy:max")] == [3, 2, 1]
    shown = call("list", name, "--by", "loss").stdout.splitlines()
    assert [line.split()[0] for line in shown[:4]] == ["ELEMENT", "1", "2", "3"]
    assert "LAST loss" in shown[0]
    assert "LEAST loss" in shown[0]
    assert shown[-1] == "3 elements: 3 COMPLETED"
    rows = list(csv.DictReader(io.StringIO(call("list", name, "--csv").stdout)))
    assert [(row["params.layers"], row["last.loss"], row["most.loss"]) for row in rows] == [
        (str(number), f"{number - 2}.0", f"{number}.0") for number in (1, 2, 3)
    ]
    wrong = call("list", name, "--by", "los", code=2)
    assert wrong.stderr == "gridtf: --by: no run has reported 'los'\n  did you mean loss?\n"


def test_sweep_that_is_cancelled_half_way_keeps_what_has_ended(here: Path) -> None:
    job = sweep(here, "--at-once", "1", waits="2")
    until(lambda: states(job)[:3] == ["COMPLETED", "RUNNING", "PENDING"], "the second element to run")
    assert call("status", f"{job.id}_3", code=2).stderr.startswith(f"gridtf: element 3 of job {job.id} has not begun\n")
    assert job.cancel().finished
    rows = table(job)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] + ["CANCELLED"] * 5
    assert all(rows[number]["reason"].startswith("cancelled by ") for number in range(2, 7)), rows
    assert rows[1]["values"]["accuracy"]["last"] == 0.1
    assert sorted(os.listdir(element(job, 1).path)) == FILES
    assert os.listdir(element(job, 3).path) == []
    (here / "go").touch()
    again = rerun_failed(job)
    assert again.wait().state == "COMPLETED"
    assert sorted(os.listdir(again.run.elements)) == ["1", "2", "3", "4", "5"]
    assert states(job) == ["COMPLETED"] * 6


def test_hooks_of_an_element_are_told_its_parameters_and_the_commit(here: Path) -> None:
    committed(here)
    job = sweep(here, "--on", "cat > told-$GRIDTF_EVENT-$GRIDTF_JOB_ID", axis="[5, 6]")
    until(lambda: len([*here.glob("told-end-*")]) == 2, "the ends of both")
    until(lambda: all(path.read_text().endswith("\n") for path in here.glob("told-end-*")), "what they are told")
    told = [json.loads(path.read_text()) for path in sorted(here.glob("told-end-*"))]
    assert [record["params"] for record in told] == [{"layers": 5}, {"layers": 6}]
    assert {record["commit"] for record in told} == {json.loads(job.run.code.read_text())["commit"]}
    assert [record["state"] for record in told] == ["COMPLETED", "COMPLETED"]


def test_element_has_the_code_of_the_sweep(here: Path) -> None:
    for name in ("program.py", "old.py"):
        (here / name).write_text("old = 1\n")
    committed(here)
    job = sweep(here, "--snapshot", waits="2", axis="[1, 2]")
    until(lambda: (element(job, 1).path / "result.json").exists(), "the end of the first one")
    code = json.loads(job.run.code.read_text())
    for name in ("swept_1", "swept_2"):
        until(lambda name=name: status(name)["code"], "the element")  # type: ignore[misc]
        known = status(name)["code"]
        assert known["commit"] == code["commit"]
        assert Path(known["snapshot"], "old.py").exists()
        call("report", name, "--with-code", "-o", f"{name}.html")
        page = (here / f"{name}.html").read_text()
        assert code["commit"][:12] in page
        assert "-old = 1" in page
    (here / "go").touch()
    job.cancel()


def test_element_is_cancelled_alone(here: Path) -> None:
    job = sweep(here, "--at-once", "2", waits="1", axis="[1, 2, 3]")
    until(lambda: states(job) == ["RUNNING", "COMPLETED", "COMPLETED"], "the others to end")
    call("cancel", f"{job.id}_1")
    job.wait()
    assert states(job) == ["CANCELLED", "COMPLETED", "COMPLETED"]


def test_others_go_on_when_the_processes_of_an_element_are_killed(here: Path) -> None:
    job = sweep(here, "--at-once", "2", waits="1", axis="[1, 2, 3]")
    until(lambda: states(job) == ["RUNNING", "COMPLETED", "COMPLETED"], "the others to end")
    runner = (read_record(element(job, 1).submitted) or {})["pid"]
    launcher = (read_record(element(job, 1).attempt(1).launcher) or {})["pid"]
    for pid in (runner, launcher):
        os.kill(pid, signal.SIGKILL)
    job.wait()
    assert states(job) == ["FAILED", "COMPLETED", "COMPLETED"]
    (here / "go").touch()
    assert rerun_failed(job).wait().state == "COMPLETED"
    assert states(job) == ["COMPLETED"] * 3


def test_packed_elements_have_parts_of_one_allocation(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDTF_LOCAL_GPUS", "0,1,2,3")
    words = ("--pack", "2", "--at-once", "1", "--gpus-per-node", "1", "--workers", "1")
    job = sweep(here, *words, fails="2", waits="3", axis="[1, 2, 3]")
    until((element(job, 3).output / "began").exists, "the first two to end")
    rows = table(job)
    assert [row["job_id"] for row in rows.values()] == [f"{job.id}_{first}" for first in (1, 1, 3)]
    visible = [(element(job, number).output / "began").read_text() for number in rows]
    assert (visible[0], visible[1], visible[2]) == ("0", "1", "0")
    cpus = [call("logs", f"swept_{number}").stdout.split(" on ")[1] for number in (1, 2)]
    if len(os.sched_getaffinity(0)) > 1:
        assert not {*cpus[0].split()} & {*cpus[1].split()}
    for number in (1, 2):
        assert sorted(os.listdir(element(job, number).path)) == FILES
    (here / "go").touch()
    assert job.wait().state == "FAILED"
    assert states(job) == ["COMPLETED", "FAILED", "COMPLETED"]


def test_packed_elements_end_when_the_sweep_is_cancelled(here: Path) -> None:
    job = sweep(here, "--pack", "2", "--at-once", "1", waits="1,2", axis="[1, 2, 3]")
    until(lambda: states(job)[:2] == ["RUNNING", "RUNNING"], "both to run")
    assert job.cancel().finished
    assert states(job) == ["CANCELLED"] * 3
    assert all(row["reason"].startswith("cancelled by ") for row in table(job).values()), table(job)


@pytest.mark.parametrize("last", [False, True])
def test_packed_element_whose_launcher_is_killed_says_so(here: Path, last: bool) -> None:
    job = sweep(here, "--pack", "2", "--at-once", "1", waits="1" if last else "1,2", axis="[1, 2]")
    until(lambda: states(job) == ["RUNNING", "COMPLETED" if last else "RUNNING"], "them to run")
    os.kill((read_record(element(job, 1).attempt(1).launcher) or {})["pid"], signal.SIGKILL)
    until(lambda: states(job)[0] == "FAILED", "the element to end")
    (here / "go").touch()
    job.wait()
    assert states(job) == ["FAILED", "COMPLETED"]
    reason = f"the launcher on host {os.uname().nodename} was killed by SIGKILL"
    assert [row["reason"] for row in table(job).values()] == [reason, ""]


def test_packed_elements_end_when_the_process_above_them_is_killed(here: Path) -> None:
    job = sweep(here, "--pack", "2", "--at-once", "1", waits="1,2", axis="[1, 2]")
    until(lambda: states(job) == ["RUNNING", "RUNNING"], "both to run")
    launchers = [read_record(element(job, number).attempt(1).launcher) or {} for number in (1, 2)]
    above = int(Path(f"/proc/{launchers[0]['pid']}/stat").read_text().rpartition(") ")[2].split()[1])
    os.kill(above, signal.SIGKILL)
    until(lambda: states(job) == ["FAILED", "FAILED"], "both to end")
    assert [row["reason"] for row in table(job).values()] == [
        f"process {above}, which had started it and others, was killed"
    ] * 2
    job.wait()
    assert not any(alive(launcher["pid"]) for launcher in launchers)
