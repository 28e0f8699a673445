"""Progress and summaries of real tasks, one of which is killed in the middle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.jobs import LaunchedJob
from tests.support.tasks import LIMIT

pytestmark = pytest.mark.tensorflow

PROGRAM = """
import os, pathlib, signal, time
import keras
import numpy as np
import tensorflow as tf
import gridtf
from gridtf import training

for each in keras.Variable.__mro__:
    if "__int__" in vars(each):
        del each.__int__  # a variable of Keras 3.0 has none
x = np.ones((64, 2), "float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[training.progress_callback(model)])
with training.summary_writer().as_default():
    tf.summary.write("loss", 0.5, step=1)
gridtf.progress(tf.constant(17), loss=tf.constant(float("nan")), accuracy=np.float32(0.5))
print("reported", flush=True)
if os.environ["RANK"] == "0":
    pathlib.Path("reported").touch()
else:
    while not pathlib.Path("reported").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


def test_progress_survives_a_killed_task_and_summaries_are_the_chief_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    spec = {"command": [sys.executable, "train.py"], "tasks": {"worker": {"count": 2}}, "tasks_per_node": 2}
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_CONFIG": ""}
    job = LaunchedJob(tmp_path, {**spec, "gpus_per_task": 0, "env": env})
    verdict = job.verdict(LIMIT)
    assert verdict["reason"] == f"worker:1 on {verdict['cause']['host']}: killed by SIGKILL", job.output
    for name, state in (("worker:0", "STOPPED"), ("worker:1", "FAILED")):
        task = job.tasks()[name]
        assert task["state"] == state
        assert 1 <= task["progress"]["step"] <= 17  # a signal ended it: at most the last second is lost
        assert {"loss"} <= set(task["progress"]["values"]) <= {"loss", "mae", "accuracy"}
    assert len(list((tmp_path / "run" / "output" / "summaries").iterdir())) == 1
    assert list((tmp_path / "run" / "output").iterdir()) == [tmp_path / "run" / "output" / "summaries"]
