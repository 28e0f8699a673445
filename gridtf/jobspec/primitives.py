"""Checks of one value, whatever its key: each raises SpecError, with what to write. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gridtf.errors import SpecError
from gridtf.jobspec import units
from gridtf.text import toml

ID = re.compile(r"(?a)\d+([._]\d+)*")  # a name of this form cannot be told from the id of a job
# Slurm's words for "no limit". gridtf needs numbers; --native passes these to the scheduler alone.
_LIMITLESS = ("0", "-1", "unlimited", "infinite")


def as_name(text: str) -> str:
    """The name of a job that is called after something else, such as a program; empty where no letter is left."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]", "-", text).lstrip(".+=-")
    return (f"run-{name}" if ID.fullmatch(name) else name)[:63]


def spell(value: object) -> str:
    """Format a value as a job file (TOML) spells it, for messages."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {spell(item)}' for key, item in value.items())}}}"
    return repr(value) if isinstance(value, str) else str(value)


def check_whole(key: str, value: object, least: int) -> None:
    """Check an optional value that must be a whole number of ``least`` or more."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        plain = str(value).removesuffix(".0")  # of "2" or 2.0
        meant = plain if re.fullmatch("[0-9]{1,9}", plain) and int(plain) >= least else ""
        quoted = meant and meant == value
        hint = f"write {meant}, without quotes" if quoted else f"write a number, such as {meant or max(least, 2)}"
        if key.rpartition(".")[2] in units.GPU_KEYS and re.search("[A-Za-z]", str(value)):
            model = value if re.fullmatch(r"[\w.+-]+", str(value)) else "a100"
            hint = f'write one model and a number, such as "{model}:2"'
        raise SpecError(key, f"{spell(value)} is not a whole number of {least} or more", hint=hint)
    if isinstance(value, int) and value > units.MOST:
        raise SpecError(key, f"{value} is more than the maximum, {units.MOST}")


def check_text(key: str, value: object) -> None:
    """Check an optional value that must be text on one line.

    Args:
        key: Its dotted key, for the error.
        value: The value; None passes.

    Raises:
        SpecError: When it is not a string, empty or contains a control character.
    """
    if value is None:
        return
    if not isinstance(value, str) or not value:
        texts = [item for item in (value if isinstance(value, list | tuple) else [value]) if item not in (None, "")]
        hint = f"write {key} = {toml(str(texts[0]))}" if len(texts) == 1 and not isinstance(texts[0], bool) else ""
        hint = hint or ("leave it out, or give it a value" if value == "" else "")
        raise SpecError(key, f"{spell(value)} is not a non-empty string", hint=hint)
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise SpecError(key, f"{value!r} contains a control character", hint="leave out newlines, tabs and the like")


def as_list(name: str, text: str) -> str:
    """What to write in place of a string, as a hint."""
    from gridtf.jobspec import synonyms

    return f"write {name} = {toml(synonyms.as_list(name, text))}"


def as_tuple(key: str, value: object) -> tuple[Any, ...]:
    """The items of a value that must be a list."""
    if isinstance(value, str) or not isinstance(value, Sequence):  # a string is a sequence as well
        what = "one string" if isinstance(value, str) else spell(value)
        hint = as_list(key, value) if isinstance(value, str) else ""
        raise SpecError(key, f"expected a list of strings, not {what}", hint=hint)
    return tuple(value)


def check_strings(key: str, value: object) -> tuple[str, ...]:
    """Check a list of strings.

    Args:
        key: Its dotted key, for the error.
        value: The value.

    Returns:
        The list.

    Raises:
        SpecError: When it is something else, or an item is not a string.
    """
    items = as_tuple(key, value)
    check_each(key, items, newlines=True)
    return items


def check_each(key: str, value: Sequence[object], *, newlines: bool) -> None:
    """Check that all items are strings that can be passed on, with newlines or without."""
    for item in value:
        if not isinstance(item, str):
            raise SpecError(key, f"{spell(item)} is not a string")
        if "\0" in item or (not newlines and "\n" in item):
            raise SpecError(key, f"{item!r} contains a {'NUL' if newlines else 'newline'}, which cannot be passed on")


def check_parsed(key: str, value: str | int | None, parse: Callable[[str | int], object], forms: str) -> None:
    """Check an optional value by what parses it; ``forms``: what may be written."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SpecError(key, f"{spell(value)} is of the wrong type", hint=f"write {forms}")
    try:
        parse(value)
    except ValueError as error:
        limitless = key in ("time", "mem") and str(value).lower() in _LIMITLESS
        hint = f"write {forms}"
        if limitless:
            hint = f'no limit is an option of Slurm itself: --native=--{key}=0, or native = ["--{key}=0"] in a file'
        raise SpecError(key, str(error), hint=hint) from None
