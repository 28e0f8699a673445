"""Makes each start of TensorFlow in the tests a fifth shorter, and then an eighth.

It hides scikit-learn, which the examples need, from Keras, which imports it wherever it is installed, for wrappers that
nothing here uses; where users train it mostly is not. And it has Python look for garbage less often: of what the import
of TensorFlow makes, 280,000 objects stay. scripts/test copies this file into the tests' environment, where every Python
calls begin() as it starts.
"""

from __future__ import annotations

import gc
import sys

_MORE_OBJECTS = 50_000  # than 700 before Python looks for garbage among them


class KerasWithoutSklearn:
    """A finder of modules that hides scikit-learn from Keras alone."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Leave the search to other finders.

        Raises:
            ModuleNotFoundError: Keras imports scikit-learn.
        """
        if name == "sklearn" and _importer().startswith("keras."):
            raise ModuleNotFoundError("the tests hide scikit-learn from Keras", name=name)


def begin() -> None:
    sys.meta_path.insert(0, KerasWithoutSklearn)
    gc.set_threshold(_MORE_OBJECTS)


def _importer() -> str:
    """The module that imports something."""
    frame = sys._getframe(2)
    while frame.f_back and "importlib" in frame.f_globals["__name__"]:  # importlib._bootstrap, _frozen_importlib
        frame = frame.f_back
    return str(frame.f_globals["__name__"])
