"""Rows of a sweep, from the axes of [sweep]."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec import sweep
from gridtf.jobspec.jobfile import toml_parser
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.sweep import Sweep

PARAMS = {"lr": 0.1, "layers": 4, "optimizer": "sgd", "bias": True}


def rows(text: str, lines: Sequence[Mapping[str, Any]] | None = None, most: int = sweep.MOST) -> list[dict[str, Any]]:
    table = toml_parser().loads(text)
    return [dict(row) for row in sweep.rows(table, PARAMS, lines, lambda seed: random.Random(seed).random, most)]


def test_rows_are_the_product_of_lists_and_ranges() -> None:
    made = rows("lr = [0.1, 1]\nlayers = {from = 2, to = 8, step = 3}")
    assert made == [{"lr": lr, "layers": layers} for lr in (0.1, 1.0) for layers in (2, 5, 8)]
    assert [type(row["lr"]) for row in made] == [float] * 6


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("layers = {from = 2, to = 4}", [2, 3, 4]),
        ("layers = {from = 4, to = 2, step = -1}", [4, 3, 2]),
        ("layers = {from = 2, to = 7, step = 4}", [2, 6]),
        ("layers = {from = 9007199254740993, to = 9007199254740995}", [2**53 + 1, 2**53 + 2, 2**53 + 3]),
        ("lr = {from = 0.1, to = 0.3, step = 0.1}", [0.1, 0.2, 0.3]),
        ("lr = {from = 0, to = 1, step = 0.5}", [0.0, 0.5, 1.0]),
        ('optimizer = ["sgd", "adam"]', ["sgd", "adam"]),
        ("bias = [true, false]", [True, False]),
    ],
)
def test_values_of_an_axis(axis: str, values: list[object]) -> None:
    assert [next(iter(row.values())) for row in rows(axis)] == values


def test_random_axes_are_drawn_for_each_row_and_can_be_repeated() -> None:
    text = (
        'lr = {low = 1e-4, high = 0.1, log = true}\noptimizer = {choice = ["sgd", "adam"]}\nlayers = [2, 4]\ndraws = 50'
    )
    made = rows(text)
    assert made == rows(text)
    assert made != rows(f"{text}\nseed = 1")
    assert [row["layers"] for row in made] == [2] * 50 + [4] * 50
    assert len({row["lr"] for row in made}) == 100
    assert all(1e-4 <= row["lr"] < 0.1 for row in made)
    assert 30 < sum(row["lr"] < 1e-2 for row in made) < 90, "two thirds of a logarithmic axis"
    assert {row["optimizer"] for row in made} == {"sgd", "adam"}


def test_random_whole_numbers_include_both_ends() -> None:
    assert {row["layers"] for row in rows("layers = {low = 2, high = 4}\ndraws = 100")} == {2, 3, 4}
    assert all(0 < row["lr"] < 1e300 for row in rows("lr = {low = 1e-300, high = 1e300, log = true}\ndraws = 9"))
    assert {row["layers"] for row in rows("layers = {low = 1, high = 3, log = true}\ndraws = 200")} == {1, 2, 3}


def test_rows_of_a_file_are_crossed_with_the_axes() -> None:
    made = rows("layers = [2, 4]", [{"lr": 0.1}, {"lr": 1}])
    assert made == [{"lr": lr, "layers": layers} for lr in (0.1, 1.0) for layers in (2, 4)]


@pytest.mark.parametrize(
    ("text", "key", "problem", "hint"),
    [
        ("", "sweep", "it has no elements", "lr = [0.1, 0.01]"),
        ("lr = []", "sweep.lr", "it has no values", "at least one"),
        ("lr = 0.1", "sweep.lr", "0.1 is one value", "lr = [0.1]"),
        ("rl = [0.1]", "sweep.rl", "there is no parameter 'rl'", "did you mean lr?"),
        ("momentum = [0.1]", "sweep.momentum", "there is no parameter 'momentum'", "[params]"),
        ("layers = [2, 2.5]", "sweep.layers", "2.5 is not a whole number", "it is 4 in [params]"),
        ('lr = ["fast"]', "sweep.lr", "'fast' is not a number", "it is 0.1 in [params]"),
        ("lr = [nan]", "sweep.lr", "is not a number", "it is 0.1"),
        ("optimizer = [1]", "sweep.optimizer", "1 is not a text", "it is 'sgd'"),
        ("bias = [1]", "sweep.bias", "1 is not true or false", "it is true"),
        ("lr = [[0.1]]", "sweep.lr", "is not a number", "it is 0.1"),
        ("lr = {from = 2}", "sweep.lr", "no list, no range and no random axis", "{from = 2, to = 8, step = 2}"),
        ("lr = {from = 1, to = 2, by = 1}", "sweep.lr", "no list, no range and no random axis", "write"),
        ("layers = {from = 2, to = 8, step = 0}", "sweep.layers", "there are no values", "a step that leads"),
        ("layers = {from = 8, to = 2}", "sweep.layers", "from 8 to 2 in steps of 1 there are no values", "a step"),
        ('optimizer = {from = "a", to = "b"}', "sweep.optimizer", "only numbers have ranges", "write a list"),
        ("lr = {low = 0.1, high = 0.1}", "sweep.lr", "low has to be below high", "write"),
        ("lr = {low = 0, high = 0.1, log = true}", "sweep.lr", "above 0 with log = true", "write"),
        ("lr = {choice = []}", "sweep.lr", "expected a list of values to choose from", "write"),
        ("lr = [0.1]\ndraws = 3", "sweep.draws", "nothing is drawn", "{low = 1e-4, high = 0.1}"),
        ("lr = {low = 0, high = 1}\ndraws = 0", "sweep.draws", "0 is not a whole number from 1 on", ""),
        ("lr = {low = 0, high = 1}\nseed = 1.5", "sweep.seed", "1.5 is not a whole number from 0 on", ""),
        ("layers = {from = 1, to = 10001}", "sweep", "it has 10001 elements, at most 10000 are allowed", "leave out"),
        ("layers = {from = 1, to = 101}\nlr = {low = 0, high = 1}\ndraws = 100", "sweep", "it has 10100 elements", ""),
        (f"layers = {{from = 1, to = {10**400}}}", "sweep.layers", "numbers of a range are at most 1e+300", ""),
        (f"layers = {{low = 1, high = {10**400}}}", "sweep.layers", "numbers of a range are at most 1e+300", ""),
        ('optimizer = ["a", "b\\n"]', "sweep.optimizer", "'b\\n' contains a control character", ""),
        ("lr = {from = 0, to = 1e300, step = 1e-300}", "sweep.lr", "there are no values", ""),
    ],
)  # fmt: skip
def test_sweeps_that_cannot_be(text: str, key: str, problem: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        rows(text)
    assert caught.value.key == key
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_column_of_a_file_and_axis_of_one_name() -> None:
    with pytest.raises(SpecError, match="the file of rows has a column of that name"):
        rows("lr = [1]", [{"lr": 0.1}])


def test_site_allows_fewer_elements() -> None:
    assert len(rows("layers = [1, 2, 3]", most=3)) == 3
    with pytest.raises(SpecError, match="it has 3 elements, at most 2 are allowed"):
        rows("layers = [1, 2, 3]", most=2)


def test_notes_tell_of_what_no_command_uses_and_of_equal_rows() -> None:
    made = sweep.rows({"lr": [0.1, 0.2, 0.1], "layers": [2]}, PARAMS, None, lambda _: random.random)
    twice = "rows of the sweep that are there already: 3 (as 1)"
    plain = sweep.notes(JobSpec(command=["python", "train.py"]), made)
    assert plain == (twice, "no command uses lr, layers: the program finds them in GRIDTF_PARAMS")
    assert sweep.notes(JobSpec(entry="train:main"), made) == (twice,), "a function has them from its task"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["t", "{params}"], []),
        (["t", "--lr={{ lr }}", "{{num-layers}}"], []),
        (["t", "{params.lr}"], ["num_layers"]),
        (["t", "{lr}"], ["lr", "num_layers"]),
    ],
)
def test_parameters_that_no_command_uses(words: list[str], left: list[str]) -> None:
    assert sweep.unused(words, ["lr", "num_layers"]) == left


def test_elements_are_numbered_from_1_and_know_their_first_number() -> None:
    made = Sweep(({"lr": 0.1}, {"lr": 0.2}), numbers=(3, 7))
    assert made.elements == ("1", "2")
    assert [made.number(element) for element in made.elements] == [3, 7]
    assert Sweep(({"lr": 0.1},)).number("1") == 1
