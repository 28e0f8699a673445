"""The commands, each in its own process, on real jobs of the local scheduler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gridtf.host.procfs import alive
from gridtf.resources import bootstrap_script
from gridtf.run import registry
from gridtf.run.rundir import RunDir
from tests.support.commands import FAILS, PRINTS, SLEEPS, TWO, as_json, call, command, running, started, status, submit
from tests.support.jobs import gone, until
from tests.support.python import heed_signals


def test_commands_on_a_job_from_submit_to_end(here: Path) -> None:
    done = call("submit", "--name", "digits", *TWO, *PRINTS)
    words = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith("run "))
    run_dir = done.stdout.splitlines()[3].removeprefix("run directory  ")
    assert words["name"] == "digits"
    assert Path(run_dir).parent == here / "gridtf-runs"
    for job in ("digits", words["job"], run_dir, str(Path(run_dir).relative_to(here))):
        waited = call("wait", job)
        assert waited.stdout.startswith(f"digits ({words['job']}): COMPLETED after ")
        assert status(job)["state"] == "COMPLETED"
    assert [(view["name"], view["job_id"], view["state"]) for view in as_json("list")] == [
        ("digits", words["job"], "COMPLETED")
    ]
    assert "COMPLETED" in call("list").stdout
    assert "worker:1" in call("status", "digits").stdout
    lines = call("logs", "digits").stdout.splitlines()
    host = os.uname().nodename.partition(".")[0]
    assert sorted(line for line in lines if not line.startswith("job | gridtf: ")) == [
        f"worker:0@{host} | I am worker 0",
        f"worker:1@{host} | I am worker 1",
    ]
    assert lines[-1].startswith("job | gridtf: COMPLETED")
    assert "I am worker 1" in call("logs", "digits", "--task", "worker:1").stdout
    assert "I am worker 0" not in call("logs", "digits", "--task", "worker:1").stdout


def test_wait_for_a_failing_job(here: Path) -> None:
    done = call("submit", "--wait", "--name", "bad", *TWO, *FAILS, code=1)
    view = status("bad")
    assert view["state"] == "FAILED"
    assert "worker:1" in view["reason"]
    assert "exit code 3" in view["reason"]
    log = RunDir(view["run_dir"]).attempt(1).task_log("worker", 1)
    first = f"bad ({view['job_id']}): FAILED after "
    verdict = done.stdout.splitlines()[4:]
    assert verdict[0].startswith(first)
    assert verdict[-2:] == [f"last lines of {log}:", "  last words"]
    assert view["reason"] in done.stdout
    assert "running" in done.stderr  # never silent
    assert call("wait", "bad", code=1).stdout.startswith(first)
    assert as_json("wait", "bad", code=1)["cause"]["task"] == "worker:1"


def test_open_number_of_workers_without_gpus_is_one(here: Path) -> None:
    done = call("submit", "--name", "one", "--wait", "--kill-grace", "1", *PRINTS)
    assert [task["name"] for task in status("one")["tasks"]] == ["worker:0"]
    assert "gridtf: one worker, since " in done.stderr or len(os.sched_getaffinity(0)) == 1


def test_gridtf_run_refuses_a_script_that_does_not_exist(here: Path) -> None:
    Path("train.py").touch()
    done = call("run", "--", "python3", "trian.py", code=2)
    assert f"there is no file {here}/trian.py\n  did you mean train.py?" in done.stderr
    assert os.listdir() == ["train.py"]


def test_ctrl_c_leaves_the_job_running(here: Path) -> None:
    with started("submit", "--wait", *TWO, *SLEEPS) as process:
        assert process.stdout is not None
        job = [process.stdout.readline() for _ in range(4)][2].split()[1]
        running(job)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
        _, error = process.communicate(timeout=180)
        assert process.returncode == 130
    assert error.splitlines()[-3:] == [
        f"gridtf: job {job} continues",
        f"  to wait again: gridtf wait {job}",
        f"  to cancel it:  gridtf cancel {job}",
    ]
    assert running(job)["state"] == "RUNNING"
    assert "has not ended after 0.1 s" in call("wait", job, "--timeout", "0.1", code=124).stderr
    assert f"({job}): CANCELLED after " in call("cancel", job).stdout
    assert status(job)["state"] == "CANCELLED"
    call("wait", job, code=1)


def test_cancel_of_an_ended_job(here: Path) -> None:
    job = submit(*TWO, *PRINTS)["job_id"]
    call("wait", job)
    done = call("cancel", job)
    assert done.stderr == f"gridtf: job {job} has already ended\n"
    assert "COMPLETED" in done.stdout
    assert status(job)["state"] == "COMPLETED"


def test_logs_follow(here: Path) -> None:
    job = submit(*TWO, *SLEEPS)["job_id"]
    running(job)
    with started("logs", "-f", job) as process:
        assert process.stdout is not None
        lines = (line for line in process.stdout if not line.startswith("job | "))
        host = os.uname().nodename.partition(".")[0]
        assert {next(lines), next(lines)} == {f"worker:0@{host} | up\n", f"worker:1@{host} | up\n"}
        call("cancel", job)
        rest, error = process.communicate(timeout=180)
        assert (process.returncode, error) == (0, "")
        assert rest.startswith("job | gridtf: CANCELLED")


def removed(folder: Path) -> bool:
    """Whether the folder could be removed: the job may still be making files in it."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.parametrize("words", [("logs", "-f"), ("wait",)])
def test_logs_and_wait_end_when_the_run_directory_is_removed(here: Path, words: tuple[str, ...]) -> None:
    job = submit("--kill-grace", "1", "--workers", "1", *SLEEPS)
    running(job["job_id"])
    with started(*words, job["run_dir"]) as process:
        until(lambda: removed(Path(job["run_dir"])), "the run directory to be gone")
        _, error = process.communicate(timeout=180)
        assert process.returncode != 0
        assert "is not a run directory" in error or "cannot" in error
    runner = int(job["job_id"].partition(".")[0])
    assert alive(runner)  # the job has nowhere to write to, and goes on
    os.kill(runner, signal.SIGTERM)
    assert gone(runner)


def test_concurrent_submissions_of_one_name(here: Path) -> None:
    found: list[dict[str, str]] = []
    words = ("--name", "twin", "--workers", "1", *PRINTS)
    threads = [threading.Thread(target=lambda: found.append(submit(*words))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job["run_dir"] for job in found}) == len({job["job_id"] for job in found}) == 4
    for job in found:
        call("wait", job["job_id"])
        assert "I am worker 0" in call("logs", job["run_dir"]).stdout
    assert len(as_json("list")) == 4
    assert status("twin")["job_id"] in {job["job_id"] for job in found}


def test_rendered_script_runs_without_submit(here: Path) -> None:
    script = call("render", "--run-dir", "run", *TWO, *PRINTS).stdout
    assert not Path("run").exists()
    subprocess.run(["bash"], input=script, text=True, capture_output=True, timeout=180, check=True)
    view = status("run")
    assert (view["state"], len(view["tasks"])) == ("COMPLETED", 2)
    assert [job["job_id"] for job in as_json("list")] == [view["job_id"]]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("--run-root", "/sys"), 1, "gridtf: cannot make /sys/"),
        (("--run-dir", "no/such/place"), 1, "make the folder above it first"),
        (("--time", "soon"), 2, "gridtf: --time: 'soon' is not a walltime"),
        (
            ("--nodes", "1", "--tasks-per-node", "1", "--workers", "3"),
            2,
            "3 training tasks do not fit into 1 node with 1 task each",
        ),
        (("--nodes", "2"), 2, "gridtf: --nodes: "),
        (("--wrokers", "2"), 2, "did you mean --workers?"),
        (("nothing.toml",), 2, "gridtf: no such file: nothing.toml"),
        (("wrong.toml",), 2, "gridtf: wrong.toml:2: wrokers: unknown key"),
        (("--chdir", "nowhere"), 2, "gridtf: --chdir: there is no folder "),
    ],
)
def test_refused_submit_leaves_no_files(words: tuple[str, ...], code: int, error: str, here: Path) -> None:
    Path("wrong.toml").write_text("# a job\nwrokers = 2\n")
    done = call("submit", *words, *PRINTS, code=code)
    assert error in done.stderr
    assert done.stdout == ""
    assert os.listdir() == ["wrong.toml"]
    assert as_json("list") == []


def test_status_reports_a_moved_run_directory(here: Path) -> None:
    job = submit(*TWO, *PRINTS)
    call("wait", job["job_id"])
    Path(job["run_dir"]).rename(here / "moved")
    done = call("status", job["job_id"], code=1)
    assert f"(job {job['job_id']}) is gone: {job['run_dir']}" in done.stderr
    assert as_json("list") == []
    assert status("moved")["state"] == "COMPLETED"


def test_python_api(here: Path) -> None:
    code = (
        "import json, sys, gridtf\n"
        "two = {'worker': gridtf.TaskSpec(count=2)}\n"
        "prints = (sys.executable, '-c', 'print(6 * 7)')\n"
        "job = gridtf.submit(gridtf.JobSpec(command=prints, scheduler='local', tasks=two))\n"
        "ended = job.wait(timeout=180)\n"
        "states = [ended.state, gridtf.find(job.name).status().state, job.cancel().state]\n"
        "identity = [job.id, job.name, str(job.run_dir)]\n"
        "print(json.dumps([*identity, *states, job.logs(), job.logs('worker:1')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    job_id, name, run_dir, *printed = json.loads(done.stdout)
    assert printed == ["COMPLETED", "COMPLETED", "COMPLETED", "worker:0 | 42\nworker:1 | 42\n", "42\n"]
    assert [(view["job_id"], view["name"], view["run_dir"]) for view in as_json("list")] == [(job_id, name, run_dir)]


def test_job_outlives_the_shell_that_submitted_it(here: Path) -> None:
    shell = subprocess.run(
        [
            "setsid",
            "bash",
            "-c",
            '"$@" && kill -HUP 0',
            "shell",
            *command("submit", "--name", "outlives", *TWO, *SLEEPS),
        ],
        capture_output=True,
        timeout=180,
        preexec_fn=heed_signals,
    )
    assert shell.returncode == -signal.SIGHUP
    running("outlives")
    call("cancel", "outlives")


def test_cancel_of_a_hand_written_script(here: Path) -> None:
    """Not the launcher is the leader of its process group, but the script's shell."""
    script = 'set -euo pipefail; source "$1"; gridtf_run --name by-hand --workers 1 -- sleep 600'
    env = {**os.environ, "GRIDTF_PYTHON": sys.executable}
    with subprocess.Popen(
        ["bash", "-c", script, "script", str(bootstrap_script())], env=env, start_new_session=True
    ) as job:
        until(lambda: list(registry.entries(os.environ)), "the job to be known by its name")
        running("by-hand")
        assert "CANCELLED" in call("cancel", "by-hand").stdout
        assert job.wait(30) == 1


def test_wait_for_tasks_that_called_gridtf_join(here: Path) -> None:
    """Only their parent knows how they end, so wait does not report success."""
    script = 'source "$1"; gridtf_join --run-dir run; until [ -e go ]; do sleep 0.1; done'
    env = {**os.environ, "GRIDTF_PYTHON": sys.executable, "RANK": "0", "WORLD_SIZE": "1", "GRIDTF_JOB_ID": "by-hand"}
    with subprocess.Popen(["bash", "-c", script, "script", str(bootstrap_script())], env=env) as task:
        try:
            until(lambda: Path("run").is_dir() and status("./run")["state"] == "RUNNING", "the task to join")
        finally:
            Path("go").touch()
        waited = call("wait", "./run", code=1)
        assert task.wait(30) == 0
    assert "UNKNOWN after" in waited.stdout
    assert "only the program that started them (srun, mpirun or a script) knows" in waited.stdout


def test_set_up_that_pipes_the_output(here: Path) -> None:
    """The reader of the launcher's stderr is a child of the script, and so of the launcher; it ends with the job."""
    job = submit("--setup", "exec > >(tee -a all.log) 2>&1", *TWO, *PRINTS)["job_id"]
    call("wait", job)
    assert status(job)["state"] == "COMPLETED"


@pytest.mark.root
def test_disk_full_under_the_run_directory(here: Path) -> None:
    disk = here / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(disk)], check=True)
    try:
        fill = "dd if=/dev/zero of=small/big bs=1k 2>/dev/null; sleep 1; exit 3"
        job = submit("--workers", "1", "--kill-grace", "1", "--run-dir", str(disk / "run"), "--", "bash", "-c", fill)
        call("wait", str(disk / "run"), code=1)
        view = status(job["job_id"])
        assert view["state"] == "FAILED"
        assert view["reason"].startswith("worker:0 on ")  # the space for the verdict was reserved
        assert "exit code 3" in view["reason"]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
