"""The job's cluster, as TensorFlow's strategies want to be told of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridtf import contract
from gridtf.contract import Task


class ClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):  # type: ignore[misc]
    """The cluster of this gridtf job, for ``MultiWorkerMirroredStrategy`` and ``ParameterServerStrategy``.

    The strategies know the leader only as ``chief``; a ``master`` is shown to them under that name. An evaluator is
    no member of the cluster: it sees an empty one, so that its strategy runs on its own devices.

    task: by default this process's. Raises GridtfError outside a gridtf task.
    """

    def __init__(self, task: Task | None = None) -> None:
        task = task or contract.task()
        member = task.type in task.cluster
        self._cluster = {_modern(name): list(tasks) for name, tasks in task.cluster.items()} if member else {}
        self._task_type = _modern(task.type)  # the base class has the property, as for the next one
        self._task_id = task.index
        self.rpc_layer = "grpc"

    def cluster_spec(self) -> Any:
        """A ``tf.train.ClusterSpec``."""
        return tf.train.ClusterSpec(self._cluster)

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, by default this one, such as ``grpc://host:port``; empty without a cluster."""
        if not self._cluster:
            return ""
        name = _modern(task_type or self.task_type)
        address = self.cluster_spec().task_address(name, self.task_id if task_id is None else task_id)
        return f"{rpc_layer or self.rpc_layer}://{address}"

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """``{"GPU": n}`` for this task, empty without; of another task what TensorFlow sees of it once connected.

        Does not initialize TensorFlow's devices for this task: a strategy may still be made afterwards.
        """
        if (task_type or self.task_type, self.task_id if task_id is None else task_id) != (
            self.task_type,
            self.task_id,
        ):
            return dict(super().num_accelerators(task_type, task_id, config_proto))
        gpus = tf.config.get_visible_devices("GPU")
        count = sum(len(tf.config.get_logical_device_configuration(gpu) or (gpu,)) for gpu in gpus)
        return {"GPU": count} if count else {}


def _modern(task_type: str) -> str:
    return "chief" if task_type == "master" else task_type
