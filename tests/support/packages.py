"""Debian packages, for tests that need their programs."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need_program(name: str) -> str:
    """The path of a program, installed from the package of its name; skips the test where that is impossible."""
    if found := shutil.which(name):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"needs {name}, and it cannot be installed without root and apt-get")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", name]):
        subprocess.run(["apt-get", "-q", *command], env=environ, capture_output=True, timeout=240)
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} cannot be installed here")
    return found
