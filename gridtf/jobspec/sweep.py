"""A sweep: the axes of ``[sweep]`` in a job file become rows of parameters, one for each element of a job array. Pure.

The rows are the product of all lists, ranges and rows of a file; for each of them random axes are drawn ``draws``
times.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gridtf.errors import SpecError, nearest
from gridtf.jobspec.checks import check_parameter
from gridtf.jobspec.primitives import spell
from gridtf.jobspec.spec import JobSpec
from gridtf.text import some
from gridtf.values import Value

Row = Mapping[str, Any]
SETTINGS = ("draws", "seed", "file", "at_once")  # keys of [sweep] that are no parameters
MOST = 10_000  # elements, unless a site says otherwise
_LARGEST = 1e300  # so that no sum and no difference is infinite
AT_ONCE = 10  # elements that run at once, unless a user says otherwise
_RANGE, _RANDOM, _CHOICE = ({"from", "to"}, {"step"}), ({"low", "high"}, {"log"}), ({"choice"}, set[str]())
_FORMS = 'write [0.1, 0.01], {from = 2, to = 8, step = 2}, {low = 1e-4, high = 0.1, log = true} or {choice = ["a"]}'
_USED = r"\{\{\s*([\w-]+)\s*\}\}|\{params(?:\.([\w-]+))?\}"


class Sweep(Value):
    """What runs as the elements of one job array.

    Attributes:
        rows: The parameters of each element that differ from those of the job; the first element is number 1.
        at_once: How many elements of the array run at once.
        pack: How many rows share the allocation of one element, which has the number of the first of them.
        numbers: Of a sweep that runs elements of another one again: their numbers there. Empty: they are its own.
    """

    rows: tuple[Row, ...]
    at_once: int = AT_ONCE
    pack: int = 1
    numbers: tuple[int, ...] = ()

    @property
    def elements(self) -> tuple[str, ...]:
        """The numbers of the rows, as names of their run directories."""
        return tuple(str(number) for number in range(1, len(self.rows) + 1))

    def number(self, element: str) -> int:
        """The number of an element in the sweep that was submitted first."""
        return self.numbers[int(element) - 1] if self.numbers else int(element)


def rows(
    table: Mapping[str, Any],
    params: Mapping[str, object],
    lines: Sequence[Row] | None,
    uniform: Callable[[int], Callable[[], float]],
    most: int = MOST,
) -> tuple[Row, ...]:
    """The rows of a sweep.

    Args:
        table: ``[sweep]``.
        params: The parameters of the job, whose types those of the rows are.
        lines: The rows of its file; None without one.
        uniform: Makes of a seed what draws numbers from 0 (included) to 1.
        most: The most elements that a sweep may have.

    Raises:
        SpecError: Its key is ``sweep.NAME``.
    """
    typed_lines = [{name: typed(name, value, params) for name, value in row.items()} for row in lines or ()]
    axes: list[Sequence[Row]] = [] if lines is None else [typed_lines]
    drawn: dict[str, Callable[[float], object]] = {}
    for name, axis in table.items():
        if name in SETTINGS:
            continue
        if name not in params:
            raise _unknown(name, params)
        if lines and name in lines[0]:
            raise SpecError(f"sweep.{name}", "the file of rows has a column of that name", hint="leave out one of them")
        made = _axis(name, axis, params[name], most)
        if callable(made):
            drawn[name] = made
        else:
            axes.append([{name: value} for value in made])
    draws, seed = _whole(table, "draws", 1), _whole(table, "seed", 0)
    if not drawn and "draws" in table:
        raise SpecError("sweep.draws", "nothing is drawn", hint="write an axis such as lr = {low = 1e-4, high = 0.1}")
    count = math.prod(map(len, axes)) * draws
    if not (axes or drawn) or not count:
        raise SpecError("sweep", "it has no elements", hint="write the values of a parameter: lr = [0.1, 0.01]")
    if count > most:
        raise too_many(count, most)
    draw = uniform(seed)
    return tuple(
        {name: value for row in chosen for name, value in row.items()}
        | {name: of_number(draw()) for name, of_number in drawn.items()}
        for chosen in itertools.product(*axes)
        for _ in range(draws)
    )


class TooMany(SpecError):
    """A sweep has more elements than it may have."""


def too_many(count: int, most: int, why: str = "") -> TooMany:
    """The error for a sweep that has more elements than it may have. why: who says so."""
    hint = "leave out values, or make several sweeps of it"
    return TooMany("sweep", f"it has {count} elements, at most {most} are allowed", why=why, hint=hint)


def notes(spec: JobSpec, made: Sequence[Row]) -> tuple[str, ...]:
    """What users may not expect of a sweep, one line each.

    Args:
        spec: The job.
        made: Its rows.
    """
    seen: dict[tuple[object, ...], int] = {}
    twice = [
        f"{number} (as {first})"
        for number, row in enumerate(made, 1)
        if (first := seen.setdefault(tuple(row.items()), number)) != number
    ]
    told = [f"rows of the sweep that are there already: {some(twice, most=5)}"] if twice else []
    words = [*(spec.command or ()), *map(str, spec.env.values())]
    for table in spec.tasks.values():
        words += [*(table.command or ()), *map(str, table.env.values())]
    if (left := unused(words, list(made[0]))) and not spec.entry:
        told.append(f"no command uses {some(left)}: the program finds {'them' if left[1:] else 'it'} in GRIDTF_PARAMS")
    return tuple(told)


def unused(words: Iterable[str], names: Sequence[str]) -> list[str]:
    """The parameters that are in none of these words of commands: as ``{params.lr}``, ``{{ lr }}`` or ``{params}``."""
    used = {(one or other).replace("-", "_") for one, other in re.findall(_USED, "\n".join(words))}
    return [name for name in names if not {name.replace("-", "_"), ""} & used]


def _unknown(name: str, params: Mapping[str, object]) -> SpecError:
    hint = nearest(name, [*params, *SETTINGS]) or f"name it in [params] first: {name} = …, its value in other jobs"
    return SpecError(f"sweep.{name}", f"there is no parameter {name!r}", hint=hint)


def typed(name: str, value: object, params: Mapping[str, object]) -> object:
    """A value with the type of the parameter.

    Raises:
        SpecError: For another type, and for a parameter that the job does not have.
    """
    if name not in params:
        raise _unknown(name, params)
    like = params[name]
    if isinstance(like, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    finite = not isinstance(value, float) or math.isfinite(value)
    if type(value) is type(like) and finite:
        check_parameter(f"sweep.{name}", value)
        return value
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[type(like)]
    hint = f"it is {spell(like)} in [params]"
    raise SpecError(f"sweep.{name}", f"{spell(value)} is not {kind}", hint=hint)


def _axis(name: str, axis: object, like: object, most: int) -> Sequence[object] | Callable[[float], object]:
    """The values of an axis; of a random one what makes a value of a number from 0 to 1."""
    key = f"sweep.{name}"
    if isinstance(axis, list):
        if not axis:
            raise SpecError(key, "it has no values", hint="leave it out, or write at least one")
        return [typed(name, value, {name: like}) for value in axis]
    if not isinstance(axis, Mapping):
        raise SpecError(key, f"{spell(axis)} is one value", hint=f"write {name} = [{spell(axis)}], or use --set")
    for needed, possible in (_RANGE, _RANDOM, _CHOICE):
        if needed <= axis.keys() <= needed | possible:
            break
    else:
        raise SpecError(key, "it is no list, no range and no random axis", hint=_FORMS)
    if "choice" in axis:
        if not isinstance(axis["choice"], list) or not axis["choice"]:
            raise SpecError(key, "expected a list of values to choose from", hint=_FORMS)
        choices = [typed(name, value, {name: like}) for value in axis["choice"]]
        return lambda at: choices[int(at * len(choices))]
    return _between(key, name, axis, like, most)


def _between(
    key: str, name: str, axis: Mapping[str, Any], like: object, most: int
) -> Sequence[object] | Callable[[float], object]:
    """A range, or a random axis between two numbers, as _axis returns it."""
    if not isinstance(like, int | float) or isinstance(like, bool):
        raise SpecError(key, f"only numbers have ranges, and it is {spell(like)} in [params]", hint="write a list")
    given = {end: axis[end] for end in ("from", "to", "low", "high", "step") if end in axis}
    low, high, *step = (_number(key, typed(name, bound, {name: like})) for bound in given.values())
    if "from" in axis:
        return _range(key, low, high, *(step or [1]), like=like, most=most)
    log = axis.get("log", False)
    if not isinstance(log, bool) or low >= high or (log and low <= 0):
        raise SpecError(key, "low has to be below high, and above 0 with log = true", hint=_FORMS)

    def draw(at: float) -> object:
        if isinstance(like, int):  # high is one of its values
            value = math.exp(math.log(low) + at * math.log((high + 1) / low)) if log else low + at * (high + 1 - low)
            return min(int(value), high)
        return math.exp(math.log(low) + at * (math.log(high) - math.log(low))) if log else low + at * (high - low)

    return draw


def _number(key: str, value: Any) -> Any:
    if abs(value) > _LARGEST:
        raise SpecError(key, f"numbers of a range are at most {_LARGEST:g}")
    return value


def _range(key: str, first: float, last: float, step: float, *, like: object, most: int) -> list[object]:
    """The values from one to another, both of them included."""
    steps = (last - first) / step if step else -1.0
    count = math.floor(steps + 1e-9) + 1 if math.isfinite(steps) else 0
    if count < 1:
        what = f"from {first:g} to {last:g} in steps of {step:g} there are no values"
        raise SpecError(key, what, hint="write a step that leads from one to the other")
    if count > most:
        raise too_many(count, most)
    values = [first + number * step for number in range(count)]
    return [*values] if isinstance(like, int) else [float(f"{value:.12g}") for value in values]


def _whole(table: Mapping[str, Any], name: str, default: int) -> int:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < min(default, 1):
        why = f"the keys {', '.join(SETTINGS)} of [sweep] are no parameters"
        raise SpecError(f"sweep.{name}", f"{spell(value)} is not a whole number from {min(default, 1)} on", why=why)
    return value
