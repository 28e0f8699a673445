"""A client outside of a job that uses the TensorFlow servers of its tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridtf.login.job import Job
from tests.support.fixtures import Launch
from tests.support.jobs import ROOT, until
from tests.support.tasks import LIMIT

pytestmark = pytest.mark.tensorflow

CLIENT = """
import sys
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
here = "/job:worker/task:0"
with v1.device(here):
    total = tf.reduce_sum(tf.random.uniform([10]) * 0 + 2)
config = v1.ConfigProto(device_filters=[here])
with v1.Session(f"grpc://{sys.argv[1]}", config=config) as session:
    details = v1.RunMetadata()
    print(session.run(total, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=details))
    print(*sorted({stats.device for stats in details.step_stats.dev_stats if stats.node_stats}))
"""


def test_client_outside_the_job_uses_a_served_worker(tmp_path: Path, launch: Launch) -> None:
    # the ps never serves: the client does not wait for it
    tasks = {"chief": {"count": 1, "in_cluster": False}, "worker": {"count": 1}, "ps": {"count": 1}}
    wait = "import pathlib, time\nwhile not pathlib.Path('done').exists(): time.sleep(0.05)"
    job = launch(sys.executable, "-c", wait, tasks=tasks, serve=["worker"], tasks_per_node=3, cpus_per_task=1)
    job.running("chief:0", "worker:0")
    cluster = Job(job.run.path).cluster
    assert {name: len(addresses) for name, addresses in cluster.items()} == {"worker": 1, "ps": 1}

    def said() -> str:
        return (job.attempt.logs / "worker-0.log").read_text()

    until(lambda: "gridtf serves worker:0 at" in said(), "the server", LIMIT)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-m", "gridtf", "address", str(job.run.path), "worker:0"]
    address = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=180, check=True).stdout.strip()
    assert address == cluster["worker"][0]
    command = [sys.executable, "-c", CLIENT, address]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "20.0\n/job:worker/replica:0/task:0/device:CPU:0\n"
    (tmp_path / "done").touch()
    assert job.verdict()["state"] == "COMPLETED"
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert "its tasks no longer have addresses" in done.stderr
