"""Fixtures for all unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any

import jinja2
import pytest

from gridtf.jobspec import precheck


@pytest.fixture(scope="session", autouse=True)
def _templates_compiled_once() -> Iterator[None]:
    """A template is compiled once for all tests of a process, which takes longer than most tests do."""
    compiled: dict[object, CodeType] = {}
    compile_anew = jinja2.Environment.compile

    def compile_once(self: jinja2.Environment, source: Any, *names: Any, **options: Any) -> Any:
        written = type(self), self.comment_start_string, self.autoescape, self.undefined, *self.filters
        key = (source, names, *sorted(options.items()), written)
        if key not in compiled:
            compiled[key] = compile_anew(self, source, *names, **options)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", compile_once)
        yield


@pytest.fixture(autouse=True)
def _any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests name programs that need not exist; jobspec/test_precheck_commands.py replaces this fixture."""
    monkeypatch.setattr(precheck, "check_commands", lambda spec, environ: None)
