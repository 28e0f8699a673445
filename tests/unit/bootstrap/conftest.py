"""Fixtures for tests of what runs in a job."""

from __future__ import annotations

import pytest

from gridtf.bootstrap.launcher import endofjob
from tests.support.system import InlineHelper


@pytest.fixture(autouse=True)
def _answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated scheduler is asked in this process."""
    monkeypatch.setattr(endofjob, "Helper", InlineHelper)
