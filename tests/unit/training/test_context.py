"""The request for a checkpoint, as entry functions see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf import contract
from gridtf.training.context import Context


def test_context_and_gridtf_see_the_same_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.LOCAL_DIR, str(tmp_path))
    task: Any = None
    context = Context(task)
    assert (context.checkpoint_requested, gridtf.checkpoint_requested()) == (False, False)
    (tmp_path / contract.NOTICE).touch()
    assert (context.checkpoint_requested, gridtf.checkpoint_requested()) == (True, True)
    context.checkpoint_saved()
    assert (context.checkpoint_requested, gridtf.checkpoint_requested()) == (False, True)
