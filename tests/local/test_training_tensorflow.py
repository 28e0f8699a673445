"""gridtf.training with TensorFlow: strategies that get their cluster from gridtf's resolver."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.tasks import LIMIT, Cluster

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


MIRRORED = """
import signal, time
import tensorflow as tf
from gridtf.errors import GridtfError
from gridtf.training import ClusterResolver

def main(ctx):
    resolver = ClusterResolver()
    print("resolver", resolver.task_type, resolver.task_id, sorted(resolver.cluster_spec().jobs), resolver.rpc_layer)
    assert resolver.num_accelerators() == {}
    assert resolver.environment == ""
    assert resolver.master() == "grpc://" + ctx.cluster[ctx.task.type][ctx.task.index]
    assert resolver.master("master", 0) == resolver.master("chief", 0) == "grpc://" + ctx.cluster["master"][0]
    assert resolver.master("worker", 0, rpc_layer="x") == "x://" + ctx.cluster["worker"][0]
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    number = tf.constant(1.0 if ctx.is_chief else 10.0)
    total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", number))
    print("replicas", strategy.num_replicas_in_sync, "total", float(total))
    try:
        ctx.server
    except GridtfError as error:
        print("refused:", error.what, flush=True)
    time.sleep(600)
"""


def test_mirrored_strategy_with_gridtf_s_resolver(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "train.py").write_text(MIRRORED)
    cluster = Cluster(tmp_path, stack, {"master": 1, "worker": 1})
    tasks = {name: cluster.start(name, 0, "gridtf.training.run", "train:main") for name in ("master", "worker")}
    for name, process in tasks.items():
        cluster.wait_for(process, name, 0, "refused:")
        said = cluster.log(name, 0).read_text()
        assert f"resolver {'chief' if name == 'master' else name} 0 ['chief', 'worker'] grpc\n" in said
        assert "replicas 2 total 11.0\n" in said
        address = cluster.members[name][0]
        assert f"refused: {name}:0 already has a TensorFlow server, at {address}\n" in said
    for process in tasks.values():
        process.terminate()
    assert [process.wait(LIMIT) for process in tasks.values()] == [-signal.SIGTERM] * 2


COORDINATED = """
import tensorflow as tf
from gridtf.training import ClusterResolver

strategy = tf.distribute.ParameterServerStrategy(ClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
devices = {device.name for device in tf.config.list_logical_devices() if device.device_type != "XLA_CPU"}
print("ps", sorted(name for name in devices if "job:ps" in name))
with strategy.scope():
    total = tf.Variable(0.0)
step = tf.function(lambda: total.assign_add(1.0))
for _ in range(20):
    coordinator.schedule(step)
coordinator.join()
print("total", float(total.read_value()), "on", total.device)
"""


def test_parameter_server_strategy_with_served_tasks(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "coordinate.py").write_text(COORDINATED)
    cluster = Cluster(tmp_path, stack, {"master": 1, "worker": 1, "ps": 1})
    served = {name: cluster.start(name, 0, "gridtf.training.serve") for name in ("ps", "worker")}
    leader = cluster.start("master", 0, "coordinate")
    assert leader.wait(LIMIT) == 0, cluster.log("master", 0).read_text()
    said = cluster.log("master", 0).read_text()
    assert "ps ['/job:ps/replica:0/task:0/device:CPU:0']\n" in said
    assert "total 20.0 on /job:ps/replica:0/task:0/device:CPU:0\n" in said
    for name, process in served.items():
        assert f"gridtf serves {name}:0 at {cluster.members[name][0]}\n" in cluster.log(name, 0).read_text()
        process.send_signal(signal.SIGUSR1)
        assert process.poll() is None
        process.terminate()
    assert [process.wait(LIMIT) for process in served.values()] == [-signal.SIGTERM] * 2


ALONE = """
import tensorflow as tf
from gridtf.training import ClusterResolver

def main(ctx):
    assert not ctx.is_chief
    resolver = ClusterResolver()
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    print("replicas", strategy.num_replicas_in_sync, resolver.cluster_spec().as_dict(), repr(resolver.master()))
"""


def test_evaluator_has_an_empty_cluster(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "evaluate.py").write_text(ALONE)
    cluster = Cluster(tmp_path, stack, {"worker": 2})
    evaluator = cluster.start("evaluator", 0, "gridtf.training.run", "evaluate:main")
    assert evaluator.wait(LIMIT) == 0, cluster.log("evaluator", 0).read_text()
    assert "replicas 1 {} ''\n" in cluster.log("evaluator", 0).read_text()
