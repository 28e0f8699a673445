"""Mistakes that TensorFlow answers with a riddle: the verdict says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import LaunchedJob
from tests.support.tasks import LIMIT

pytestmark = pytest.mark.tensorflow

TENSOR_FIRST = """
import tensorflow as tf

x = tf.constant(1.0)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""
KERAS_FIT = """
import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = tf.ones((64, 2))
model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8), epochs=1, verbose=0)
"""
WITH_PS = KERAS_FIT.replace(
    "MultiWorkerMirroredStrategy()", "ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())"
)
WORKER: dict[str, Any] = {"tasks": {"worker": {"count": 1}}}  # it fails before it waits for another
WORKERS: dict[str, Any] = {"tasks": {"worker": {"count": 2}}, "tasks_per_node": 2}
CHIEF: dict[str, Any] = {"tasks": {"chief": {}, "worker": {"count": 1}, "ps": {}}, "serve": ["ps", "worker"]}


@pytest.mark.parametrize(
    ("program", "tasks", "hint"),
    [
        (TENSOR_FIRST, WORKER, "a tensor was made before the strategy: make the strategy first of all"),
        (KERAS_FIT, WORKERS, "Keras 3's fit does not work under this strategy: it does in one task"),
        (WITH_PS, CHIEF, "the dataset of a loop goes to its coordinator; Keras 3's fit does not work under this"),
    ],
    ids=["tensor first", "Keras fit", "Keras fit with parameter servers"],
)
def test_verdict_explains_a_common_mistake(program: str, tasks: dict[str, Any], hint: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    spec = {"command": [sys.executable, "train.py"], "tasks_per_node": 3, "python": sys.executable, **tasks}
    job = LaunchedJob(tmp_path, {**spec, "gpus_per_task": 0, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}})
    verdict = job.verdict(LIMIT)
    assert verdict["state"] == "FAILED", job.output
    assert verdict["hint"].startswith(hint), job.output
