"""Makes each start of TensorFlow in the tests a fifth shorter, and then an eighth.

It hides scikit-learn and JAX, which examples need, from Keras and TensorFlow Lite, which import them wherever they are
installed, for what nothing here uses; where users train they mostly are not. And it has Python look for garbage less
often: of what the import of TensorFlow makes, 280,000 objects stay. scripts/test copies this file into the tests'
environment, where every Python calls begin() as it starts.
"""

from __future__ import annotations

import gc
import sys

_HIDDEN = {"sklearn": ("keras.",), "jax": ("tensorflow.lite.", "keras.src.callbacks.")}  # module -> from whom
_MORE_OBJECTS = 50_000  # than 700 before Python looks for garbage among them


class Hidden:
    """A finder of modules that hides these from those who import them for nothing, and from nobody else."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Leave the search to other finders.

        Raises:
            ModuleNotFoundError: One of them imports it.
        """
        if name in _HIDDEN and _importer().startswith(_HIDDEN[name]):
            raise ModuleNotFoundError(f"the tests hide {name} from {_importer()}", name=name)


def begin() -> None:
    sys.meta_path.insert(0, Hidden)
    gc.set_threshold(_MORE_OBJECTS)


def _importer() -> str:
    """The module that imports something."""
    frame = sys._getframe(2)
    while frame.f_back and "importlib" in frame.f_globals["__name__"]:  # importlib._bootstrap, _frozen_importlib
        frame = frame.f_back
    return str(frame.f_globals["__name__"])
