"""Steps, rate and time left, as the line at the bottom of a terminal has them."""

from __future__ import annotations

from gridtf.cli.pace import Pace


def test_steps_with_a_rate_and_the_time_left() -> None:
    pace = Pace()
    assert pace.words(0.0) == ""
    pace.see("worker:0", ["step 100/500"], 100.0)
    assert pace.words(101.0) == "step 100/500"
    pace.see("worker:0", ["step 120/500", "loss 3"], 110.0)
    assert pace.words(120.0) == "step 120/500 (2/s, 3 min 0 s left)"
    pace.see("worker:0", ["nothing"], 130.0)
    assert pace.words(500.0) == "step 120/500 (2/s, 0 s left)"


def test_steps_without_their_number_have_a_rate() -> None:
    pace = Pace()
    pace.see("worker:0", ["step 10"], 100.0)
    pace.see("worker:0", ["step 20"], 102.0)
    assert pace.words(103.0) == "step 20 (5/s)"


def test_epochs_of_keras_with_and_without_its_bar() -> None:
    pace = Pace()
    pace.see("worker:0", ["Epoch 1/10"], 100.0)
    pace.see("worker:0", ["23/23 - 2s - 75ms/step", "Epoch 3/10"], 120.0)
    assert pace.words(120.0) == "epoch 3/10 (1 min 20 s left)"
    pace = Pace()
    pace.see("worker:0", ["Epoch 3/4"], 100.0)
    pace.see("worker:0", ["10/100 [==>...] - ETA: 9s"], 101.0)
    pace.see("worker:0", ["60/100 [==>...] - ETA: 4s"], 106.0)
    assert pace.words(106.0) == "epoch 3/4, 60/100 (10/s, 14 s left)"
    pace.see("worker:0", ["Epoch 4/4"], 110.0)
    assert pace.words(110.0) == "epoch 4/4 (10/s, 10 s left)"


def test_the_task_that_has_come_furthest_counts_and_another_attempt_begins_anew() -> None:
    pace = Pace()
    for time, step in ((1.0, 10), (2.0, 20), (3.0, 30)):
        pace.see("worker:0", [f"step {step} of 100"], time)
        pace.see("worker:1", [f"step {step // 2} of 100"], time)
    assert pace.words(3.0) == "step 30/100 (10/s, 7 s left)"
    pace.see("worker:0", ["step 1 of 100"], 9.0)
    assert pace.words(9.0) == "step 1/100"
