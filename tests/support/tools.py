"""Tools from the package index that no lock has, since few tests need them: uv makes an environment for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_UV = Path(sys.executable).with_name("uv")
_UNREACHED = ("dns error", "Failed to fetch", "error sending request", "Connection refused", "timed out")


def run_tool(package: str, *command: object, code: int = 0) -> str:
    """Run a command with a package such as ``twine==7.0.0`` at hand; returns what it printed, stderr last.

    Skips the test where the package index is not reached.
    """
    words = [str(_UV), "run", "--no-project", "--quiet", "--with", package, *map(str, command)]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=400, check=False)
    if done.returncode and any(words in done.stderr for words in _UNREACHED):
        pytest.skip(f"{package} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
