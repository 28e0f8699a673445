"""How the workers of MultiWorkerMirroredStrategy agree, by all-reduces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gridtf.training.ranks import is_leader, steps_until

_LONGEST = 1000  # bytes of a text that the leader tells to the others


class Mirrored:
    """The workers of MultiWorkerMirroredStrategy, which are always at the same step.

    All calls are made by all workers after the same steps, since each is an all-reduce. Whether a checkpoint is
    requested is asked about once a second: after how many steps depends on the leader's clock.

    Args:
        strategy: The strategy.
        requested: Whether a checkpoint is requested; each worker asks its own host.

    Attributes:
        leads: As Alone's, like the next two.
        together: Always true.
        same_seeds: Always true: variables of the strategy are the same in all workers.
    """

    together = same_seeds = True

    def __init__(self, strategy: Any, requested: Callable[[], bool]) -> None:
        self._strategy = strategy
        self._requested = requested
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec().as_dict() if resolver else {}
        self.leads = not cluster or is_leader(resolver.task_type, resolver.task_id, cluster)
        self._total = tf.function(self._all_reduce)
        self._since = 0  # steps since the last question
        self._pause = 1  # steps between two questions
        self._asked = time.monotonic()

    def told(self, text: str) -> str:
        """As Alone.told."""
        data = text.encode()[:_LONGEST]
        own = np.zeros(_LONGEST, np.float32)
        own[: len(data)] = np.frombuffer(data, np.uint8)
        numbers = self._sum(own if self.leads else np.zeros_like(own))
        return bytes(numbers.round().astype(np.uint8)).rstrip(b"\0").decode(errors="ignore")

    def settle(self) -> None:
        """As Alone.settle: the workers always have the same values."""

    def wanted(self, steps: int) -> bool:
        """As Alone.wanted."""
        self._since += steps
        if self._since < self._pause:
            return False
        now = time.monotonic()
        pause = steps_until(self._since, now - self._asked) if self.leads else 0
        wish, pause = self._sum(np.array([self._requested(), pause], np.float32))
        self._pause, self._since, self._asked = int(pause), 0, now
        return bool(wish)

    def _sum(self, own: Any) -> Any:
        """The sum over the workers, each with the weight of its GPUs, divided by the weight of the leader."""
        total = self._total(tf.constant(np.append(own, np.float32(self.leads))))
        first = self._strategy.experimental_local_results(total)[0].numpy()
        return first[:-1] / first[-1]

    def _all_reduce(self, own: Any) -> Any:
        def each(numbers: Any) -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(numbers))

        return self._strategy.run(each, args=(own,))
