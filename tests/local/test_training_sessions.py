"""training.session with TensorFlow: late tasks, killed tasks, requested checkpoints, and an end together."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fixtures import Launch
from tests.support.jobs import until
from tests.support.tasks import LIMIT, Cluster

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


BEGIN = """
import pathlib, sys, time
import tensorflow as tf
import gridtf
from gridtf import training

v1 = tf.compat.v1
v1.disable_eager_execution()
task = gridtf.task()
cluster = tf.train.ClusterSpec(task.cluster)
with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{task.type}/task:{task.index}")):
    value = v1.get_variable("value", [], initializer=v1.zeros_initializer())
    global_step = v1.train.get_or_create_global_step()
    optimizer = v1.train.GradientDescentOptimizer(0.01)
"""

ASYNC = f"""{BEGIN}
    train = optimizer.minimize(value * value - value, global_step=global_step)
v1.logging.set_verbosity(v1.logging.INFO)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
with training.session() as session:
    step = session.run(global_step)
    print("begins at step", step, time.time(), flush=True)
    while not session.should_stop():
        _, step = session.run([train, global_step])
        print("step", step, flush=True)
        time.sleep(0.02)
        if task.is_chief and pathlib.Path("finish").exists():
            break
print("ended", flush=True)
"""


class Worker:
    """A process of the program ASYNC, which opens its session when ``open`` was called."""

    def __init__(self, cluster: Cluster, index: int, label: str) -> None:
        self._gate = cluster.folder / label
        self._log = cluster.log("worker", index, label)
        self.process = cluster.start("worker", index, "loop", label, label=label)

    def open(self) -> None:
        self._gate.touch()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until the log has a line."""

        def line() -> re.Match[str] | bool | None:
            return re.search(pattern, self.log) or self.process.poll() is not None

        found = until(line, pattern, LIMIT)
        assert isinstance(found, re.Match), self.log
        return found

    def begun(self) -> tuple[int, float]:
        """Wait until it has begun; returns its first step, and when that was."""
        found = self.says(r"begins at step (\d+) (\d\S+)\n")
        return int(found[1]), float(found[2])

    @property
    def step(self) -> int:
        return max((int(step) for step in re.findall(r"^step (\d+)$", self.log, re.MULTILINE)), default=-1)

    def goes_on(self) -> int:
        """Wait until it has made twenty more steps; returns the last one."""
        goal = self.step + 20
        until(lambda: self.step >= goal or self.process.poll() is not None, "more steps", LIMIT)
        assert self.process.poll() is None, self.log
        return self.step


def test_asynchronous_workers_come_late_are_killed_save_and_end_with_the_chief(
    tmp_path: Path, stack: ExitStack
) -> None:
    (tmp_path / "loop.py").write_text(ASYNC)
    cluster = Cluster(tmp_path, stack, {"worker": 2, "ps": 1})
    served = cluster.start("ps", 0, "gridtf.training.serve")
    chief, worker, again = (
        Worker(cluster, index, label) for index, label in ((0, "chief"), (1, "killed"), (1, "again"))
    )

    # The chief comes late: a worker that has looked once, in vain, begins soon after it, not 30 seconds later. A busy
    # machine may take as long for it as for the chief.
    worker.open()
    worker.says("Waiting for model to be ready")
    opened = time.time()
    chief.open()
    initialized = chief.begun()[1]
    assert worker.begun()[1] - initialized < max(15, initialized - opened)

    # A worker is killed: the chief's session goes on. Started again, the worker joins in.
    worker.goes_on()
    worker.process.kill()
    worker.process.wait(LIMIT)
    reached = chief.goes_on()
    again.open()
    assert again.begun()[0] >= reached
    again.goes_on()
    assert chief.log.count("begins at step") == 1

    # A checkpoint is requested of both hosts: the chief saves, both exit with 42.
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "checkpoint").touch()
    assert [each.process.wait(LIMIT) for each in (chief, again)] == [42, 42], chief.log + again.log
    last = max(chief.step, again.step)
    latest = (tmp_path / "checkpoints" / "checkpoint").read_text().splitlines()[0]
    saved = int(re.findall(r'^model_checkpoint_path: ".*-(\d+)"$', latest)[0])
    assert last - 5 <= saved <= last + 2  # steps that are under way end
    assert "ended" not in chief.log + again.log

    # All of it is started again: it goes on from there. When the chief has finished, the worker ends.
    (tmp_path / "local" / "checkpoint").unlink()
    served.kill()
    served.wait(LIMIT)
    cluster.start("ps", 0, "gridtf.training.serve")
    chief, worker = Worker(cluster, 0, "second-chief"), Worker(cluster, 1, "second")
    for each in (chief, worker):
        each.open()
    # the other worker's steps may come between the name of a checkpoint and its values, more of them on a busy machine
    assert saved <= chief.begun()[0] <= max(saved, last) + 20
    worker.goes_on()
    (tmp_path / "finish").touch()
    assert [each.process.wait(LIMIT) for each in (chief, worker)] == [0, 0], chief.log + worker.log
    assert worker.log.endswith("ended\n")


SYNC = f"""{BEGIN}
    optimizer = v1.train.SyncReplicasOptimizer(optimizer, task.world_size)
    train = optimizer.minimize(value * value - value, global_step=global_step)
both = pathlib.Path("both")
with training.session("sync", hooks=[optimizer.make_session_run_hook(task.is_chief)]) as session:
    while task.is_chief and not both.exists():
        time.sleep(0.02)
    step = count = 0
    while not session.should_stop():
        _, step = session.run([train, global_step])
        print("step", step, time.time(), flush=True)
        count += 1
        if count == 10:
            both.touch()
print("ended after step", step, time.time(), flush=True)
"""


def test_synchronous_training_ends_at_once_when_a_checkpoint_is_requested(tmp_path: Path, launch: Launch) -> None:
    """TensorFlow's own session waits 120 s on the chief; on a worker for ever, for a token that the chief hands out.

    When the chief has finished: examples/between_graph_sync.
    """
    (tmp_path / "sync.py").write_text(SYNC)
    tasks = {name: {"count": 1} for name in ("chief", "worker", "ps")}
    job = launch(sys.executable, "sync.py", tasks=tasks, serve=["ps"], tasks_per_node=2, cpus_per_task=1)

    def log(name: str) -> str:
        path = job.attempt.logs / f"{name}-0.log"
        return path.read_text() if path.exists() else ""

    until(lambda: log("chief").count("step") > 10 or job.process.poll() is not None, "steps of both", LIMIT)
    job.process.send_signal(signal.SIGUSR1)
    verdict = job.verdict(LIMIT)
    logs = {name: log(name) for name in tasks}
    assert verdict["state"] == "SAVED", logs
    assert {job.tasks()[f"{name}:0"]["exit"] for name in ("chief", "worker")} == {42}
    assert "saved " in logs["chief"]
    for name in ("chief", "worker"):
        times = [float(moment) for moment in re.findall(r"step \d+ (\d\S+)$", logs[name], re.MULTILINE)]
        assert len(times) > 10, logs[name]
        record = job.tasks()[f"{name}:0"]
        limit = max(20, times[0] - record["started"])  # a busy machine, which starts it slowly, ends it slowly
        assert times[-1] - times[-2] < limit, logs[name]
        assert record["ended"] - times[-1] < limit
        assert "Traceback" not in logs[name]
