"""Parameters of a job: the values of ``[params]`` and ``--set``, by type."""

from __future__ import annotations

from collections.abc import Mapping

from gridtf.errors import SpecError, nearest
from gridtf.jobspec.jobfile import toml_parser
from gridtf.jobspec.primitives import spell


def parameter(name: str, text: str, known: Mapping[str, object]) -> object:
    """The value of a parameter that is given as text.

    Args:
        name: The parameter.
        text: Its value, such as ``0.1``; a TOML value of the type that it has had so far.
        known: Name -> value of the parameters that the job has; empty: any name and type will do.

    Raises:
        SpecError: For an unknown name, and for a value of another type.
    """
    if known and name not in known:
        hint = nearest(name, list(known)) or f"known: {', '.join(known)}"
        raise SpecError(f"params.{name}", f"there is no parameter {name!r}", hint=hint)
    like = known.get(name)
    if isinstance(like, bool):
        text = text.lower()  # True is Python's, and TRUE that of spreadsheets
    try:
        value: object = toml_parser().loads(f"value = {text}")["value"] if text.isprintable() else text
    except ValueError:
        value = text
    if isinstance(like, str) or not isinstance(value, bool | int | float | str):
        return text
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if like is None or type(value) is type(like) or (number and isinstance(like, float)):
        return float(value) if isinstance(like, float) and number else value
    kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(like)]
    raise SpecError(f"params.{name}", f"{text!r} is not {kind}", hint=f"it is {spell(like)} so far")
