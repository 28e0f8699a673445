"""Averaging without TensorFlow: members are threads, and sums are made between them."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gridtf.contract import Task
from gridtf.errors import GridtfError, UsageError
from gridtf.training import group as module
from gridtf.training.exchange import SLOTS, WEIGHT, Interval
from gridtf.training.group import Group, averaging, current


class Variable:
    """As much of a tf.Variable as an averaging group looks at."""

    def __init__(self, name: str, value: float, dtype: str = "float32") -> None:
        self.name, self.value, self.dtype, self.shape = name, value, dtype, ()

    def read_value(self) -> float:
        return self.value


class Model:
    def __init__(self, *values: float, name: str = "v", dtype: str = "float32") -> None:
        self.variables = [Variable(f"{name}{index}", value, dtype) for index, value in enumerate(values)]

    @property
    def values(self) -> list[float]:
        return [variable.value for variable in self.variables]


class Batches(list[int]):
    """As much of a PyDataset of Keras as share looks at."""

    num_batches = 5


class Seen:
    """What the program does with Keras."""

    def __init__(self, steps: int = 0, learned: Sequence[Any] = (), since: float | None = None) -> None:
        self.steps, self.since, self._learned = steps, since, [*learned]

    def learned(self, model: object) -> list[Any]:
        return self._learned


class Sums:
    """Sums of vectors over threads."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=20)
        self._told: dict[int, Sequence[float]] = {}

    def link(self, rank: int) -> Link:
        return Link(self, rank)

    def add(self, rank: int, values: Sequence[float]) -> list[float]:
        self._barrier.wait()
        self._told[rank] = values
        self._barrier.wait()
        return [sum(numbers) for numbers in zip(*self._told.values(), strict=True)]


class Link:
    def __init__(self, sums: Sums, rank: int) -> None:
        self._sums, self._rank = sums, rank

    def total(self, values: Sequence[float]) -> list[float]:
        return self._sums.add(self._rank, values)

    def average(self, variables: Sequence[Any]) -> Callable[[Sequence[float], float], tuple[list[float], float]]:
        def exchange(numbers: Sequence[float], weight: float) -> tuple[list[float], float]:
            values = [variable.value * weight if weight else 0.0 for variable in variables]
            if not all(map(math.isfinite, values)):
                numbers = [-number if place % SLOTS == WEIGHT else number for place, number in enumerate(numbers)]
            total = self.total([*numbers, *values])
            numbers, values = total[: len(numbers)], total[len(numbers) :]
            weights = numbers[WEIGHT::SLOTS]
            off = 0.0
            for variable, value in zip(variables, values, strict=True):
                if min(weights) >= 0 and sum(weights) > 0:
                    off = abs(variable.value - value / sum(weights))
                    variable.value = value / sum(weights)
            return list(numbers), off

        return exchange


def together(count: int, member: Callable[[Group], Any], **options: Any) -> list[Any]:
    """Call a function with the group of each of several members at once; returns what they return."""
    sums = Sums(count)
    names = [f"worker:{rank}" for rank in range(count)]
    state = {"optimizer_state": options.pop("optimizer_state", False)}
    groups = [Group(names, rank, sums.link(rank), Interval(**options), **state) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(member, group) for group in groups]
        return [future.result() for future in running]


def failures(count: int, member: Callable[[Group], Any], **options: Any) -> list[GridtfError]:
    def caught(group: Group) -> GridtfError:
        with pytest.raises(GridtfError) as error:
            member(group)
        return error.value

    return together(count, caught, **options)


def test_attach_gives_all_members_the_leader_s_values() -> None:
    def member(group: Group) -> list[float]:
        model = Model(10.0 + group.rank, 20.0 + group.rank)
        group.attach(model)
        return model.values

    assert together(3, member) == [[10.0, 20.0]] * 3


def test_members_whose_data_end_at_different_steps_end_together_with_equal_values() -> None:
    def member(group: Group) -> tuple[list[float], list[int]]:
        model = Model(0.0)
        exchanged = []
        with group:
            group.attach(model)
            for step in range(1, 10 * (group.rank + 1) + 1):
                model.variables[0].value += 1
                group.step()
                if group.exchanged:
                    exchanged.append(step)
        return model.values, exchanged

    done = together(3, member)
    # first the mean of 10, 20 and 20, weighted with the steps; then ten more of the last member, of weight 10 of 10
    mean = (10 * 10 + 20 * 20 + 20 * 20) / 50
    assert [values for values, _ in done] == [[mean + 10]] * 3
    assert [steps for _, steps in done] == [[], [20], [20]]


def test_weights_of_steps_are_added_up_until_the_exchange() -> None:
    def member(group: Group) -> float:
        model = Model(0.0)
        group.attach(model)
        model.variables[0].value = float(group.rank)
        group.step(weight=1 + group.rank)
        group.step(weight=2 * group.rank)
        return model.values[0]

    assert together(2, member, every=2) == [4 / 5] * 2


def test_values_stay_where_all_weights_are_0() -> None:
    def member(group: Group) -> float:
        model = Model(7.0)
        group.attach(model)
        group.finish()
        return model.values[0]

    assert together(2, member) == [7.0] * 2


def test_group_goes_on_after_finish_with_the_same_model() -> None:
    def member(group: Group) -> float:
        model = Model(0.0)
        for _ in range(2):
            group.attach(model)
            for _ in range(group.rank):  # the first member makes no step at all
                model.variables[0].value += 3
                group.step()
            group.finish()
            group.finish()
        return model.values[0]

    assert together(2, member) == [6.0] * 2


def test_group_tells_its_exchanges_its_steps_and_how_far_it_was_from_the_mean() -> None:
    def member(group: Group) -> dict[str, Any]:
        group._seen = Seen(7)  # type: ignore[assignment]
        model = Model(0.0)
        group.attach(model)
        assert group.told() == {"exchanges": 0, "steps": 7, "due": True}  # the program's own steps: none was announced
        for _ in range(7):
            model.variables[0].value += 1 + group.rank
            group.step()
        group.finish()
        return group.told()

    assert together(2, member, every=3) == [{"exchanges": 3, "steps": 7, "distance": 0.5}] * 2


@pytest.mark.parametrize(
    ("steps", "elapsed", "interval", "due"),
    [
        (20, 0.0, {"every": 20}, True),
        (19, 99.0, {"every": 20}, False),
        (0, 99.0, {"every": 20}, False),  # it has evaluated only
        (1, 6.0, {"seconds": 5}, True),
        (99, 4.0, {"seconds": 5}, False),
        (0, 99.0, {"seconds": 5}, False),
    ],
)
def test_exchange_that_was_due_and_not_made_is_told(
    monkeypatch: pytest.MonkeyPatch, steps: int, elapsed: float, interval: dict[str, Any], due: bool
) -> None:
    group = Group(["worker:0", "worker:1"], 0, Link(Sums(1), 0), Interval(**interval))
    group._seen = Seen(steps, since=100.0 if steps else None)  # type: ignore[assignment]
    monkeypatch.setattr("time.monotonic", lambda: 100.0 + elapsed)
    assert group.told() == {"exchanges": 0, "steps": steps, "due": due}


def test_layers_that_have_learned_different_things_are_an_error_in_all_members() -> None:
    def member(group: Group) -> None:
        group._seen = Seen(learned=[("text (TextVectorization)", f"of {group.rank}", 0.0, 0.0)])  # type: ignore[assignment]
        group.attach(Model(1.0))

    assert {error.hint for error in failures(2, member)} == {
        "adapt layers before group.share(…), or to all of the data"
    }


def test_exchanges_by_time_need_no_equal_number_of_steps() -> None:
    def member(group: Group) -> tuple[float, int]:
        model = Model(0.0)
        group.attach(model)
        steps = 0
        while not group.exchanged:
            steps += 1
            clocks[group.rank] += 1.0 + group.rank  # the second member takes two seconds a step
            model.variables[0].value = 1.0 + group.rank
            group.step()
        return model.values[0], steps

    clocks = [0.0, 0.0]
    sums = Sums(2)
    names = ["worker:0", "worker:1"]
    intervals = [Interval(seconds=8, clock=lambda rank=rank: clocks[rank]) for rank in (0, 1)]  # type: ignore[misc]
    groups = [Group(names, rank, sums.link(rank), interval) for rank, interval in enumerate(intervals)]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(member, groups))
    assert done == [((8 * 1 + 4 * 2) / 12, 8), ((8 * 1 + 4 * 2) / 12, 4)]


def test_checkpoint_requested_from_one_member_is_agreed_by_all_at_the_same_exchange() -> None:
    def member(group: Group) -> tuple[list[bool], list[str]]:
        called: list[str] = []
        group.on_agreed_checkpoint = lambda: called.append("saved")
        group._wish = lambda: bool(requested) and group.rank == 1
        agreed = []
        group.attach(Model(0.0))
        for step in range(6):
            if group.rank == 1 and step == 2:
                requested.append("now")
            group.step()
            agreed.append(group.agreed_checkpoint)
        return agreed, called

    requested: list[str] = []
    assert together(2, member, every=2) == [([False, False, False, True, True, True], [])] * 2


def test_member_that_has_finished_learns_of_an_agreed_checkpoint() -> None:
    def member(group: Group) -> list[str]:
        called: list[str] = []
        group.on_agreed_checkpoint = lambda: called.append("saved")
        group._wish = lambda: group.rank == 1
        group.attach(Model(0.0))
        for _ in range(2 * group.rank):
            group.step()
        group.finish()
        return called

    # the first member is asked at the exchange after two steps of the second, and when that one finishes
    assert together(2, member, every=2) == [["saved", "saved"], ["saved"]]


def test_only_floating_point_variables_are_averaged() -> None:
    def member(group: Group) -> list[float]:
        counter = Variable("counter", 1.0 + group.rank, "int64")
        half = Variable("half", 1.0 + group.rank, "bfloat16")
        group.attach([counter, half])
        return [counter.value, half.value]

    assert together(2, member) == [[1.0, 1.0], [2.0, 1.0]]


def test_share_is_every_nth_example_of_all_parts_of_the_data() -> None:
    x, y = range(10, 20), bytes(range(10))  # anything that has a length and slices, such as an array
    shares = together(3, lambda group: group.share(x, {"y": y}, None))
    assert [list(share[0]) for share in shares] == [[10, 13, 16, 19], [11, 14, 17], [12, 15, 18]]
    assert [list(share[1]["y"]) for share in shares] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert {share[2] for share in shares} == {None}
    assert together(2, lambda group: group.share([x, y])) == [[x[0::2], y[0::2]], [x[1::2], y[1::2]]]
    assert together(2, lambda group: group.share([1, 2, 3])) == [[1, 3], [2]]
    assert together(1, lambda group: group.share(x)) == [x]
    assert together(2, lambda group: group.share([Fraction(1), Fraction(2)])) == [[1], [2]]  # as scalars of NumPy


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (range(1), "group.share(): 1 examples (or batches) for 2 tasks"),
        (iter([1, 2]), "group.share() cannot divide data of type list_iterator"),
        ({1, 2}, "group.share() cannot divide data of type set"),
        (3, "group.share() cannot divide data of type int"),
        (Batches(), "group.share() cannot divide data of type Batches"),
        ("train.csv", "group.share() cannot divide data of type str"),
    ],
    ids=["fewer than members", "iterator", "set", "number", "PyDataset", "name of a file"],
)
def test_data_that_cannot_be_shared_are_refused(data: object, what: str) -> None:
    assert [error.what for error in failures(2, lambda group: group.share(data))] == [what] * 2


def test_optimizer_state_is_averaged_when_asked_for_and_built_where_it_is_not() -> None:
    class Optimizer(Model):
        built = False

        def build(self, variables: list[Variable]) -> None:
            self.variables = [Variable(f"{variable.name}/moment", 5.0 + group.rank) for variable in variables]

    class Compiled(Model):
        def __init__(self) -> None:
            super().__init__(1.0)
            self.trainable_variables = self.variables
            self.optimizer = Optimizer()

    group: Group

    def member(own: Group) -> list[float]:
        nonlocal group
        group = own
        model = Compiled()
        own.attach(model)
        return model.optimizer.values

    assert together(1, member, optimizer_state=True) == [[5.0]]
    assert together(1, member) == [[]]
    (error,) = failures(1, lambda own: own.attach(Model(1.0)), optimizer_state=True)
    assert error.hint == "write group.attach(model, optimizer)"


def test_member_that_has_diverged_is_named_in_all_and_nobody_gets_its_values() -> None:
    models = [Model(1.0) for _ in range(3)]

    def member(group: Group) -> None:
        group.attach(models[group.rank])
        for value in (1.0, 2.0, 3.0, float("nan") if group.rank == 1 else 4.0):
            models[group.rank].variables[0].value = value
            group.step()

    assert {error.what for error in failures(3, member, every=2)} == {"averaging after step 4: worker:1 has diverged"}
    assert [models[rank].values for rank in (0, 2)] == [[4.0]] * 2


def test_all_members_follow_the_leader_at_the_end_of_fit() -> None:
    def member(group: Group) -> float:
        model = Model(0.0)
        group.attach(model)
        group.step()
        group.finish()
        model.variables[0].value = 3.0 + group.rank
        group.follow()
        group.finish()
        return model.values[0]

    assert together(2, member) == [3.0] * 2


def test_different_models_are_an_error_in_all_members() -> None:
    errors = failures(3, lambda group: group.attach(Model(1.0, *([2.0] if group.rank == 2 else []))))
    assert {str(error) for error in errors} == {
        "worker:0 and worker:2 have attached different models\n"
        "variable 2 is missing at worker:0, v1 float32 [] at worker:2\n"
        "build the model by the same lines in every task, and no other model before it"
    }


def test_step_without_a_model_says_what_to_call() -> None:
    (error,) = failures(1, lambda group: group.step(), every=20)
    assert error.what == "group.step() before group.attach(model)"
    (error,) = failures(1, lambda group: group.finish())
    assert error.hint.startswith("call group.attach(model)")


def test_model_without_variables_is_refused() -> None:
    (error,) = failures(1, lambda group: group.attach(Model()))
    assert error.hint == "build it before: model.build(input_shape), or call it once"
    (error,) = failures(1, lambda group: group.attach("model"))
    assert error.what == "str has no variables"


def test_variable_that_is_created_later_is_an_error() -> None:
    def member(group: Group) -> None:
        model = Model(1.0)
        group.attach(model)
        model.variables.append(Variable("late", 1.0))
        group.step()

    (error,) = failures(1, member, every=1)
    assert error.what == "late was created after group.attach(model), and is not averaged"


def test_second_model_is_refused() -> None:
    def member(group: Group) -> None:
        group.attach(Model(1.0))
        group.attach(Model(1.0))

    (error,) = failures(1, member)
    assert error.what == "group.attach() was called before, with other variables"


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weight_that_is_none_is_refused(weight: float) -> None:
    (error,) = failures(1, lambda group: group.step(weight))
    assert "a weight is 0 or greater, and finite" in error.what


def test_block_that_raises_does_not_wait_for_the_others() -> None:
    sums = Sums(2)
    group = Group(["worker:0", "worker:1"], 0, sums.link(0))
    group._average = lambda numbers, weight: pytest.fail("an exchange")
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError


# --- training.averaging() --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_group", None)
    monkeypatch.delenv("GRIDTF_TASK_TYPE", raising=False)


def test_outside_of_gridtf_a_group_has_one_member() -> None:
    assert current() is None
    group = averaging(every=2)
    assert current() is group
    assert group.members == ("this process",)
    model = Model(3.0)
    with group:
        group.attach(model)
        exchanged = []
        for _ in range(3):
            group.step()
            exchanged.append(group.exchanged)
    assert exchanged == [False, True, False]
    assert model.values == [3.0]


def test_second_call_is_refused() -> None:
    averaging()
    with pytest.raises(GridtfError, match="called twice"):
        averaging()


@pytest.mark.parametrize("arguments", [{"every": 0}, {"every": 2.5}, {"every": True}, {"seconds": 0}, {"seconds": -1}])
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"averaging\\({next(iter(arguments))}="):
        averaging(**arguments)


def test_members_are_the_tasks_that_train_in_rank_order() -> None:
    def members(task_type: str, **cluster: int) -> tuple[str, ...]:
        addresses = {kind: tuple(f"h:{index + 1}" for index in range(count)) for kind, count in cluster.items()}
        return module._members(Task(task_type, 0, addresses, "1", "job", 1, Path(), Path(), (), None, None))

    assert members("worker", worker=2, ps=1, master=1) == ("master:0", "worker:0", "worker:1")
    assert members("worker", worker=3) == ("worker:0", "worker:1", "worker:2")
    assert members("worker", worker=2, reader=1) == ("worker:0", "worker:1")  # a type of the job's own
    assert members("evaluator", worker=3) == ("evaluator:0",)


def test_member_that_waits_long_for_the_others_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    said = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stderr, "flush", said.set)
        with module._notice("waits", seconds=0.01):
            assert said.wait(20)
    with module._notice("not said"):
        pass
    assert capsys.readouterr().err == "waits\n"


def test_model_of_another_backend_is_refused() -> None:
    class Value:
        trainable = True

    class Wrapped:
        name, value = "kernel", Value()

    class OfJax:
        variables = (Wrapped(),)

    with pytest.raises(GridtfError, match="the variables of OfJax are not TensorFlow's: Keras has another backend"):
        Group(["worker:0"], 0, Link(Sums(1), 0), Interval(every=2)).attach(OfJax())
