"""tf_keras for the TensorFlow of these tests. Its package requires the one for GPUs, so it is unpacked alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

_FOLDER = ROOT / ".venv-test.tf_keras"


def need_tf_keras() -> Path:
    """The folder of tf_keras, for PYTHONPATH; skips the test where it cannot be had, which under CI is a failure."""
    with Path(f"{_FOLDER}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_FOLDER / "tf_keras").exists():
            part = Path(f"{_FOLDER}.part")
            shutil.rmtree(part, ignore_errors=True)
            release = ".".join(version("tensorflow-cpu").split(".")[:2])  # the two are released together
            wanted = ("--no-deps", "--only-binary", ":all:", "--target", str(part), f"tf_keras=={release}.*")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
            if done.returncode != 0:
                if os.environ.get("CI") == "true":
                    raise AssertionError(f"tf_keras cannot be had:\n{done.stderr}")
                pytest.skip(f"tf_keras cannot be had: {done.stderr.strip().splitlines()[-1:]}")
            part.rename(_FOLDER)
    return _FOLDER
