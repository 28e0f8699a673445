"""Value and Fields: what dataclasses would do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from gridtf.values import Fields, Value, as_dict, fields


class Port(Value):
    host: str
    number: int = 80
    labels: Mapping[str, Any] = {}


class Range(Port):
    last: int = 90


class Counter(Fields):
    limit: ClassVar[int] = 9
    start: int
    step: int = 1

    def __post_init__(self) -> None:
        self.count = self.start

    def next(self) -> int:
        self.count += self.step
        return self.count


def test_fields_are_arguments_in_their_order_with_their_defaults() -> None:
    assert vars(Port("n1")) == {"host": "n1", "number": 80, "labels": {}}
    assert vars(Port("n1", labels={"a": 1}, number=2)) == {"host": "n1", "number": 2, "labels": {"a": 1}}
    assert vars(Range("n1", 1, {}, 2)) == {"host": "n1", "number": 1, "labels": {}, "last": 2}
    assert fields(Range) == {"host": None, "number": 80, "labels": {}, "last": 90}
    assert repr(Port("n1")) == "Port(host='n1', number=80, labels={})"


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "Port() needs the argument 'host'"),
        (("n1",), {"name": "x"}, "Port() takes no argument 'name', or was given it twice"),
        (("n1",), {"host": "n2"}, "Port() takes no argument 'host', or was given it twice"),
        (("n1", 1, {}, 4), {}, "Port() takes 3 arguments, not 4"),
    ],
)
def test_wrong_arguments_are_type_errors(values: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        Port(*values, **named)
    assert str(caught.value) == message


def test_values_are_equal_by_their_fields_and_cannot_be_changed() -> None:
    port = Port("n1", 1)
    assert port == Port("n1", 1) == pickle.loads(pickle.dumps(port)) == copy.deepcopy(port)
    assert port != Port("n1", 2)
    assert port != Range("n1", 1)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    with pytest.raises(AttributeError, match=r"Port.number cannot be changed"):
        port.number = 3  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"Port.number cannot be changed"):
        del port.number


class Point(Value):
    x: int
    y: int


def test_replace_changes_some_fields() -> None:
    assert Port("n1", 1).replace(number=2) == Port("n1", 2)
    with pytest.raises(TypeError, match="no argument 'nummer'"):
        Port("n1", 1).replace(nummer=2)


def test_objects_do_not_share_a_default_dict() -> None:
    assert Port("n1").labels is not Port("n1").labels


def test_class_with_state_completes_itself_and_is_equal_only_to_itself() -> None:
    counter = Counter(3, step=2)
    assert [counter.next(), counter.next()] == [5, 7]
    assert counter != Counter(3, step=2)


def test_as_dict_converts_values_within_values() -> None:
    assert as_dict(Port("n1", labels={"a": [Point(1, 2)], "b": (Point(3, 4), "c")})) == {
        "host": "n1",
        "number": 80,
        "labels": {"a": [{"x": 1, "y": 2}], "b": [{"x": 3, "y": 4}, "c"]},
    }
