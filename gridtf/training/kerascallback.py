"""Callbacks for ``fit``, of Keras 3 and of tf_keras: one counts and saves, one reports the progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gridtf.errors import UsageError
from gridtf.reporting import progress
from gridtf.training.group import current as current_group
from gridtf.training.variables import tensorflow_variable

if TYPE_CHECKING:
    from gridtf.training.checkpoints import Checkpoints


def make_callback(saved: Checkpoints, model: Any) -> Any:
    """Make a callback: see Checkpoints.callback.

    Args:
        saved: The checkpoints.
        model: A model of Keras 3 or tf_keras.
    """
    base = _callback_class(model, "callback")
    by_epoch = _by_epoch(model)
    counter = EpochCounter(saved)

    class Saving(base):  # type: ignore[misc, valid-type]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            counter.begin(epoch, self.params.get("steps"))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del logs
            if by_epoch:
                counter.batches(self.params.get("steps") or 1)
            if counter.cut_short:
                self.model.stop_training = False
            counter.end(epoch)

        def on_train_end(self, logs: Any = None) -> None:
            del logs
            saved.after_training()

    if by_epoch:
        return Saving()

    averaged = current_group() is not None

    class SavingBatches(Saving):
        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            if averaged:  # after group.callback(), wherever that stands: Keras's own History stands behind all
                call_after(self.model.history, "on_train_batch_end", self._after_batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not averaged:
                self._after_batch(batch, logs)

        def _after_batch(self, batch: int, logs: Any = None) -> None:
            del logs
            counter.batches(batch + 1)
            self.model.stop_training |= counter.cut_short

    return SavingBatches()


def progress_callback(model: Any) -> Any:
    """Make a callback for ``fit`` that reports the progress of this task: steps, loss and metrics.

    ::

        model.fit(data, epochs=10, callbacks=[training.progress_callback(model)])

    The steps are those of the model's optimizer, so they go on where a restored training was. With
    ParameterServerStrategy it reports once an epoch, since ``fit`` refuses callbacks for batches.

    Args:
        model: A model of Keras 3 or tf_keras.

    Returns:
        A ``Callback`` of the model's Keras.

    Raises:
        UsageError: It is no model of Keras.
    """
    base = _callback_class(model, "progress_callback")

    class Reporting(base):  # type: ignore[misc, valid-type]
        _supports_tf_logs = True  # tf_keras: the values are read when they are written, not in each step

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch
            self._report(logs)

        def _report(self, logs: Any) -> None:
            progress(tensorflow_variable(self.model.optimizer.iterations), **scalars(logs or {}))

    if _by_epoch(model):
        return Reporting()

    class ReportingBatches(Reporting):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch
            self._report(logs)

    return ReportingBatches()


def scalars(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that Keras logs that are one number each, be they Python's, NumPy's or tensors."""
    # by its length: in tf_keras the values are tensors, and a TensorShape is true even without dimensions
    return {name: value for name, value in logs.items() if len(getattr(value, "shape", ())) == 0}


def _by_epoch(model: Any) -> bool:
    """Whether its steps run ahead of fit, which then refuses callbacks for batches."""
    import tensorflow as tf

    return isinstance(getattr(model, "distribute_strategy", None), tf.distribute.ParameterServerStrategy)


def _callback_class(model: Any, function: str) -> Any:
    roots = [cls.__module__.partition(".")[0] for cls in type(model).__mro__]
    if "tf_keras" in roots:
        import tf_keras

        return tf_keras.callbacks.Callback
    if "keras" in roots:
        import keras

        return keras.callbacks.Callback
    hint = {"callback": "call after_step()", "progress_callback": "call gridtf.progress(step, …)"}[function]
    raise UsageError(f"{function}() is for models of Keras: {type(model).__name__} is none", hint=hint)


def call_after(callback: Any, name: str, then: Callable[..., None]) -> None:
    """Have a function called after a method of this callback, with the same arguments."""
    method = getattr(callback, name)

    def both(*arguments: Any, **named: Any) -> None:
        method(*arguments, **named)
        then(*arguments, **named)

    setattr(callback, name, both)


class EpochCounter:
    """Counts the batches of ``fit``.

    Args:
        saved: The checkpoints.

    Attributes:
        cut_short: Whether this epoch, which was interrupted before, has had its batches and ends here.
    """

    def __init__(self, saved: Checkpoints) -> None:
        self._saved = saved
        self._size: int | None = None  # batches in an epoch
        self._before = 0  # batches of this epoch in the run that was interrupted
        self._done = 0  # batches of this epoch in this run
        self.cut_short = False

    def begin(self, epoch: int, size: int | None) -> None:
        """An epoch begins.

        Args:
            epoch: Its number, from 0.
            size: The number of its batches; None where unknown.

        Raises:
            UsageError: It had ended before the checkpoint was saved.
        """
        saved = self._saved
        if epoch < saved.epoch:
            raise UsageError(
                f"fit begins with epoch {epoch + 1}, but the checkpoint has {saved.epoch}",
                hint="continue there: model.fit(…, initial_epoch=saved.epoch)",
            )
        if size is None:
            saved.batch = 0  # where it was interrupted is unknown: it begins anew
        self._size, self._before, self._done = size, saved.batch, 0
        saved.size = size
        self.cut_short = False

    def batches(self, done: int) -> None:
        """Batches have been trained on.

        Args:
            done: Their number in this epoch and this run, so far.
        """
        steps, self._done = done - self._done, done
        self._saved.batch = self._before + done
        if self._size is not None and self._saved.batch >= self._size:
            self._saved.epoch, self._saved.batch = self._saved.epoch + 1, 0
            self.cut_short = self._before > 0
        self._saved.after_step(steps)

    def end(self, epoch: int) -> None:
        """An epoch has ended.

        Args:
            epoch: Its number, from 0.
        """
        self._saved.epoch, self._saved.batch = epoch + 1, 0
        self._saved.after_epoch()
