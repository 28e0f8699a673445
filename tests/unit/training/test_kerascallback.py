"""Counting the batches and epochs of fit, over an interruption in the middle of an epoch."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.errors import UsageError
from gridtf.training.kerascallback import EpochCounter, make_callback, progress_callback, scalars


class Saved:
    """Checkpoints that only count. at: what was restored."""

    def __init__(self, step: int = 0, epoch: int = 0, batch: int = 0) -> None:
        self.step, self.epoch, self.batch = step, epoch, batch
        self.seen: list[tuple[int, int, int]] = []
        self.epochs = 0

    def after_step(self, steps: int) -> None:
        self.step += steps
        self.seen.append((self.step, self.epoch, self.batch))

    def after_epoch(self) -> None:
        self.epochs += 1


def fit(saved: Saved, epochs: int, size: int, *, known: bool = True, initial: int | None = None) -> None:
    """As Keras trains."""
    counter = EpochCounter(saved)  # type: ignore[arg-type]
    for epoch in range(saved.epoch if initial is None else initial, epochs):
        counter.begin(epoch, size if known else None)
        for batch in range(size):
            counter.batches(batch + 1)
            if counter.cut_short:
                break
        counter.end(epoch)


def test_epochs_and_batches_are_counted() -> None:
    saved = Saved()
    fit(saved, 2, 3)
    assert saved.seen == [(1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2), (6, 2, 0)]
    assert saved.epochs == 2


def test_interrupted_epoch_is_continued_with_the_batches_that_remained() -> None:
    saved = Saved(step=5, epoch=1, batch=2)
    fit(saved, 3, 3)
    assert saved.seen == [(6, 2, 0), (7, 2, 1), (8, 2, 2), (9, 3, 0)]


def test_interrupted_epoch_of_unknown_length_begins_anew() -> None:
    saved = Saved(step=5, epoch=1, batch=2)
    fit(saved, 2, 3, known=False)
    assert saved.step == 8
    assert (saved.epoch, saved.batch) == (2, 0)


def test_several_batches_in_one_execution_are_several_steps() -> None:
    saved = Saved()
    counter = EpochCounter(saved)  # type: ignore[arg-type]
    counter.begin(0, 10)
    for done in (4, 8, 10):
        counter.batches(done)
    assert [step for step, _, _ in saved.seen] == [4, 8, 10]


def test_fit_that_forgets_where_to_begin_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        fit(Saved(step=6, epoch=2), 4, 3, initial=0)
    assert "fit begins with epoch 1, but the checkpoint has 2" in caught.value.what
    assert "initial_epoch=saved.epoch" in caught.value.hint


def test_callback_is_for_keras_models(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensorflow:
        class distribute:
            ParameterServerStrategy = bool

    monkeypatch.setitem(__import__("sys").modules, "tensorflow", Tensorflow)
    model: Any = 3
    with pytest.raises(UsageError, match="int is none"):
        make_callback(Saved(), model)  # type: ignore[arg-type]


def test_progress_callback_is_for_models_of_keras() -> None:
    with pytest.raises(UsageError, match=r"progress_callback\(\) is for models of Keras: Saved is none") as error:
        progress_callback(Saved())
    assert error.value.hint == "call gridtf.progress(step, …)"


def test_progress_of_tf_keras_has_the_values_that_are_tensors() -> None:
    class TensorShape(list[int]):
        """As TensorFlow's: true where it is known, also that of a scalar."""

        def __bool__(self) -> bool:
            return True

    class Tensor:
        def __init__(self, *shape: int) -> None:
            self.shape = TensorShape(shape)

    logs = {"loss": Tensor(), "matrix": Tensor(2, 2), "mae": 0.5}
    assert list(scalars(logs)) == ["loss", "mae"]
