"""training.session with TensorFlow: late tasks, killed tasks, requested checkpoints, and an end together."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fixtures import Launch
from tests.support.jobs import until
from tests.support.tasks import LIMIT, Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(280)]


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


class Loop:
    """Two workers in the program ASYNC, and a served ps."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        (folder / "loop.py").write_text(ASYNC)
        self.cluster = Cluster(folder, stack, {"worker": 2, "ps": 1})

    def ps(self) -> None:
        self.served = self.cluster.start("ps", 0, "gridtf.training.serve")

    def start(self, index: int) -> None:
        process = self.cluster.start("worker", index, "loop")
        self.workers = {**getattr(self, "workers", {}), index: process}

    def says(self, index: int, words: str) -> None:
        self.cluster.wait_for(self.workers[index], "worker", index, words)

    def begun(self, index: int) -> tuple[int, float]:
        """Wait until a worker has begun; returns its first step, and when."""
        self.says(index, "begins at step ")
        found = until(lambda: re.search(r"begins at step (\d+) (\d\S+)\n", self.log(index)), "the line to be complete")
        return int(found[1]), float(found[2])

    def log(self, index: int) -> str:
        return self.cluster.log("worker", index).read_text()

    def step(self, index: int) -> int:
        steps = re.findall(r"^step (\d+)$", self.log(index), re.MULTILINE)
        return int(steps[-1]) if steps else -1

    def goes_on(self, index: int) -> int:
        """Wait until a worker has made twenty more steps; returns the last one."""
        goal = self.step(index) + 20
        until(lambda: self.step(index) >= goal or self.workers[index].poll() is not None, "more steps", LIMIT)
        assert self.workers[index].poll() is None, self.log(index)
        return self.step(index)


def test_asynchronous_workers_come_late_are_killed_save_and_end_with_the_chief(
    tmp_path: Path, stack: ExitStack
) -> None:
    loop = Loop(tmp_path, stack)
    loop.ps()
    # The chief comes late: a worker that has looked once, in vain, begins soon after it, not 30 seconds later.
    loop.start(1)
    loop.says(1, "Waiting for model to be ready")
    loop.start(0)
    assert loop.begun(1)[1] - loop.begun(0)[1] < 15

    # A worker is killed: the chief's session goes on. Started again, the worker joins in.
    loop.goes_on(1)
    loop.workers[1].send_signal(signal.SIGKILL)
    loop.workers[1].wait(LIMIT)
    reached = loop.goes_on(0)
    loop.start(1)
    assert loop.begun(1)[0] >= reached
    loop.goes_on(1)
    assert loop.log(0).count("begins at step") == 1

    # A checkpoint is requested of both hosts: the chief saves, both exit with 42.
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "checkpoint").touch()
    assert [process.wait(LIMIT) for process in loop.workers.values()] == [42, 42], loop.log(0) + loop.log(1)
    last = max(loop.step(0), loop.step(1))
    latest = (tmp_path / "checkpoints" / "checkpoint").read_text().splitlines()[0]
    saved = int(re.findall(r'^model_checkpoint_path: ".*-(\d+)"$', latest)[0])
    assert last - 5 <= saved <= last + 2  # steps that are under way end
    assert "ended" not in loop.log(0) + loop.log(1)

    # All of it is started again: it goes on from there. When the chief has finished, the worker ends.
    (tmp_path / "local" / "checkpoint").unlink()
    loop.served.kill()
    loop.served.wait(LIMIT)
    loop.ps()
    loop.start(0)
    loop.start(1)
    assert loop.begun(0)[0] == saved
    loop.goes_on(1)
    (tmp_path / "finish").touch()
    assert [process.wait(LIMIT) for process in loop.workers.values()] == [0, 0], loop.log(0) + loop.log(1)
    assert loop.log(1).endswith("ended\n")


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
        if task.is_chief and count >= 30 and "go on" not in sys.argv:
            break
print("ended after step", step, time.time(), flush=True)
"""


@pytest.mark.parametrize("requested", [False, True], ids=["the chief has finished", "a checkpoint is requested"])
def test_synchronous_training_ends_at_once_when(requested: bool, tmp_path: Path, launch: Launch) -> None:
    """TensorFlow's own session waits 120 s on the chief; on a worker for ever, for a token that the chief hands out."""
    (tmp_path / "sync.py").write_text(SYNC)
    tasks = {name: {"count": 1} for name in ("chief", "worker", "ps")}
    words = ("sync.py", *(["go on"] if requested else []))
    job = launch(sys.executable, *words, tasks=tasks, serve=["ps"], tasks_per_node=2, cpus_per_task=1)

    def log(name: str) -> str:
        path = job.attempt.logs / f"{name}-0.log"
        return path.read_text() if path.exists() else ""

    if requested:  # when both are training
        until(lambda: log("chief").count("step") > 10 or job.process.poll() is not None, "steps", LIMIT)
        job.process.send_signal(signal.SIGUSR1)
    verdict = job.verdict(LIMIT)
    logs = {name: log(name) for name in tasks}
    assert verdict["state"] == ("SAVED" if requested else "COMPLETED"), logs
    codes = {job.tasks()[f"{name}:0"]["exit"] for name in ("chief", "worker")}
    assert codes == ({42} if requested else {0})
    assert ("saved " in logs["chief"]) == requested
    for name in ("chief", "worker"):
        times = [float(moment) for moment in re.findall(r"step \d+ (\d\S+)$", logs[name], re.MULTILINE)]
        assert len(times) > 10, logs[name]
        assert times[-1] - times[-2] < 20, logs[name]
        assert job.tasks()[f"{name}:0"]["ended"] - times[-1] < 20
        assert "Traceback" not in logs[name]
