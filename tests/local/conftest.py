"""Fixtures for tests with real jobs of the local scheduler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridtf
from gridtf.login.job import Job
from gridtf.run import registry


@pytest.fixture
def here(rough_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A working folder; jobs that still run at the end are cancelled."""
    monkeypatch.setenv("PYTHONPATH", str(Path(gridtf.__file__).parents[1]))
    monkeypatch.setenv("GRIDTF_LOCKS", str(tmp_path))
    monkeypatch.setenv("GRIDTF_SUBMIT_SCHEDULER", "local")
    yield rough_path
    for run in registry.runs(os.environ):
        Job(run).cancel(wait=10)
