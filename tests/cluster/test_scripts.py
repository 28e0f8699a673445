"""Hand-written job scripts with gridtf_run on a real cluster, and the examples; for every scheduler."""

from __future__ import annotations

import json
import re

import pytest

from gridtf.run.rundir import RunDir
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import NODES
from tests.support.clusterscripts import (
    ENVIRON,
    HOME,
    Folder,
    Task,
    joined_tasks_ended,
    logs,
    one_gpu_each,
    parse_tasks,
)
from tests.support.examples import stated_accuracy
from tests.support.sgescripts import folder_on

# One task on each of two hosts, instead of two on each of four as the examples say.
SMALLER = {"slurm": ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1"), "sge": ("-pe", "rr", "2")}


def example_ran(bed: Bed, script: str, *options: str, program: str = "") -> tuple[Folder, RunDir, str, dict[str, Task]]:
    """Run the script of an example; each of its tasks prints its host and GPUs, then becomes the program.

    Returns:
        Its folder, its run, the id of its job, and the tasks as they have printed it.
    """
    name = f"{bed.kind}_scripts"
    folder = folder_on(bed, name)
    folder.run("cp", "-r", f"{CHECKOUT}/examples/{name}", HOME)
    (folder.path / "tell.sh").write_text(f"{folder.tell}\n{program}\n")
    text = (folder.path / script).read_text().replace("python train.py", "bash tell.sh")
    (folder.path / script).write_text(text)
    job = folder.submit(script, *options).over(450)
    (run,) = folder.runs(job.id)
    output = job.output + "\n".join(logs(run))
    tasks = parse_tasks(output)
    assert tasks, output
    return folder, run, job.id, tasks


@pytest.mark.parametrize("script", ["run.sh", "join.sh"])
@on_every_scheduler
def test_example_script(bed: Bed, script: str) -> None:
    folder, run, job_id, tasks = example_ran(bed, script)
    named = f"digits-{script.removesuffix('.sh')}"  # as the script says to its scheduler
    assert script == "join.sh" or run.path.name == f"{named}-{job_id}"
    listed = {job["job_id"]: job["name"] for job in json.loads(folder.run("gridtf", "list", "--all", "--json"))}
    assert listed[job_id] == named
    assert json.loads(folder.run("gridtf", "status", "--json", named))["run_dir"].endswith(f"/{run.path.name}")
    one_gpu_each(tasks, 8)
    assert [tasks[f"worker:{index}"].host for index in range(8)] == [host for host in NODES for _ in "ab"]
    if script == "join.sh" and bed.kind == "slurm":
        joined_tasks_ended(folder, run, "COMPLETED", "the job that they belong to has ended", code=0)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("bed", "script"), [("slurm", "join.sh"), ("sge", "run.sh")], indirect=["bed"])
def test_example_script_trains(bed: Bed, script: str) -> None:
    _, run, _, tasks = example_ran(bed, script, *SMALLER[bed.kind], program="exec python train.py")
    result = run.output / "result.json"
    assert result.exists(), logs(run)
    assert stated_accuracy(f"{bed.kind}_scripts") <= json.loads(result.read_text())["accuracy"] <= 1
    one_gpu_each(tasks, 2)
    assert [tasks[f"worker:{index}"].host for index in range(2)] == ["n1", "n2"]


@on_every_scheduler
def test_wait_for_a_script_that_has_not_come_to_gridtf_run(bed: Bed) -> None:
    folder = folder_on(bed, "waiting")
    job = folder.on_two_hosts("until [ -e go ]; do sleep 0.2; done\ngridtf_run -- true\n")
    words = ["gridtf", "wait", job.id]
    environ = {**ENVIRON, "PATH": f"{HOME}/bin:{bed.path}"}
    late = bed.run("login", *words, "--timeout", "1", cwd=folder.seen_as, env=environ, check=False)
    assert late.returncode == 124, late
    with bed.popen("login", *words, cwd=folder.seen_as, env=environ) as waits:
        assert waits.stderr is not None
        first = waits.stderr.readline()
        (folder.path / "go").touch()
        printed, said = waits.communicate(timeout=240)
    assert f"job {job.id} was not started by gridtf, or its script has not come to gridtf_run: waiting" in first
    assert (waits.returncode, "COMPLETED" in printed) == (0, True), first + said
    job.ended()


@on_every_scheduler
def test_each_array_element_has_its_own_run(bed: Bed) -> None:
    folder = folder_on(bed, "array")
    task = f"""bash -c '{folder.tell}; [ "${bed.element_variable}" != 2 ]'"""
    job = folder.on_two_hosts(f"gridtf_run --name tell -- {task} || [ $? = 1 ]\n", *bed.array).ended()
    ids = [f"{job.id}{bed.element_separator}{element}" for element in bed.elements]
    assert [run.path.name for run in folder.runs(job.id)] == [f"tell-{job_id}" for job_id in ids]
    assert folder.verdicts(job.id) == ["FAILED" if element == "2" else "COMPLETED" for element in bed.elements]
    failed = f"{job.id}{bed.element_separator}2"
    status = json.loads(folder.run("gridtf", "status", "--json", failed))
    assert (status["state"], status["name"]) == ("FAILED", "tell_2")
    shown = folder.run("gridtf", "status", job.id)
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == [f"tell_{element}" for element in bed.elements]
    assert re.search(rf"^{re.escape(failed)}: worker:\d on n\d: exit code 1$", shown, re.MULTILINE), shown


@on_every_scheduler
def test_several_gridtf_run_in_one_script(bed: Bed) -> None:
    folder = folder_on(bed, "several")
    task = f"bash -c '{folder.tell}'"
    # A ps is stopped as soon as the workers have ended, so they wait until each has printed its line.
    name, both = "$OUTPUT_DIR/$GRIDTF_TASK_TYPE$GRIDTF_TASK_INDEX", '[ -e "$OUTPUT_DIR/ps0" -a -e "$OUTPUT_DIR/ps1" ]'
    wait_for_ps = f'touch "{name}"; until {both}; do sleep 0.1; done'
    with_ps = f"bash -c '{folder.tell}; {wait_for_ps}'"
    runs = (f"-- {task}", f"--ps 2 -- {with_ps}", "-- false || echo code=$?")
    job = folder.on_two_hosts("".join(f"gridtf_run --name tell {run}\n" for run in runs)).ended()
    assert [run.path.name for run in folder.runs(job.id)] == [f"tell-{job.id}{more}" for more in ("", "-2", "-3")]
    assert folder.verdicts(job.id) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert "code=1" in job.output
    second = parse_tasks("\n".join(logs(folder.runs(job.id)[1])))
    servers = [second.pop(f"ps:{index}") for index in range(2)]
    assert {(ps.host, ps.gpus) for ps in servers} == {("n1", ()), ("n2", ())}
    one_gpu_each(second, 2)


@on_every_scheduler
def test_rendered_script_piped_to_the_scheduler(bed: Bed) -> None:
    folder = folder_on(bed, "piped")
    options = " ".join([*bed.options, "--nodes 2 --tasks-per-node 1 --gpus-per-task 1 --run-dir there"])
    piped = f"gridtf render {options} -- bash -c '{folder.tell}' | {folder.from_stdin}"
    job = folder.job(folder.run("bash", "-c", piped).strip()).over()
    one_gpu_each(parse_tasks("\n".join(logs(RunDir(folder.path / "there")))), 2)
    status = json.loads(folder.run("gridtf", "status", "--json", "there"))
    assert (status["state"], status["job_id"]) == ("COMPLETED", job.id)
