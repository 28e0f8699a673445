"""Sums over the members of an averaging group, by TensorFlow's collective operations."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from gridtf.contract import Task
from gridtf.training.exchange import SLOTS, TYPES, WEIGHT, LostError, TooLateError
from gridtf.training.resolver import ClusterResolver

Average = Callable[[Sequence[float], float], tuple[list[float], float]]


class Collective:
    """The members' connection: TensorFlow's server of this task, and an all-reduce between the first devices of all.

    Args:
        task: This process's task.

    Raises:
        TooLateError: When this program has used TensorFlow before.
    """

    def __init__(self, task: Task) -> None:
        with _sigterm_kept():  # the strategy would make TensorFlow ignore it
            try:
                self._strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=_OneDevice(task))
            except RuntimeError as error:
                if "program startup" not in str(error):
                    raise
                raise TooLateError from error
        self._total = tf.function(self._sum)

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum vectors of equal length over all members.

        Args:
            values: This member's.

        Raises:
            LostError: When a member is lost meanwhile.
        """
        return _carried_out(lambda: self._total(tf.constant(values, tf.float32)))

    def average(self, variables: Sequence[Any]) -> Average:
        """Make the function that averages variables over all members, in one all-reduce.

        Args:
            variables: Of floating-point types; the same names and shapes in all members.

        Returns:
            A function of this member's numbers for the others (exchange.encode) and its weight. It sets the variables
            to the weighted mean, unless all weights are 0 or a member with a weight has values that are not finite, and
            returns the sum of the numbers, in which the weight of such a member is negative, and how far the variables
            were from the mean, as a part of its size. It raises LostError.
        """
        wide = any(variable.dtype == tf.float64 for variable in variables)
        dtype = tf.float64 if wide else tf.float32
        sizes = [variable.shape.num_elements() for variable in variables]
        # infinite from the beginning: a constant, such as a mask
        finite = [not tf.reduce_any(tf.math.is_inf(variable)) for variable in variables]

        def exchange(numbers: Any, weight: Any) -> Any:
            flat = [tf.reshape(tf.cast(variable, dtype), [-1]) for variable in variables]
            tested = tf.concat([part for part, test in zip(flat, finite, strict=True) if test] or [[0.0]], 0)
            healthy = tf.reduce_all(tf.math.is_finite(tested))
            slots = tf.range(len(numbers)) % SLOTS
            numbers = tf.where((slots == WEIGHT) & ~healthy, -numbers, numbers)
            # A member with weight 0 may have diverged: 0 times infinity must stay 0.
            vector = tf.concat([numbers, tf.math.multiply_no_nan(tf.concat(flat, 0), weight)], 0)
            total = self._sum(vector)
            numbers = total[: len(numbers)]
            weights = numbers[WEIGHT::SLOTS]
            divisor = tf.reduce_sum(weights)
            changed = tf.reduce_all(weights >= 0) & (divisor > 0)
            off = size = tf.constant(0, dtype)
            for variable, part in zip(variables, tf.split(total[len(numbers) :], sizes), strict=True):
                mean = tf.cast(tf.reshape(part / divisor, variable.shape), variable.dtype)
                off += _size(mean - variable, dtype)
                size += _size(mean, dtype)
                variable.assign(tf.where(changed, mean, variable))
            return tf.concat([numbers, [tf.sqrt(tf.math.divide_no_nan(off, size))]], 0)

        traced = tf.function(exchange)

        def carried_out(numbers: Sequence[float], weight: float) -> tuple[list[float], float]:
            *told, distance = _carried_out(lambda: traced(tf.constant(numbers, dtype), tf.constant(weight, dtype)))
            return told, distance

        return carried_out

    def _sum(self, vector: Any) -> Any:
        def replica(part: Any) -> Any:
            part = tf.identity(part)  # on this replica's device: the sum is made where its operand is
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, part)

        return self._strategy.run(replica, args=(vector,))


def _size(values: Any, dtype: Any) -> Any:
    """The sum of the squares of those that are finite: a constant, such as a mask, may not be."""
    return tf.reduce_sum(tf.square(tf.cast(tf.where(tf.math.is_finite(values), values, 0), dtype)))


class _OneDevice(ClusterResolver):
    """The tasks that train, each with one device: a second one would double the weight of its task."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.replace(cluster={name: tasks for name, tasks in task.cluster.items() if name in TYPES}))

    def num_accelerators(self, *arguments: Any, **named: Any) -> dict[str, int]:
        return {name: min(1, count) for name, count in super().num_accelerators(*arguments, **named).items()}


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _carried_out(operation: Callable[[], Any]) -> list[float]:
    try:
        return list(operation().numpy().tolist())
    except tf.errors.OpError as error:
        raise LostError(error.message) from error
