"""Datasets that data workers prepare, with real processes: what trainers get, and what a killed process costs."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

import pytest

from gridtf.run.rundir import read_record
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, until

LIMIT = 500.0  # seconds; on a quiet machine a whole run takes 40
DATA_WORKERS = 2
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}

# Each part of the test has a dataset of its own. In the middle of it, trainers wait for the test.
TRAINERS = """
import os, time
from pathlib import Path
import tensorflow as tf
import gridtf
from gridtf.training import data

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task, numbers = gridtf.task(), tf.data.Dataset.range(1000)

def go(name):
    while not Path(name).exists():
        time.sleep(0.02)

def collect(name, dataset, pause):
    with open(f"{name}-{task.index}", "w", buffering=1) as file:
        for count, number in enumerate(dataset):
            print(int(number), file=file)
            if count == pause:
                go(f"go-{name}")

@tf.function
def total(values):
    return strategy.reduce("sum", strategy.run(tf.reduce_sum, [values]), axis=None)

mirrored = strategy.distribute_datasets_from_function(lambda _: data.distribute(numbers.batch(8)))
print("mirrored", sum(int(total(values)) for values in mirrored), flush=True)

restarted = data.distribute(numbers)
collect("dispatcher", restarted, 100)
collect("again", restarted, -1)
collect("off", data.distribute(numbers.take(50), sharding="off"), -1)
collect("worker", data.distribute(numbers), 100)

python = numbers.map(lambda number: tf.py_function(lambda x: x, [number], tf.int64))
try:
    list(data.distribute(python))
except tf.errors.OpError as error:
    print("python:", error.message.splitlines()[0], flush=True)
kind = os.environ.pop("GRIDTF_TASK_TYPE")  # as without gridtf
assert data.distribute(numbers) is numbers
os.environ["GRIDTF_TASK_TYPE"] = kind
collect("lost", data.distribute(numbers), 100)
print("not reached", flush=True)
"""


def seen(job: LaunchedJob, name: str) -> Counter[int]:
    """How often each number was given to a trainer in one part."""
    files = [path for path in job.folder.glob(f"{name}-[01]") if path.exists()]
    return Counter(int(line) for path in files for line in path.read_text().split("\n")[:-1])


def logs_of(job: LaunchedJob) -> str:
    return job.output + "".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(job.attempt.logs.iterdir()))


def wait_for(job: LaunchedJob, part: str, least: int) -> None:
    """Wait until both trainers have so many elements of a part."""

    def both_have() -> bool:
        assert job.process.poll() is None, logs_of(job)
        files = [job.folder / f"{part}-{index}" for index in (0, 1)]
        return all(file.exists() and len(file.read_text().splitlines()) >= least for file in files)

    until(both_have, f"the trainers in part {part}", LIMIT)


def kill(job: LaunchedJob, part: str, name: str) -> None:
    """Kill a task while both trainers have read some elements and wait."""

    wait_for(job, part, 101)
    os.kill(job.running(name)[name], signal.SIGKILL)


def go(job: LaunchedJob, part: str) -> None:
    (job.folder / f"go-{part}").touch()


def restarts(job: LaunchedJob, name: str) -> int:
    return int(job.tasks()[name]["restarts"])


@pytest.mark.tensorflow
def test_each_element_is_given_out_once_and_a_dispatcher_that_stays_lost_ends_the_job(launch: Launch) -> None:
    tasks = {"worker": {"count": 2}, "data_worker": {"count": DATA_WORKERS}}
    job = launch(
        sys.executable, "-c", TRAINERS, tasks=tasks, tasks_per_node=2, cpus_per_task=1, python=sys.executable, env=QUIET
    )
    cluster = until(lambda: read_record(job.attempt.rendezvous), "the rendezvous")
    assert (sorted(cluster["cluster"]), sorted(cluster["outside"])) == (["worker"], ["data_dispatcher", "data_worker"])

    kill(job, "dispatcher", "data_dispatcher:0")
    go(job, "dispatcher")
    kill(job, "worker", "data_worker:1")
    # twice over the data of the first; the dispatcher was killed on the way, perhaps between its journal and its answer
    whole, counts = Counter(range(1000)), seen(job, "dispatcher")
    assert counts <= whole
    assert (whole - counts).total() <= DATA_WORKERS, whole - counts
    assert seen(job, "again") == whole
    assert seen(job, "off") == Counter([*range(50)] * DATA_WORKERS), "once by each data worker"
    assert restarts(job, "data_dispatcher:0") == 1
    go(job, "worker")

    journal = job.attempt.data / "tf_data_dispatcher_journal"
    wait_for(job, "lost", 1)
    journal.rename(journal.with_name("away"))
    journal.write_text("no folder")  # the next dispatcher cannot start
    kill(job, "lost", "data_dispatcher:0")
    verdict = job.verdict(LIMIT)
    said = logs_of(job)
    counts = seen(job, "worker")
    print(1000 - len(counts), "elements are missing after the death of a data worker")
    assert max(counts.values()) == 1
    assert 800 <= len(counts) <= 1000
    assert restarts(job, "data_worker:1") == 1
    assert said.count(f"mirrored {sum(range(1000))}\n") == 2, said
    assert said.count("python: ") == 2, said
    assert "not reached" not in said
    assert verdict["state"] == "FAILED", said
    assert verdict["reason"].startswith("data_dispatcher:0 on "), said
    assert verdict["reason"].endswith("exit code 1, after 2 restarts"), said
    assert "gridtf: data_dispatcher:0 cannot serve at " in said


def test_data_workers_without_a_dataset_are_told(launch: Launch) -> None:
    tasks = {"worker": {"count": 1}, "data_worker": {"count": 1}}
    job = launch("true", tasks=tasks, python=sys.executable)
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED"
    assert verdict["reason"] == "all training tasks have exited with 0; the data workers were given no dataset"
    assert verdict["hint"].startswith("gridtf.training.data.distribute(dataset) gives them one")
