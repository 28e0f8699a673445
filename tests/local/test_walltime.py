"""Jobs of the local scheduler that are longer than their walltime."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gridtf.bootstrap.judge.progress import Progress, reached
from gridtf.run.rundir import RunDir, read_record
from tests.support.commands import as_json, call, command, python, status, submit
from tests.support.jobs import ROOT, until

COUNTS = ("--", sys.executable, str(ROOT / "tests/support/counting.py"))
# Five seconds after its start, a job is asked to save. It has more time for that than it needs on a busy machine.
SAVES = ("--time", "125s", "--checkpoint-before", "120s")
LIMIT = 500.0  # seconds, on a busy machine


def waited(job: str, code: int = 0) -> str:
    """Wait for a job's end; returns what `gridtf wait` prints."""
    done = subprocess.run(command("wait", job), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def made(run: RunDir, index: int) -> list[int]:
    """The steps that a task has made, in all starts of the job."""
    return [int(line) for line in (run.output / f"made-{index}").read_text().split()]


def test_job_of_three_walltimes_finishes_alone(here: Path) -> None:
    job = submit("--workers", "2", *SAVES, "--continue", "50", *COUNTS, "30", "10")
    run = RunDir(job["run_dir"])
    waited(job["run_dir"])
    view = status(job["run_dir"])
    assert (view["state"], view["job_id"], view["output_dir"]) == ("COMPLETED", job["job_id"], str(run.output))
    assert view["attempt"] >= 3
    assert [made(run, index) for index in (0, 1)] == [list(range(30))] * 2
    verdicts = [read_record(attempt.verdict) or {} for attempt in run.attempts()]
    assert [verdict["state"] for verdict in verdicts] == ["SAVED"] * (len(verdicts) - 1) + ["COMPLETED"]
    assert "the local scheduler starts it again (1 of 50)" in verdicts[0]["reason"]
    assert (read_record(run.ended) or {})["exit"] == 0


def test_job_that_is_not_continued_is_resumed_as_another_one(here: Path) -> None:
    first = submit("--name", "count", *SAVES, *COUNTS, "2", "1")
    assert f"to continue with its checkpoints: gridtf resume {first['job_id']}" in waited("count", code=42)
    second = as_json("resume", first["job_id"])
    assert second["name"] == "count"
    assert Path(second["run_dir"]).parent == here / "gridtf-runs"
    waited(second["job_id"])
    assert made(RunDir(first["run_dir"]), 0) == [0, 1]
    assert call("output", second["run_dir"]).stdout == call("output", first["run_dir"]).stdout
    assert "has completed: nothing is left to resume" in call("resume", "count", code=1).stderr


def test_job_without_progress_is_not_started_again_and_again(here: Path) -> None:
    stuck = "import sys, time, gridtf\ngridtf.progress(3)\nwhile not gridtf.checkpoint_requested(): time.sleep(0.05)\n"
    job = submit(*SAVES, "--continue", "9", *python(f"{stuck}sys.exit(42)"))
    why = "it is not started again: 2 attempts in a row made no progress, none came beyond step 3"
    assert why in waited(job["run_dir"], code=42)
    assert len(RunDir(job["run_dir"]).attempts()) == 3


def test_job_that_is_cancelled_while_it_saves_is_not_started_again(here: Path) -> None:
    slow = (
        "import time, gridtf\nwhile not gridtf.checkpoint_requested(): time.sleep(0.05)\n"
        "print('saves', flush=True)\ntime.sleep(600)\n"
    )
    job = submit("--time", "600s", "--checkpoint-before", "599s", "--continue", "9", *python(slow))
    until(lambda: "saves" in call("logs", job["run_dir"]).stdout, "the request", LIMIT)
    call("cancel", job["run_dir"])
    assert (status(job["run_dir"])["state"], len(RunDir(job["run_dir"]).attempts())) == ("CANCELLED", 1)


def test_signal_is_sent_to_those_that_catch_it_and_to_no_others(here: Path) -> None:
    """The shell of each task would be ended by it; so would the sleep that worker 1 has started."""
    catches = (
        "import signal, sys, time\n"
        "def save(number, frame):\n    print('caught', number, flush=True)\n    sys.exit(42)\n"
        "signal.signal(signal.SIGUSR2, save)\n"
        "time.sleep(600)\n"
    )
    (here / "catches.py").write_text(catches)
    script = (
        f"sleep 600 & {shlex.quote(sys.executable)} catches.py; code=$?; kill -0 $! && echo the other lives; exit $code"
    )
    options = ("--workers", "2", "--time", "600s", "--checkpoint-before", "599s", "--checkpoint-signal", "USR2")
    job = submit(*options, "--", "bash", "-c", script)
    assert "worker:0 and worker:1 saved" in waited(job["run_dir"], code=42).replace(",", " and")
    logs = call("logs", job["run_dir"]).stdout
    assert logs.count("caught 12") == logs.count("the other lives") == 2


TRAINS = """
import time
import keras
from gridtf import training

model = keras.Sequential([keras.layers.Dense(1)])
model.build((None, 1))
optimizer = keras.optimizers.SGD(0.0)
optimizer.build(model.trainable_variables)
saved = training.checkpoint(model, optimizer, every=1000000)
for _ in range(1 if saved.step else 1000000):  # the first start ends when it is asked to save
    time.sleep(0.1)
    optimizer.iterations.assign_add(1)
    saved.after_step()
saved.save()
print(f"done: step {saved.step}, {int(optimizer.iterations.numpy())} counted", flush=True)
"""


@pytest.mark.tensorflow
def test_training_longer_than_its_walltime_goes_on_from_its_checkpoints(here: Path, tmp_path: Path) -> None:
    (here / "train.py").write_text(TRAINS)
    quiet = ("--env", "TF_CPP_MIN_LOG_LEVEL=2", "--env", "CUDA_VISIBLE_DEVICES=")
    limits = ("--time", "345s", "--checkpoint-before", "300s", "--continue", "9")
    root = ("--run-root", str(tmp_path))  # TensorFlow takes [ in a path for a pattern
    job = submit(*quiet, *root, *limits, "--", sys.executable, "train.py")
    run = RunDir(job["run_dir"])
    waited(job["run_dir"])
    assert len(run.attempts()) >= 2
    texts = [attempt.task_log("worker", 0).read_text() for attempt in run.attempts()]
    for before, after in itertools.pairwise(texts):
        step = int(re.findall(r"requested: saved step (\d+) in ", before)[-1])
        assert f"gridtf: continues from step {step}, saved in " in after
    last = step + 1
    assert f"done: step {last}, {last} counted" in texts[-1]
    assert reached(run.output, {}) == Progress(checkpoint=last)
