"""What the members of an averaging group tell each other, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gridtf.training.exchange import Learned, Member, decode, describe, difference, encode, failure, is_due, signature


def float32(vector: list[float]) -> list[float]:
    return list(struct.unpack(f"{len(vector)}f", struct.pack(f"{len(vector)}f", *vector)))


def test_sum_of_the_vectors_has_what_every_member_tells_exactly() -> None:
    told = [
        Member(weight=1280.0, done=True, wish=True, signature=signature(b"one"), size=123_456, token=(1 << 24) - 1),
        Member(weight=0.0, signature=(1 << 48) - 1),
        Member(weight=0.5, done=True, signature=1 << 24, due=True),
    ]
    vectors = [float32(encode(member, rank, 3)) for rank, member in enumerate(told)]
    assert decode([sum(numbers) for numbers in zip(*vectors, strict=True)]) == told


def test_signature_has_48_bits_and_differs_with_the_description() -> None:
    found = {signature(text.encode()) for text in ("kernel float32 [4, 3]", "kernel float32 [3, 4]", "")}
    assert len(found) == 3
    assert all(0 <= value < 1 << 48 for value in found)


@pytest.mark.parametrize(
    ("steps", "elapsed", "seconds", "due"),
    [(19, 99.0, None, False), (20, 0.0, None, True), (25, 0.0, None, True), (99, 4.9, 5.0, False), (1, 5.0, 5.0, True)],
)
def test_exchange_is_due_by_steps_or_by_time(steps: int, elapsed: float, seconds: float | None, due: bool) -> None:
    assert is_due(steps, elapsed, 20, seconds) is due


def told(*variables: str, learned: Sequence[Learned] = ()) -> str:
    return describe(variables, learned).decode()


def test_difference_names_both_tasks_and_the_first_variable_that_differs() -> None:
    same, other = told("a [1]", "b [2]", "c [3]"), told("a [1]", "b [9]")
    error = difference({"chief:0": same, "worker:0": same, "worker:1": other})
    assert error is not None
    assert error.what == "chief:0 and worker:1 have attached different models"
    assert error.why == "variable 2 is b [2] at chief:0, b [9] at worker:1"


def test_difference_where_one_member_has_more_variables() -> None:
    error = difference({"worker:0": told("a [1]"), "worker:1": told("a [1]", "b [2]")})
    assert error is not None
    assert error.why == "variable 2 is missing at worker:0, b [2] at worker:1"


WORDS, MEAN = ("text (TextVectorization)", "5f0c", 0.0, 0.0), ("norm (Normalization)", "", 1.5, 40.0)


@pytest.mark.parametrize(
    ("learned", "layer"),
    [
        ((WORDS, MEAN), ""),
        ((WORDS, (*MEAN[:2], 1.501, 40.001)), ""),  # the same mean in the floating point of another host
        ((WORDS, (*MEAN[:2], 1.6, 40.0)), MEAN[0]),
        ((WORDS, (*MEAN[:2], 1.5, 41.0)), MEAN[0]),
        (((WORDS[0], "77aa", 0.0, 0.0), MEAN), WORDS[0]),
        ((WORDS,), MEAN[0]),  # of an empty share, or adapted by one member alone
        ((WORDS, MEAN, ("more (Hashing)", "1", 0.0, 0.0)), "more (Hashing)"),
        ((WORDS, MEAN, ("words (StringLookup) beside the model", "1", 0.0, 0.0)), ""),  # the others have read a file
    ],
)
def test_layer_that_has_learned_something_else_is_named_before_the_variables_that_follow_from_it(
    learned: Sequence[Learned], layer: str
) -> None:
    variables = ["embeddings [9, 4]"] if layer else ["embeddings [8, 4]"]
    texts = {
        "worker:0": told("embeddings [8, 4]", learned=(WORDS, MEAN)),
        "worker:1": told(*variables, learned=learned),
    }
    error = difference(texts)
    assert (error.what if error else "") == (
        f"worker:0 and worker:1 have adapted {layer} to different data" if layer else ""
    )


LOST = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 13, in <module>

Collective ops is aborted by: Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling ...
The error could be from a previous operation. [Op:__inference_exchange_46]"""


def test_failure_names_the_lost_task_and_where_to_look() -> None:
    error = failure(LOST, "worker:0", ["worker:0", "worker:1"], 40)
    assert str(error).splitlines() == [
        "worker:0: averaging after step 40 failed: worker:1 does not respond",
        "TensorFlow: Connection reset by peer",
        "see `gridtf logs JOB --task worker:1`: did it fail, or end without group.finish()?",
    ]


def test_failure_names_a_master_which_tensorflow_calls_chief() -> None:
    text = "Socket closed, /job:worker/replica:0/task:0, /job:chief/replica:0/task:0"
    assert "master:0 does not respond" in failure(text, "worker:0", ["master:0", "worker:0"], 1).what


def test_failure_that_names_no_task() -> None:
    error = failure("", "worker:0", ["worker:0", "worker:1"], 3)
    assert str(error) == "worker:0: averaging after step 3 failed"
