"""Steps and epochs in the lines of logs."""

from __future__ import annotations

import pytest

from gridtf.observe.steps import Count, read


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("step 120", Count(120)),
        ("Step: 120 loss 0.25", Count(120)),
        ("step=120, loss=0.25", Count(120)),
        ("step #7", Count(7)),
        ("global_step = 5", Count(5)),
        ("global step 5/100: loss 2.3", Count(5, 100)),
        ("INFO:tensorflow:loss = 0.3, step = 200 (1.234 sec)", Count(200)),
        ("at step 1,200 of 10,000", Count(1200, 10000)),
        ("iteration 3 of 9", Count(3, 9)),
        ("iter: 3", Count(3)),
        ("batch 40/800", Count(40, 800)),
        ('{"loss": 0.5, "step": 120}', Count(120)),
        ("Finished step 120.", Count(120)),
        ("Epoch 3/10", Count(None, None, 3, 10)),
        ("epoch 3 of 10", Count(None, None, 3, 10)),
        ("Epoch: 3, loss 0.2", Count(None, None, 3)),
        ("Epoch 00003: val_loss improved from 0.3 to 0.2", Count(None, None, 3)),
        ("Epoch [3/10], Step [120/500], Loss: 0.2", Count(120, 500, 3, 10)),
        ("epoch=3 step=120", Count(120, None, 3)),
        (" 120/500 [=====>........................] - ETA: 5s - loss: 0.31", Count(120, 500)),
        ("500/500 [==============================] - 5s 10ms/step - loss: 0.31", Count(500, 500)),
        ("120/500 ━━━━━━━━━━━━━━━━━━━━ 5s 12ms/step - loss: 0.31", Count(120, 500)),
        ("    120/Unknown [=====>......] - 5s 12ms/step", Count(120)),
        (" 24%|##4       | 120/500 [00:05<00:16, 23.1it/s]", Count(120, 500)),
        (" 24%|██▍       | 120/500 [00:05<00:16, 23.1it/s]", Count(120, 500)),
        # no count
        ("", None),
        ("12ms/step - loss: 0.31", None),
        ("global_step/sec: 11.8", None),
        ("step_time = 0.3", None),
        ("step 0.5", None),
        ("step 12ms", None),
        ("step 2026-11-21", None),
        ("timestep 5", None),
        ("saved checkpoints/step-120", None),
        ("500 steps an epoch", None),
        ("1/2 of the files [read]", None),
        ("2026/11/21 [main] started", None),
        ("batch_size=64", None),
        ("epochs: many", None),
        ("step 99999999999999999999", None),
    ],
)
def test_count_in_a_line(line: str, count: Count | None) -> None:
    assert read([line]) == count


def test_the_last_count_in_the_last_lines_counts() -> None:
    assert read(["step 1", "step 2", "a warning"]) == Count(2)
    assert read(["Epoch 2/3", "500/500 [====]", "Epoch 3/3", " 20/500 [>....]"]) == Count(20, 500, 3, 3)
    assert read(["500/500 [====]", "Epoch 3/3"]) == Count(None, None, 3, 3)
    assert read([]) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [(Count(120), "120"), (Count(120, 500, 3, 10), "epoch 3/10, 120/500"), (Count(epoch=3), "epoch 3")],
)
def test_counts_as_text(count: Count, text: str) -> None:
    assert str(count) == text


def test_long_lines_take_no_time() -> None:
    assert read(["step " * 100 + "1" * 400, "9/" * 250, "1,111" * 100]) is None
