"""The argument of an entry function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridtf.contract import Task


class Context:
    """A training task, as an entry function sees it.

    Attributes:
        task: Type, index, rank, GPUs and the rest of this task's place in the job.
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
        """This task's ``tf.distribute.Server``, started on first use, or at once for a worker beside a ps.

        Raises:
            GridtfError: When a strategy has started its own.
        """
        if self._server is None:
            from gridtf.training.server import start_server

            self._server = start_server(self.task)
        return self._server

    @property
    def checkpoint_requested(self) -> bool:
        """Whether a checkpoint was requested (SIGUSR1) since the last checkpoint_saved()."""
        return self._checkpoint_requested

    def checkpoint_saved(self) -> None:
        """Report that the requested checkpoint is written."""
        self._checkpoint_requested = False

    def request_checkpoint(self, *_: object) -> None:
        """Request a checkpoint; can serve as a signal handler."""
        self._checkpoint_requested = True
