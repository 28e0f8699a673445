"""Averaging with TensorFlow: members on this host, their models, their ends and their faults."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Launch
from tests.support.tasks import LIMIT, Cluster

pytestmark = pytest.mark.tensorflow

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}

# One start of TensorFlow for many checks. A later group uses the connection of the first one.
MEMBERS = """
import json, os, pickle
from gridtf import GridtfError, training
from gridtf.training.exchange import Interval
from gridtf.training.group import Group

first = training.averaging(every=1)
import keras, numpy as np, tensorflow as tf

def again(optimizer_state=False, **interval):
    return Group(first.members, first.rank, first._link, Interval(**interval), optimizer_state=optimizer_state)

told = {"members": first.members, "rank": first.rank}
random = np.random.default_rng(1)
x = random.normal(size=(10, 24, 4)).astype("float32")  # steps, examples, features
y = np.sin(x.sum(axis=2, keepdims=True))

class Net(tf.Module):
    def __init__(self, seed):
        self.w1 = tf.Variable(tf.random.stateless_normal([4, 8], [seed, 1]), name="w1")
        self.w2 = tf.Variable(tf.random.stateless_normal([8, 1], [seed, 2]), name="w2")
        self.count = tf.Variable(0, dtype=tf.int64, name="count")
        self.wide = tf.Variable(1.0 / 3, dtype=tf.float64, name="wide")

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ self.w1) @ self.w2 - y) ** 2)
        for variable, gradient in zip([self.w1, self.w2], tape.gradient(loss, [self.w1, self.w2])):
            variable.assign_sub(0.1 * gradient)
        self.count.assign_add(1)

# N = 1: each member with a third of every batch, against one process with all of it
net, whole = Net(first.rank), Net(0)
first.attach(net)
for step in range(10):
    share = slice(8 * first.rank, 8 * first.rank + 8)
    net.step(x[step, share], y[step, share])
    first.step()
    whole.step(x[step], y[step])
first.finish()
told["synchronous"] = max(float(tf.reduce_max(abs(a - b))) for a, b in [(net.w1, whole.w1), (net.w2, whole.w2)])
told["moved"] = float(tf.reduce_max(abs(net.w1 - Net(0).w1)))
told["count"], told["wide"] = int(net.count), float(net.wide)

# 10, 20 and 30 steps
net = Net(first.rank)
group = again(every=20)
with group:
    group.attach(net)
    for step in range(10 * (first.rank + 1)):
        net.step(x[step % 10, :8], y[step % 10, :8])
        group.step(8)
told["ends"] = net.w1.numpy().tolist()
told["steps"] = int(net.count)

# a member that has diverged has weight 0
net.w1.assign(tf.fill([4, 8], np.nan if first.rank == 1 else 5.0))
group.step(0.0 if first.rank == 1 else 1.0)
group.finish()
told["diverged"] = float(tf.reduce_mean(net.w1))

# one that has a weight is named, and nobody gets its values; what is infinite from the beginning does not count
mask = tf.Variable([0.0, -np.inf])
group = again(every=1)
group.attach([net.w1, mask])
net.w1.assign(tf.fill([4, 8], np.inf if first.rank == 1 else 2.0 + first.rank))
try:
    group.step()
except GridtfError as error:
    told["error"] = str(error)
told["kept"], told["mask"] = float(tf.reduce_mean(net.w1)), mask.numpy().tolist() == [0.0, -np.inf]

# weights that Keras changes after the last step of fit, a different one in each member
def fitted(optimizer, before=(), after=()):
    keras.utils.set_random_seed(first.rank)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 4))
    model.compile(optimizer, "mse")
    own = x[: 4 + 3 * first.rank, :8].reshape(-1, 4), y[: 4 + 3 * first.rank, :8].reshape(-1, 1)  # batches
    callbacks = [*before, again(every=3).callback(), *after]
    history = model.fit(*own, batch_size=8, epochs=3, validation_data=own, verbose=0, callbacks=callbacks)
    told["pickled"] = len(pickle.loads(pickle.dumps(history.history)))
    assert not [name for name in vars(history) if name.startswith("on_")]
    return [v.numpy().tolist() for v in model.variables], model

def same(weights, model_weights):
    return all(np.array_equal(a, b) for a, b in zip(weights, model_weights, strict=True))

ends, model = fitted(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9))
average = model.optimizer._model_variables_moving_average
told["ema"] = ends, same(ends, average)
for place in ("before", "after"):
    stop = keras.callbacks.EarlyStopping(patience=9, mode="max", restore_best_weights=True)  # best is the first epoch
    ends, model = fitted("sgd", **{place: [stop]})
    told[place] = ends, same(ends, stop.best_weights), stop.best_epoch

# fit of Keras 3, with a batch normalization, several steps at once and the state of the optimizer
keras.utils.set_random_seed(first.rank)
layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
model = keras.Sequential(layers)  # not built: fit does
model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=4)
group = again(every=8, optimizer_state=True)
count = 4 * (first.rank + 1)
data = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 4), y.reshape(-1, 1))).batch(8).repeat().take(count)
told["share"] = [int(number) for number in first.share(tf.data.Dataset.range(7))]
told["arrays"] = first.share({"x": np.arange(7)})["x"].tolist()
try:
    first.share(tf.data.Dataset.range(1))
except GridtfError as error:
    told["too few"] = str(error).splitlines()[0]
model.fit(data, epochs=2, verbose=0, callbacks=[group.callback()])
floats = [v for v in [*model.variables, *model.optimizer.variables] if "float" in v.dtype]
told["fit"] = [v.numpy().tolist() for v in floats]
told["batches"] = group._steps
told["iterations"] = int(model.optimizer.iterations)
told["seeds"] = [v.numpy().tolist() for v in model.variables if "float" not in v.dtype]

with open(f"{os.environ['OUTPUT_DIR']}/{first.rank}.json", "w") as file:
    json.dump(told, file)
"""


def test_members_of_three_tasks(launch: Launch) -> None:
    tasks = {"chief": {"count": 1}, "worker": {"count": 2}}
    job = launch(sys.executable, "-c", MEMBERS, tasks=tasks, tasks_per_node=3, cpus_per_task=1, env=QUIET)
    verdict = job.verdict(LIMIT)
    logs = "".join(log.read_text() for log in sorted(job.attempt.logs.iterdir()))
    assert verdict["state"] == "COMPLETED", logs
    found: list[dict[str, Any]] = [json.loads((job.run.output / f"{rank}.json").read_text()) for rank in range(3)]
    assert [(told["members"], told["rank"]) for told in found] == [
        (["chief:0", "worker:0", "worker:1"], rank) for rank in range(3)
    ]
    # every step, as synchronous training
    assert all(told["synchronous"] < 1e-5 < 1e-2 < told["moved"] for told in found), found
    assert all((told["count"], told["wide"]) == (10, 1 / 3) for told in found)
    # data that end at different steps, with equal weights in the end
    assert [told["steps"] for told in found] == [10, 20, 30]
    assert found[0]["ends"] == found[1]["ends"] == found[2]["ends"]
    assert [told["diverged"] for told in found] == [5.0] * 3
    assert {told["error"].splitlines()[0] for told in found} == {"averaging after step 1: worker:0 has diverged"}
    assert [told["kept"] for told in found] == [2.0, float("inf"), 4.0]
    assert all(told["mask"] for told in found)
    # what Keras does after the last step: all have what the leader has, which is its own
    for case in ("ema", "before", "after"):
        assert found[0][case][0] == found[1][case][0] == found[2][case][0], case
        assert [told[case][1] for told in found] == [True, False, False], case
    assert found[0]["before"][2] == found[0]["after"][2] == 0
    assert [told["share"] for told in found] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [told["arrays"] for told in found] == [[0, 3, 6], [1, 4], [2, 5]]
    assert {told["too few"] for told in found} == {"group.share(): 1 examples (or batches) for 3 tasks"}
    # fit
    assert [told["batches"] for told in found] == [8, 16, 24]
    assert [told["iterations"] for told in found] == [8, 16, 24]
    assert found[0]["fit"] == found[1]["fit"] == found[2]["fit"]
    assert len({str(told["seeds"]) for told in found}) == 3


FAULTS = """
import sys, time
from gridtf import GridtfError, training

group = training.averaging(every=1)
import tensorflow as tf
v = tf.Variable(tf.zeros([2]), name="v")
own = tf.Variable(tf.zeros([2 + group.rank // 2]), name="w")
try:
    group.attach([v, own])
except GridtfError as error:
    print(error)
group.attach([v])
print("ready", flush=True)
try:
    while True:
        v.assign_add([1.0, 1.0])
        group.step()
except GridtfError as error:
    print(error)
    print("over", flush=True)
time.sleep(600)
"""

LATE = """
import tensorflow as tf
from gridtf import training
data = tf.data.Dataset.range(3)
print("made", flush=True)
group = training.averaging(every=5)
"""


def test_faults_of_members_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    (tmp_path / "late.py").write_text(LATE)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack, {"worker": 3})
        members = [cluster.start("worker", index, "faults") for index in range(3)]
        for index, member in enumerate(members):
            cluster.wait_for(member, "worker", index, "ready\n")
            said = cluster.log("worker", index).read_text()
            assert "worker:0 and worker:2 have attached different models\n" in said
            assert "variable 2 is w:0 float32 [2] at worker:0, w:0 float32 [3] at worker:2\n" in said
        members[2].kill()
        for index in (0, 1):
            cluster.wait_for(members[index], "worker", index, "over\n")
            assert f"worker:{index}: averaging after step " in cluster.log("worker", index).read_text()
        said = cluster.log("worker", 0).read_text()  # worker:1 may rather learn that worker:0 gives up
        assert "failed: worker:2 does not respond\n" in said
        assert "see `gridtf logs JOB --task worker:2`: did it fail, or end without group.finish()?\n" in said
        # TensorFlow's coordination service would have SIGTERM ignored
        for member in members[:2]:
            member.terminate()
        assert [member.wait(LIMIT) for member in members[:2]] == [-signal.SIGTERM] * 2


def test_averaging_that_is_called_too_late_says_which_line_to_move(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack, {"worker": 2})
        late = cluster.start("worker", 1, "late")
        assert late.wait(LIMIT) == 1
        said = cluster.log("worker", 1).read_text()
    assert "made\n" in said  # TensorFlow may have logged something before
    assert said.splitlines()[-3:] == [
        "gridtf.errors.GridtfError: late.py, line 6: training.averaging() comes too late",
        "a tensor, variable, model or data set was made before, and TensorFlow then allows no new connections",
        "move this line to right after the imports: group = training.averaging(every=5)",
    ]
    assert "MultiWorkerMirroredStrategy" not in said
