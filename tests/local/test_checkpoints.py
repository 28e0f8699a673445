"""Checkpoints of real trainings: requested, interrupted by SIGKILL, continued with another number of workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gridtf.training.checkpointfolder import newest
from tests.support.disks import fill, small_disk
from tests.support.fixtures import Launch
from tests.support.jobs import ROOT, LaunchedJob, until

pytestmark = pytest.mark.tensorflow
LIMIT = 500.0  # seconds; a run takes ten, on a machine that is not busy
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}

# batches: how many batches the workers have had in all, which only reading by all workers adds up.
MIRRORED = """
import os, sys, time
import keras
import tensorflow as tf
from gridtf import training
from gridtf.training import checkpointfolder

strategy = tf.distribute.MultiWorkerMirroredStrategy()
sync, stall_at = checkpointfolder._sync, f"step-{os.environ.get('STALL_AT')}.unfinished"

def stall(path):
    sync(path)
    if path.name == stall_at:
        print("stalls", flush=True)
        time.sleep(600)

checkpointfolder._sync = stall

class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(9.0, name="weight")
        self.batches = tf.Variable(
            0.0, trainable=False, name="batches",
            synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM,
        )

with strategy.scope():
    model = Model()
    optimizer = keras.optimizers.SGD(0.01)

@tf.function
def train_step():
    def step():
        model.batches.assign_add(1.0)
        with tf.GradientTape() as tape:
            loss = (model.weight - 3.0) ** 2 / strategy.num_replicas_in_sync
        optimizer.apply(tape.gradient(loss, [model.weight]), [model.weight])
    strategy.run(step)

saved = training.checkpoint(model, optimizer, every=10, folder=os.environ["FOLDER"])
try:
    while saved.step < int(os.environ.get("STEPS", "1000000")):
        train_step()
        time.sleep(0.01)
        saved.after_step()
except SystemExit:
    print("leaves at step", saved.step, flush=True)
    raise
saved.save()
iterations, batches = int(optimizer.iterations.value.numpy()), float(model.batches.read_value())
print(f"done: step {saved.step}, {iterations} updates, {batches:g} batches", flush=True)
"""


def logs(job: LaunchedJob) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(job.attempt.logs.glob("*.log"))}


def said(job: LaunchedJob, words: str) -> str:
    """Wait until a task of a job prints these words; returns all output of the tasks."""

    def found() -> str:
        text = "".join(logs(job).values())
        assert words in text or job.process.poll() is None, job.output + text
        return text if words in text else ""

    return str(until(found, words, LIMIT))


def test_training_goes_on_after_a_request_and_after_a_kill_in_a_save(launch: Launch, tmp_path: Path) -> None:
    """Two workers, until a checkpoint is requested; two, until the leader is killed while it saves; then one."""
    (tmp_path / "train.py").write_text(MIRRORED)
    folder = tmp_path / "checkpoints"
    command = (sys.executable, str(tmp_path / "train.py"))

    def start(part: str, workers: int, **variables: str) -> LaunchedJob:
        place = tmp_path / part
        place.mkdir()
        env = {**QUIET, "FOLDER": str(folder), **variables}
        return launch(
            *command, folder=place, env=env, tasks={"worker": {"count": workers, "cpus": 1}}, tasks_per_node=workers
        )

    job = start("requested", 2)
    until(lambda: (folder / "step-10").exists() or job.process.poll() is not None, "a checkpoint", LIMIT)
    os.kill(job.process.pid, signal.SIGUSR1)
    assert job.wait(LIMIT) == 42, job.output + "".join(logs(job).values())
    verdict = job.verdict()
    assert verdict["state"] == "SAVED"
    assert verdict["reason"] == "worker:0, worker:1 saved a checkpoint and ended (exit code 42), to be continued"
    assert {(task["state"], task["exit"]) for task in job.tasks().values()} == {("SAVED", 42)}
    steps = {re.findall(r"^leaves at step (\d+)$", log, re.MULTILINE)[0] for log in logs(job).values()}
    assert len(steps) == 1, steps
    (first,) = map(int, steps)
    assert (
        f"gridtf: a checkpoint was requested: saved step {first} in {folder}, to be continued (exit code 42)"
        in said(job, "gridtf")
    )

    stall = (first // 10 + 2) * 10
    job = start("killed", 2, STALL_AT=str(stall))
    output = said(job, "stalls")
    assert output.count(f"gridtf: continues from step {first}, saved in {folder}/step-{first}\n") == 1
    os.kill(job.running("worker:0")["worker:0"], signal.SIGKILL)
    verdict = job.verdict(LIMIT)
    assert (verdict["state"], verdict["cause"]["task"], verdict["cause"]["signal"]) == ("FAILED", "worker:0", "SIGKILL")
    assert (folder / f"step-{stall}.unfinished").is_dir()

    job = start("alone", 1, STEPS=str(stall + 20))
    assert job.verdict(LIMIT)["state"] == "COMPLETED", job.output
    output = logs(job)["worker-0"]
    assert f"gridtf: skips a checkpoint: {folder}/step-{stall}.unfinished was not finished\n" in output
    assert f"gridtf: continues from step {stall - 10}, " in output
    batches = 2 * (stall - 10) + 30
    assert f"done: step {stall + 20}, {stall + 20} updates, {batches} batches\n" in output
    assert sorted(os.listdir(folder)) == sorted(f"step-{step}" for step in (stall, stall + 10, stall + 20))


@pytest.mark.root
def test_disk_that_is_full_ends_all_workers_with_the_same_line(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MIRRORED)
    (tmp_path / "of-2").mkdir()
    with small_disk(tmp_path / "disk", "2m") as disk:
        folder = disk / "checkpoints"
        env = {**QUIET, "FOLDER": str(folder)}
        tasks = {"worker": {"count": 2, "cpus": 1}}
        command = (sys.executable, str(tmp_path / "train.py"))
        job = launch(*command, folder=tmp_path / "of-2", env=env, tasks=tasks, tasks_per_node=2)
        until(lambda: (folder / "step-10").exists() or job.process.poll() is not None, "a checkpoint", LIMIT)
        fill(disk)
        verdict = job.verdict(LIMIT)
        assert verdict["state"] == "FAILED", job.output
        left = newest(folder)[0]
    assert left is not None
    assert left.step % 10 == 0
    line = f"gridtf.errors.GridtfError: the checkpoint of step {left.step + 10} cannot be written to {folder}\n"
    for name, log in logs(job).items():
        assert line in log, (name, log)
        assert "No space left on device\n" in log
        assert f"\nthe one of step {left.step} is still there; look at df" in log
    assert "No space left on device" in verdict["reason"]
    assert "look at df" in verdict["hint"]


AVERAGED = """
import os, time
import keras
import tensorflow as tf
import gridtf
from gridtf import training

group = training.averaging(every=5)

class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(0.0, name="weight")
        self.noise = keras.random.SeedGenerator(100 * group.rank + int(os.environ["WORLD_SIZE"]))

model, steps = Model(), int(os.environ.get("STEPS", "1000000"))
saved = training.checkpoint(model, every=7, folder=os.environ["FOLDER"])
group.attach(model)
if os.environ.get("ONLY_LOOK"):
    print("seed and draws", *model.noise.state.numpy())
    raise SystemExit
try:
    if gridtf.task().index == 1:
        steps = 3  # its data end early: from then on it waits for the others
    while saved.step < steps:
        model.weight.assign_add(1.0)
        keras.random.uniform((), seed=model.noise)
        time.sleep(0.01)
        group.step()
        saved.after_step()
    group.finish()
except SystemExit:
    print("leaves at step", saved.step, "with weight", float(model.weight), flush=True)
    raise
saved.save()
print(f"done: step {saved.step}, weight {float(model.weight):g}", flush=True)
"""


def test_averaging_group_saves_after_an_exchange_and_one_member_goes_on(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AVERAGED)
    folder = tmp_path / "checkpoints"
    command = (sys.executable, str(tmp_path / "train.py"))
    env = {**QUIET, "FOLDER": str(folder)}
    (tmp_path / "two").mkdir()
    job = launch(
        *command, folder=tmp_path / "two", env=env, tasks={"worker": {"count": 2, "cpus": 1}}, tasks_per_node=2
    )
    until(lambda: (folder / "step-10").exists() or job.process.poll() is not None, "a checkpoint", LIMIT)
    os.kill(job.process.pid, signal.SIGUSR1)
    verdict = job.verdict(LIMIT)
    assert (job.process.returncode, verdict["state"]) == (42, "SAVED"), job.output + "".join(logs(job).values())
    left = {name: re.findall(r"leaves at step (\d+) with weight (\S+)", log) for name, log in logs(job).items()}
    ((step, weight),) = left["worker-0"]
    assert {int(name.removeprefix("step-")) % 5 for name in os.listdir(folder)} == {0}  # due after 7, possible after 10
    assert int(step) % 5 == 0
    assert left["worker-1"] == [("3", weight)]  # averaged

    # more members than have saved: each goes on with random numbers of its own, none with those of its beginning
    (tmp_path / "three").mkdir()
    job = launch(
        *command,
        folder=tmp_path / "three",
        env={**env, "ONLY_LOOK": "yes"},
        tasks={"worker": {"count": 3, "cpus": 1}},
        tasks_per_node=3,
    )
    assert job.verdict(LIMIT)["state"] == "COMPLETED", job.output
    assert [log.splitlines()[-1] for log in logs(job).values()] == [
        f"seed and draws {seed} {step}"
        for seed in (2, 103, 203)  # the leader goes on with what it has saved
    ]

    (tmp_path / "one").mkdir()
    job = launch(
        *command,
        folder=tmp_path / "one",
        env={**env, "STEPS": str(int(step) + 4)},
        tasks={"worker": {"count": 1, "cpus": 1}},
    )
    assert job.verdict(LIMIT)["state"] == "COMPLETED", job.output
    output = logs(job)["worker-0"]
    assert f"gridtf: continues from step {step}, " in output
    assert f"done: step {int(step) + 4}, weight {float(weight) + 4:g}\n" in output


COORDINATED = """
import os, sys, time
import keras
import tensorflow as tf
from gridtf import training

if sys.argv[1] == "alone":
    strategy = tf.distribute.get_strategy()
else:
    strategy = tf.distribute.ParameterServerStrategy(training.ClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)

@tf.function
def train_step():
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tf.ones([4, 2])) - 1.0) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    strategy.run(step)

saved = training.checkpoint(model, optimizer, every=20, step=optimizer.iterations, folder=os.environ["FOLDER"])
while saved.step < int(os.environ.get("STEPS", "1000000")):
    if sys.argv[1] == "alone":
        train_step()
        saved.after_step()
    else:
        for _ in range(10):
            coordinator.schedule(train_step)
        coordinator.join()
        saved.after_step(10)
saved.save()
print(f"done: step {saved.step}, bias {float(model.variables[-1].value.numpy()[0]):.6f}", flush=True)
"""


def test_parameter_servers_save_between_joins_and_one_process_goes_on(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COORDINATED)
    folder = tmp_path / "checkpoints"
    (tmp_path / "ps").mkdir()
    job = launch(
        *(sys.executable, str(tmp_path / "train.py"), "together"),
        folder=tmp_path / "ps",
        env={**QUIET, "FOLDER": str(folder)},
        tasks={"chief": {"count": 1}, "worker": {"count": 1}, "ps": {"count": 1}},
        serve=["worker", "ps"],
        tasks_per_node=2,
    )
    until(lambda: (folder / "step-20").exists() or job.process.poll() is not None, "a checkpoint", LIMIT)
    os.kill(job.process.pid, signal.SIGUSR1)
    verdict = job.verdict(LIMIT)
    assert (job.process.returncode, verdict["state"]) == (42, "SAVED"), job.output + "".join(logs(job).values())
    assert verdict["reason"] == "chief:0 saved a checkpoint and ended (exit code 42), to be continued"
    step = int(re.findall(r"requested: saved step (\d+) in ", logs(job)["chief-0"])[0])
    assert step % 10 == 0

    done = subprocess.run(
        [sys.executable, "train.py", "alone"],
        cwd=tmp_path,
        env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "FOLDER": str(folder), "STEPS": str(step + 5)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"gridtf: continues from step {step}, " in done.stdout
    assert f"done: step {step + 5}, " in done.stdout


ALONE = """
import os, shutil, signal, sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from gridtf import training
from gridtf.errors import GridtfError
from tests.support.disks import fill

def tell(what, call):
    try:
        call()
        print(f"{what}: no error")
    except GridtfError as error:
        print(f"{what}: {error.what} | {error.why} | {error.hint}")

class Line(tf.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = tf.Variable(tf.zeros([size]), name="weight")

disk, folder = Path(sys.argv[1]), Path(sys.argv[2])
tell("empty", lambda: training.checkpoint(tf.Module()))
tell("every", lambda: training.checkpoint(Line(3), every=0))
tell("blocked", lambda: training.checkpoint(Line(3), folder=disk / "file"))

saved = training.checkpoint(line := Line(200_000), folder=disk / "saved")
line.weight.assign_add(tf.ones_like(line.weight))
saved.after_step()
saved.save()
big = fill(disk)
saved.after_step()
tell("full", saved.save)
print("left:", *sorted(os.listdir(disk / "saved")))
again = training.checkpoint(same := Line(200_000), folder=disk / "saved")
print("again at step", again.step, "with", float(same.weight[7]))
big.unlink()
tell("freed", saved.save)
print("left:", *sorted(os.listdir(disk / "saved")))
tell("other", lambda: training.checkpoint(Line(4), folder=disk / "saved"))
data = disk / "saved" / "step-2" / "variables.data-00000-of-00001"
data.write_bytes(b"x" * data.stat().st_size)
tell("damaged", lambda: training.checkpoint(Line(200_000), folder=disk / "saved"))

class Model(tf.Module):
    def __init__(self, **types):
        super().__init__()
        for name, kind in types.items():
            setattr(self, name, tf.Variable(tf.zeros([len(name)], kind), name=name))

def spoilt(what, spoil=lambda step: None, **types):
    # from a copy of a folder with two checkpoints, of which the later one is spoilt
    shutil.copytree("good", what)
    spoil(Path(what, "step-2"))
    tell(what, lambda: print(what, "step", training.checkpoint(Model(**types or SAVED), folder=what).step))

def cut(pattern):
    def spoil(step):
        for file in step.glob(pattern):
            os.truncate(file, file.stat().st_size // 2)
    return spoil

SAVED = {"a": tf.float32, "bb": tf.int64}
saved = training.checkpoint(Model(**SAVED), folder="good")
for _ in range(2):
    saved.after_step()
    saved.save()
spoilt("other_model", ccc=tf.float32)
spoilt("lacking", **SAVED, ccc=tf.float32)
spoilt("having_more", a=tf.float32)
spoilt("other_type", a=tf.float16, bb=tf.int64)
for pattern in ("*.data*", "*.index", "*.json"):
    spoilt(f"cut_{pattern[2:6]}", cut(pattern))
spoilt("gone", shutil.rmtree)

x = np.random.default_rng(1).random((80, 4), np.float32)

class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if saved.step == 23:
            os.kill(os.getpid(), signal.SIGUSR1)

def fit():
    global saved
    keras.utils.clear_session()
    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dropout(0.5), layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    saved = training.checkpoint(model, folder=folder)
    model.fit(x, x[:, :1], batch_size=8, epochs=5, initial_epoch=saved.epoch, verbose=0,
              callbacks=[Interrupt(), saved.callback()])
    print("fitted", saved.step, saved.epoch, int(model.optimizer.iterations), *sorted(os.listdir(folder)))

try:
    fit()
except SystemExit as end:
    print("exit", end.code, "at", saved.step, saved.epoch, saved.batch)
from gridtf import contract
contract._signals.clear()  # the next process would not know of the signal
fit()
"""


@pytest.mark.root
def test_what_goes_wrong_is_one_clear_error_and_keras_fit_is_continued(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    with small_disk(tmp_path / "disk", "4m") as disk:
        (disk / "file").write_text("")
        done = subprocess.run(
            [sys.executable, "alone.py", str(disk), "fitted"],
            cwd=tmp_path,
            env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = iter(done.stdout.splitlines())
    told = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith(("gridtf", "left")))
    print(done.stdout)
    assert told["empty"].startswith("training.checkpoint: the model has no variables yet | ")
    assert told["every"].startswith("training.checkpoint: every=0 is not a whole number from 1 on")
    where = f"the folder of the checkpoints {disk}/file cannot be written | "
    assert told["blocked"].startswith(where), told["blocked"]
    full = f"the checkpoint of step 2 cannot be written to {disk}/saved | "
    assert told["full"].startswith(full)
    assert "No space left on device" in told["full"]
    assert "the one of step 1 is still there" in told["full"]
    assert "left: step-1\ngridtf: continues from step 1, " in done.stdout
    assert "again at step 1 with 1.0\n" in done.stdout
    assert told["freed"] == "no error"
    assert "left: step-1 step-2\n" in done.stdout
    assert "does not fit this program | model: weight:0 has shape (4), in the checkpoint (200000) | " in told["other"]
    assert told["damaged"].startswith(f"{disk}/saved/step-2 cannot be restored | ")
    assert "to continue from the one before, remove this folder" in told["damaged"]
    for what, why in {
        "other_model": "model: ccc:0 (3) is not in the checkpoint; model: the checkpoint also has a:0 (1); ",
        "lacking": "model: ccc:0 (3) is not in the checkpoint | ",
        "having_more": "model: the checkpoint also has bb:0 (2) | ",
        "other_type": "a:0 is float16, in the checkpoint float32 | ",
    }.items():
        assert f"{what}/step-2 does not fit this program | {why}" in told[what]
    for what, why in {
        "cut_data": "variables.data-00000-of-00001 has ",
        "cut_inde": "variables.index has ",
        "cut_json": "checkpoint.json cannot be read",
    }.items():
        assert f"gridtf: skips a checkpoint: {tmp_path}/{what}/step-2 is damaged: {why}" in done.stdout
        assert f"\n{what} step 1\n" in done.stdout
    assert "\ngone step 1\n" in done.stdout
    assert "exit 42 at 24 2 4\n" in done.stdout
    assert "fitted 50 5 50 step-30 step-40 step-50\n" in done.stdout
