"""The argument of an entry function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridtf import contract
from gridtf.contract import Task


class Context:
    """The argument of an entry function (``--entry module:function``): this task and its TensorFlow server.

    Attributes:
        task: This task's place in the job: type, index, rank, GPUs and so on.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._server: Any = None
        self._saved = False

    @property
    def cluster(self) -> Mapping[str, tuple[str, ...]]:
        """Task type -> ``host:port`` strings, in index order."""
        return self.task.cluster

    @property
    def is_chief(self) -> bool:
        """Whether this task is the leader, which writes checkpoints and exports."""
        return self.task.is_chief

    @property
    def output_dir(self) -> Path:
        """The folder that all tasks share, for checkpoints and exports."""
        return self.task.output_dir

    @property
    def server(self) -> Any:
        """This task's ``tf.distribute.Server``. Started on first use; for a worker in a job with ps, before the call.

        Raises:
            GridtfError: For a task outside the cluster, and when a strategy has already started a server.
        """
        if self._server is None:
            from gridtf.training.servers import own_server

            self._server = own_server(self.task)
        return self._server

    @property
    def checkpoint_requested(self) -> bool:
        """As ``gridtf.checkpoint_requested()``, until checkpoint_saved(): save, then exit with 42, to be continued."""
        return not self._saved and contract.checkpoint_requested()

    def checkpoint_saved(self) -> None:
        """Note that the requested checkpoint was written, where the function goes on instead of ending."""
        self._saved = True
