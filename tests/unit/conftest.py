"""Fixtures for all unit tests."""

from __future__ import annotations

import pytest

from gridtf.jobspec import precheck


@pytest.fixture(autouse=True)
def _any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests name programs that need not exist; jobspec/test_precheck_commands.py replaces this fixture."""
    monkeypatch.setattr(precheck, "check_commands", lambda spec, environ: None)
