"""Reading a configuration as the command line does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf import config
from gridtf.config import Configured
from gridtf.errors import UsageError


def read(words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> Configured:
    return config.from_arguments(words.split(), {**os.environ, **(environ or {})}, cwd)


def refused(words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(words, cwd, environ)
    return caught.value


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def user_file(text: str) -> Path:
    """The user's own configuration file (tests have one of their own)."""
    return write(Path(os.environ["XDG_CONFIG_HOME"]) / "gridtf" / "config.toml", text)
