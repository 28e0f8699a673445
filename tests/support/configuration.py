"""Reading a configuration as the command line does."""

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
    """The user's configuration file (tests have a separate one)."""
    return write(Path(os.environ["XDG_CONFIG_HOME"]) / "gridtf" / "config.toml", text)


def strangers(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> int:
    """Let files appear to belong to another user; returns that user's id. Other files keep their owner."""
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
