"""The reason of a job that fails is the first cause, not one of its victims; with real trainings and a wrong clock."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gridtf.report.gather import gather
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, until

LIMIT = 500.0  # seconds; a run takes a small part of it

# As TensorFlow's programs do: worker 2 fails and takes seconds to end, worker 0 fails because of it and ends sooner.
# A second later worker 1 fails in a way of its own. Argument: the folder where worker 2 tells that it fails.
IMITATION = """\
import atexit, os, pathlib, sys, time
rank, fails = int(os.environ["RANK"]), pathlib.Path(sys.argv[1], "fails")
def train(label):
    if label > 10:
        raise ValueError(f"bad label {label}")
    time.sleep(rank)
    raise RuntimeError("no more data" if rank else "Socket closed: from remote target /job:worker/replica:0/task:2")
if rank == 2:
    atexit.register(time.sleep, 5)
    fails.touch()
while rank != 2 and not fails.exists():
    time.sleep(0.2)
train(11 if rank == 2 else 0)
"""
# A host whose clock is a minute ahead: its agent, and the tasks, whose hook loads this as the site's own.
AHEAD = "import time\n_time = time.time\ntime.time = lambda: _time() + 60\n"
AGENT = """\
import sitecustomize, sys
at = sys.argv.index("-c") + 1
sys.argv[:], code = sys.argv[at:], sys.argv[at]
exec(code)
"""


@pytest.mark.parametrize("clock", ["right", "a minute ahead"])
def test_slow_end_of_the_culprit_does_not_hide_it(clock: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(IMITATION)
    ahead = tmp_path / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(AHEAD)
    (ahead / "agent.py").write_text(AGENT)
    prefix = ["env", f"PYTHONPATH={ahead}", sys.executable, str(ahead / "agent.py")] if clock != "right" else []
    hosts: list[dict[str, Any]] = [{"name": "n1"}, {"name": "n2"}, {"name": "n3", "prefix": prefix}]
    spec = {"command": [sys.executable, str(program), str(tmp_path)], "tasks": {"worker": {"count": 3}}}
    job = LaunchedJob(tmp_path, spec, hosts)
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert verdict["reason"] == "worker:2 on n3: ValueError: bad label 11 (train.py:5)"
    assert verdict["cause"]["tail"][-1] == "ValueError: bad label 11"
    assert job.tasks()["worker:2"]["state"] == "STOPPED"  # it took seconds to end, and gridtf did not wait for that
    attempts = gather(job.run, time.time()).attempts
    assert [(name, one.state) for name, (one,) in attempts[0].tasks.items() if one.cause] == [("worker:2", "FAILED")]


EMPTIED = """\
import os, shutil, sys
shutil.rmtree(os.environ["TMPDIR"])
raise ValueError("bad label 11")
"""


def test_exception_is_named_after_the_folder_for_temporary_files_was_emptied(tmp_path: Path) -> None:
    program, folder = tmp_path / "train.py", tmp_path / "tmp" / "of-job"
    program.write_text(EMPTIED)
    folder.mkdir(parents=True)
    job = LaunchedJob(tmp_path, {"command": [sys.executable, str(program)]}, TMPDIR=str(folder))
    assert re.fullmatch(r"worker:0 on \S+: ValueError: bad label 11 \(train.py:3\)", job.verdict()["reason"])


TRAINING = """\
import os, sys, time
import tensorflow as tf
how = sys.argv[1]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def step():
    def add():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
    return strategy.run(add)

def load(label):
    if label > 10:
        raise ValueError(f"bad label {label}")

for number in range(100_000):
    step()
    if number == 20:
        print("trains", flush=True)
        if how == "silent":
            time.sleep(600 if rank == 1 else 0)
    if number == 30 and rank == 1:
        if how == "raises":
            load(11)
        if how == "exits":
            sys.exit(0)
    time.sleep(0.01)
"""
FAULTS = {
    "raises": r"worker:1 on \S+: ValueError: bad label 11 \(train.py:17\)",
    "exits": r"worker:1 on \S+ exited with 0 while others trained \(worker:0 on .*",
    "killed": r"worker:1 on \S+: killed by SIGKILL.*",
    "stopped": r"worker:1 on \S+ did not respond any more \(worker:0 on .*",
}


@pytest.mark.tensorflow
@pytest.mark.parametrize("fault", FAULTS)
def test_first_cause_of_a_training_that_fails(fault: str, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    words = (sys.executable, "train.py", fault)
    job = launch(*words, tasks={"worker": {"count": 2}}, tasks_per_node=2, env=quiet)
    logs = [job.attempt.task_log("worker", number) for number in range(2)]

    def trains() -> bool:
        return all(log.exists() and "trains" in log.read_text() for log in logs) or job.process.poll() is not None

    until(trains, "training", LIMIT)
    number = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}.get(fault)
    if number is not None:
        os.kill(job.tasks()["worker:1"]["pid"], number)
    verdict = job.verdict(LIMIT)
    assert verdict["state"] == "FAILED"
    assert re.fullmatch(FAULTS[fault], verdict["reason"]), (verdict["reason"], [log.read_text() for log in logs])
    assert verdict["cause"]["task"] == "worker:1"
