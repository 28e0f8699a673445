"""The job's cluster, for TensorFlow's strategies."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridtf import contract
from gridtf.contract import Task


class ClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):  # type: ignore[misc]
    """The cluster of this gridtf job, for ``MultiWorkerMirroredStrategy`` and ``ParameterServerStrategy``.

    The strategies know the leader only as ``chief``, so a ``master`` appears under that name. An evaluator is not a
    member of the cluster: for it the cluster is empty, so that its strategy runs on its own devices.

    Args:
        task: A task of the job; None: this process's.

    Raises:
        GridtfError: Outside a gridtf task.
    """

    def __init__(self, task: Task | None = None) -> None:
        task = task or contract.task()
        member = task.type in task.cluster
        self._cluster = {_modern(name): list(tasks) for name, tasks in task.cluster.items()} if member else {}
        self._task_type = _modern(task.type)  # the base class defines properties for this and the next attribute
        self._task_id = task.index
        self.rpc_layer = "grpc"

    def cluster_spec(self) -> Any:
        """A ``tf.train.ClusterSpec``."""
        return tf.train.ClusterSpec(self._cluster)

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task.

        Args:
            task_type: Its type; None: this task's.
            task_id: Its index; None: this task's.
            rpc_layer: The protocol; None: grpc.

        Returns:
            A URL such as ``grpc://host:port``; empty without a cluster.
        """
        if not self._cluster:
            return ""
        name = _modern(task_type or self.task_type)
        address = self.cluster_spec().task_address(name, self.task_id if task_id is None else task_id)
        return f"{rpc_layer or self.rpc_layer}://{address}"

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Count the GPUs of a task. For this task, TensorFlow's devices are not initialized, as strategies require.

        Args:
            task_type: Its type; None: this task's.
            task_id: Its index; None: this task's.
            config_proto: Configuration of the session that queries another task.

        Returns:
            ``{"GPU": n}``; empty without GPUs.
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
