"""What a program with averaging does with Keras: the steps of its optimizers, and what its layers were adapted to."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import tensorflow as tf

from gridtf.training import exchange
from gridtf.training.variables import tensorflow_variable

_LEARNED = ("get_vocabulary", "idf_weights", "bin_boundaries", "mean", "variance")  # what adapt() finds out, by layer
_TABLES = (tf.lookup.StaticHashTable, tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)


class Seen:
    """Watches Keras from now on.

    Attributes:
        since: When the first step was made, by the monotonic clock; None: none was.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self._optimizers: dict[int, tuple[Any, int | None]] = {}  # with the steps that they had before
        self._adapted: dict[int, Any] = {}
        for base in (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer):
            name = next((name for name in ("apply", "apply_gradients") if hasattr(base, name)), None)
            if name:  # in Keras 3, the legacy one has none
                _before(base, name, self._step)
        for layer in vars(tf.keras.layers).values():
            if isinstance(layer, type) and hasattr(layer, "adapt"):
                _before(layer, "adapt", self._adapt)

    @property
    def steps(self) -> int:
        """The most steps that an optimizer has made."""
        made = [0]
        for optimizer, before in self._optimizers.values():
            now = _iterations(optimizer)
            made += [now - before] if now is not None and before is not None else []
        return max(made)

    def learned(self, model: Any) -> list[exchange.Learned]:
        """What the layers of a model, and those that were adapted, have learned of the data; and its lookup tables.

        Args:
            model: A model, or a list of variables.
        """
        layers = {id(layer): layer for layer in getattr(model, "_flatten_layers", tuple)() if hasattr(layer, "adapt")}
        beside = [layer for key, layer in self._adapted.items() if key not in layers]
        tables = [each for each in _held_by(model) if isinstance(each, _TABLES)]
        return [
            *(made for layer in layers.values() for made in _of_layer(layer)),
            *(made for layer in beside for made in _of_layer(layer, exchange.BESIDE)),
            *(made for number, table in enumerate(tables, 1) for made in _of_table(f"lookup table {number}", table)),
        ]

    def _step(self, optimizer: Any) -> None:
        if id(optimizer) not in self._optimizers:
            self.since = self.since or time.monotonic()
            self._optimizers[id(optimizer)] = optimizer, _iterations(optimizer)

    def _adapt(self, layer: Any) -> None:
        self._adapted[id(layer)] = layer


def _before(owner: type, name: str, tell: Callable[[Any], None]) -> None:
    """Have a function called with the object before each call of a method of this class."""
    owner = next(base for base in owner.__mro__ if name in vars(base))
    method = vars(owner)[name]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(method)
    def both(self: Any, *arguments: Any, **named: Any) -> Any:
        tell(self)
        return method(self, *arguments, **named)

    setattr(owner, name, both)


def _iterations(optimizer: Any) -> int | None:
    """Its steps so far, also while a step is traced; None where they cannot be read."""
    with contextlib.suppress(Exception), tf.init_scope():
        return int(tensorflow_variable(optimizer.iterations).numpy())
    return None


def _of_layer(layer: Any, where: str = "") -> Iterator[exchange.Learned]:
    for name in _LEARNED:
        with contextlib.suppress(Exception):  # a layer that was not adapted
            state = getattr(layer, name)
            # a mean near 0 is compared with the deviation from it
            least = float(np.sqrt(np.asarray(layer.variance)).sum()) if name == "mean" else 0.0
            yield _of(f"{layer.name} ({type(layer).__name__}){where}", state() if callable(state) else state, least)


def _of_table(name: str, table: Any) -> Iterator[exchange.Learned]:
    with contextlib.suppress(tf.errors.OpError):  # a table that is not initialized yet
        yield _of(name, sorted(_items(table)))


def _of(name: str, state: Any, least: float = 0.0) -> exchange.Learned:
    if isinstance(state, list) and not all(isinstance(value, float) for value in state):
        return name, sha256("\0".join(map(str, state)).encode()).hexdigest(), 0.0, 0.0
    values = np.nan_to_num(np.asarray(state, np.float64).ravel())
    return name, "", float(values @ np.cos(np.arange(values.size))), max(least, float(np.abs(values).sum()))


def _items(table: Any) -> list[tuple[Any, Any]]:
    return list(zip(*(part.numpy().tolist() for part in table.export()), strict=True))


def _held_by(model: Any) -> Iterable[Any]:
    """All that TensorFlow would save with a model."""
    held = model if isinstance(model, list | tuple) else [model]
    return [each for root in held for each in tf.train.TrackableView(root).descendants()]
