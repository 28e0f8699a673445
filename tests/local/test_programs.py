"""Programs after TensorFlow's guides, as jobs of this machine: what they assume of their environment holds."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch, Program
from tests.support.jobs import LaunchedJob, until

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 500.0  # seconds; a run takes a small part of it

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def logs_of(job: LaunchedJob) -> str:
    """What all tasks have printed."""
    return job.output + "".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(job.attempt.logs.iterdir()))


def completed(job: LaunchedJob) -> dict[str, Any]:
    verdict = job.verdict(LIMIT)
    assert verdict["state"] == "COMPLETED", logs_of(job)
    return verdict


def log_of(job: LaunchedJob, task: str) -> str:
    kind, index = task.split(":")
    log = job.attempt.task_log(kind, int(index))
    return log.read_text() if log.exists() else ""


# TensorFlow's guide to ParameterServerStrategy has one program for all tasks: workers and ps serve forever.
ONE_PROGRAM_FOR_ALL = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
step = tf.function(lambda: total.assign_add(1.0))
for _ in range(20):
    coordinator.schedule(step)
coordinator.join()
print("total", float(total.read_value()), flush=True)
"""


@pytest.mark.tensorflow
def test_workers_that_serve_forever_are_stopped_after_leader_wait(launch: Launch) -> None:
    tasks = {name: {"count": 1} for name in ("chief", "worker", "ps")}
    words = (sys.executable, "-c", ONE_PROGRAM_FOR_ALL)
    job = launch(*words, tasks=tasks, tasks_per_node=2, leader_wait=2.0, env=QUIET)
    verdict = completed(job)
    assert verdict["reason"] == "chief:0 has exited with 0; worker:0 was still running and was stopped"
    assert "total 20.0\n" in log_of(job, "chief:0")


def test_client_and_service_outside_the_cluster(launch: Launch, program: Program) -> None:
    """With the client as a member, the workers' servers would wait for one of its own: examples/in_graph."""
    forever = {"command": ["sleep", "600"]}
    tasks = {
        "driver": {"kind": "client"},
        "worker": {"count": 2},
        "ps": {"count": 1, **forever},
        "board": {"kind": "service", **forever},
        "broken_board": {"kind": "service", "command": ["false"]},
    }
    job = launch(program("train", "until [ -e go ]; do sleep 0.05; done"), tasks=tasks, tasks_per_node=3)
    until(lambda: job.tasks().get("broken_board:0", {}).get("state") == "FAILED", "its end", LIMIT)
    (job.folder / "go").touch()
    verdict = completed(job)
    assert verdict["reason"] == "all training tasks have exited with 0; broken_board:0 failed"
    assert job.tasks()["board:0"]["state"] == "STOPPED"
    record = read_record(job.attempt.rendezvous) or {}
    assert sorted(record["cluster"]) == ["ps", "worker"]
    assert sorted(record["outside"]) == ["board", "broken_board", "driver"]


# A dispatcher and a worker of tf.data service in one helper, workers that read from them, and an evaluator: one program
# for all, in which the evaluator makes its strategy as the workers do.
HELPED = """
import json, os, sys, time
import tensorflow as tf
task = json.loads(os.environ["TF_CONFIG"])["task"]
helper, output = sys.argv[1], os.environ["OUTPUT_DIR"]
service = tf.data.experimental.service
if task["type"] == "ps":
    server = service.DispatchServer(service.DispatcherConfig(port=int(helper.rpartition(":")[2])))
    service.WorkerServer(service.WorkerConfig(helper)).join()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(f"replicas {strategy.num_replicas_in_sync}", flush=True)
mean = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
print(f"sum {float(mean)}", flush=True)
if task["type"] == "evaluator":
    while not os.path.exists(output + "/trained"):
        time.sleep(0.1)
    print("evaluated", flush=True)
    sys.exit()
data = tf.data.Dataset.range(40).apply(
    service.distribute(service.ShardingPolicy.DYNAMIC, "grpc://" + helper, job_name="shared")
)
print("read", *sorted(int(element) for element in data), flush=True)
open(output + "/trained", "w").close()
"""


@pytest.mark.tensorflow
def test_ps_outside_the_cluster_and_evaluator_with_a_mirrored_strategy(launch: Launch) -> None:
    tasks = {"worker": {"count": 2}, "ps": {"count": 1, "in_cluster": False}, "evaluator": {"count": 1}}
    words = (sys.executable, "-c", HELPED, "{ps_hosts}")
    job = launch(*words, tasks=tasks, tasks_per_node=2, evaluator_wait=LIMIT, env=QUIET)
    verdict = completed(job)
    assert verdict["reason"] == "all training tasks have exited with 0", logs_of(job)
    read = []
    for worker in ("worker:0", "worker:1"):
        lines = log_of(job, worker).splitlines()
        assert "replicas 2" in lines and "sum 2.0" in lines, logs_of(job)
        read += [word for line in lines if line.startswith("read") for word in line.split()[1:]]
    assert sorted(map(int, read)) == list(range(40))  # each element once
    evaluator = log_of(job, "evaluator:0").splitlines()
    assert [line for line in evaluator if line in ("replicas 1", "sum 1.0", "evaluated")] == [
        "replicas 1",
        "sum 1.0",
        "evaluated",
    ]


@pytest.mark.tensorflow
def test_killed_served_worker_is_restarted_and_the_chief_continues(launch: Launch) -> None:
    """TensorFlow's coordinator does without it meanwhile, as the guide to ParameterServerStrategy has it."""
    tasks = {"chief": {"count": 1}, "worker": {"count": 2}, "ps": {"count": 1}}
    program = str(ROOT / "examples" / "parameter_server" / "train.py")
    job = launch(
        *(sys.executable, program, "--epochs", "60"),
        tasks=tasks,
        tasks_per_node=3,
        serve=["ps", "worker"],
        python=sys.executable,
        env=QUIET,
    )
    until(lambda: "epoch 3 of" in log_of(job, "chief:0") or job.process.poll() is not None, "training", LIMIT)
    assert job.process.poll() is None, logs_of(job)
    os.kill(job.running("worker:1")["worker:1"], signal.SIGKILL)
    known = log_of(job, "chief:0").count("epoch ")
    until(lambda: log_of(job, "chief:0").count("epoch ") > known, "another epoch, with one worker", LIMIT)
    chief = job.running("chief:0")["chief:0"]
    os.kill(chief, signal.SIGSTOP)  # so that it has not ended before the worker is back
    until(lambda: log_of(job, "worker:1").count("gridtf serves worker:1 at") == 2, "the worker's return", LIMIT)
    os.kill(chief, signal.SIGCONT)
    verdict = completed(job)
    assert "1 restart of worker:1 after a failure" in verdict["reason"]
    assert "epoch 60 of 60" in log_of(job, "chief:0")
    assert "accuracy on 360 held-out digits: 0.9" in log_of(job, "chief:0")
