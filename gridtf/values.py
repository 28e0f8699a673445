"""Base classes of classes that are defined by their fields: the standard library's dataclasses, but quick to start.

The module dataclasses imports 15 others, such as inspect, ast and tokenize, and takes a millisecond to make a class:
together they were a third of the time in which the launcher and the agents started, and of the files that they read.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, ClassVar, TypeVar

    from typing_extensions import Self, dataclass_transform

    V = TypeVar("V", bound="Value")
    K = TypeVar("K")
    Item = TypeVar("Item")
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


class _Constructed:
    """Base of a class whose annotations are the arguments of its constructor, in this order, with their defaults.

    A subclass may define ``__post_init__``, which is called when the fields are set. A default that is a dict is copied
    for every object.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}
    _types: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        typed = cls.__annotations__.items()
        own = [name for name, kind in typed if name not in cls._fields and not str(kind).startswith("ClassVar")]
        cls._fields = (*cls._fields, *own)
        cls._types = {**cls._types, **cls.__annotations__}
        cls._defaults = {**cls._defaults, **{name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}}

    if not TYPE_CHECKING:  # type checkers know the arguments of each class

        def __init__(self, *values: Any, **named: Any) -> None:
            cls, state = type(self), self.__dict__
            state.update(zip(cls._fields, values, strict=False))
            for name in cls._fields[len(values) :]:
                if name in named:
                    state[name] = named.pop(name)
                elif name in cls._defaults:
                    default = cls._defaults[name]
                    state[name] = default.copy() if type(default) is dict else default
                else:
                    raise TypeError(f"{cls.__name__}() needs the argument {name!r}")
            if len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__}() takes {len(cls._fields)} arguments, not {len(values)}")
            for name in named:
                raise TypeError(f"{cls.__name__}() takes no argument {name!r}, or was given it twice")
            self.__post_init__()

    def __post_init__(self) -> None:
        """Complete the object, or check it."""

    def replace(self, **changes: Any) -> Self:
        """A value with some fields changed.

        Args:
            changes: Field -> its new value.

        Raises:
            TypeError: For a field that the value does not have.
        """
        return type(self)(**{**self._state(), **changes})

    __replace__ = replace  # copy.replace, from Python 3.13 on

    def _state(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self._fields}


@dataclass_transform()
class Fields(_Constructed):
    """Base of a class with a state: its annotations are the arguments of its constructor, with their defaults."""


@dataclass_transform(frozen_default=True)
class Value(_Constructed):
    """Base of a value: its fields cannot be set again, and values with the same fields are equal."""

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: see replace()")

        def __delattr__(self, name: str) -> None:
            self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        return self._state() == other._state() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._state().values()))

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._state().items())
        return f"{type(self).__name__}({', '.join(shown)})"


def fields(cls: type[Value]) -> dict[str, Any]:
    """The fields of a class: name -> its default; None also for a field without one."""
    return {name: cls._defaults.get(name) for name in cls._fields}


def as_dict(value: Any) -> Any:
    """A value as a dict of its fields, as JSON has it; values in its fields, also in lists and dicts, likewise."""
    if isinstance(value, Value):
        return {name: as_dict(getattr(value, name)) for name in value._fields}
    if isinstance(value, list | tuple):
        return [as_dict(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return {key: as_dict(item) for key, item in value.items()} if isinstance(value, dict) else value


def grouped(pairs: Iterable[tuple[K, Item]]) -> dict[K, list[Item]]:
    """Key -> all that stands with it, both in the order of the pairs."""
    found: dict[K, list[Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


Items = tuple[str, list[str], "type[Value] | None"]
_items_of: dict[type[Value], dict[str, Items]] = {}


def items(cls: type[Value]) -> dict[str, Items]:
    """What the fields of a class hold, by its annotations.

    Returns:
        Name -> (the container: tuple, frozenset, Mapping or empty for none; what is in its brackets, or the type of the
        only item, such as ``int | None``; the class of the items if these are values).
    """
    if cls not in _items_of:
        known, _items_of[cls] = vars(sys.modules[cls.__module__]), {}
        for name in cls._fields:
            container, _, inside = cls._types[name].rpartition("[")
            types = inside.rstrip("]").split(", ")
            own = known.get(types[0])
            _items_of[cls][name] = container, types, own if isinstance(own, type) and issubclass(own, Value) else None
    return _items_of[cls]


def of_dict(cls: type[V], data: Mapping[str, Any]) -> V:
    """The value of which as_dict has made this, also after JSON; unknown keys are ignored.

    Args:
        cls: Its class.
        data: Of the kind recordtypes.kind_of(cls).
    """
    values = {name: data[name] for name in cls._fields if name in data}
    for name, (container, _, own) in items(cls).items():
        if container in _LISTED and name in values:
            values[name] = _LISTED[container](of_dict(own, item) if own else item for item in values[name])
    return cls(**values)


_LISTED: dict[str, Any] = {"tuple": tuple, "frozenset": frozenset}
