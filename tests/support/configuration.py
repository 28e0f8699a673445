"""Configurations, read as by a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.errors import UsageError
from gridtf.jobspec import config
from gridtf.jobspec.config import Configured

STRANGER = 65534  # nobody


def read(words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> Configured:
    return config.from_arguments(words.split(), {**os.environ, **(environ or {})}, cwd, schedulers.job_options())


def refused(words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(words, cwd, environ)
    return caught.value


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def user_file(text: str) -> Path:
    """Write the user's configuration file (every test has its own)."""
    return write(Path(os.environ["XDG_CONFIG_HOME"]) / "gridtf" / "config.toml", text)


def strangers(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> int:
    """Make files belong to another user, in fact or as far as this process can see; returns the id of that user."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, STRANGER, -1, follow_symlinks=False)
        return STRANGER
    real = os.lstat, os.fstat
    numbers = {path.lstat().st_ino for path in paths}

    def other(found: os.stat_result) -> os.stat_result:
        return os.stat_result((*found[:4], STRANGER, *found[5:])) if found.st_ino in numbers else found

    monkeypatch.setattr(os, "lstat", lambda path: other(real[0](path)))
    monkeypatch.setattr(os, "fstat", lambda descriptor: other(real[1](descriptor)))
    return STRANGER
