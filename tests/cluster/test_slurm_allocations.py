"""Existing processes and allocations on a real Slurm cluster: gridtf_join under srun, and gridtf run under salloc."""

from __future__ import annotations

import re
import sys
from subprocess import Popen

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import EVERYWHERE, no_process_left
from tests.support.clusterjobs import shares_gpus
from tests.support.clusterscripts import (
    ENVIRON,
    RUN,
    SAVES,
    TASK,
    TELL,
    Folder,
    logs,
    one_gpu_each,
    parse_tasks,
)

JOIN = f"""\
set -euo pipefail
source "$(gridtf bootstrap-path)"
gridtf_join
exec bash -c '{TELL}'
"""
BINDINGS = [["--ntasks=4", "--ntasks-per-node=2", "--gpus-per-task=1"], ["--ntasks-per-node=2", "--gpus-per-node=2"]]


# --- gridtf_join


@pytest.mark.parametrize("options", BINDINGS, ids=lambda options: options[-1])
def test_join_of_srun_processes_with_one_gpu_each(slurm: Bed, options: list[str]) -> None:
    folder = Folder(slurm, "joins")
    (folder.path / "step.sh").write_text(JOIN)
    job = folder.sbatch("srun bash step.sh\n", "--nodes=2", *options).ended()
    tasks = parse_tasks(job.output)
    one_gpu_each(tasks, 4)
    assert sorted(task.rank for task in tasks.values()) == [f"{rank}/4" for rank in range(4)]


@pytest.mark.parametrize("options", BINDINGS, ids=lambda options: options[-1])
def test_join_with_constrained_devices(constrained_slurm: Bed, options: list[str]) -> None:
    folder = Folder(constrained_slurm, "constrained")
    (folder.path / "step.sh").write_text(JOIN)
    script = "srun bash -c 'echo sees $CUDA_VISIBLE_DEVICES'\nsrun bash step.sh\n"
    job = folder.sbatch(script, "--nodes=2", *options).ended()
    tasks = parse_tasks(job.output)
    # a process that is bound to its own device sees it as 0, whichever it is; Slurm 20.11 binds none
    bound = "sees 0\n" in job.output
    assert [tasks[f"worker:{index}"].gpus for index in range(4)] == [("0",), ("0" if bound else "1",)] * 2


@pytest.mark.parametrize("bed", ["slurm", "constrained_slurm"], indirect=True)
def test_join_of_processes_that_share_a_gpu_is_refused(bed: Bed) -> None:
    folder = Folder(bed, "sharing")
    (folder.path / "step.sh").write_text(JOIN)
    script = "srun bash step.sh || echo code=$?\n"
    job = folder.sbatch(script, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=1").ended()
    assert "code=1" in job.output
    assert "n1: 2 processes see the same GPU 0" in job.output


# --- existing allocations

ALLOCATED = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--quiet")


def test_run_in_an_allocation(slurm: Bed) -> None:
    folder = Folder(slurm, "allocation")
    output = folder.run("salloc", *ALLOCATED, "bash", "-c", f"gridtf run -- {TASK}; echo job=$SLURM_JOB_ID code=$?")
    match = re.search(r"job=(\d+) code=0", output)
    assert match
    one_gpu_each(folder.tasks(match[1]), 4)
    assert folder.verdicts(match[1]) == ["COMPLETED"]


def test_run_reports_a_failure_and_too_many_tasks(slurm: Bed) -> None:
    folder = Folder(slurm, "reports")
    runs = "gridtf run -- false; echo code=$?; gridtf run --tasks-per-node 16 -- true; echo code=$?"
    output = folder.run("salloc", "--nodes=2", "--exclusive", "--quiet", "bash", "-c", f"({runs}) 2>&1")
    assert output.count("code=1") == 2, output
    place = re.search(r"its run directory: (\S+)", output)
    assert place
    assert re.search(rf"it printed nothing: {place[1]}/attempt-1/logs/worker-\d\.log", output)
    assert "tasks_per_node: 16 tasks x 1 GPUs need more than this job has on n1, 4" in output


@pytest.mark.parametrize("options", [[], ["--gpus-per-node=0"]], ids=["with-gpus", "without-gpus"])
def test_run_in_a_step_of_an_allocation(slurm: Bed, options: list[str]) -> None:
    folder = Folder(slurm, "step")
    command = f"gridtf run -- {TASK} 2>&1; echo job=$SLURM_JOB_ID code=$?"
    output = folder.run("salloc", *ALLOCATED, "srun", "--nodes=1", "--ntasks=1", *options, "bash", "-c", command)
    if not options and not shares_gpus(slurm):
        assert (
            "20.11 does not share GPUs between steps, and the one that gridtf runs in has those of this job" in output
        )
        assert "srun --gpus-per-node=0 --pty bash" in output
        return
    match = re.search(r"job=(\d+) code=0", output)
    assert match, output
    one_gpu_each(folder.tasks(match[1]), 4)


def test_hosts_may_end_later_than_the_site_s_waittime(constrained_slurm: Bed) -> None:
    folder = Folder(constrained_slurm, "waittime")
    task = f"{TELL}; [ $RANK = 0 ] || sleep 3"
    job = folder.sbatch(f"{RUN}gridtf_run -- bash -c '{task}'", "--nodes=2", "--gpus-per-node=1").ended()
    one_gpu_each(folder.tasks(job.id), 2)
    assert folder.verdicts(job.id) == ["COMPLETED"]


def test_run_in_every_process_of_a_step_is_refused(slurm: Bed) -> None:
    folder = Folder(slurm, "copies")
    output = folder.run("bash", "-c", f"srun {' '.join(ALLOCATED)} gridtf run -- {TASK} 2>&1 || echo code=$?")
    assert "started 4 times" in output
    assert folder.runs(r"\d+") == []


# Types Ctrl-C on the terminal of salloc, once the tasks run.
CTRL_C = """
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
os.set_blocking(terminal, False)
seen = b""
typed = False
while True:
    try:
        seen += os.read(terminal, 65536)
    except BlockingIOError:
        pass
    except OSError:
        break
    if not typed and os.path.exists("now"):
        typed = os.write(terminal, b"\\x03")
    time.sleep(0.05)
print(seen.decode(), "code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def ended_when_all_run(folder: Folder, process: Popen[str]) -> tuple[str, str]:
    """Signal the waiting process, by the file ``now``, that all tasks run; return what it prints."""
    try:
        folder.job(r"\d+").until_printed("started", 4)
        (folder.path / "now").touch()
        return process.communicate(timeout=240)
    finally:
        process.kill()


def test_ctrl_c_ends_a_run_in_an_allocation(slurm: Bed) -> None:
    folder = Folder(slurm, "ctrl-c")
    (folder.path / "task.sh").write_text(f"setsid sleep 600 &\n{SAVES}")
    command = ("salloc", *ALLOCATED, "gridtf", "run", "--name", "ctrl-c", "--", "bash", "task.sh")
    process = slurm.popen("login", sys.executable, "-c", CTRL_C, *command, env=ENVIRON, cwd=folder.seen_as)
    out, errors = ended_when_all_run(folder, process)
    assert "CANCELLED" in out, out + errors
    assert folder.verdicts(r"\d+") == ["CANCELLED"]
    assert all("saved" in log for log in logs(folder.runs(r"\d+")[0]))
    no_process_left(slurm, EVERYWHERE)


def test_terminating_a_run_ends_its_processes_and_keeps_the_allocation(slurm: Bed) -> None:
    folder = Folder(slurm, "term")
    (folder.path / "task.sh").write_text(f"setsid sleep 600 &\n{SAVES}")
    script = """gridtf run --name term -- bash task.sh & run=$!
until [ -e now ]; do sleep 0.1; done
kill -TERM $run; wait $run; echo code=$?
srun --gpus-per-node=2 pgrep -a sleep; echo steps=$(squeue --steps --noheader --jobs=$SLURM_JOB_ID | grep -c gridtf)"""
    process = slurm.popen("login", "salloc", *ALLOCATED, "bash", "-c", script, env=ENVIRON, cwd=folder.seen_as)
    out, errors = ended_when_all_run(folder, process)
    assert "code=1\nsteps=0" in out, out + errors
    assert folder.verdicts(r"\d+") == ["CANCELLED"]
    no_process_left(slurm, EVERYWHERE)
