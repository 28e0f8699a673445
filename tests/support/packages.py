"""Debian packages, for tests that need their programs."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need_program(name: str, package: str = "") -> str:
    """The path of a program, installed from this package or the one of its own name; skips the test where it cannot."""
    if found := shutil.which(name):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"needs {name}, and it cannot be installed without root and apt-get")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", package or name]):
        subprocess.run(["apt-get", "-q", *command], env=environ, capture_output=True, timeout=240)
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} cannot be installed here")
    return found
