"""Checkpoints in a folder that each host has for itself, in a job on two hosts: the status and the verdict say so."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fixtures import Launch
from tests.support.jobs import until
from tests.support.tasks import LIMIT

pytestmark = pytest.mark.tensorflow

# worker:0 saves by gridtf, worker:1 as TensorFlow's how-to does
PROGRAM = """
import os, sys, time
import tensorflow as tf
from gridtf import training

if os.environ["RANK"] == "0":
    model = tf.Module()
    model.weight = tf.Variable(1.0)
    saved = training.checkpoint(model, every=1, folder=sys.argv[1])
    step = saved.after_step
else:
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    add = v1.assign_add(v1.train.get_or_create_global_step(), 1)
    session = v1.train.MonitoredTrainingSession(checkpoint_dir=sys.argv[1])
    step = lambda: session.run(add)
while not os.path.exists("seen"):
    step()
    time.sleep(0.1)
"""


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in this host's memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gridtf test ") as folder:
        yield folder


def test_checkpoints_that_no_other_host_sees_are_told(launch: Launch, memory: str, tmp_path: Path) -> None:
    job = launch(
        sys.executable,
        "-c",
        PROGRAM,
        memory,
        hosts=[{"name": "h1"}, {"name": "h2"}],
        tasks={"worker": {"count": 2}},
        gpus_per_task=0,
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )

    def seen() -> bool:
        return all(task.get("own_folder") == memory for task in job.tasks().values())

    until(lambda: job.tasks() and seen(), "the folders", LIMIT)
    (tmp_path / "seen").touch()
    verdict = job.verdict(LIMIT)
    first = f"checkpoints of worker:0 are in {memory} on h1, which no other host sees"
    warning = f"{first}, and those of worker:1 in another such folder"
    assert verdict["state"] == "COMPLETED", job.output
    assert verdict["reason"].endswith(f"; {warning}")
    assert "OUTPUT_DIR" in verdict["hint"]
    assert f" are in {memory} on h" in job.output  # said while they ran
