"""Averaging in Keras's fit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridtf.reporting import progress
from gridtf.training.group import Group
from gridtf.training.kerascallback import call_after, scalars
from gridtf.training.variables import tensorflow_variable


class AveragingCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Makes each batch a step of an averaging group, of weight 1, as Keras does not tell its size, and reports it."""

    _supports_tf_logs = True  # tf_keras: values are read when they are written, not in each step

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self._first = 0
        self._attached = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._attached, self._group.epochs = False, self.params["epochs"]
        if self.model.built:
            self._attach()
        # Keras's own History stands behind the callbacks of the program. What changes weights after the last step,
        # use_ema of an optimizer and callbacks such as EarlyStopping, does so between the two calls that follow it.
        history = self.model.history
        call_after(history, "on_epoch_end", self._after_epoch)
        call_after(history, "on_train_end", self._after_training)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._attached:
            self._attach()
        number = batch - self._first + 1  # more than one with steps_per_execution
        self._group.steps(number, float(number))
        self._report(logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._group.finish()  # unless it was after the last epoch: there was none

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._report(logs)  # with the values of the validation

    def _report(self, logs: Any) -> None:
        progress(tensorflow_variable(self.model.optimizer.iterations), **scalars(logs or {}))

    def _after_epoch(self, epoch: int, logs: Any = None) -> None:
        if self.model.stop_training or epoch + 1 == self.params["epochs"]:
            self._group.finish()

    def _after_training(self, logs: Any = None) -> None:
        for name in ("on_train_batch_end", "on_epoch_end", "on_train_end"):
            vars(self.model.history).pop(name, None)  # the program gets it, and may pickle it
        self._group.follow()
        self._group.epochs = None

    def _attach(self) -> None:
        self._group.attach(self.model, self.model.optimizer)
        self._attached = True
