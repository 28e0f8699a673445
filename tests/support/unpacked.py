"""Python packages that are unpacked alone, beside the environment of these tests: some require another TensorFlow."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT


def need_unpacked(name: str, *wanted: str, how: str = "--target") -> Path:
    """The folder of these packages; skips the test where they cannot be had, which under CI is a failure.

    Args:
        name: Of the folder, after that of the environment and before the version of this Python.
        wanted: As pip takes them.
        how: pip's option for the folder: ``--prefix`` for packages with more than modules.
    """
    folder = ROOT / f".venv-test.{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = Path(f"{folder}.part")
            shutil.rmtree(part, ignore_errors=True)
            options = ("--no-deps", "--only-binary", ":all:", how, str(part))
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
            done = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=200, check=False)
            if done.returncode != 0:
                if os.environ.get("CI") == "true":
                    raise AssertionError(f"{name} cannot be had:\n{done.stderr}")
                pytest.skip(f"{name} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
            part.rename(folder)
    return folder
