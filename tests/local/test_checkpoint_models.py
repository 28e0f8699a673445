"""Checkpoints of models of every kind: a training goes on with all that was saved, down to the random numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT
from tests.support.legacy_keras import need_tf_keras

pytestmark = pytest.mark.tensorflow
KINDS = (
    *("list", "tuple", "dict", "nested", "counted", "module"),
    *("frozen", "recurrent", "attention", "sequential"),
)
LIMIT = 500.0  # seconds; it takes a quarter of a minute on a quiet machine
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}

# Every model twice: one is trained a step and saved, the other one made anew and restored.
COMMON = """
import os
import re
from pathlib import Path
import numpy as np
import tensorflow as tf
from gridtf import training
from gridtf.errors import GridtfError
from gridtf.training import checkpoints
from gridtf.training.variables import tensorflow_variable, variables_of

x = np.random.default_rng(1).random((8, 4), np.float32)

def trained(model, optimizer):
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - 1.0) ** 2)
        weights = [each for each in variables_of(model) if each.trainable]
        gradients = tape.gradient(loss, [*map(tensorflow_variable, weights)])
        if optimizer:
            optimizer.apply_gradients(zip(gradients, weights))
        else:
            for weight, gradient in zip(weights, gradients):
                weight.assign_sub(0.1 * gradient)
    return float(loss)

def values(*parts):
    return [np.asarray(each.numpy()) for part in parts if part is not None for each in variables_of(part)]

def same(a, b):
    return len(a) == len(b) and all(np.array_equal(one, other) for one, other in zip(a, b))

def compare(label, keras, make, adam):
    for name, optimizer in {"none": lambda: None, "adam": adam}.items():
        folder = Path("saved", f"{label}-{name}")
        keras.utils.set_random_seed(5)
        model, first = make(), optimizer()
        model(x)
        saved = training.checkpoint(model, first, folder=folder)
        trained(model, first)
        saved.after_step(2)
        saved.save()
        kept, weights = values(model, first), values(model)
        goes_on = trained(model, first)
        keras.utils.set_random_seed(99)
        other, second = make(), optimizer()
        other(x)
        before = values(other)
        step = training.checkpoint(other, second, folder=folder).step
        found = values(other, second)
        if "legacy" in label:  # makes its own in the first step
            found, kept = values(other), weights
        whole = step == 2 and same(found, kept) and not same(before, kept[:len(before)])
        again = trained(other, second)
        print(label, name, "whole" if whole else "LOST", "goes on" if again == goes_on else "DIFFERS")
"""

KERAS_3 = """
import keras

layers = keras.layers

class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense, self.norm, self.drop = layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)
    def call(self, x, training=None):
        return x + self.drop(self.norm(self.dense(x), training=training), training=training)

class Held(keras.Model):
    def __init__(self, hold):
        super().__init__()
        self.blocks = hold([Block(), Block()])
    def call(self, x, training=None):
        for block in self.blocks.values() if isinstance(self.blocks, dict) else self.blocks:
            x = block(x, training=training)
        return x

class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        shared = layers.Dense(4)
        self.parts = {"a": [shared, Held(list)], "b": {"c": (shared, Held(tuple))}}
    def call(self, x, training=None):
        (first, deep), (again, other) = self.parts["a"], self.parts["b"]["c"]
        return again(other(first(deep(x, training=training)), training=training))

class Counted(keras.Model):  # a seed, a metric and a variable of its own that is no weight
    def __init__(self):
        super().__init__()
        self.seeds = [keras.random.SeedGenerator(7)]
        self.seen = keras.metrics.Mean()
        self.count = self.add_weight(shape=(), trainable=False, dtype="int32", initializer="zeros")
        self.last = layers.Dense(4)
    def call(self, x, training=None):
        if training:
            self.count.assign_add(1)
            x = x + keras.random.normal(tf.shape(x), seed=self.seeds[0])
        self.seen.update_state(x)
        return self.last(x)

class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(tf.ones([4]))
        self.layers = [layers.Dense(4), layers.Dropout(0.5)]
        self.more = {"model": keras.Sequential([layers.Dense(4), layers.BatchNormalization()])}
        self.noise = keras.random.SeedGenerator(3)
    def __call__(self, x, training=None):
        for layer in self.layers:
            x = layer(x, training=training)
        if training:
            x = x + keras.random.normal(tf.shape(x), seed=self.noise)
        return self.more["model"](x * self.scale, training=training)

def frozen():
    model = Held(list)
    model.blocks[0].trainable = False
    return model

def attention():
    inputs = keras.Input((4,))
    pairs = layers.Reshape((2, 2))(inputs)
    return keras.Model(inputs, layers.Flatten()(layers.MultiHeadAttention(2, 2, dropout=0.2)(pairs, pairs)))

kinds = {
    "list": lambda: Held(list),
    "tuple": lambda: Held(tuple),
    "dict": lambda: Held(lambda blocks: dict(zip("ab", blocks))),
    "nested": Nested,
    "counted": Counted,
    "module": Module,
    "frozen": frozen,
    "recurrent": lambda: keras.Sequential([layers.Reshape((2, 2)), layers.LSTM(4, dropout=0.3), layers.Dense(4)]),
    "attention": attention,
    "sequential": lambda: keras.Sequential([layers.Dense(4), layers.Dropout(0.5), layers.BatchNormalization()]),
}
for label, make in kinds.items():
    compare(label, keras, make, lambda: keras.optimizers.Adam(0.01))

def refused(what, call):
    try:
        call()
    except GridtfError as error:
        told = " | ".join((error.what, error.why, error.hint))
        print(what, re.sub("dense_[0-9]+", "dense_X", told).replace("|  |", "| |"))

# As TensorFlow sees a model: what gridtf has saved before it named every variable.
def saved_before(make, folder):
    model = make()
    model(x)
    named, checkpoints._named = checkpoints._named, lambda parts: {}
    saved = training.checkpoint(model, folder=folder)
    saved.after_step()
    saved.save()
    checkpoints._named = named
    return model

for label in ("list", "sequential"):
    model, other = saved_before(kinds[label], Path("old", label)), kinds[label]()
    other(x)
    def again():
        assert training.checkpoint(other, folder=Path("old", label)).step == 1
        weights = [[each.numpy() for each in one.weights] for one in (model, other)]
        print("old", label, "weights", same(*weights))
    refused(f"old {label}", again)

late = Module()
late(x)
saved = training.checkpoint(late, folder="late")
late.layers.append(layers.Dense(4))
late(x)
saved.after_step()
refused("late", saved.save)
print("left", *os.listdir("late"))
saved = training.checkpoint(late, folder="late")
saved.after_step()
saved._objects = tf.train.Checkpoint(model=late)  # as if TensorFlow had not followed the names
refused("lost", saved.save)
"""

TF_KERAS = """
import tf_keras
layers = tf_keras.layers

class Held(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(4), {"norm": layers.BatchNormalization()}]
    def call(self, x, training=None):
        return self.blocks[1]["norm"](self.blocks[0](x), training=training)

class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.layers = [layers.Dense(4), {"last": layers.Dense(4)}]
        self.mean = tf_keras.metrics.Mean()
    def __call__(self, x, training=None):
        self.mean.update_state(x)
        return self.layers[1]["last"](self.layers[0](x))

for label, make in {"list": Held, "module": Module}.items():
    compare(label, tf_keras, make, lambda: tf_keras.optimizers.Adam(0.01))
compare("legacy", tf_keras, Held, lambda: tf_keras.optimizers.legacy.Adam(0.01))
"""

UNTRACKED = """
class Optimizer:  # as of Keras 3.0: TensorFlow cannot look into it
    built = True
    def __init__(self):
        self.variables = [tf.Variable(0.0)]
    def build(self, variables):
        pass

for _ in range(2):
    model, optimizer = tf.Module(), Optimizer()
    model.weight = tf.Variable(1.0)
    saved = training.checkpoint(model, optimizer, folder="untracked")
    print(saved.step, optimizer.variables[0].numpy())
    optimizer.variables[0].assign(5.0)
    saved.after_step()
    saved.save()
"""


def run(program: str, folder: Path, *paths: Path) -> list[str]:
    (folder / "program.py").write_text(COMMON + program)
    env = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths)))}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("gridtf: continues")]


def test_models_of_keras_3_are_restored_whole_and_a_loss_is_an_error(tmp_path: Path) -> None:
    *lines_of_models, first, second = run(KERAS_3 + UNTRACKED, tmp_path)
    assert [first, second] == ["0 0.0", "1 5.0"]  # the optimizer that TensorFlow cannot look into
    lines = iter(lines_of_models)
    for kind in KINDS:
        for optimizer in ("none", "adam"):
            assert next(lines) == f"{kind} {optimizer} whole goes on"
    assert list(lines) == [
        f"old list {tmp_path}/old/list/step-1 cannot be restored"
        " | it was written by a gridtf that did not save layers which a model holds in a list or a dict"
        " | their weights are lost: begin anew in another folder, training.checkpoint(…, folder=…)",
        "old sequential weights True",
        "late dense_X/kernel, dense_X/bias were created after training.checkpoint(…), and would not be saved"
        " | | make all variables first: model.build(…), or call the model on a batch",
        "left",
        "lost TensorFlow has not saved Variable:0, dense_X/kernel and 11 more | | please report it, with the model",
    ]


def test_models_of_tf_keras_are_restored_whole(tmp_path: Path) -> None:
    kinds = ("list none", "list adam", "module none", "module adam", "legacy none", "legacy adam")
    assert run(TF_KERAS, tmp_path, need_tf_keras()) == [f"{kind} whole goes on" for kind in kinds]
