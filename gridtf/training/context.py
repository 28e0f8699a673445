"""The argument of an entry function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridtf.contract import Task


class Context:
    """The argument of an entry function (``--entry module:function``): this task and its TensorFlow server.

    Attributes:
        task: This task's place in the job: type, index, rank, GPUs and so on.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._server: Any = None
        self._checkpoint_requested = False

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
            from gridtf.training.servers import start_server

            self._server = start_server(self.task)
        return self._server

    @property
    def checkpoint_requested(self) -> bool:
        """Whether a checkpoint was requested (SIGUSR1) since the last checkpoint_saved()."""
        return self._checkpoint_requested

    def checkpoint_saved(self) -> None:
        """Reset checkpoint_requested, after a checkpoint was written."""
        self._checkpoint_requested = False

    def request_checkpoint(self, *_: object) -> None:
        """Set checkpoint_requested. Takes and ignores the arguments of a signal handler."""
        self._checkpoint_requested = True
