"""tf_keras, whose fit works under TensorFlow's strategies: checkpoints, averaging, progress and export with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT, LaunchedJob
from tests.support.legacy_keras import need_tf_keras
from tests.support.tasks import LIMIT

pytestmark = pytest.mark.tensorflow

# Two tasks with 4 and 6 batches an epoch; the second run of the program finds the checkpoints of the first.
AVERAGED = """
import json, os
from gridtf import training
group = training.averaging(every=3)
import numpy as np
import tf_keras
tf_keras.utils.set_random_seed(1 + group.rank)
model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(2,)), tf_keras.layers.BatchNormalization()])
model.compile(tf_keras.optimizers.Adam(0.1), "mse")
saved = training.checkpoint(model)
x = np.random.default_rng(group.rank).normal(size=(32 + 16 * group.rank, 2)).astype("float32")
seen = [group.callback(), saved.callback(), training.progress_callback(model)]
model.fit(x, x.sum(1, keepdims=True) * [1.0, 2.0, 3.0], batch_size=8, epochs=int(os.environ["EPOCHS"]),
          initial_epoch=saved.epoch, callbacks=seen, verbose=0)
training.export(model)
weights = [float(np.abs(value).sum()) for value in model.get_weights()]
print(json.dumps({"epoch": saved.epoch, "steps": saved.step, "weights": weights}), flush=True)
"""


def log(job: LaunchedJob, name: str) -> str:
    task_type, _, index = name.partition(":")
    return job.attempt.task_log(task_type, int(index)).read_text()


def outcome(job: LaunchedJob, name: str) -> dict[str, object]:
    assert job.verdict(LIMIT)["state"] == "COMPLETED", job.output
    answer: dict[str, object] = json.loads(next(line for line in log(job, name).splitlines() if line.startswith("{")))
    return answer


def test_fit_of_tf_keras_is_averaged_saved_continued_and_exported(tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{need_tf_keras()}:{ROOT}", "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    output = tmp_path / "output"
    for run, ended in (("first", 2), ("second", 3)):
        here = tmp_path / run
        here.mkdir()
        (here / "train.py").write_text(AVERAGED)
        spec = {"command": [sys.executable, "train.py"], "tasks": {"worker": {"count": 2}}, "tasks_per_node": 2}
        job = LaunchedJob(
            here, {**spec, "gpus_per_task": 0, "env": {**env, "EPOCHS": str(ended), "OUTPUT_DIR": str(output)}}
        )
        one, other = outcome(job, "worker:0"), outcome(job, "worker:1")
        assert one["weights"] == pytest.approx(other["weights"], rel=1e-5)
        assert one["epoch"] == other["epoch"] == ended
        assert one["steps"] == 4 * ended
        assert ("continues from step 8" in log(job, "worker:0")) == (run == "second")
        assert job.tasks()["worker:0"]["progress"]["step"] == 4 * ended
        # saved after an exchange and at the end, not with the first epoch, when each task had values of its own
        kept = {path.name for path in (output / "checkpoints").iterdir()}
        assert kept == {"step-6", "step-8"} if run == "first" else "step-12" in kept
    assert (output / "export" / "saved_model.pb").exists()
