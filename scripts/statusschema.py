"""The JSON Schema of ``gridtf status --json``, made from the fields and the docstrings of gridtf's views of jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from gridtf.observe.views import AttemptView, HostView, JobView, LinkView, TaskView
from gridtf.values import Value

_KINDS = {
    "str": {"type": "string"},
    "Path": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
}
_VIEWS = {view.__name__: view for view in (TaskView, HostView, AttemptView, LinkView)}


def text(attributes: Callable[[type], dict[str, str]]) -> str:
    """The schema.

    Args:
        attributes: The texts of the Attributes section of a class's docstring, by field.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gridtf status --json; gridtf list --json and the status of an array's elements are arrays of these",
        **_of_view(JobView, attributes),
        "$defs": {name: _of_view(view, attributes) for name, view in _VIEWS.items()},
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _of_view(view: type[Value], attributes: Callable[[type], dict[str, str]]) -> dict[str, Any]:
    meanings = attributes(view)
    kinds = view.__annotations__
    properties = {name: {**_of_kind(kinds[name]), "description": meanings[name]} for name in meanings}
    return {"type": "object", "required": list(properties), "properties": properties}


def _of_kind(annotation: str) -> dict[str, Any]:
    """The schema of a field, from its annotation, such as ``str | None`` or ``tuple[TaskView, ...]``."""
    choices = [_of_choice(choice) for choice in re.split(r" \| (?![^\[]*\])", annotation)]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _of_choice(annotation: str) -> dict[str, Any]:
    if annotation in _KINDS:
        return dict(_KINDS[annotation])
    if item := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", annotation):
        inner = item[1]
        return {"type": "array", "items": {"$ref": f"#/$defs/{inner}"} if inner in _VIEWS else dict(_KINDS[inner])}
    assert annotation.startswith("Mapping["), annotation
    return {"type": "object"}
