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
