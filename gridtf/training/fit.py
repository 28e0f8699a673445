"""Averaging in Keras's fit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridtf.training.group import Group


class AveragingCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Makes each batch a step of an averaging group. Its weight is 1, as Keras does not tell its size."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self._first = 0
        self._attached = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._attached = False
        if self.model.built:
            self._attach()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._attached:
            self._attach()
        number = batch - self._first + 1  # more than one with steps_per_execution
        self._group.steps(number, float(number))

    def on_train_end(self, logs: Any = None) -> None:
        self._group.finish()

    def _attach(self) -> None:
        self._group.attach(self.model, self.model.optimizer)
        self._attached = True
