"""Memory on a real Slurm cluster that limits jobs to the memory they request."""

from __future__ import annotations

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob

GREEDY = 'import os, time; held = bytearray(300 << 20) if os.environ["RANK"] == "1" else b""; time.sleep(60)'


def test_out_of_memory_is_reported(constrained_slurm: Bed) -> None:
    options = ("--scheduler", "slurm", "--nodes", "2", "--tasks-per-node", "1", "--mem", "200M", "--name", "greedy")
    job = ClusterJob(constrained_slurm, *options, "--", "python3", "-c", GREEDY)
    verdict = job.verdict()
    assert verdict["state"] == "OUT_OF_MEMORY"
    assert verdict["reason"] == "worker:1 on n2: killed by SIGKILL (out of memory)"
    assert "--mem" in verdict["hint"]
    assert job.status()["state"] == "OUT_OF_MEMORY"
    assert job.gridtf("wait", check=False).returncode == 1


# What the kernel does in control groups of version 2 with OOMKillStep: all of the step on the host is killed at once.
WHOLE = """
import os, pathlib, signal, time
if os.environ["RANK"] == "1":
    agent = os.getppid()
    guard = int(pathlib.Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    if not os.fork():
        os.setsid()
        while " Z " not in pathlib.Path(f"/proc/{agent}/stat").read_text():  # who would reap it is stopped
            time.sleep(0.01)
        os.kill(guard, signal.SIGKILL)
        os._exit(0)
    os.kill(guard, signal.SIGSTOP)
    pathlib.Path(f"/proc/{agent}/oom_score_adj").write_text("1000")
    held = bytearray(300 << 20)
time.sleep(60)
"""


def test_step_that_the_kernel_kills_for_memory_is_out_of_memory(constrained_slurm: Bed) -> None:
    options = ("--scheduler", "slurm", "--nodes", "2", "--tasks-per-node", "1", "--mem", "200M", "--name", "whole")
    job = ClusterJob(constrained_slurm, *options, "--native=--oom-kill-step", "--", "python3", "-c", WHOLE)
    verdict = job.verdict()
    assert verdict["state"] == "OUT_OF_MEMORY"
    assert verdict["reason"] == "the job ran out of memory on host n2, and the kernel killed the agent there"
    assert "--mem" in verdict["hint"]
    assert job.status()["state"] == "OUT_OF_MEMORY"
