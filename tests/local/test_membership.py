"""A program that ignores the cluster trains once per task, which gridtf says; one that joins it is not suspected."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import LaunchedJob

pytestmark = pytest.mark.tensorflow

# worker:0 and worker:1 of each job; a shell starts the program, as in many jobs.
ALONE = """
import tensorflow as tf

weight = tf.Variable(1.0)
for _ in range(10):
    weight.assign_sub(0.1 * weight)
print("trained", float(weight))
"""
TOGETHER = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("sum", float(strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))))
"""
OWN_WAY = """
import os, socket
import tensorflow as tf

address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        other, _ = server.accept()
        other.sendall(b"1")
        other.recv(1)
else:
    while True:
        try:
            other = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            continue
    other.recv(1)
    other.sendall(b"1")
"""


@pytest.mark.parametrize(
    ("program", "seen"),
    [(ALONE, {"loaded"}), (TOGETHER, {"joined"}), (OWN_WAY, {"elsewhere", "loaded"})],
    ids=["alone", "together", "own way"],
)
def test_tasks_that_trained_separately_are_named_and_no_others(program: str, seen: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    command = ["bash", "-c", f"{shlex.quote(sys.executable)} train.py; exit $?"]
    spec: dict[str, Any] = {"command": command, "tasks": {"worker": {"count": 2}}, "tasks_per_node": 2}
    job = LaunchedJob(tmp_path, {**spec, "gpus_per_task": 0, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}})
    verdict = job.verdict(150)
    assert verdict["state"] == "COMPLETED", job.output
    assert {task["tensorflow"] for task in job.tasks().values()} == seen
    warned = "2 workers trained separately: none joined the cluster"
    assert (warned in verdict["reason"]) == (program == ALONE)
    assert (warned in job.output) == (program == ALONE)
    assert ("gridtf.training.ClusterResolver()" in verdict["hint"]) == (program == ALONE)
