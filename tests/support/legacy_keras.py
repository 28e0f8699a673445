"""tf_keras for the TensorFlow of these tests. Its package requires the one for GPUs, so it is unpacked alone."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from tests.support.unpacked import need_unpacked


def need_tf_keras() -> Path:
    """The folder of tf_keras, for PYTHONPATH."""
    release = ".".join(version("tensorflow-cpu").split(".")[:2])  # the two are released together
    return need_unpacked(f"tf_keras-{release}", f"tf_keras=={release}.*")
