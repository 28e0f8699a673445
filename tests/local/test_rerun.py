"""Parameters in real jobs, and jobs that are run again with changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import RunDir
from tests.support.commands import as_json, call, running, status, submit
from tests.support.jobs import ROOT, until
from tests.support.joining import SCRIPT
from tests.support.python import environment

TELLS = "tell.py"
PROGRAM = """
import json, os, sys, time, gridtf
while os.path.exists("hold"):
    time.sleep(0.05)
told = {"argv": sys.argv[1:], "variable": os.environ["GRIDTF_PARAMS"], "params": gridtf.task().params}
print(json.dumps(told), flush=True)
sys.exit(int(gridtf.task().params.get("exit", 0)))
"""
FILE = """
name = "tells"
command = [{python}, "tell.py", "--n={{{{ num-layers }}}}", "--text", "{{params.text}}", "{{params}}"]
[params]
lr = 1e-3
num-layers = 4
text = "-a 'é\\" $HOME {{rank}}"
shuffle = true
verbose = false
exit = 0
[env]
LAYERS = "{{params.num-layers}}"
"""
TEXT = "-a 'é\" $HOME {rank}"


@pytest.fixture
def job(here: Path) -> str:
    """A job file whose program prints what it gets."""
    Path(TELLS).write_text(PROGRAM)
    Path("job.toml").write_text(FILE.format(python=json.dumps(sys.executable)))
    return "job.toml"


def told(job: str) -> Any:
    (line,) = (line for line in call("logs", job, "--task", "worker:0", "--raw").stdout.splitlines() if "argv" in line)
    return json.loads(line.partition(" | ")[2] or line)


def argv(lr: str = "0.001", layers: int = 4, code: int = 0) -> list[str]:
    flags = [f"--lr={lr}", f"--num-layers={layers}", f"--text={TEXT}", "--shuffle", f"--exit={code}"]
    return [f"--n={layers}", "--text", TEXT, *flags]


def test_parameters_reach_the_program_and_are_shown(job: str) -> None:
    call("submit", job, "--set", "lr=0.5", "--wait")
    params = {"lr": 0.5, "num-layers": 4, "text": TEXT, "shuffle": True, "verbose": False, "exit": 0}
    found = told("tells")
    assert (found["argv"], found["params"], json.loads(found["variable"])) == (argv("0.5"), params, params)
    assert status("tells")["params"] == params
    assert "lr=0.5, num-layers=4" in call("status", "tells").stdout
    call("report", "tells", "-o", "report.html")
    assert "num-layers" in Path("report.html").read_text()


def test_parameters_without_a_scheduler(job: str, tmp_path: Path) -> None:
    """In `gridtf run`, and in a script that calls gridtf_run."""
    call("run", job, "--quiet", "--set", "num-layers=7", "--run-dir", "run")
    assert told("./run")["argv"] == argv(layers=7)
    script = f'set -euo pipefail\n. "{SCRIPT}"\ngridtf_run job.toml --run-dir script --set num-layers=8\n'
    env = environment(GRIDTF_PYTHON=sys.executable, GRIDTF_LOCKS=str(tmp_path), PYTHONPATH=str(ROOT))
    subprocess.run(["bash", "-c", script], env=env, timeout=180, check=True, capture_output=True)
    assert told("./script")["argv"] == argv(layers=8)


def test_parameters_that_do_not_fit_are_refused_at_the_submission(job: str) -> None:
    for words, error in (
        (("--set", "layers=3"), "there is no parameter 'layers'; did you mean num-layers?"),
        (("--set", f"text={'x' * 130_999}"), "Linux allows 131071 in a variable, GRIDTF_PARAMS"),
        (("--env", "A={params.layers}"), "--env: there is no parameter 'layers'"),
    ):
        assert error.partition(";")[0] in call("submit", job, *words, code=2).stderr
    assert not Path("gridtf-runs").exists()


def test_jobs_run_again_while_they_run_and_when_they_have_ended(job: str) -> None:
    Path("hold").touch()
    first = submit(job)
    running(first["job_id"])
    second = as_json("rerun", first["job_id"], "--set", "exit=3", "--workers", "2")
    assert Path(second["run_dir"]).parent == Path(first["run_dir"]).parent
    Path(job).write_text('command = ["false"]\n')  # what the file says now is of no interest
    Path("hold").unlink()
    call("wait", first["job_id"])
    call("wait", second["job_id"], code=1)
    assert told(first["run_dir"])["argv"] == argv()
    assert told(second["run_dir"])["argv"] == argv(code=3)
    failed = status(second["job_id"])
    assert (failed["state"], len(failed["tasks"])) == ("FAILED", 2)
    done = call("rerun", second["job_id"], "--set", "exit=0", "-f", "--", "--more", "a b")
    third = status("tells")
    assert (third["state"], len(third["tasks"])) == ("COMPLETED", 2)
    assert "COMPLETED" in done.stdout
    assert told("tells")["argv"] == [*argv(), "--more", "a b"]
    folders = {view["output_dir"] for view in (failed, third, status(first["job_id"]))}
    assert len(folders) == 3
    lines = call("rerun", "tells", "--dry-run", "--set", "lr=0.2").stderr.splitlines()
    shown = {tuple(line.split()) for line in lines}
    assert {
        ("params.lr", "=", "0.2", "--set"),
        ("params.exit", "=", "0", "from", "tells", f"({third['job_id']})"),
    } <= shown


def test_resumed_job_runs_again_from_its_beginning(job: str) -> None:
    first = submit(job, "--set", "exit=42")
    call("wait", first["job_id"], code=42)
    second = as_json("resume", first["job_id"])
    call("wait", second["job_id"], code=42)
    third = as_json("rerun", second["job_id"], "--set", "exit=0")
    call("wait", third["job_id"])
    outputs = [status(one["run_dir"])["output_dir"] for one in (first, second, third)]
    assert outputs[0] == outputs[1] != outputs[2] == str(RunDir(third["run_dir"]).output)


def test_rerun_of_what_gridtf_did_not_submit_or_no_longer_has(job: str) -> None:
    call("run", job, "--quiet", "--run-dir", "run")
    assert "was not submitted by gridtf: gridtf cannot run it again" in call("rerun", "./run", code=1).stderr
    first = submit(job)
    call("wait", first["job_id"])
    call("clean", first["job_id"], "--yes")
    assert f"no job is called {first['job_id']}" in call("rerun", first["job_id"], code=2).stderr
    assert not Path("gridtf-runs").exists()


def test_job_like_another_takes_what_that_has_used(job: str) -> None:
    Path("hold").touch()
    first = submit(job, "--sample-interval", "1", "--time", "30")
    samples = RunDir(first["run_dir"]).attempt(1).samples
    until(lambda: samples.exists() and samples.read_text().count("\n") > 6, "samples")
    Path("hold").unlink()
    call("wait", first["job_id"])
    lines = [" ".join(line.split()) for line in call("render", job, "--like", first["job_id"]).stderr.splitlines()]
    source = f"measured in tells ({first['job_id']}): "
    found = {line.partition(" = ")[0]: line.partition(source)[2] for line in lines if source in line}
    assert found.keys() == {"cpus_per_task", "mem_per_task", "time"}
    assert found["mem_per_task"].endswith("MiB + 25 %, at least 512M")
    second = submit(job, "--like", first["job_id"], "--time", "5")
    assert json.loads(RunDir(second["run_dir"]).job.read_text())["origin"] == {"like": first["run_dir"]}
    call("wait", second["job_id"])
    assert told(second["run_dir"])["argv"] == argv()
