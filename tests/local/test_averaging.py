"""Averaging with TensorFlow: members on this host, their models, their ends and their faults."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gridtf.training.checkpointfolder import newest
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
tf.random.set_seed(None)
first.share(tf.data.Dataset.range(7).repeat().shuffle(7))  # endless: no order is another's
told["seeded"] = [int(number) for number in first.share(tf.data.Dataset.range(7).shuffle(7, seed=1))]
try:
    first.share(tf.data.Dataset.range(7).shuffle(7).map(lambda number: number + 1))
except GridtfError as error:
    told["without a seed"] = str(error).splitlines()[0]

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
    assert sorted(number for told in found for number in told["seeded"]) == [*range(7)]
    without = "group.share(): this dataset is shuffled without a seed, in another order in each task"
    assert {told["without a seed"] for told in found} == {without}
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


# What layers have learned, and a training in which nothing is averaged.
LEARNED = """
import contextlib
from gridtf import GridtfError, training
group = training.averaging(every=2)
import keras
import numpy as np
import tensorflow as tf

words = ["a b", "b c", "c d", "d e"]
text = keras.layers.TextVectorization()
text.adapt(group.share(words))  # too late
lookup = keras.layers.StringLookup()
if group.rank == 0:  # the other task has it from a file
    lookup.adapt(words)
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
order = np.random.default_rng(group.rank).permutation(64)
norm = keras.layers.Normalization()
norm.adapt(x[order] - x.mean(0))

def built(*layers):
    keras.utils.set_random_seed(group.rank)
    model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    model.build((None, 4))
    return model

try:
    group.attach(built(norm))
except GridtfError as error:
    print("refused:", str(error).splitlines()[0], flush=True)
group._seen._adapted = {key: each for key, each in group._seen._adapted.items() if each is not text}
other = training.group.Group(group.members, group.rank, group._link, group._interval, seen=group._seen)
other.attach(built(norm))
print("attached", flush=True)
class Late(tf.Module):
    def __init__(self):
        self.v = tf.Variable([1.0])
        keys = tf.constant(["a"])
        with contextlib.suppress(Exception):
            self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.table.insert(keys, tf.constant([group.rank], tf.int64))
third = training.group.Group(group.members, group.rank, group._link, group._interval, seen=group._seen)
try:
    third.attach(Late())
except GridtfError as error:
    print("refused:", str(error).splitlines()[0], flush=True)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0)  # without group.callback()
"""


def test_layers_that_have_learned_other_things_are_refused_and_what_is_never_averaged_is_told(
    tmp_path: Path, launch: Launch
) -> None:
    tasks = {"worker": {"count": 2}}
    job = launch(sys.executable, "-c", LEARNED, tasks=tasks, tasks_per_node=2, cpus_per_task=1, env=QUIET)
    verdict = job.verdict(LIMIT)
    logs = [log.read_text() for log in sorted(job.attempt.logs.iterdir())]
    assert verdict["state"] == "COMPLETED", logs
    for said in logs:
        assert re.findall(r"^(?:refused|attached).*", said, re.MULTILINE) == [
            "refused: worker:0 and worker:1 have adapted text_vectorization (TextVectorization) beside the model to"
            " different data",
            "attached",
            "refused: worker:0 and worker:1 have adapted lookup table 1 to different data",
        ]
        assert "gridtf: nothing was averaged in 8 steps: fit needs callbacks=[group.callback()]" in said
    assert verdict["reason"].endswith("; nothing was averaged: 2 tasks made 8 steps, each by itself")
    assert verdict["hint"].startswith("fit needs callbacks=[group.callback()]")


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


# An epoch has 9 batches. What each member ends with, down to the last bit, is in the last line of its log.
RESUMED = """
import hashlib, os, signal, sys
from gridtf import training
group = training.averaging(every=4)
import keras, numpy as np, resource, tensorflow as tf
how, upto = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(1 + group.rank)
layers = keras.layers
wide = 400 if how == "limited" else 4
model = keras.Sequential([layers.Dense(wide), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)])
model.build((None, wide))
model.compile(keras.optimizers.Adam(0.01), "mse")
saved = training.checkpoint(model, folder=os.environ["FOLDER"])
x = np.random.default_rng(group.rank).normal(size=(720, wide)).astype("float32")
y = np.sin(x.sum(1, keepdims=True))
if how == "limited":
    group.attach(model)
    if group.rank == 1:  # less than the moments of Adam
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    group.step()
    saved.after_step()
    group.finish()
    saved.save()
elif how == "loop":
    group.attach(model)
    while saved.step < upto:
        if (saved.step, group.rank) == (5, 1) and "REQUEST" in os.environ:
            os.kill(os.getpid(), signal.SIGUSR1)
        batch = slice(8 * saved.step, 8 * saved.step + 8)
        model.train_on_batch(x[batch], y[batch])
        group.step(1 + group.rank)
        saved.after_step()
    group.finish()
    saved.save()
else:
    calls = [group.callback(), saved.callback()][:: 1 if how == "fit" else -1]
    model.fit(x[:72], y[:72], batch_size=8, epochs=upto, initial_epoch=saved.epoch, shuffle=False, verbose=0,
              callbacks=calls)
ends = [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]
print(saved.step, hashlib.sha256(b"".join(value.tobytes() for value in ends)).hexdigest(), flush=True)
"""


def resumed(launch: Launch, place: Path, *arguments: str, workers: int = 2, **env: str) -> tuple[list[str], list[str]]:
    """Run the program above: the state and the reason of the job's verdict, and the log of each member."""
    place.mkdir()
    (place.parent / "resumed.py").write_text(RESUMED)
    command = (sys.executable, str(place.parent / "resumed.py"), *arguments)
    tasks = {"worker": {"count": workers, "cpus": 1}}
    job = launch(*command, folder=place, env={**QUIET, **env}, tasks=tasks, tasks_per_node=workers)
    verdict = job.verdict(LIMIT)
    return [verdict["state"], verdict["reason"]], [
        job.attempt.task_log("worker", index).read_text() for index in range(workers)
    ]


def ends(told: tuple[list[str], list[str]]) -> list[str]:
    assert told[0][0] == "COMPLETED", told
    # averaging tells the exchanges after the program's last line
    return [next(iter(re.findall(r"^\d+ [0-9a-f]{64}$", log, re.M))) for log in told[1]]


def test_fit_that_is_resumed_is_the_uninterrupted_one(launch: Launch, tmp_path: Path) -> None:
    folder, other = str(tmp_path / "checkpoints"), str(tmp_path / "others")
    first = ends(resumed(launch, tmp_path / "first", "fit", "2", FOLDER=folder))
    assert first[0].startswith("18 ")  # between two exchanges
    parts = ends(resumed(launch, tmp_path / "second", "fit", "4", FOLDER=folder))
    whole = ends(resumed(launch, tmp_path / "whole", "reversed", "4", FOLDER=other))  # callbacks in any order
    assert parts == whole
    assert len({*whole}) == 2  # each has moments of its own
    assert sorted(os.listdir(other)) == ["step-20", "step-28", "step-36"]  # and nothing else


def test_loop_that_was_asked_for_a_checkpoint_goes_on_as_if_it_were_not(launch: Launch, tmp_path: Path) -> None:
    """Then three members go on from a damaged one."""
    folder, other = tmp_path / "checkpoints", str(tmp_path / "other")
    verdict, logs = resumed(launch, tmp_path / "first", "loop", "19", FOLDER=str(folder), REQUEST="1")
    assert verdict[0] == "SAVED", logs
    assert os.listdir(folder) == ["step-8"]
    parts = ends(resumed(launch, tmp_path / "second", "loop", "19", FOLDER=str(folder)))
    assert parts == ends(resumed(launch, tmp_path / "whole", "loop", "19", FOLDER=other))
    os.truncate(folder / "step-19" / "member-1-of-2.data-00000-of-00001", 10)
    told = resumed(launch, tmp_path / "three", "loop", "21", workers=3, FOLDER=str(folder))
    assert {line.split()[0] for line in ends(told)} == {"21"}
    skipped = (
        rf"gridtf: skips a checkpoint: {folder}/step-19 is damaged: member-1-of-2.data-\S+ has 10 bytes, not \d+\n"
    )
    assert re.search(skipped, told[1][0])
    assert f"gridtf: continues from step 8, saved in {folder}/step-8, with the leader's state for all\n" in told[1][0]


def test_member_that_cannot_write_its_part_ends_the_job_and_says_why(launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    verdict, logs = resumed(launch, tmp_path / "job", "limited", "1", FOLDER=str(folder))
    assert verdict[0] == "FAILED", logs
    assert f"this task's part of a checkpoint cannot be written to {folder}\n" in logs[1]
    assert "File too large" in logs[1]
    assert "\nno earlier one is there; look at df and your quota, or choose another folder=…" in logs[1]
    found, _ = newest(folder)
    assert found is None or not [*found.path.glob("member-*")]
