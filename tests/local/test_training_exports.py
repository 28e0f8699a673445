"""training.export with TensorFlow: models of two workers, used by a process that has neither gridtf nor their code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fixtures import Launch

pytestmark = pytest.mark.tensorflow
LIMIT = 500.0

TRAIN = """
import os
import numpy as np
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras
import gridtf
from gridtf import training
from gridtf.errors import GridtfError
from gridtf.training.savedmodel import nodes
from tensorflow.core.protobuf import saved_model_pb2

task = gridtf.task()
x = np.arange(6, dtype=np.float32).reshape(2, 3)

class Pinned(keras.layers.Layer):
    def call(self, x):
        with tf.device(f"/job:worker/replica:0/task:{task.index}/device:CPU:0"):
            return x * 2

def sequential(*layers):
    return keras.Sequential([keras.layers.Dense(4), *layers, keras.layers.Dense(2)])

# every task takes part; a newer export replaces an older one
keras.utils.set_random_seed(1)
with strategy.scope():
    model = sequential(keras.layers.BatchNormalization(), Pinned())
    model.build((None, 3))
paths = [training.export(model, "models/mirrored") for _ in range(2)]
assert paths == [task.output_dir / "models" / "mirrored"] * 2
print("mirrored", np.round(model(x).numpy(), 4).tolist())
# all have exported
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
assert float(total) == 2
if task.is_chief:
    [name] = os.listdir(paths[0].parent)  # nothing else is left there
    saved = saved_model_pb2.SavedModel.FromString((paths[0] / "saved_model.pb").read_bytes())
    assert len(list(nodes(saved))) > 10
    assert {node.device for node in nodes(saved)} == {""}
    for file in paths[0].rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        assert b"/job:" not in data and b":" + task.cluster["worker"][0].split(":")[1].encode() not in data, file

# a model outside any strategy, which the chief alone writes
class Scale(tf.Module):
    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(3.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def __call__(self, x):
        return x * self.factor

    @tf.function(input_signature=[])
    def again(self):
        return self.factor

if task.is_chief:
    training.export(Scale(), "scale")
else:
    assert training.export(Scale(), "worker") == task.output_dir / "worker"
    assert not (task.output_dir / "worker").exists()

def refused(model, path="refused"):
    try:
        training.export(model, path)
    except GridtfError as error:
        print("refused:", str(error).replace("\\n", " | "))

class Calls(keras.layers.Layer):
    def call(self, x):
        y = tf.py_function(lambda value: value.numpy() + 1, [x], tf.float32)
        return tf.ensure_shape(y, x.shape)

class Bare(tf.Module):
    @tf.function
    def f(self, x):
        return x

class Subclassed(keras.Model):
    def build(self, shape):
        self.dense = keras.layers.Dense(2)
    def call(self, x):
        return self.dense(x)

if task.is_chief:
    refused(sequential())
    with_python = sequential(Calls(name="mine"))
    with_python.build((None, 3))
    refused(with_python)
    refused(Bare(name="bare"))
    never_called = Subclassed()
    never_called.build((None, 3))
    refused(never_called)
    refused("model")
    refused(tf.compat.v1.Session())
    refused(model, "model.keras")
    try:
        training.session()
    except GridtfError as error:
        print("refused:", error.what)
    refused(with_python, "scale")  # the older one stays
    (task.output_dir / "file").write_text("")
    refused(Scale(), "file/model")
    assert not (task.output_dir / "refused").exists()
    assert not list(task.output_dir.glob(".*"))
"""

PREDICT = """
import sys
import numpy as np
import tensorflow as tf
x = np.arange(6, dtype=np.float32).reshape(2, 3)
mirrored = tf.saved_model.load(sys.argv[1] + "/models/mirrored")
print("mirrored", np.round(mirrored.serve(x).numpy(), 4).tolist())
assert np.allclose(mirrored.serve(x), [*mirrored.signatures["serving_default"](tf.constant(x)).values()][0])
scale = tf.saved_model.load(sys.argv[1] + "/scale")
print("scale", scale(tf.constant([2.0])).numpy(), float(scale.again()))
assert "gridtf" not in sys.modules
"""


def test_exported_models_are_complete_and_others_are_refused(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    job = launch(sys.executable, "train.py", tasks={"worker": {"count": 2}}, tasks_per_node=2, cpus_per_task=1)
    verdict = job.verdict(LIMIT)
    logs = [(job.attempt.logs / f"worker-{index}.log").read_text() for index in range(2)]
    assert verdict["state"] == "COMPLETED", logs

    refused = [line for line in logs[0].splitlines() if line.startswith("refused: ")]
    expected = [
        "cannot export sequential_1: the model is not built, so its inputs are not known | call it on one batch before",
        "cannot export sequential_2: its layer mine calls a Python function | a SavedModel holds operations",
        "cannot export bare: none of its functions has an input signature, so none can be called | write @tf",
        "cannot export subclassed | ValueError: The model provided has never called. It must be called at least once",
        "training.export takes a Keras model or a tf.Module, not a value of type str",
        "training.export takes a Keras model or a tf.Module, not a value of type Session | for a session: ",
        "training.export writes a folder, a SavedModel, not a .keras file: model.keras | write: ",
        "training.session needs a graph, and TensorFlow executes operations at once",
        "cannot export sequential_2: its layer mine calls a Python function | a SavedModel holds operations",
        f"cannot write {job.run.output}/file/model: File exists | make room there or permit it,",
    ]
    assert len(refused) == len(expected), refused
    for line, beginning in zip(refused, expected, strict=True):
        assert line.startswith(f"refused: {beginning}"), (line, beginning)

    environ = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", PREDICT, str(job.run.output)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "scale [6.] 3.0"
    [trained] = re.findall(r"^mirrored .*$", logs[0], re.MULTILINE)
    assert done.stdout.splitlines()[0] == trained
