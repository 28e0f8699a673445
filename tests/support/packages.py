"""Debian packages, for tests that need their programs and libraries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from testbeds import packages
from testbeds.errors import TestbedError


def need_program(name: str, package: str | None = None) -> str:
    """The path of a program, installed from a package (None: that of its name); skips the test where it cannot be."""
    if found := shutil.which(name):
        return found
    _install(name, package or name)
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} cannot be installed here")
    return found


def need_library(name: str, package: str) -> str:
    """The path of a library below this machine's library folder; skips the test where it cannot be installed."""
    path = Path(f"/usr/lib/{os.uname().machine}-linux-gnu", name)
    if not path.exists():
        _install(str(path), package)
    if not path.exists():
        pytest.skip(f"{package} cannot be installed here")
    return str(path)


def _install(thing: str, package: str) -> None:
    """Install a package that has this command or file, whatever else installs packages at the same time."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"needs {package}, and it cannot be installed without root and apt-get")
    try:
        packages.need({thing: package}, lambda line: None)
    except TestbedError as error:
        pytest.skip(f"{package} cannot be installed here: {error}")
